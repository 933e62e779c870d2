// Sessions take turns by what their frames cost: one with large leases keeps nobody waiting.
#include <fcntl.h>
#include <sys/wait.h>

#include <array>

#include "tests/integration/attach_hostile_fixture.h"
#include "tests/support/fd_passing.h"

namespace kvartal::attach {
namespace {

class TurnTest : public HostileTest {
 protected:
  // A lease of so many frames of one key, each 1024 times.
  uint64_t BigLease(RawClient& client, uint32_t ns, uint64_t key, size_t frames, uint64_t lease = 0) {
    ClientFrame frame = LookupFrame(ns, key, 1, lease);
    std::string keys;
    for (uint32_t i = 0; i < kKeysPerFrameMax; ++i) keys += KeyBytes(key);
    frame.mutable_lookup()->set_keys(keys);
    for (size_t i = 0; i < frames; ++i) {
      const ServerFrame answer = Ask(client, frame);
      EXPECT_EQ(answer.looked_up().matched(), kKeysPerFrameMax);
      frame.mutable_lookup()->set_lease(answer.looked_up().lease());
    }
    return frame.lookup().lease();
  }
  static ClientFrame HintFrame(uint64_t lease) {
    ClientFrame hint;
    hint.mutable_hint()->set_lease(lease);
    hint.mutable_hint()->set_what(v1::Hint::WAITING);
    return hint;
  }
  uint64_t Positions() const { return server_->stats().positions; }
};

TEST_F(TurnTest, EndsWithTheBlocksItLookedAtNotWithItsFramesAlone) {
  StartWithBystander();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 1);
  constexpr size_t kFrames = 60, kBlocks = kFrames * kKeysPerFrameMax;
  const uint64_t lease = BigLease(client, ns, 1, kFrames);
  constexpr uint64_t kTurnMax = kPositionsPerWakeMax + kBlocks;  // the frame that ends a turn is handled whole

  for (uint32_t i = 0; i < kFramesPerWakeMax; ++i) ASSERT_TRUE(client.Send(HintFrame(lease)));
  ClientFrame renew = Frame(7000);
  for (size_t i = 0; i < kLeasesPerGroupMax; ++i) renew.mutable_renew()->add_leases(lease);
  ASSERT_TRUE(client.Send(renew));
  ASSERT_TRUE(bystander_->Send([this] {
    ClientFrame lookup = LookupFrame(bystander_ns_, 1, 4);
    lookup.set_request_id(7001);
    return lookup;
  }()));
  const uint64_t before = Positions();
  size_t turns = 0, answered_in = 0;
  bool renewed = false;
  while (!renewed && turns < 1000) {
    const uint64_t begun = Positions();
    loop_->RunOnce(0);
    ++turns;
    ASSERT_LE(Positions() - begun, kTurnMax + kKeysPerFrameMax) << "turn " << turns;
    for (const ServerFrame& frame : Drain(*bystander_)) {
      if (frame.request_id() == 7001) answered_in = turns;
    }
    for (const ServerFrame& frame : Drain(client)) {
      if (frame.request_id() != 7000) continue;
      renewed = true;
      EXPECT_EQ(frame.renewed().count(), 1u) << "one lease, however often it is named";
    }
  }
  EXPECT_TRUE(renewed);
  EXPECT_GE(answered_in, 1u);
  EXPECT_LE(answered_in, 2u) << "of " << turns << " turns";
  EXPECT_GE(turns, kFramesPerWakeMax / 2);
  EXPECT_EQ(Positions() - before, (kFramesPerWakeMax + 1) * kBlocks + 4) << "each is looked through once a frame";
}

TEST_F(TurnTest, ALargeLeaseThatIsReleasedOrLeftBehindIsGivenBackInParts) {
  StartWithBystander();
  constexpr size_t kParts = 4;
  uint64_t key = 0;
  for (const bool releases : {true, false}) {
    SCOPED_TRACE(releases ? "released" : "left behind");
    RawClient client(Path("red"));
    Attach(client);
    const uint32_t ns = OpenNamespace(client);
    Store(client, ns, ++key, 1);
    const uint64_t leased_before = engine_->stats().leased_blocks;
    ClientFrame release;
    release.mutable_release()->set_lease(BigLease(client, ns, key, kParts * kGivenBackPerTurnMax / kKeysPerFrameMax));
    if (releases) {
      ASSERT_TRUE(client.Send(release));
    } else {
      client.Close();
    }
    ClientFrame lookup = LookupFrame(bystander_ns_, 1, 4);
    lookup.set_request_id(7001);
    ASSERT_TRUE(bystander_->Send(lookup));
    size_t turns = 0, answered_in = 0;
    while ((answered_in == 0 || engine_->stats().leased_blocks > leased_before + 4) && turns < 100) {
      loop_->RunOnce(0);
      ++turns;
      for (const ServerFrame& frame : Drain(*bystander_)) {
        if (frame.request_id() == 7001) answered_in = turns;
      }
    }
    EXPECT_GE(turns, kParts - 1) << "two in the first turn, then one each";
    EXPECT_LT(turns, 100u);
    EXPECT_LE(answered_in, 2u) << "of " << turns << " turns";
    engine_->CheckInvariants();
  }
}

TEST_F(TurnTest, OfALeaseThatIsTooLargeNeitherAHintNorAPinIsTaken) {
  StartWithBystander();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 2);
  constexpr size_t kFrames = kPositionsPerWakeMax / kKeysPerFrameMax;
  const uint64_t lease = BigLease(client, ns, 2, kFrames / 2, BigLease(client, ns, 1, kFrames / 2));
  ClientFrame pin;
  pin.mutable_pin()->set_lease(lease);
  pin.mutable_pin()->set_until_wall_ms(static_cast<uint64_t>(clock_.WallMs()) + 1000);
  EXPECT_TRUE(Ask(client, pin).has_pinned());
  BigLease(client, ns, 2, 1, lease);
  EXPECT_EQ(AskForError(client, pin).refusal(), "group_limit");
  const uint64_t before = Positions();
  ASSERT_TRUE(client.Send(HintFrame(lease)));
  Spin();
  EXPECT_EQ(Positions(), before) << "nothing is looked at";
  EXPECT_EQ(RefusedAtTheDoor("group_limit"), 2u) << "a hint has no answer; it is counted";
}

TEST_F(TurnTest, AChainThatIsLookedUpInManyFramesIsNotLookedThroughForEachOfThem) {
  rules_[0].max_age_ms = 3'600'000;  // a lease of an older block is not renewed: each has to be looked at
  StartWithBystander();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 1);
  const uint64_t before = Positions();
  const uint64_t lease = BigLease(client, ns, 1, 40);
  EXPECT_EQ(Positions() - before, 40 * kKeysPerFrameMax);
  // But it is renewed by a lookup that comes later.
  AdvanceMs(kLeaseMsDefault - kTickMs);
  BigLease(client, ns, 1, 1, lease);
  EXPECT_EQ(Positions() - before, 81 * kKeysPerFrameMax);
  AdvanceMs(kLeaseMsDefault - kTickMs);
  EXPECT_EQ(Lookup(client, ns, 1, 1, lease).lease(), lease);
}

// The kernel tells of the end of a process while more of its frames wait than one turn has room for.
TEST_F(TurnTest, WhatAProcessSentBeforeItsEndCountsAndWhatItsSocketSaysAfterwardsDoesNot) {
  StartWithBystander();
  if (!OpenPeerPidfd(bystander_->fd()).valid()) GTEST_SKIP() << "this kernel has no SO_PEERPIDFD";
  std::array<int, 2> pair{}, go{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
  ASSERT_EQ(::pipe2(go.data(), O_CLOEXEC), 0);
  const UniqueFd ours(pair[0]), theirs(pair[1]);
  UniqueFd go_read(go[0]), go_write(go[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    // Connects, hands its socket over, and lives until it is told to go.
    go_write.reset();
    const RawClient client(Path("red"));
    testing::SendFd(theirs.get(), client.fd());
    char byte;
    [[maybe_unused]] const ssize_t got = ::read(go_read.get(), &byte, 1);
    ::_exit(0);
  }
  RawClient client(testing::ReceiveFd(ours.get()));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  const v1::Reserved reserved = Reserve(client, ns, 1, 1);
  ClientFrame nothing, commit;
  nothing.mutable_release()->set_lease(1);
  commit.mutable_commit()->add_reservations(reserved.reservations(0));
  for (uint32_t i = 0; i < 3 * kFramesPerWakeMax; ++i) ASSERT_TRUE(client.Send(nothing)) << i;
  ASSERT_TRUE(client.Send(commit));
  go_write.reset();
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  loop_->RunOnce(0);
  EXPECT_EQ(server_->stats().attached, 2u) << "not all that it sent has been read";
  size_t rounds = 0;
  for (; server_->stats().attached == 2u && rounds < 20; ++rounds) {
    for (uint32_t i = 0; i < 4 * kFramesPerWakeMax && client.Send(nothing); ++i) continue;
    loop_->RunOnce(0);
  }
  EXPECT_LE(rounds, 5u) << "whoever still has the socket says something every time";
  EXPECT_EQ(Cuts(CutReason::kPeerExited), 1u);
  RawClient other(Path("red"));
  Attach(other);
  EXPECT_EQ(Lookup(other, OpenNamespace(other), 1, 1).matched(), 1u);
}

}  // namespace
}  // namespace kvartal::attach
