#include "daemon/policy/quota_ledger.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvartal::policy {
namespace {

constexpr TenantId kAnna(0);
constexpr TenantId kBert(1);
constexpr TierKind kTier = TierKind::kDram;

NodeCapacity Capacity(uint64_t dram_bytes, uint64_t nvme_bytes = 0) {
  NodeCapacity capacity;
  capacity.bytes[TierIndex(TierKind::kDram)] = dram_bytes;
  capacity.bytes[TierIndex(TierKind::kNvme)] = nvme_bytes;
  return capacity;
}

TierQuota Limit(uint64_t bytes) {
  TierQuota quota;
  quota.limit_bytes = bytes;
  return quota;
}

void SettleOrDie(QuotaLedger& ledger, TenantId tenant, uint64_t bytes) {
  QuotaLedger::ChargeResult result = ledger.TryCharge(tenant, kTier, bytes);
  ASSERT_EQ(result.reason, Refusal::kNone);
  result.charge.Settle();
}

TEST(QuotaLedger, ChargesUpToTheLimitAndNotAByteMore) {
  QuotaLedger ledger(Capacity(1000));
  ledger.SetQuota(kAnna, kTier, Limit(100));
  SettleOrDie(ledger, kAnna, 60);
  EXPECT_EQ(ledger.TryCharge(kAnna, kTier, 41).reason, Refusal::kTenantLimit);
  SettleOrDie(ledger, kAnna, 40);
  EXPECT_EQ(ledger.TryCharge(kAnna, kTier, 1).reason, Refusal::kTenantLimit);
  EXPECT_EQ(ledger.account(kAnna, kTier).charged_bytes, 100u);
  EXPECT_EQ(ledger.account(kAnna, kTier).pending_bytes, 0u);
  ledger.CheckInvariants();
}

TEST(QuotaLedger, RefusesWithCapacityWhenLimitsAddUpToMore) {
  QuotaLedger ledger(Capacity(100));
  ledger.SetQuota(kAnna, kTier, Limit(kNoLimit));
  ledger.SetQuota(kBert, kTier, Limit(kNoLimit));
  SettleOrDie(ledger, kAnna, 70);
  QuotaLedger::ChargeResult refused = ledger.TryCharge(kBert, kTier, 31);
  EXPECT_EQ(refused.reason, Refusal::kCapacity);
  EXPECT_FALSE(refused.charge.valid());
  SettleOrDie(ledger, kBert, 30);
  EXPECT_EQ(ledger.charged_bytes(kTier), 100u);
}

TEST(QuotaLedger, NamesTheFirstReasonThatHolds) {
  QuotaLedger ledger(Capacity(10));
  ledger.SetQuota(kAnna, kTier, Limit(0));
  ledger.SetQuota(kBert, kTier, Limit(20));
  EXPECT_EQ(ledger.TryCharge(kAnna, kTier, 1000).reason, Refusal::kNoTier);
  EXPECT_EQ(ledger.TryCharge(kBert, kTier, 21).reason, Refusal::kTenantLimit);
  EXPECT_EQ(ledger.TryCharge(kBert, kTier, 11).reason, Refusal::kCapacity);
  EXPECT_EQ(ledger.TryCharge(kBert, TierKind::kNvme, 1).reason, Refusal::kNoTier);
}

TEST(QuotaLedger, SumsNearTheEndOfTheRangeDoNotWrap) {
  QuotaLedger ledger(Capacity(UINT64_MAX));
  ledger.SetQuota(kAnna, kTier, Limit(UINT64_MAX));
  ledger.SetQuota(kBert, kTier, Limit(UINT64_MAX));
  SettleOrDie(ledger, kAnna, UINT64_MAX - 5);
  EXPECT_EQ(ledger.TryCharge(kAnna, kTier, 6).reason, Refusal::kTenantLimit);
  EXPECT_EQ(ledger.TryCharge(kAnna, kTier, UINT64_MAX).reason, Refusal::kTenantLimit);
  EXPECT_EQ(ledger.TryCharge(kBert, kTier, 6).reason, Refusal::kCapacity);
  EXPECT_EQ(ledger.TryCharge(kBert, kTier, UINT64_MAX).reason, Refusal::kCapacity);
  SettleOrDie(ledger, kBert, 5);
  ledger.CheckInvariants();
}

TEST(QuotaLedger, ALimitLoweredBelowUsageGrantsNothingUntilUsageHasDrained) {
  QuotaLedger ledger(Capacity(1000));
  ledger.SetQuota(kAnna, kTier, Limit(500));
  SettleOrDie(ledger, kAnna, 400);
  ledger.SetQuota(kAnna, kTier, Limit(100));
  EXPECT_EQ(ledger.account(kAnna, kTier).charged_bytes, 400u);
  EXPECT_EQ(ledger.TryCharge(kAnna, kTier, 1).reason, Refusal::kTenantLimit);
  ledger.CheckInvariants();
  ledger.Refund(kAnna, kTier, 350);
  SettleOrDie(ledger, kAnna, 50);
  EXPECT_EQ(ledger.TryCharge(kAnna, kTier, 1).reason, Refusal::kTenantLimit);
}

TEST(QuotaLedger, ReclaimingBytesLeaveTheTenantButStayAgainstTheCapacity) {
  QuotaLedger ledger(Capacity(100));
  ledger.SetQuota(kAnna, kTier, Limit(100));
  ledger.SetQuota(kBert, kTier, Limit(100));
  SettleOrDie(ledger, kAnna, 100);
  ledger.Refund(kAnna, kTier, 60, /*still_reclaiming=*/true);
  EXPECT_EQ(ledger.account(kAnna, kTier).charged_bytes, 40u);
  EXPECT_EQ(ledger.reclaiming_bytes(kTier), 60u);
  EXPECT_EQ(ledger.TryCharge(kBert, kTier, 1).reason, Refusal::kCapacity);
  ledger.CheckInvariants();
  ledger.Reclaimed(kTier, 60);
  SettleOrDie(ledger, kBert, 60);
}

TEST(QuotaLedger, AdoptsWhatExistsWithinLimitAndCapacityOnly) {
  QuotaLedger ledger(Capacity(100));
  ledger.SetQuota(kAnna, kTier, Limit(80));
  ledger.SetQuota(kBert, kTier, Limit(80));
  EXPECT_TRUE(ledger.Adopt(kAnna, kTier, 80));
  EXPECT_FALSE(ledger.Adopt(kAnna, kTier, 1));
  EXPECT_FALSE(ledger.Adopt(kBert, kTier, 21));
  EXPECT_TRUE(ledger.Adopt(kBert, kTier, 20));
  EXPECT_EQ(ledger.account(kBert, kTier).charged_bytes, 20u);
  EXPECT_EQ(ledger.account(kBert, kTier).pending_bytes, 0u);
  ledger.CheckInvariants();
}

TEST(QuotaLedger, PeakIsTheHighestChargeEverHeld) {
  QuotaLedger ledger(Capacity(100));
  ledger.SetQuota(kAnna, kTier, Limit(100));
  {
    QuotaLedger::ChargeResult dropped = ledger.TryCharge(kAnna, kTier, 70);
  }
  SettleOrDie(ledger, kAnna, 20);
  EXPECT_EQ(ledger.account(kAnna, kTier).charged_bytes, 20u);
  EXPECT_EQ(ledger.account(kAnna, kTier).peak_bytes, 70u);
}

TEST(QuotaLedger, TiersAreAccountedApart) {
  QuotaLedger ledger(Capacity(100, 50));
  ledger.SetQuota(kAnna, TierKind::kDram, Limit(100));
  ledger.SetQuota(kAnna, TierKind::kNvme, Limit(100));
  SettleOrDie(ledger, kAnna, 100);
  EXPECT_EQ(ledger.charged_bytes(TierKind::kNvme), 0u);
  EXPECT_EQ(ledger.TryCharge(kAnna, TierKind::kNvme, 51).reason, Refusal::kCapacity);
  EXPECT_TRUE(ledger.Adopt(kAnna, TierKind::kNvme, 50));
}

TEST(Charge, ADroppedChargeRefundsItself) {
  QuotaLedger ledger(Capacity(100));
  ledger.SetQuota(kAnna, kTier, Limit(100));
  {
    QuotaLedger::ChargeResult result = ledger.TryCharge(kAnna, kTier, 30);
    EXPECT_TRUE(result.charge.valid());
    EXPECT_EQ(result.charge.bytes(), 30u);
    EXPECT_EQ(ledger.account(kAnna, kTier).pending_bytes, 30u);
  }
  EXPECT_EQ(ledger.account(kAnna, kTier).charged_bytes, 0u);
  EXPECT_EQ(ledger.account(kAnna, kTier).pending_bytes, 0u);
  EXPECT_EQ(ledger.charged_bytes(kTier), 0u);
}

TEST(Charge, MovesWithoutChargingOrRefundingTwice) {
  static_assert(!std::is_copy_constructible_v<Charge>);
  QuotaLedger ledger(Capacity(100));
  ledger.SetQuota(kAnna, kTier, Limit(100));
  Charge first = ledger.TryCharge(kAnna, kTier, 30).charge;
  Charge second = std::move(first);
  EXPECT_FALSE(first.valid());
  EXPECT_TRUE(second.valid());
  EXPECT_EQ(ledger.account(kAnna, kTier).charged_bytes, 30u);

  second = ledger.TryCharge(kAnna, kTier, 50).charge;  // what it held before is refunded
  EXPECT_EQ(ledger.account(kAnna, kTier).charged_bytes, 50u);
  Charge& itself = second;
  second = std::move(itself);
  EXPECT_TRUE(second.valid());
  EXPECT_EQ(ledger.account(kAnna, kTier).charged_bytes, 50u);

  second.Settle();
  EXPECT_FALSE(second.valid());
  second = Charge();
  EXPECT_EQ(ledger.account(kAnna, kTier).charged_bytes, 50u);
  EXPECT_EQ(ledger.account(kAnna, kTier).pending_bytes, 0u);
}

TEST(QuotaLedgerDeathTest, AccountingThatCannotBeRightEndsTheProcess) {
  QuotaLedger ledger(Capacity(100));
  ledger.SetQuota(kAnna, kTier, Limit(100));
  SettleOrDie(ledger, kAnna, 40);
  Charge pending = ledger.TryCharge(kAnna, kTier, 10).charge;
  EXPECT_DEATH(ledger.Refund(kAnna, kTier, 41), "charged_bytes - account.pending_bytes");
  EXPECT_DEATH(ledger.Reclaimed(kTier, 1), "reclaiming_bytes");
  EXPECT_DEATH((void)ledger.TryCharge(kBert, kTier, 1), "accounts_");
  EXPECT_DEATH((void)ledger.account(TenantId::None(), kTier), "accounts_");
  EXPECT_DEATH(Charge().Settle(), "valid");
}

// Random operations against sums kept in the plainest way.
class LedgerModel {
 public:
  static constexpr uint32_t kTenants = 4;
  static constexpr uint64_t kCapacityBytes = 1000;

  explicit LedgerModel(uint32_t seed) : random_(seed), ledger_(Capacity(kCapacityBytes)) {
    for (uint32_t tenant = 0; tenant < kTenants; ++tenant) SetLimit(tenant);
  }

  void Step() {
    const uint32_t tenant = random_() % kTenants;
    switch (random_() % 8) {
      case 0:
        if (random_() % 4 == 0) SetLimit(tenant);
        break;
      case 1:
      case 2:
      case 3:
        TryCharge(tenant, random_() % 120);
        break;
      case 4:
        SettleOne();
        break;
      case 5:
        if (!pending_.empty()) TakePending();  // dropped: refunds itself
        break;
      case 6:
        Refund(tenant);
        break;
      case 7:
        Reclaim();
        break;
    }
  }

  void ExpectEqual() const {
    std::array<uint64_t, kTenants> pending{};
    for (const auto& [tenant, charge] : pending_) pending[tenant] += charge.bytes();
    uint64_t sum = 0;
    for (uint32_t tenant = 0; tenant < kTenants; ++tenant) {
      const Account& account = ledger_.account(TenantId(tenant), kTier);
      ASSERT_EQ(account.pending_bytes, pending[tenant]);
      ASSERT_EQ(account.charged_bytes, pending[tenant] + settled_[tenant]);
      ASSERT_EQ(account.limit_bytes, limits_[tenant]);
      sum += account.charged_bytes;
    }
    ASSERT_EQ(ledger_.charged_bytes(kTier), sum);
    ASSERT_EQ(ledger_.reclaiming_bytes(kTier), reclaiming_);
    ASSERT_LE(sum + reclaiming_, kCapacityBytes);
    ledger_.CheckInvariants();
  }
  const std::array<int, kRefusalCount>& outcomes() const { return outcomes_; }

 private:
  Refusal Expected(uint32_t tenant, uint64_t bytes) const {
    uint64_t held = settled_[tenant];
    uint64_t used = reclaiming_;
    for (uint64_t settled : settled_) used += settled;
    for (const auto& [owner, charge] : pending_) {
      used += charge.bytes();
      if (owner == tenant) held += charge.bytes();
    }
    if (limits_[tenant] == 0) return Refusal::kNoTier;
    if (bytes > 0 && held + bytes > limits_[tenant]) return Refusal::kTenantLimit;
    if (used + bytes > kCapacityBytes) return Refusal::kCapacity;
    return Refusal::kNone;
  }
  void SetLimit(uint32_t tenant) {
    limits_[tenant] = random_() % 6 == 0 ? 0 : random_() % 600;
    ledger_.SetQuota(TenantId(tenant), kTier, Limit(limits_[tenant]));
  }
  void TryCharge(uint32_t tenant, uint64_t bytes) {
    const Refusal expected = Expected(tenant, bytes);
    QuotaLedger::ChargeResult result = ledger_.TryCharge(TenantId(tenant), kTier, bytes);
    ASSERT_EQ(result.reason, expected) << RefusalName(result.reason) << " but expected " << RefusalName(expected);
    ++outcomes_[static_cast<size_t>(expected)];
    ASSERT_EQ(result.charge.valid(), expected == Refusal::kNone);
    if (result.charge.valid()) pending_.emplace_back(tenant, std::move(result.charge));
  }
  std::pair<uint32_t, Charge> TakePending() {
    std::swap(pending_[random_() % pending_.size()], pending_.back());
    std::pair<uint32_t, Charge> taken = std::move(pending_.back());
    pending_.pop_back();
    return taken;
  }
  void SettleOne() {
    if (pending_.empty()) return;
    auto [tenant, charge] = TakePending();
    settled_[tenant] += charge.bytes();
    charge.Settle();
  }
  void Refund(uint32_t tenant) {
    const uint64_t bytes = random_() % (settled_[tenant] + 1);
    const bool still_reclaiming = random_() % 2 == 0;
    ledger_.Refund(TenantId(tenant), kTier, bytes, still_reclaiming);
    settled_[tenant] -= bytes;
    if (still_reclaiming) reclaiming_ += bytes;
  }
  void Reclaim() {
    const uint64_t bytes = random_() % (reclaiming_ + 1);
    ledger_.Reclaimed(kTier, bytes);
    reclaiming_ -= bytes;
  }

  std::mt19937 random_;
  QuotaLedger ledger_;
  std::array<uint64_t, kTenants> limits_{};
  std::array<uint64_t, kTenants> settled_{};
  uint64_t reclaiming_ = 0;
  std::vector<std::pair<uint32_t, Charge>> pending_;
  std::array<int, kRefusalCount> outcomes_{};
};

TEST(QuotaLedger, WhatIsSetAsideIsNobodysAndCountsAgainstTheCapacity) {
  QuotaLedger ledger(Capacity(1000));
  ledger.SetQuota(kAnna, kTier, Limit(1000));
  SettleOrDie(ledger, kAnna, 600);
  EXPECT_FALSE(ledger.SetAside(kTier, 401));
  ASSERT_TRUE(ledger.SetAside(kTier, 400));
  EXPECT_EQ(ledger.TryCharge(kAnna, kTier, 1).reason, Refusal::kCapacity);
  EXPECT_EQ(ledger.account(kAnna, kTier).charged_bytes, 600u);
  ledger.CheckInvariants();
  ledger.Reclaimed(kTier, 400);
  EXPECT_EQ(ledger.TryCharge(kAnna, kTier, 400).reason, Refusal::kNone);
}

TEST(QuotaLedger, ByteSecondsAreWhatWasHeldForHowLong) {
  QuotaLedger ledger(Capacity(1000));
  ledger.SetQuota(kAnna, kTier, Limit(500));
  ledger.SetQuota(kBert, kTier, Limit(500));
  SettleOrDie(ledger, kAnna, 100);
  ledger.Advance(2500);
  EXPECT_DOUBLE_EQ(ledger.account(kAnna, kTier).byte_seconds, 250);
  SettleOrDie(ledger, kAnna, 300);
  ledger.Advance(1000);
  EXPECT_DOUBLE_EQ(ledger.account(kAnna, kTier).byte_seconds, 650);
  ledger.Refund(kAnna, kTier, 400);
  ledger.Advance(1000);
  EXPECT_DOUBLE_EQ(ledger.account(kAnna, kTier).byte_seconds, 650) << "nothing held costs nothing";
  EXPECT_DOUBLE_EQ(ledger.account(kBert, kTier).byte_seconds, 0);
  EXPECT_DOUBLE_EQ(ledger.account(kAnna, TierKind::kNvme).byte_seconds, 0);
}

TEST(QuotaLedger, AgreesWithPlainSumsUnderRandomOperations) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    LedgerModel model(seed);
    for (int step = 0; step < 20000; ++step) {
      ASSERT_NO_FATAL_FAILURE(model.Step()) << "step " << step;
      ASSERT_NO_FATAL_FAILURE(model.ExpectEqual()) << "step " << step;
    }
    // The run is only worth something if every answer was given.
    for (Refusal reason : {Refusal::kNone, Refusal::kNoTier, Refusal::kTenantLimit, Refusal::kCapacity}) {
      EXPECT_GT(model.outcomes()[static_cast<size_t>(reason)], 50) << RefusalName(reason);
    }
  }
}

}  // namespace
}  // namespace kvartal::policy
