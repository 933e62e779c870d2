#include "daemon/policy/block_deadline.h"

#include <gtest/gtest.h>

#include <random>

#include "daemon/base/limits.h"

namespace kvartal::policy {
namespace {

constexpr uint32_t kNow = 100'000;

TenantRules Times(uint64_t dram_ttl_ms, uint64_t nvme_ttl_ms, uint64_t max_age_ms) {
  TenantRules rules;
  rules.ttl_ms[TierIndex(TierKind::kDram)] = dram_ttl_ms;
  rules.ttl_ms[TierIndex(TierKind::kNvme)] = nvme_ttl_ms;
  rules.max_age_ms = max_age_ms;
  return rules;
}

BlockAges Ages(uint32_t age_ticks, uint32_t idle_ticks, uint32_t pinned_for_ticks = 0) {
  BlockAges ages;
  ages.first_commit_tick = kNow - age_ticks;
  ages.last_access_tick = kNow - idle_ticks;
  ages.pinned_until_tick = pinned_for_ticks == 0 ? 0 : kNow + pinned_for_ticks;
  ages.resident[TierIndex(TierKind::kDram)] = ages.resident[TierIndex(TierKind::kNvme)] = true;
  return ages;
}

TEST(BlockDeadline, ATtlOfATierCountsFromTheLastAccess) {
  const TenantRules rules = Times(1000, 5000, 0);
  EXPECT_FALSE(Expired(rules, Ages(99, 9), TierKind::kDram, kNow));
  EXPECT_TRUE(Expired(rules, Ages(99, 10), TierKind::kDram, kNow));
  EXPECT_FALSE(Expired(rules, Ages(99, 10), TierKind::kNvme, kNow));
  EXPECT_FALSE(Expired(Times(0, 0, 0), Ages(99'999, 99'999), TierKind::kDram, kNow)) << "0: never";
}

TEST(BlockDeadline, APinBeatsTheTtlUntilItEnds) {
  const TenantRules rules = Times(1000, 1000, 0);
  EXPECT_FALSE(Expired(rules, Ages(500, 500, 1), TierKind::kDram, kNow));
  EXPECT_TRUE(Expired(rules, Ages(500, 500, 1), TierKind::kDram, kNow + 1)) << "exactly then, whatever ends the pin";
  EXPECT_EQ(DeadlineOf(rules, Ages(500, 500, 7)), kNow + 7);
}

TEST(BlockDeadline, MaxAgeBeatsThePin) {
  const TenantRules rules = Times(0, 0, 3000);
  EXPECT_FALSE(Expired(rules, Ages(29, 0, 1000), TierKind::kDram, kNow));
  EXPECT_TRUE(Expired(rules, Ages(30, 0, 1000), TierKind::kDram, kNow));
  EXPECT_EQ(DeadlineOf(rules, Ages(29, 0, 1000)), kNow + 1);
}

TEST(BlockDeadline, ALongTtlDoesNotWrapAround) {
  const TenantRules rules = Times(uint64_t{10} * 365 * 86'400'000, 0, 0);
  BlockAges ages = Ages(0, 0);
  ages.last_access_tick = UINT32_MAX - 1000;
  EXPECT_EQ(DeadlineOf(rules, ages), kNoDeadline);
  EXPECT_FALSE(Expired(rules, ages, TierKind::kDram, UINT32_MAX - 1));
}

// The deadline is the first tick at which one of the rules has something to say, by trying every tick.
TEST(BlockDeadline, IsTheFirstTickAtWhichSomethingIsToBeDone) {
  std::mt19937_64 random(7);
  const auto some = [&](uint64_t below) { return random() % 3 == 0 ? 0 : random() % below; };
  for (int round = 0; round < 2000; ++round) {
    const TenantRules rules = Times(some(3000), some(3000), some(5000));
    BlockAges ages = Ages(static_cast<uint32_t>(random() % 60), 0, static_cast<uint32_t>(some(40)));
    ages.last_access_tick = ages.first_commit_tick + static_cast<uint32_t>(random() % 20);
    ages.resident[TierIndex(TierKind::kNvme)] = random() % 2 == 0;
    uint32_t first = ages.first_commit_tick;
    const auto to_do = [&](uint32_t tick) {
      if (OverAge(rules, ages, tick)) return true;
      if (ages.pinned_until_tick != 0) return tick >= ages.pinned_until_tick;
      for (const TierKind tier : kAllTiers) {
        if (ages.resident[TierIndex(tier)] && Expired(rules, ages, tier, tick)) return true;
      }
      return false;
    };
    while (first < kNow + 1000 && !to_do(first)) ++first;
    const uint32_t deadline = DeadlineOf(rules, ages);
    if (first == kNow + 1000) {
      EXPECT_EQ(deadline, kNoDeadline);
    } else {
      EXPECT_EQ(std::max(deadline, ages.first_commit_tick), first);
    }
  }
}

TEST(BlockDeadline, OnlyAShorterTimeShortens) {
  EXPECT_FALSE(ShortensTimes(Times(1000, 2000, 3000), Times(1000, 2000, 3000)));
  EXPECT_FALSE(ShortensTimes(Times(1000, 2000, 3000), Times(0, 2001, 0))) << "longer, and never";
  EXPECT_TRUE(ShortensTimes(Times(1000, 2000, 3000), Times(999, 2000, 3000)));
  EXPECT_TRUE(ShortensTimes(Times(0, 2000, 3000), Times(1000, 2000, 3000))) << "from never";
  EXPECT_TRUE(ShortensTimes(Times(1000, 2000, 3000), Times(1000, 2000, 2900)));
}

}  // namespace
}  // namespace kvartal::policy
