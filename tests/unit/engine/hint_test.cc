// What clients say of conversations: those that have ended go first, those that wait stay.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::SessionHint;

class HintTest : public EngineTest, public ::testing::WithParamInterface<const char*> {
 protected:
  HintTest() { options_.eviction = GetParam(); }
  // As a client does it: the whole chain looked up, the hint, the lease given back.
  void Hint(NamespaceId ns, const std::vector<BlockKey>& chain, SessionHint hint) {
    std::vector<BlockPlace> places;
    ASSERT_EQ(engine_->Lookup(ns, chain, 0, 0, &places).matched, chain.size());
    engine_->Hint(Holds(places), hint);
    engine_->Release(Holds(places));
  }
};

TEST_P(HintTest, WhatHasEndedGoesBeforeWhatIsOlder) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1);
  ASSERT_EQ(Store("a/p", ns, Chain(1, 8)), 8u);
  AdvanceMs(5000);
  ASSERT_EQ(Store("a/p", ns, Chain(100, 8)), 8u);
  Hint(ns, Chain(100, 8), SessionHint::kEnded);
  EXPECT_EQ(Matched(ns, Chain(1, 8)), 8u);
  ASSERT_EQ(Store("a/p", ns, Chain(200, 6)), 6u);
  EXPECT_EQ(Matched(ns, Chain(1, 8)), 8u) << "the older one pays nothing";
  EXPECT_EQ(Matched(ns, Chain(100, 8)), 2u) << "it goes from its end";
  engine_->CheckInvariants();
}

TEST_P(HintTest, WhatIsAskedForAgainHasNotEnded) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1);
  ASSERT_EQ(Store("a/p", ns, Chain(1, 8)), 8u);
  AdvanceMs(5000);
  ASSERT_EQ(Store("a/p", ns, Chain(100, 8)), 8u);
  Hint(ns, Chain(100, 8), SessionHint::kEnded);
  AdvanceMs(1000);
  ASSERT_EQ(Matched(ns, Chain(100, 8)), 8u);
  ASSERT_EQ(Store("a/p", ns, Chain(200, 4)), 4u);
  // Hit density weighs the two for itself by now.
  if (options_.eviction == "lru") {
    EXPECT_EQ(Matched(ns, Chain(100, 8)), 8u);
    EXPECT_EQ(Matched(ns, Chain(1, 8)), 4u);
  }
  engine_->CheckInvariants();
}

TEST_P(HintTest, WhatAnotherConversationSharesHasNotEnded) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1);
  std::vector<BlockKey> ended = Chain(1, 4), goes_on = Chain(1, 4);
  for (const BlockKey& key : Chain(50, 4)) ended.push_back(key);
  for (const BlockKey& key : Chain(60, 4)) goes_on.push_back(key);
  ASSERT_EQ(Store("a/p", ns, ended), 8u);
  AdvanceMs(1000);
  Store("a/p", ns, goes_on);
  ASSERT_EQ(Matched(ns, goes_on), 8u);
  AdvanceMs(1000);
  Hint(ns, ended, SessionHint::kEnded);
  // 12 of 16 places are taken: 4 are free, 4 have ended.
  ASSERT_EQ(Store("a/p", ns, Chain(200, 8)), 8u);
  EXPECT_EQ(Matched(ns, goes_on), 8u);
  EXPECT_EQ(Matched(ns, ended), 4u);
  engine_->CheckInvariants();
}

TEST_P(HintTest, AHintOfAFrontSaysNothingOfWhatFollows) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1);
  ASSERT_EQ(Store("a/p", ns, Chain(1, 8)), 8u);
  AdvanceMs(5000);
  ASSERT_EQ(Store("a/p", ns, Chain(100, 8)), 8u);
  Hint(ns, Chain(100, 4), SessionHint::kEnded);
  ASSERT_EQ(Store("a/p", ns, Chain(200, 4)), 4u);
  EXPECT_EQ(Matched(ns, Chain(100, 8)), 8u) << "others still stand on it";
  engine_->CheckInvariants();
}

TEST_P(HintTest, WhatIsReadInPlaceStaysUntilItsLeaseEnds) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1);
  ASSERT_EQ(Store("a/p", ns, Chain(1, 8)), 8u);
  AdvanceMs(5000);
  ASSERT_EQ(Store("a/p", ns, Chain(100, 8)), 8u);
  std::vector<BlockPlace> places;
  ASSERT_EQ(engine_->Lookup(ns, Chain(100, 8), 0, 0, &places).matched, 8u);
  engine_->Hint(Holds(places), SessionHint::kEnded);
  ASSERT_EQ(Store("a/p", ns, Chain(200, 2)), 2u);
  EXPECT_EQ(Matched(ns, Chain(1, 8)), 6u) << "a lease comes before a hint";
  engine_->Release(Holds(places));
  ASSERT_EQ(Store("a/p", ns, Chain(300, 2)), 2u);
  std::vector<BlockPlace> left;
  EXPECT_EQ(engine_->Lookup(ns, Chain(100, 8), 0, 0, &left).matched, 6u);
  engine_->Release(Holds(left));
  engine_->CheckInvariants();
}

INSTANTIATE_TEST_SUITE_P(Orders, HintTest, ::testing::Values("lru", "lhd"),
                         [](const auto& each) { return std::string(each.param); });

class WaitingTest : public EngineTest {};

TEST_F(WaitingTest, WhatWaitsCountsAsAskedForNow) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1);
  ASSERT_EQ(Store("a/p", ns, Chain(1, 8)), 8u);
  std::vector<BlockPlace> places;
  ASSERT_EQ(engine_->Lookup(ns, Chain(1, 8), 0, 0, &places).matched, 8u);
  AdvanceMs(5000);
  ASSERT_EQ(Store("a/p", ns, Chain(100, 8)), 8u);
  engine_->Hint(Holds(places), SessionHint::kWaiting);
  engine_->Release(Holds(places));
  ASSERT_EQ(Store("a/p", ns, Chain(200, 4)), 4u);
  EXPECT_EQ(Matched(ns, Chain(1, 8)), 8u);
  EXPECT_EQ(Matched(ns, Chain(100, 8)), 4u);
  const TenantStats stats = engine_->stats().tenants.at(0);
  EXPECT_EQ(stats.lookups, 3u) << "a hint is no request";
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::engine
