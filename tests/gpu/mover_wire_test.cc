// kvartal-mover alone, at the other end of its socket: what a daemon would never say, and how it ends.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <optional>

#include "daemon/device/mover_child.h"
#include "tests/gpu/mover_rig.h"

namespace kvartal::device {
namespace {

class MoverWire : public ::testing::Test {
 protected:
  void Start() {
    auto child =
        MoverChild::Spawn({rig_.options.executable, "--library", rig_.options.library, "--gpu", rig_.options.gpu_uuid});
    KV_CHECK(child.ok());
    child_.emplace(*std::move(child));
    MoverHello hello;
    ASSERT_EQ(Receive(&hello, sizeof(hello)), sizeof(hello));
    EXPECT_EQ(hello.magic, kMoverMagic);
    EXPECT_EQ(hello.version, kMoverVersion);
    EXPECT_EQ(hello.simulated, rig_.driver().simulated() ? 1u : 0u);
  }
  // 0: the mover has ended its side.
  size_t Receive(void* to, size_t length) {
    size_t bytes = 0;
    while (true) {
      const std::span<std::byte> buffer(static_cast<std::byte*>(to), length);
      const MoverChild::Received received = child_->Receive(buffer, &bytes);
      if (received != MoverChild::Received::kNothing) return received == MoverChild::Received::kPacket ? bytes : 0;
      pollfd watched{child_->socket(), POLLIN, 0};
      ::poll(&watched, 1, -1);
    }
  }
  absl::Status Ask(MoverRequest request, int fd = -1) {
    request.operation = ++last_operation_;
    KV_CHECK(child_->Send(request, fd) == MoverChild::Sent::kSent);
    MoverAnswer answer;
    if (Receive(&answer, sizeof(answer)) != sizeof(answer)) return absl::AbortedError("it has ended");
    EXPECT_EQ(answer.operation, request.operation);
    return answer.status();
  }
  void Tell() {
    uint64_t bytes = 2 * kMiB;
    slab_ = rig_.NewSlab(&bytes);
    arena_ = NewArenaFd(2 * kMiB);
    MoverRequest add;
    add.bytes = 2 * kMiB;
    add.verb = MoverVerb::kAddSlab;
    ASSERT_TRUE(Ask(add, slab_.get()).ok());
    add.verb = MoverVerb::kAddArena;
    ASSERT_TRUE(Ask(add, arena_.get()).ok());
  }
  static MoverRequest Copy(uint64_t slab_offset, uint64_t arena_offset, uint64_t bytes) {
    MoverRequest copy;
    copy.verb = MoverVerb::kCopyToGpu;
    copy.slab_offset = slab_offset;
    copy.arena_offset = arena_offset;
    copy.bytes = bytes;
    return copy;
  }
  // What it says as it ends for a reason of its own.
  std::string LastWord() {
    MoverAnswer answer;
    if (Receive(&answer, sizeof(answer)) != sizeof(answer) || answer.operation != 0) return "";
    return std::string(answer.status().message());
  }

  ProcessRig rig_;
  std::optional<MoverChild> child_;
  uint64_t last_operation_ = 0;
  UniqueFd slab_, arena_;
};

TEST_F(MoverWire, EveryRangeIsCheckedAgainstWhatIsMapped) {
  Start();
  Tell();
  constexpr uint64_t kAll = ~uint64_t{0};
  for (const MoverRequest& copy : {Copy(1, 0, 2 * kMiB), Copy(0, 1, 2 * kMiB), Copy(0, 0, 0), Copy(kAll, 0, 1),
                                   Copy(0, kAll, 2), Copy(0, 0, kAll), Copy(kAll - kMiB, kAll - kMiB, 2 * kMiB)}) {
    EXPECT_TRUE(absl::IsOutOfRange(Ask(copy))) << copy.slab_offset << " " << copy.arena_offset << " " << copy.bytes;
  }
  MoverRequest strange = Copy(0, 0, 1);
  strange.slab = 9;
  EXPECT_TRUE(absl::IsNotFound(Ask(strange)));
  strange = Copy(0, 0, 1);
  strange.arena = 9;
  EXPECT_TRUE(absl::IsNotFound(Ask(strange)));
  strange = Copy(0, 0, 1);
  strange.background = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(strange)));
  EXPECT_TRUE(Ask(Copy(2 * kMiB - 1, 2 * kMiB - 1, 1)).ok()) << "it goes on";
}

TEST_F(MoverWire, AnAddWithoutDescriptorOrUnderATakenIdIsAnError) {
  Start();
  Tell();
  MoverRequest add;
  add.verb = MoverVerb::kAddSlab;
  add.bytes = 2 * kMiB;
  EXPECT_TRUE(absl::IsAlreadyExists(Ask(add, slab_.get())));
  add.slab = 1;
  EXPECT_FALSE(Ask(add).ok());
  add.verb = MoverVerb::kAddArena;
  add.arena = 1;
  EXPECT_FALSE(Ask(add).ok());
  EXPECT_TRUE(Ask(Copy(0, 0, 1)).ok()) << "it goes on";
}

TEST_F(MoverWire, WhatIsNoRequestEndsItWithAWord) {
  Start();
  MoverRequest request;
  request.verb = static_cast<MoverVerb>(77);
  ASSERT_EQ(child_->Send(request, -1), MoverChild::Sent::kSent);
  EXPECT_EQ(LastWord(), "verb 77 is not known");
  EXPECT_EQ(child_->Reap(), "it failed");

  Start();
  ASSERT_EQ(::send(child_->socket(), "short", 5, 0), 5);
  EXPECT_EQ(LastWord(), "a packet of 5 bytes is no request");
  EXPECT_EQ(child_->Reap(), "it failed");
}

TEST_F(MoverWire, ItEndsWhenItsDaemonDoes) {
  Start();
  ASSERT_EQ(::shutdown(child_->socket(), SHUT_RDWR), 0);
  EXPECT_EQ(child_->Reap(), "it ended with status 0");
}

TEST_F(MoverWire, AContextThatIsLostHasAStatusOfItsOwn) {
  rig_.SetFaults({"cuMemcpyHtoDAsync=700"});
  Start();
  Tell();
  MoverRequest copy = Copy(0, 0, 1);
  copy.operation = ++last_operation_;
  ASSERT_EQ(child_->Send(copy, -1), MoverChild::Sent::kSent);
  EXPECT_NE(LastWord().find("cuMemcpyHtoDAsync: CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos);
  EXPECT_EQ(child_->Reap(), "its CUDA context was lost");
}

TEST_F(MoverWire, ItGetsNoDescriptorButItsSocket) {
  const UniqueFd leaky(::open("/dev/null", O_RDONLY));  // no O_CLOEXEC
  Start();
  std::string found;
  for (int fd = kMoverSocketFd; fd < 64; ++fd) {
    std::array<char, 256> target{};
    const std::string link = absl::StrCat("/proc/", child_->pid(), "/fd/", fd);
    if (::readlink(link.c_str(), target.data(), target.size() - 1) < 0) continue;
    found += absl::StrCat(target.data(), " ");
  }
  EXPECT_NE(found.find("socket:"), std::string::npos) << found;
  EXPECT_EQ(found.find("/dev/null"), std::string::npos) << found;
}

}  // namespace
}  // namespace kvartal::device
