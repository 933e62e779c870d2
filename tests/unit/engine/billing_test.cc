// What a bill is made of: bytes over time, and tokens served by the tier they came from.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

class BillingTest : public EngineTest {};

TEST_F(BillingTest, ByteSecondsFollowWhatIsCharged) {
  Start({Rules("a/p", 16 * kMiB, 0), Rules("b/p", 16 * kMiB, 0)});
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 3)), 3u);
  const double charged = static_cast<double>(TierStatsOf("a/p", TierKind::kDram).charged_bytes);
  ASSERT_GT(charged, 0);
  AdvanceMs(5000);
  EXPECT_NEAR(TierStatsOf("a/p", TierKind::kDram).byte_seconds, charged * 5, 1);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).byte_seconds, 0);
  EXPECT_EQ(TierStatsOf("b/p", TierKind::kDram).byte_seconds, 0);
}

TEST_F(BillingTest, TokensAreServedFromTheTierThatHadTheBlock) {
  Start({Rules("a/p", 4 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 16)), 16u);
  Pump();
  EXPECT_EQ(Matched(ns, Chain(1, 16)), 16u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).tokens_served, 16u * 16);
  ASSERT_EQ(Store("a/p", ns, Chain(100, 16)), 16u);  // the first chain is on NVMe alone now
  Pump();
  EXPECT_EQ(Matched(ns, Chain(1, 16)), 16u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).tokens_served, 16u * 16);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).tokens_served, 16u * 16);
}

TEST_F(BillingTest, TokensServedAreNeverMoreThanThePromptHad) {
  Start({Rules("a/p", 16 * kMiB, 0)});
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 3)), 3u);
  for (const uint64_t prompt_tokens : {40, 1}) {
    std::vector<BlockPlace> places;
    engine_->Lookup(ns, Chain(1, 3), prompt_tokens, 0, &places);
    engine_->Release(Holds(places));
  }
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).tokens_served, 41u);
  EXPECT_EQ(StatsOf("a/p").tokens_hit, 41u);
}

}  // namespace
}  // namespace kvartal::engine
