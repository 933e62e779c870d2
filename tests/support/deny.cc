#include "tests/support/deny.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "daemon/base/check.h"

namespace kvartal::testing {

namespace {

constexpr auto kCallAt = static_cast<uint32_t>(offsetof(seccomp_data, nr));

// These calls end with one verdict, all others with another.
void Filter(const std::vector<uint32_t>& calls, uint32_t theirs, uint32_t of_others) {
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kCallAt)};
  for (const uint32_t call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, theirs));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, of_others));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  KV_CHECK(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  KV_CHECK(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0);
}

}  // namespace

void Deny(const std::vector<uint32_t>& calls) { Filter(calls, SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ALLOW); }

void DenyIoUring() { Deny({__NR_io_uring_setup, __NR_io_uring_enter, __NR_io_uring_register}); }

void AllowOnly(const std::vector<uint32_t>& calls) { Filter(calls, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | EPERM); }

void LimitLockedMemory(uint64_t bytes) {
  // Only root has it to lose.
  (void)::prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct held[_LINUX_CAPABILITY_U32S_3] = {};
  KV_CHECK(::syscall(SYS_capget, &header, held) == 0);
  constexpr uint32_t kBit = 1u << CAP_IPC_LOCK;
  held[0].effective &= ~kBit;
  held[0].permitted &= ~kBit;
  held[0].inheritable &= ~kBit;
  KV_CHECK(::syscall(SYS_capset, &header, held) == 0);
  const rlimit limit{bytes, bytes};
  KV_CHECK(::setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
}

}  // namespace kvartal::testing
