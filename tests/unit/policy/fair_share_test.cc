// The rule of sharing as pure functions: what holds for any tenants, and who gives to whom.
#include "daemon/policy/fair_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "daemon/base/units.h"

namespace kvartal::policy {
namespace {

constexpr uint64_t kCapacity = 1000 * kMiB;
constexpr uint64_t kCap = kCapacity / 2;

Standing Wants(uint64_t demand, uint64_t guarantee = 0, uint32_t weight = 1, uint64_t limit = kCapacity) {
  Standing tenant;
  tenant.demand_bytes = demand;
  tenant.guarantee_bytes = guarantee;
  tenant.limit_bytes = limit;
  tenant.weight = weight;
  return tenant;
}

Standing Holds(uint64_t used, uint64_t share, uint64_t guarantee = 0, uint32_t weight = 1) {
  Standing tenant = Wants(used, guarantee, weight);
  tenant.used_bytes = used;
  tenant.share_bytes = share;
  return tenant;
}

uint64_t Sum(const std::vector<uint64_t>& values) { return std::accumulate(values.begin(), values.end(), uint64_t{0}); }

class RandomTenants : public ::testing::TestWithParam<uint64_t> {
 protected:
  uint64_t Random(uint64_t below) { return random_() % below; }

  std::vector<Standing> Tenants() {
    std::vector<Standing> tenants(1 + Random(12));
    uint64_t promised = 0;
    for (Standing& tenant : tenants) {
      tenant.limit_bytes = Random(4) == 0 ? Random(kCapacity) : kCapacity;
      tenant.guarantee_bytes = Random(2) * Random(std::min(kCapacity - promised, tenant.limit_bytes) + 1);
      promised += tenant.guarantee_bytes;
      tenant.demand_bytes = Random(5) == 0 ? 0 : Random(2 * kCapacity);
      tenant.used_bytes = Random(kCapacity);
      tenant.weight = 1 + static_cast<uint32_t>(Random(400));
      tenant.sla = static_cast<SlaTier>(Random(3));
      tenant.idle_only = Random(4) == 0;
    }
    return tenants;
  }

  std::mt19937_64 random_{GetParam()};
};

TEST_P(RandomTenants, SharesFillTheTierAndNothingMore) {
  for (int round = 0; round < 200; ++round) {
    const auto tenants = Tenants();
    const auto shares = FairShares(tenants, kCapacity, kCap);
    uint64_t wanted = 0;
    for (size_t i = 0; i < tenants.size(); ++i) {
      const uint64_t most = std::min(tenants[i].demand_bytes, tenants[i].limit_bytes);
      EXPECT_LE(shares[i], most);
      EXPECT_GE(shares[i], std::min(most, tenants[i].guarantee_bytes)) << "a guarantee that is wanted is given";
      wanted += most;
    }
    EXPECT_LE(Sum(shares), kCapacity);
    EXPECT_GE(Sum(shares) + tenants.size(), std::min(kCapacity, wanted)) << "nothing lies idle that somebody wants";
  }
}

TEST_P(RandomTenants, OrderDoesNotMatter) {
  for (int round = 0; round < 100; ++round) {
    const auto tenants = Tenants();
    const auto shares = FairShares(tenants, kCapacity, kCap);
    std::vector<size_t> order(tenants.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<Standing> shuffled;
    for (const size_t i : order) shuffled.push_back(tenants[i]);
    const auto shuffled_shares = FairShares(shuffled, kCapacity, kCap);
    for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(shuffled_shares[i], shares[order[i]]);
  }
}

TEST_P(RandomTenants, WantingMoreNeverGetsLess) {
  for (int round = 0; round < 100; ++round) {
    auto tenants = Tenants();
    const size_t one = Random(tenants.size());
    const uint64_t before = FairShares(tenants, kCapacity, kCap)[one];
    tenants[one].demand_bytes += Random(kCapacity);
    EXPECT_GE(FairShares(tenants, kCapacity, kCap)[one] + tenants.size(), before);
  }
}

TEST_P(RandomTenants, AVictimIsAboveItsGuaranteeAndNeverTheTaker) {
  for (int round = 0; round < 200; ++round) {
    auto tenants = Tenants();
    const auto shares = FairShares(tenants, kCapacity, kCap);
    for (size_t i = 0; i < tenants.size(); ++i) tenants[i].share_bytes = shares[i];
    const size_t taker = Random(tenants.size());
    const std::vector<bool> all(tenants.size(), true);
    for (const Claim claim : {Claim::kShare, Claim::kGuarantee}) {
      const auto victim = ChooseVictim(tenants, taker, claim, all);
      if (!victim.has_value()) continue;
      EXPECT_NE(*victim, taker);
      EXPECT_GT(tenants[*victim].used_bytes, tenants[*victim].guarantee_bytes);
      const Standing& gives = tenants[*victim];
      EXPECT_TRUE(claim == Claim::kGuarantee || gives.used_bytes > gives.share_bytes);
    }
    EXPECT_FALSE(ChooseVictim(tenants, taker, Claim::kNone, all).has_value());
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomTenants, ::testing::Range<uint64_t>(1, 9));

TEST(FairSharesTest, ATenantAloneMayUseAllItsLimitAllows) {
  const std::vector<Standing> tenants = {Wants(2 * kCapacity, 0, 1, 900 * kMiB), Wants(0, 500 * kMiB), Wants(0)};
  EXPECT_EQ(FairShares(tenants, kCapacity, kCap)[0], 900 * kMiB);
}

TEST(FairSharesTest, WeightsDivideWhatGuaranteesLeave) {
  const std::vector<Standing> tenants = {Wants(kCapacity, 100 * kMiB, 400), Wants(kCapacity, 0, 200)};
  const auto shares = FairShares(tenants, kCapacity, kCapacity);
  EXPECT_EQ(shares[0], 700 * kMiB);
  EXPECT_EQ(shares[1], 300 * kMiB);
}

TEST(FairSharesTest, TheCapHoldsOnlyWhileSomeoneElseWantsTheSpace) {
  EXPECT_EQ(FairShares(std::vector<Standing>{Wants(kCapacity, 0, 9), Wants(kCapacity)}, kCapacity, kCap)[0], kCap);
  EXPECT_EQ(FairShares(std::vector<Standing>{Wants(kCapacity, 0, 9), Wants(100 * kMiB)}, kCapacity, kCap)[0],
            900 * kMiB);
  EXPECT_EQ(FairShares(std::vector<Standing>{Wants(kCapacity, 700 * kMiB), Wants(kCapacity)}, kCapacity, kCap)[0],
            700 * kMiB)
      << "a guarantee is above any cap";
}

TEST(FairSharesTest, IdleOnlyGetsItsGuaranteeAndWhatNobodyElseWants) {
  std::vector<Standing> tenants = {Wants(600 * kMiB), Wants(kCapacity, 50 * kMiB, 400)};
  tenants[1].idle_only = true;
  const auto shares = FairShares(tenants, kCapacity, kCapacity);
  EXPECT_EQ(shares[0], 600 * kMiB);
  EXPECT_EQ(shares[1], 400 * kMiB);
  tenants[0].demand_bytes = kCapacity;
  EXPECT_EQ(FairShares(tenants, kCapacity, kCapacity)[1], 50 * kMiB);
}

TEST(FairSharesTest, GuaranteesThatDoNotFitCountInProportion) {
  const std::vector<Standing> tenants = {Wants(kCapacity, 900 * kMiB), Wants(kCapacity, 300 * kMiB)};
  const auto shares = FairShares(tenants, kCapacity, kCap);
  EXPECT_EQ(shares[0], 750 * kMiB);
  EXPECT_EQ(shares[1], 250 * kMiB);
}

TEST(ClaimTest, GuaranteeThenShareThenNothing) {
  Standing tenant = Holds(90 * kMiB, 120 * kMiB, 100 * kMiB);
  EXPECT_EQ(ClaimOf(tenant, 10 * kMiB), Claim::kGuarantee);
  EXPECT_EQ(ClaimOf(tenant, 30 * kMiB), Claim::kShare);
  EXPECT_EQ(ClaimOf(tenant, 31 * kMiB), Claim::kNone);
  tenant.limit_bytes = 95 * kMiB;
  EXPECT_EQ(ClaimOf(tenant, 10 * kMiB), Claim::kNone) << "a limit is never a claim on others";
}

TEST(ChooseVictimTest, TheOneFurthestAboveItsShareForItsWeightGives) {
  const std::vector<bool> all(4, true);
  std::vector<Standing> tenants = {Holds(0, 300 * kMiB), Holds(400 * kMiB, 300 * kMiB, 0, 4),
                                   Holds(350 * kMiB, 300 * kMiB, 0, 1), Holds(250 * kMiB, 300 * kMiB)};
  EXPECT_EQ(ChooseVictim(tenants, 0, Claim::kShare, all), size_t{2}) << "50 for a weight of 1 is more than 100 for 4";
  EXPECT_EQ(ChooseVictim(tenants, 0, Claim::kShare, {true, true, false, true}), size_t{1}) << "it cannot give now";
  EXPECT_EQ(ChooseVictim(tenants, 0, Claim::kShare, {true, false, false, true}), std::nullopt) << "within its share";
  EXPECT_EQ(ChooseVictim(tenants, 0, Claim::kGuarantee, {true, false, false, true}), size_t{3})
      << "for a guarantee, what is borrowed goes even within a share";
}

TEST(ChooseVictimTest, TiesGoToBasicFirst) {
  std::vector<Standing> tenants = {Holds(0, 1), Holds(300 * kMiB, 200 * kMiB), Holds(300 * kMiB, 200 * kMiB),
                                   Holds(300 * kMiB, 200 * kMiB)};
  tenants[1].sla = SlaTier::kPremium;
  tenants[3].sla = SlaTier::kBasic;
  EXPECT_EQ(ChooseVictim(tenants, 0, Claim::kShare, {true, true, true, true}), size_t{3});
  EXPECT_EQ(ChooseVictim(tenants, 0, Claim::kShare, {true, true, true, false}), size_t{2});
}

TEST(ChooseVictimTest, LessThanOnePercentAboveItsShareGivesNothing) {
  std::vector<Standing> tenants = {Holds(0, 100 * kMiB), Holds(402 * kMiB, 400 * kMiB)};
  EXPECT_EQ(ChooseVictim(tenants, 0, Claim::kShare, {true, true}), std::nullopt);
  tenants[1].used_bytes = 405 * kMiB;
  EXPECT_EQ(ChooseVictim(tenants, 0, Claim::kShare, {true, true}), size_t{1});
}

// Tenants that all want everything: space changes hands until everyone has its share, and then no more.
TEST(ChooseVictimTest, TenantsDoNotPingPong) {
  constexpr uint64_t kExtent = 16 * kMiB;
  std::mt19937_64 random(7);
  std::vector<Standing> tenants = {Wants(0, 0, 4), Wants(0, 100 * kMiB, 1), Wants(0, 0, 2), Wants(0, 0, 1)};
  tenants[2].used_bytes = kCapacity / kExtent * kExtent;
  const std::vector<bool> all(tenants.size(), true);
  int late_moves = 0;
  for (int second = 0; second < 120; ++second) {
    for (Standing& tenant : tenants) tenant.demand_bytes = tenant.used_bytes + 20 * kMiB;
    const auto shares = FairShares(tenants, kCapacity, kCapacity);
    for (size_t i = 0; i < tenants.size(); ++i) tenants[i].share_bytes = shares[i];
    for (int wish = 0; wish < 50; ++wish) {
      const size_t taker = random() % tenants.size();
      const auto victim = ChooseVictim(tenants, taker, ClaimOf(tenants[taker], kExtent), all);
      if (!victim.has_value()) continue;
      tenants[*victim].used_bytes -= kExtent;
      tenants[taker].used_bytes += kExtent;
      if (second >= 100) ++late_moves;
    }
  }
  EXPECT_EQ(late_moves, 0);
  EXPECT_GE(tenants[1].used_bytes, 100 * kMiB - kExtent);
  EXPECT_GT(tenants[0].used_bytes, tenants[2].used_bytes);
  EXPECT_GT(tenants[2].used_bytes, tenants[3].used_bytes);
}

}  // namespace
}  // namespace kvartal::policy
