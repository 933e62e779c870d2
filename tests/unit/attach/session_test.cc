#include "daemon/attach/session.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <optional>
#include <utility>
#include <vector>

#include "daemon/base/limits.h"

namespace kvartal::attach {
namespace {

class SessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    theirs_.reset(pair[1]);
    session_.emplace(SessionId(1), UniqueFd(pair[0]), Evidence{{}, "red", std::nullopt}, Attestation{}, 0);
  }
  // The next range that does not touch the one before.
  engine::DomainMemory::Range Apart() { return {2 * kExtentAlignBytes * apart_++, kExtentAlignBytes}; }
  std::vector<std::pair<uint64_t, uint64_t>> ReadRanges() {
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    std::vector<char> buffer(kFrameBytesMax);
    for (ssize_t got; (got = ::recv(theirs_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT)) > 0;) {
      ServerFrame frame;
      EXPECT_TRUE(frame.ParseFromArray(buffer.data(), static_cast<int>(got)));
      const v1::MemoryGrant& grant = frame.memory_grant();
      for (int i = 0; i < grant.offsets_size(); ++i) ranges.emplace_back(grant.offsets(i), grant.bytes(i));
    }
    return ranges;
  }

  UniqueFd theirs_;
  std::optional<Session> session_;
  FrameCodec codec_;
  uint64_t apart_ = 0;
};

TEST_F(SessionTest, RangesAClientDoesNotReadAreBounded) {
  for (size_t i = 0; i < kUntoldRangesMax; ++i) session_->HoldGranted(Apart());
  EXPECT_TRUE(session_->alive());
  session_->HoldGranted(Apart());
  EXPECT_EQ(session_->cut(), CutReason::kTooSlow);
}

TEST_F(SessionTest, RangesSideBySideAreToldAsOne) {
  for (size_t i = 0; i < kUntoldRangesMax + 2; ++i) {
    session_->HoldGranted({kExtentAlignBytes * i, kExtentAlignBytes});
  }
  session_->HoldGranted({kExtentAlignBytes * (kUntoldRangesMax + 3), kExtentAlignBytes});
  ASSERT_TRUE(session_->alive());
  session_->TellHeld(&codec_);
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {
      {0, kExtentAlignBytes * (kUntoldRangesMax + 2)}, {kExtentAlignBytes * (kUntoldRangesMax + 3), kExtentAlignBytes}};
  EXPECT_EQ(ReadRanges(), expected);
}

TEST_F(SessionTest, RangesThatWereToldMakeRoom) {
  for (size_t i = 0; i < kUntoldRangesMax / 2; ++i) session_->HoldGranted(Apart());
  size_t told = 0;
  while (told < kUntoldRangesMax / 2) {
    session_->FlushOutbox(&codec_);
    const size_t read = ReadRanges().size();
    ASSERT_GT(read, 0u);
    told += read;
  }
  for (size_t i = 0; i < kUntoldRangesMax; ++i) session_->HoldGranted(Apart());
  EXPECT_TRUE(session_->alive());
}

}  // namespace
}  // namespace kvartal::attach
