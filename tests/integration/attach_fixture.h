// The real attach server, engine and loop over fake memory and disk, with clients on real sockets. One thread does it
// all: a client writes, Spin lets the daemon handle it, the client reads. Nothing sleeps, time moves only by AdvanceMs.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/attach/attach_server.h"
#include "daemon/base/mapping.h"
#include "daemon/base/units.h"
#include "daemon/tier/dram_tier.h"
#include "daemon/tier/nvme_tier.h"
#include "tests/support/fake_block_file.h"
#include "tests/support/fake_catalog.h"
#include "tests/support/fake_memory.h"

namespace kvartal::attach {

inline constexpr uint32_t kTestBlockBytes = 64 * kKiB;
inline constexpr uint64_t kTestDramBytes = 128 * kMiB;
inline constexpr uint64_t kTestNvmeBytes = 128 * kMiB;

inline std::string KeyBytes(uint64_t number) {
  std::string key(32, '\0');
  for (size_t word = 0; word < 4; ++word) {
    const uint64_t value = (number + 1) * 0x9E3779B97F4A7C15ull + word * 0xC2B2AE3D27D4EB4Full;
    std::memcpy(key.data() + word * 8, &value, sizeof(value));
  }
  return key;
}

inline std::string ChainBytes(uint64_t first, size_t count) {
  std::string keys;
  for (size_t i = 0; i < count; ++i) keys += KeyBytes(first + i);
  return keys;
}

// The client's end of a connection: raw frames, nothing clever.
class RawClient {
 public:
  explicit RawClient(const std::string& path) {
    socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    connected_ = ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }

  // One that another process has connected.
  explicit RawClient(UniqueFd socket) : socket_(std::move(socket)), connected_(socket_.valid()) {}

  bool connected() const { return connected_; }
  int fd() const { return socket_.get(); }
  void Close() { socket_.reset(); }

  bool SendBytes(const std::string& bytes) const {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool Send(const ClientFrame& frame) const { return SendBytes(frame.SerializeAsString()); }
  bool SendWithFd(const ClientFrame& frame, int fd) const {
    const std::string bytes = frame.SerializeAsString();
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
  }

  // None when nothing is there; `ended` tells whether that is for good. Descriptors go to `fds`.
  std::optional<ServerFrame> Receive() {
    std::vector<char> buffer(kFrameBytesMax);
    iovec part{buffer.data(), buffer.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got <= 0) {
      ended_ = got == 0 || errno != EAGAIN;
      return std::nullopt;
    }
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr && header->cmsg_type == SCM_RIGHTS) {
      const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        fds.emplace_back(fd);
      }
    }
    ServerFrame frame;
    EXPECT_TRUE(frame.ParseFromArray(buffer.data(), static_cast<int>(got)));
    return frame;
  }
  bool ended() const { return ended_; }

  std::vector<UniqueFd> fds;

 private:
  UniqueFd socket_;
  bool connected_ = false;
  bool ended_ = false;
};

// A wall clock that somebody sets.
class SettableClock : public ManualClock {
 public:
  int64_t WallMs() const override { return ManualClock::WallMs() + set_by_ms_; }
  void SetWallBy(int64_t ms) { set_by_ms_ += ms; }

 private:
  int64_t set_by_ms_ = 0;
};

// For tests of many connections: both ends of each are in this process.
inline void TakeAllFiles() {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
}

class AttachTest : public ::testing::Test {
 protected:
  static policy::TenantRules Rules(const std::string& name, const std::string& socket) {
    policy::TenantRules rules;
    rules.name = name;
    rules.uid = name;
    rules.tier(TierKind::kDram).limit_bytes = 64 * kMiB;
    rules.tier(TierKind::kNvme).limit_bytes = 64 * kMiB;
    rules.tier(TierKind::kDram).guarantee_bytes = 32 * kMiB;
    rules.ttl_ms = {};
    rules.sockets = {socket};
    return rules;
  }

  void SetUp() override {
    char path[] = "/tmp/kvartal-attach-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    folder_ = path;
    rules_ = {Rules("team/red", "red"), Rules("team/blue", "blue")};
  }

  // Doors: "red" and "blue", and the shared one. Change rules_, dram_bytes_ and options_ before.
  void Start(bool with_nvme = false) {
    loop_ = *EventLoop::Create(&clock_);
    memory_ = std::make_unique<testing::FakeMemory>(loop_.get());
    dram_ = std::make_unique<tier::DramTier>(memory_.get(), dram_bytes_);
    engine::EngineDevices devices{.clock = &clock_, .dram = dram_.get()};
    if (with_nvme) {
      file_ = *testing::FakeBlockFile::Open(testing::MakeFakeDisk(kTestNvmeBytes), loop_.get());
      nvme_ = *tier::NvmeTier::Open(file_.get(), &clock_);
      catalog_ = std::make_unique<testing::FakeCatalog>(loop_.get());
      devices.nvme = nvme_.get();
      devices.catalog = catalog_.get();
    }
    engine_ = std::make_unique<engine::CacheEngine>(engine::EngineOptions{}, devices, Table());
    engine_->Recover([](absl::Status status) { EXPECT_TRUE(status.ok()) << status; });
    options_.shared_socket = Path("shared");
    options_.doors = {{"red", Path("red"), 0660}, {"blue", Path("blue"), 0660}};
    server_ = std::make_unique<AttachServer>(options_, loop_.get(), &clock_, engine_.get());
    ASSERT_TRUE(server_->Start().ok());
    Spin();
  }

  void TearDown() override {
    if (engine_ != nullptr) engine_->CheckInvariants();
    server_.reset();
    Spin();
    if (engine_ != nullptr) {
      EXPECT_EQ(engine_->stats().leased_blocks, 0u) << "a stopped server leases nothing";
      EXPECT_EQ(engine_->stats().waiting_requests, 0u);
      engine_->CheckInvariants();
    }
    engine_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::shared_ptr<const policy::PolicyTable> Table() const {
    policy::NodeCapacity capacity;
    capacity.bytes[TierIndex(TierKind::kDram)] = dram_bytes_;
    capacity.bytes[TierIndex(TierKind::kNvme)] = kTestNvmeBytes;
    return policy::PolicyTable::FromRules(rules_, capacity);
  }
  std::string Path(const std::string& door) const { return folder_ + "/" + door + ".sock"; }

  // Lets the daemon handle all that is ready and all that follows from it.
  void Spin() {
    for (int i = 0; loop_ != nullptr && i < 40; ++i) loop_->RunOnce(0);
  }
  void AdvanceMs(int64_t ms) {
    for (int64_t passed = 0; passed < ms; passed += kTickMs) {
      clock_.AdvanceMs(kTickMs);
      engine_->Tick();
      server_->Tick();
      Spin();
    }
  }

  // --- what a client does
  static ClientFrame Frame(uint64_t request_id) {
    ClientFrame frame;
    frame.set_request_id(request_id);
    return frame;
  }
  // Sends, and gives the answer with that request id; frames that are said unasked are kept in `unasked_`.
  ServerFrame Ask(RawClient& client, ClientFrame frame) {
    frame.set_request_id(++last_request_);
    EXPECT_TRUE(client.Send(frame)) << std::strerror(errno);
    Spin();
    return Answer(client, last_request_);
  }
  ServerFrame Answer(RawClient& client, uint64_t request_id) {
    while (auto frame = client.Receive()) {
      if (frame->request_id() == request_id) return *frame;
      unasked_.push_back(*frame);
    }
    ADD_FAILURE() << "no answer to request " << request_id;
    return {};
  }
  // All that is waiting for the client.
  std::vector<ServerFrame> Drain(RawClient& client) {
    std::vector<ServerFrame> frames;
    while (auto frame = client.Receive()) frames.push_back(*std::move(frame));
    return frames;
  }

  struct Attached {
    std::string group;
    v1::MemoryGrant grant;
  };
  Attached Attach(RawClient& client, const std::string& group = "") {
    EXPECT_TRUE(client.connected());
    ClientFrame frame;
    frame.mutable_attach()->set_version(1);
    frame.mutable_attach()->set_client("test");
    if (!group.empty()) frame.mutable_attach()->set_group(group);
    const ServerFrame answer = Ask(client, frame);
    EXPECT_TRUE(answer.has_attached()) << answer.error().message();
    Attached out;
    out.group = answer.attached().group();
    for (const ServerFrame& more : Drain(client)) {
      if (more.memory_grant().has_fds()) out.grant = more.memory_grant();
    }
    EXPECT_TRUE(out.grant.has_fds());
    ClientFrame ack;
    ack.mutable_grant_ack();
    EXPECT_TRUE(client.Send(ack));
    return out;
  }
  uint32_t OpenNamespace(RawClient& client, char digest = 'd', uint32_t shards = 1,
                         uint32_t shard_bytes = kTestBlockBytes) {
    ClientFrame frame;
    v1::OpenNamespace* in = frame.mutable_open_namespace();
    in->set_digest(std::string(32, digest));
    in->set_tokens_per_block(16);
    in->set_shard_count(shards);
    in->set_shard_bytes(shard_bytes);
    const ServerFrame answer = Ask(client, frame);
    EXPECT_TRUE(answer.has_namespace_opened()) << answer.error().message();
    return answer.namespace_opened().ns();
  }
  static ClientFrame ReserveFrame(uint32_t ns, uint64_t first, size_t count, uint32_t shard = 0) {
    ClientFrame frame;
    frame.mutable_reserve()->set_ns(ns);
    frame.mutable_reserve()->set_shard(shard);
    frame.mutable_reserve()->set_keys(ChainBytes(first, count));
    return frame;
  }
  v1::Reserved Reserve(RawClient& client, uint32_t ns, uint64_t first, size_t count, uint32_t shard = 0) {
    const ServerFrame answer = Ask(client, ReserveFrame(ns, first, count, shard));
    EXPECT_TRUE(answer.has_reserved()) << answer.error().message();
    EXPECT_EQ(answer.reserved().outcomes().size(), count);
    return answer.reserved();
  }
  template <typename Reservations>
  std::string Commit(RawClient& client, const Reservations& reservations, uint32_t shard = 0) {
    ClientFrame frame;
    for (const uint64_t reservation : reservations) frame.mutable_commit()->add_reservations(reservation);
    frame.mutable_commit()->set_shard(shard);
    const ServerFrame answer = Ask(client, frame);
    EXPECT_TRUE(answer.has_committed()) << answer.error().message();
    return answer.committed().outcomes();
  }
  void Store(RawClient& client, uint32_t ns, uint64_t first, size_t count) {
    const v1::Reserved reserved = Reserve(client, ns, first, count);
    EXPECT_EQ(reserved.outcomes(), std::string(count, '\0'));
    EXPECT_EQ(Commit(client, reserved.reservations()), std::string(count, '\0'));
  }
  static ClientFrame LookupFrame(uint32_t ns, uint64_t first, size_t count, uint64_t lease = 0) {
    ClientFrame frame;
    frame.mutable_lookup()->set_ns(ns);
    frame.mutable_lookup()->set_keys(ChainBytes(first, count));
    frame.mutable_lookup()->set_lease(lease);
    return frame;
  }
  v1::LookedUp Lookup(RawClient& client, uint32_t ns, uint64_t first, size_t count, uint64_t lease = 0) {
    const ServerFrame answer = Ask(client, LookupFrame(ns, first, count, lease));
    EXPECT_TRUE(answer.has_looked_up()) << answer.error().message();
    return answer.looked_up();
  }
  void Release(RawClient& client, uint64_t lease, uint32_t count = 0) {
    ClientFrame frame;
    frame.mutable_release()->set_lease(lease);
    frame.mutable_release()->set_count(count);
    EXPECT_TRUE(client.Send(frame));
    Spin();
  }
  v1::Error AskForError(RawClient& client, const ClientFrame& frame) {
    const ServerFrame answer = Ask(client, frame);
    EXPECT_TRUE(answer.has_error()) << answer.ShortDebugString();
    EXPECT_FALSE(answer.error().message().empty());
    return answer.error();
  }

  // --- what must come back to where it was
  struct Balance {
    uint64_t charged_bytes, leased_blocks, filling_blocks, waiting_requests, sessions, groups;
    size_t open_fds;
    friend bool operator==(const Balance&, const Balance&) = default;
    friend void PrintTo(const Balance& b, std::ostream* out) {
      *out << "charged " << b.charged_bytes << " leased " << b.leased_blocks << " filling " << b.filling_blocks
           << " waiting " << b.waiting_requests << " sessions " << b.sessions << " groups " << b.groups << " fds "
           << b.open_fds;
    }
  };
  static size_t OpenFds() {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator{}));
  }
  // After each tenant was here once: its arena exists and stays.
  Balance Warm() {
    for (const char* door : {"red", "blue"}) {
      RawClient client(Path(door));
      Attach(client);
    }
    Spin();
    return Now();
  }
  Balance Now() const {
    const AttachStats attach = server_->stats();
    const engine::EngineStats engine = engine_->stats();
    Balance now{};
    now.charged_bytes = engine.charged_bytes[TierIndex(TierKind::kDram)];
    now.leased_blocks = engine.leased_blocks;
    now.waiting_requests = engine.waiting_requests;
    for (const SessionInfo& session : attach.session_list) now.filling_blocks += session.filling_blocks;
    now.sessions = attach.sessions;
    now.groups = attach.groups;
    now.open_fds = OpenFds();
    return now;
  }
  // Refusals of the first tenant in DRAM, by name of the reason.
  uint64_t RefusedAtTheDoor(std::string_view reason) const {
    const auto refusals = engine_->stats().tenants.at(0).tiers[TierIndex(TierKind::kDram)].refusals;
    for (size_t i = 0; i < refusals.size(); ++i) {
      if (policy::RefusalName(static_cast<policy::Refusal>(i)) == reason) return refusals[i].count;
    }
    return 0;
  }
  uint64_t Cuts(CutReason reason) const { return server_->stats().cuts[static_cast<size_t>(reason)]; }
  uint64_t Denials(DenialReason reason) const { return server_->stats().denials[static_cast<size_t>(reason)]; }
  uint64_t BadFrames(BadFrame kind) const { return server_->stats().bad_frames[static_cast<size_t>(kind)]; }

  std::string folder_;
  std::vector<policy::TenantRules> rules_;
  uint64_t dram_bytes_ = kTestDramBytes;
  AttachOptions options_;
  SettableClock clock_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<testing::FakeMemory> memory_;
  std::unique_ptr<tier::DramTier> dram_;
  std::unique_ptr<testing::FakeBlockFile> file_;
  std::unique_ptr<tier::NvmeTier> nvme_;
  std::unique_ptr<testing::FakeCatalog> catalog_;
  std::unique_ptr<engine::CacheEngine> engine_;
  std::unique_ptr<AttachServer> server_;
  std::vector<ServerFrame> unasked_;
  uint64_t last_request_ = 0;
};

}  // namespace kvartal::attach
