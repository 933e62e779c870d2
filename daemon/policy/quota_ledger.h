// Bytes charged, per tenant and tier: the one owner of accounting.
// Confined to the engine loop.
// Invariants: charged <= limit at the moment of every Charge; sum over tenants + reclaiming <= capacity, always, per
// tier; every Charge ends in exactly one Settle or Refund (a Charge dropped unsettled refunds itself).
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/block/tier_kind.h"
#include "daemon/policy/policy_table.h"
#include "daemon/policy/refusal.h"

namespace kvartal::policy {

class QuotaLedger;

// Bytes charged for space that is not there yet. Move-only.
class Charge {
 public:
  Charge() = default;
  Charge(Charge&& other) noexcept;
  Charge& operator=(Charge&& other) noexcept;
  ~Charge();

  bool valid() const { return ledger_ != nullptr; }
  uint64_t bytes() const { return bytes_; }
  // The space exists now: it stays charged until QuotaLedger::Refund.
  void Settle();

 private:
  friend class QuotaLedger;
  Charge(QuotaLedger* ledger, TenantId tenant, TierKind tier, uint64_t bytes)
      : ledger_(ledger), tenant_(tenant), tier_(tier), bytes_(bytes) {}
  void RefundNow();

  QuotaLedger* ledger_ = nullptr;
  TenantId tenant_;
  TierKind tier_ = TierKind::kDram;
  uint64_t bytes_ = 0;
};

struct Account {
  uint64_t charged_bytes = 0;  // settled and pending
  uint64_t pending_bytes = 0;  // of those: charged, not settled
  uint64_t limit_bytes = 0;
  uint64_t guarantee_bytes = 0;
  uint64_t peak_bytes = 0;
  uint64_t overshoot_bytes = 0;  // the most a charge ever took it above its limit: 0, or there is a bug
  double byte_seconds = 0;       // what was charged at each Advance, times the time since the one before
};

class QuotaLedger {
 public:
  explicit QuotaLedger(const NodeCapacity& capacity);
  // Charges point at it.
  QuotaLedger(const QuotaLedger&) = delete;
  QuotaLedger& operator=(const QuotaLedger&) = delete;

  // Limits may be set below what is charged: nothing new is granted until usage has drained. Creates the account.
  void SetQuota(TenantId tenant, TierKind tier, const TierQuota& quota);

  struct ChargeResult {
    Charge charge;                    // valid when reason is kNone
    Refusal reason = Refusal::kNone;  // kTenantLimit, kCapacity or kNoTier (limit 0)
  };
  [[nodiscard]] ChargeResult TryCharge(TenantId tenant, TierKind tier, uint64_t bytes);
  // Settled bytes are the tenant's no longer. With `still_reclaiming` they stay against the capacity until Reclaimed.
  void Refund(TenantId tenant, TierKind tier, uint64_t bytes, bool still_reclaiming = false);
  void Reclaimed(TierKind tier, uint64_t bytes);
  // Bytes that are nobody's until Reclaimed: the second place of a block that moves. False when there are not so many.
  [[nodiscard]] bool SetAside(TierKind tier, uint64_t bytes);
  // Lets `elapsed_ms` pass for Account::byte_seconds.
  void Advance(uint64_t elapsed_ms);
  // Recovery: bytes that exist already. False (nothing charged) when it would break limit or capacity.
  [[nodiscard]] bool Adopt(TenantId tenant, TierKind tier, uint64_t bytes);

  // Its number may be another tenant's from now on. REQUIRES: nothing is charged to it.
  void Forget(TenantId tenant);

  const Account& account(TenantId tenant, TierKind tier) const;
  uint64_t capacity_bytes(TierKind tier) const { return tiers_[TierIndex(tier)].capacity_bytes; }
  uint64_t reclaiming_bytes(TierKind tier) const { return tiers_[TierIndex(tier)].reclaiming_bytes; }
  uint64_t charges() const { return charges_; }  // granted, all tenants and tiers
  uint64_t charged_bytes(TierKind tier) const { return tiers_[TierIndex(tier)].charged_bytes; }
  // KV_CHECKs the invariants. O(tenants).
  void CheckInvariants() const;

 private:
  friend class Charge;
  struct TierTotals {
    uint64_t capacity_bytes = 0;
    uint64_t charged_bytes = 0;
    uint64_t reclaiming_bytes = 0;
  };
  Account& MutableAccount(TenantId tenant, TierKind tier);
  void SettlePending(TenantId tenant, TierKind tier, uint64_t bytes);
  void RefundPending(TenantId tenant, TierKind tier, uint64_t bytes);

  uint64_t charges_ = 0;
  std::array<TierTotals, kTierCount> tiers_;
  std::vector<std::array<Account, kTierCount>> accounts_;  // by TenantId
};

}  // namespace kvartal::policy
