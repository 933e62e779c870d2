#include "tools/kvartal-bench/echo_floor.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/attach/attach.pb.h"
#include "daemon/base/clock.h"
#include "daemon/base/limits.h"
#include "daemon/block/block_key.h"

namespace kvartal::bench {
namespace {

constexpr uint64_t kTypicalNumber = 1'000'000;  // of a request, lease or generation: how many bytes it takes in a frame

// In the child: system calls only.
[[noreturn]] void Answer(int fd, std::byte* buffer, size_t buffer_bytes, const EchoSizes& sizes) {
  for (;;) {
    const ssize_t received = ::recv(fd, buffer, buffer_bytes, 0);
    if (received <= 0) ::_exit(0);
    ::send(fd, buffer, sizes.reply_bytes, MSG_NOSIGNAL);
  }
}

}  // namespace

EchoSizes SizesOfLookup(size_t chain) {
  attach::v1::ClientFrame request;
  request.set_request_id(kTypicalNumber);
  request.mutable_lookup()->set_ns(1);
  request.mutable_lookup()->set_keys(std::string(chain * kBlockKeyBytes, 'k'));
  request.mutable_lookup()->set_prompt_tokens(kTypicalNumber);
  request.add_released(kTypicalNumber);
  attach::v1::ServerFrame reply;
  reply.set_request_id(kTypicalNumber);
  attach::v1::LookedUp& found = *reply.mutable_looked_up();
  found.set_matched(static_cast<uint32_t>(chain));
  found.set_lease(kTypicalNumber);
  found.set_request(kTypicalNumber);
  found.set_tiers(std::string(chain, '\1'));
  for (size_t i = 0; i < chain; ++i) {
    found.add_offsets(kTypicalNumber);
    found.add_generations(1);
  }
  return {request.ByteSizeLong(), reply.ByteSizeLong()};
}

absl::StatusOr<std::unique_ptr<EchoFloor>> EchoFloor::Start(const EchoSizes& sizes) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::InternalError(absl::StrCat("socketpair: ", std::strerror(errno)));
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  std::vector<std::byte> buffer(kFrameBytesMax);
  const pid_t pid = ::fork();
  if (pid < 0) return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ours.reset();
    Answer(theirs.get(), buffer.data(), buffer.size(), sizes);
  }
  return std::unique_ptr<EchoFloor>(new EchoFloor(sizes, std::move(ours), pid));
}

EchoFloor::EchoFloor(const EchoSizes& sizes, UniqueFd fd, pid_t pid)
    : sizes_(sizes), fd_(std::move(fd)), pid_(pid), buffer_(kFrameBytesMax) {}

EchoFloor::~EchoFloor() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

absl::StatusOr<std::vector<double>> EchoFloor::Run(size_t count) {
  std::vector<double> us;
  us.reserve(count);
  const SystemClock clock;
  for (size_t i = 0; i < count; ++i) {
    const int64_t start_ns = clock.MonotonicNs();
    const bool sent = ::send(fd_.get(), buffer_.data(), sizes_.request_bytes, MSG_NOSIGNAL) >= 0;
    const ssize_t received = sent ? ::recv(fd_.get(), buffer_.data(), buffer_.size(), 0) : -1;
    us.push_back(static_cast<double>(clock.MonotonicNs() - start_ns) / 1e3);
    if (static_cast<size_t>(std::max<ssize_t>(received, 0)) != sizes_.reply_bytes) {
      return absl::InternalError(
          absl::StrCat("the echo process answered ", received, " bytes: ", std::strerror(errno)));
    }
  }
  return us;
}

}  // namespace kvartal::bench
