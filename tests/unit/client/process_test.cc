// The library as a guest in somebody's process: forks, signals, symbols, allocations, system calls.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <sstream>

#include "tests/unit/client/client_fixture.h"

namespace {

thread_local uint64_t allocations = 0;

}  // namespace

// The library takes its memory from these too. Not inlined: the compiler must not see through them.
__attribute__((noinline)) void* operator new(size_t bytes) {
  ++allocations;
  void* data = std::malloc(bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
__attribute__((noinline)) void operator delete(void* data) noexcept { std::free(data); }
__attribute__((noinline)) void operator delete(void* data, size_t) noexcept { std::free(data); }

namespace kvartal::client {
namespace {

using ::testing::HasSubstr;

// Of the mapping that holds `address`, as in /proc/self/smaps; empty when there is none.
std::string VmFlagsOf(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(smaps, line)) {
    unsigned long long begin, end;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      inside = begin <= at && at < end;
    }
    if (inside && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Output(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string out;
  char buffer[4096];
  while (size_t got = std::fread(buffer, 1, sizeof(buffer), pipe)) out.append(buffer, got);
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return out;
}

class ProcessTest : public ClientFixture {};

TEST_F(ProcessTest, SteadyLookupAllocatesNothing) {
  Store(Chain(64));
  const std::vector<Key> keys = Chain(64);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(client.Lookup(ns, keys, 0, kPatient).matched, 64u);
  const uint64_t before = allocations;
  for (int i = 0; i < 100; ++i) {
    if (client.Lookup(ns, keys, 0, kPatient).matched != 64u) break;
  }
  EXPECT_EQ(allocations, before);
  std::string control(100, 'x');  // shows that the counter counts
  EXPECT_GT(allocations, before);
}

TEST_F(ProcessTest, ForkedChildIsRefusedAndSendsNothing) {
  Store(Chain(1));
  Client::Found found = client.Lookup(ns, Chain(1), 0, kPatient);
  const int lookups = server.count("lookup");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // No gtest here: the exit code tells which step was wrong.
    kv_client* c = client.get();
    const std::vector<Key> keys = Chain(1);
    uint32_t number;
    kv_lease* lease;
    kv_slot slot{};
    if (kv_lookup(c, ns, keys[0].data(), 1, 0, &lease, &number, nullptr, kPatient) != KV_UNAVAILABLE) ::_exit(1);
    if (std::strstr(kv_last_error(c), "forked") == nullptr) ::_exit(2);
    if (kv_load(c, found.lease.get(), 0, 1, &number, kPatient) != KV_UNAVAILABLE) ::_exit(3);
    if (kv_commit(c, &slot, 1, 0, nullptr, kPatient) != KV_UNAVAILABLE) ::_exit(4);
    if (kv_poll(c, 0, nullptr) != KV_UNAVAILABLE) ::_exit(5);
    if (kv_connected(c) != 0) ::_exit(6);
    if (kv_block_valid(found.lease.get(), 0) != 0) ::_exit(7);
    kv_release(c, found.lease.get(), 0);
    kv_detach(c);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  // The parent's session is as it was.
  EXPECT_TRUE(found.lease.Valid(0));
  EXPECT_EQ(found.lease.Load(0, 1, kPatient).status, KV_OK);
  EXPECT_EQ(server.count("lookup"), lookups);
  EXPECT_EQ(server.live_leases(), 1u);
  EXPECT_EQ(server.count("detach"), 0);
}

TEST_F(ProcessTest, ForkedChildMayAttachAnew) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "thread sanitizers allow no threads in a forked child";
#endif
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    kv_options options{};
    options.struct_size = sizeof(options);
    options.socket_path = server.socket_path().c_str();
    kv_client* own = nullptr;
    if (kv_attach(&options, &own) != KV_OK) ::_exit(1);
    if (kv_renew(own, kPatient) != KV_OK) ::_exit(2);
    if (kv_renew(client.get(), kPatient) != KV_UNAVAILABLE) ::_exit(3);
    kv_detach(own);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(client.Renew(kPatient), KV_OK);
}

TEST_F(ProcessTest, WithoutAnOpenFileLeftThereIsNoClientAndItIsSaid) {
  const int next_fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(next_fd);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit full{static_cast<rlim_t>(next_fd), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &full), 0);
  kv_client* none = client.get();
  const kv_status status = kv_attach(nullptr, &none);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status, KV_UNAVAILABLE);
  EXPECT_EQ(none, nullptr);
  EXPECT_THAT(kv_last_error(nullptr), HasSubstr("limit of open files"));
  EXPECT_EQ(client.Renew(kPatient), KV_OK) << "the one that was there goes on";
}

TEST_F(ProcessTest, BlocksStayOutOfCoreFiles) {
  Store(Chain(1));
  const Client::Found found = client.Lookup(ns, Chain(1), 0, kPatient);
  ASSERT_EQ(found.matched, 1u);
  EXPECT_THAT(VmFlagsOf(found.lease.blocks()[0].data), HasSubstr(" dd "));
}

TEST_F(ProcessTest, OnlyTheCAbiCanBeSeen) {
  const std::string symbols = Output("nm -D --defined-only " KVARTAL_CLIENT_LIBRARY);
  std::istringstream lines(symbols);
  int seen = 0;
  for (std::string address, kind, name; lines >> address >> kind >> name;) {
    if (kind == "A") continue;  // the version's own name
    EXPECT_EQ(name.rfind("kv_", 0), 0u) << name;
    ++seen;
  }
  EXPECT_EQ(seen, 29);
}

TEST_F(ProcessTest, TheReadmesExampleIsTheOneThatIsTested) {
  const std::string folder = KVARTAL_SOURCE_DIR "/client/libkvartal/";
  const std::string example = ReadAll(folder + "example.c");
  ASSERT_FALSE(example.empty());
  EXPECT_THAT(ReadAll(folder + "README.md"), HasSubstr(example));
}

TEST_F(ProcessTest, TheExampleStoresThenHits) {
  const std::string run = "KVARTAL_SOCKET=" + server.socket_path() + " " KVARTAL_CLIENT_EXAMPLE;
  EXPECT_EQ(Output(run), "stored 2 blocks\n");
  EXPECT_EQ(Output(run), "hit: KV of block 0\nstored 0 blocks\n");
}

}  // namespace
}  // namespace kvartal::client
