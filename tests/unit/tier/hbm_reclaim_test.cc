// How memory that processes have mapped comes back.
#include "tests/unit/tier/hbm_tier_fixture.h"

namespace kvartal::tier {
namespace {

using HbmReclaimTest = HbmTierTest;

TEST_F(HbmReclaimTest, ShrinkReturnsAtOnceWhatNobodyHasAndFreesItLater) {
  ASSERT_TRUE(Grow(tier_, kA, 2 * kMiB).ok());
  const SlabId held = Granted(kA, 4 * kMiB, kPod);
  EXPECT_EQ(Shrink(kA), 2 * kMiB);
  EXPECT_EQ(shrinks_ended_, 0);
  EXPECT_EQ(tier_.stats().granted_bytes, 4 * kMiB) << "what a pod has stays charged";
  EXPECT_EQ(tier_.stats().reclaiming_bytes, 2 * kMiB);
  ASSERT_EQ(heard_.recalled.size(), 1u);
  EXPECT_EQ(heard_.recalled[0].id, held);
  executor_.RunAll();
  EXPECT_EQ(shrinks_ended_, 1);
  EXPECT_EQ(tier_.stats().reclaiming_bytes, 0u);
  EXPECT_EQ(memory_.live_bytes(0), 4 * kMiB);
}

TEST_F(HbmReclaimTest, ShrinkKeepsWhatItIsToldToAndWhatIsInUse) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Grow(tier_, kA, 4 * kMiB).ok());
  const SlotId slot = tier_.Take(kA, kSlot);
  EXPECT_EQ(Shrink(kA, 7 * kMiB), 4 * kMiB);
  EXPECT_EQ(tier_.EmptyBytes(kA), 4 * kMiB);
  EXPECT_EQ(Shrink(kA, 4 * kMiB), 0u);
  EXPECT_EQ(shrinks_ended_, 1) << "at once, since there was nothing to take";
  executor_.RunAll();
  tier_.Give(kA, slot);
  EXPECT_EQ(Shrink(kA), 8 * kMiB);
  EXPECT_EQ(shrinks_ended_, 2);
  executor_.RunAll();
  EXPECT_EQ(shrinks_ended_, 3) << "when the last of the two is free";
}

TEST_F(HbmReclaimTest, APodThatDetachesGivesItsSlabBackToTheNextShrink) {
  const SlabId slab = Granted(kA, 4 * kMiB, kPod);
  ASSERT_TRUE(tier_.Grant(kA, slab, kOtherPod).ok());
  EXPECT_EQ(Shrink(kA), 0u);
  EXPECT_EQ(StateOf(kA, slab), SlabState::kDetaching);
  EXPECT_EQ(tier_.EmptyBytes(kA), 0u);
  EXPECT_FALSE(tier_.Take(kA, kSlot).valid()) << "asked back";
  EXPECT_EQ(tier_.Grant(kA, slab, kPod).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(tier_.PeerDetached(kPod, slab));
  EXPECT_FALSE(tier_.PeerDetached(kPod, slab)) << "once";
  EXPECT_TRUE(heard_.let_go.empty()) << "another still has it";
  EXPECT_TRUE(tier_.PeerDetached(kOtherPod, slab));
  EXPECT_EQ(heard_.let_go, std::vector<DomainId>{kA});
  EXPECT_EQ(StateOf(kA, slab), SlabState::kQuiesced);
  EXPECT_EQ(tier_.stats().granted_bytes, 4 * kMiB) << "charged until it is returned";
  EXPECT_EQ(tier_.EmptyBytes(kA), 4 * kMiB);
  EXPECT_EQ(Shrink(kA, kGiB), 4 * kMiB) << "it is of no use to the domain any more";
  EXPECT_EQ(tier_.stats().granted_bytes, 0u);
  executor_.RunAll();
  EXPECT_EQ(StateOf(kA, slab), SlabState::kFree);
  EXPECT_EQ(memory_.live_bytes(0), 0u);
}

TEST_F(HbmReclaimTest, ADeafPodKeepsItsBytesChargedUntilItIsProvenGone) {
  const SlabId slab = Granted(kA, 4 * kMiB, kPod);
  Shrink(kA);
  clock_.AdvanceMs(kRecallNs / kNsPerMs - 1);
  tier_.Tick();
  EXPECT_EQ(StateOf(kA, slab), SlabState::kDetaching);
  EXPECT_EQ(tier_.BytesIn(SlabState::kZombie), 0u);
  clock_.AdvanceMs(1);
  tier_.Tick();
  EXPECT_EQ(StateOf(kA, slab), SlabState::kZombie);
  EXPECT_EQ(tier_.BytesIn(SlabState::kZombie), 4 * kMiB);
  clock_.AdvanceMs(3'600'000);
  tier_.Tick();
  EXPECT_EQ(Shrink(kA), 0u) << "no deadline is a proof";
  executor_.RunAll();
  EXPECT_EQ(tier_.stats().granted_bytes, 4 * kMiB);
  EXPECT_EQ(memory_.counts().scrubs, 1u) << "not zeroed while somebody may write to it";
  tier_.PeerGone(kOtherPod);
  EXPECT_TRUE(heard_.let_go.empty()) << "somebody else";
  tier_.PeerGone(kPod);
  EXPECT_EQ(heard_.let_go.size(), 1u);
  EXPECT_EQ(tier_.BytesIn(SlabState::kZombie), 0u);
  EXPECT_EQ(Shrink(kA), 4 * kMiB);
  executor_.RunAll();
  EXPECT_EQ(memory_.live_bytes(0), 0u);
}

TEST_F(HbmReclaimTest, ADeafPodMayStillAnswer) {
  const SlabId slab = Granted(kA, 4 * kMiB, kPod);
  Shrink(kA);
  clock_.AdvanceMs(kRecallNs / kNsPerMs);
  tier_.Tick();
  ASSERT_EQ(StateOf(kA, slab), SlabState::kZombie);
  EXPECT_TRUE(tier_.PeerDetached(kPod, slab));
  EXPECT_EQ(Shrink(kA), 4 * kMiB);
}

TEST_F(HbmReclaimTest, ADeadPodGivesEverythingBackWithoutADeadlineAndTheOthersGoOn) {
  const SlabId shared = Granted(kA, 2 * kMiB, kPod);
  ASSERT_TRUE(tier_.Grant(kA, shared, kOtherPod).ok());
  const SlabId asked = Granted(kB, 4 * kMiB, kPod);
  Shrink(kB);
  tier_.PeerGone(kPod);
  EXPECT_EQ(StateOf(kB, asked), SlabState::kQuiesced);
  EXPECT_EQ(heard_.let_go, std::vector<DomainId>{kB});
  EXPECT_EQ(StateOf(kA, shared), SlabState::kActive);
  EXPECT_TRUE(tier_.Take(kA, kSlot).valid());
  EXPECT_FALSE(tier_.PeerDetached(kPod, shared)) << "it has nothing any more";
}

TEST_F(HbmReclaimTest, AScrubThatFailsIsTriedAgainAndNothingIsReleasedBefore) {
  const SlabId slab = Granted(kA, 4 * kMiB, kPod);
  tier_.PeerGone(kPod);
  memory_.FailNextScrubs(1);
  ASSERT_EQ(Shrink(kA), 4 * kMiB);
  executor_.RunAll();
  EXPECT_EQ(StateOf(kA, slab), SlabState::kQuiesced);
  tier_.Tick();
  EXPECT_EQ(executor_.RunAll(), 0u) << "not at once";
  EXPECT_EQ(Shrink(kA), 0u) << "it was returned before";
  EXPECT_EQ(tier_.stats().reclaiming_bytes, 4 * kMiB);
  EXPECT_EQ(shrinks_ended_, 1);  // of the second
  clock_.AdvanceMs(kScrubRetryNs / kNsPerMs);
  tier_.Tick();
  tier_.Tick();
  EXPECT_EQ(executor_.RunAll(), 1u) << "one request";
  EXPECT_EQ(StateOf(kA, slab), SlabState::kFree);
  EXPECT_EQ(shrinks_ended_, 2);
  EXPECT_EQ(memory_.live_bytes(0), 0u);
}

TEST_F(HbmReclaimTest, AScrubThatIsRefusedIsTriedAgain) {
  Granted(kA, 4 * kMiB, kPod);
  Granted(kA, 4 * kMiB, kPod);
  tier_.PeerGone(kPod);
  memory_.SetQueueMax(1);
  ASSERT_EQ(Shrink(kA), 8 * kMiB);
  executor_.RunAll();
  EXPECT_EQ(tier_.stats().reclaiming_bytes, 4 * kMiB);
  clock_.AdvanceMs(kScrubRetryNs / kNsPerMs);
  tier_.Tick();
  executor_.RunAll();
  EXPECT_EQ(shrinks_ended_, 1);
}

TEST_F(HbmReclaimTest, CallbacksThatComeAfterTheTierHasGoneDoNothing) {
  auto gone = std::make_unique<HbmTier>(&memory_, 0, kCapacity, &clock_, &heard_);
  gone->OpenDomain(kA, kGpus);
  ASSERT_TRUE(Grow(*gone, kA, 2 * kMiB).ok());
  bool done = false;
  gone->Shrink(kA, 0, [&] { done = true; });
  gone->Grow(kA, kSlot, 2 * kMiB, [&](const absl::Status&) { done = true; });
  gone.reset();
  executor_.RunAll();
  EXPECT_FALSE(done);
  EXPECT_EQ(memory_.live_bytes(0), 0u);
}

}  // namespace
}  // namespace kvartal::tier
