#include "daemon/policy/quota_ledger.h"

#include <algorithm>

#include "daemon/base/check.h"

namespace kvartal::policy {
namespace {

// Room left under `ceiling`; 0 where more than that is used already.
uint64_t Room(uint64_t ceiling, uint64_t used) { return ceiling - std::min(ceiling, used); }

}  // namespace

Charge::Charge(Charge&& other) noexcept
    : ledger_(std::exchange(other.ledger_, nullptr)),
      tenant_(other.tenant_),
      tier_(other.tier_),
      bytes_(std::exchange(other.bytes_, 0)) {}

Charge& Charge::operator=(Charge&& other) noexcept {
  if (this == &other) return *this;
  RefundNow();
  ledger_ = std::exchange(other.ledger_, nullptr);
  tenant_ = other.tenant_;
  tier_ = other.tier_;
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

Charge::~Charge() { RefundNow(); }

void Charge::Settle() {
  KV_CHECK(valid());
  std::exchange(ledger_, nullptr)->SettlePending(tenant_, tier_, std::exchange(bytes_, 0));
}

void Charge::RefundNow() {
  if (!valid()) return;
  std::exchange(ledger_, nullptr)->RefundPending(tenant_, tier_, std::exchange(bytes_, 0));
}

QuotaLedger::QuotaLedger(const NodeCapacity& capacity) {
  for (TierKind tier : kAllTiers) tiers_[TierIndex(tier)].capacity_bytes = capacity.bytes[TierIndex(tier)];
}

void QuotaLedger::SetQuota(TenantId tenant, TierKind tier, const TierQuota& quota) {
  KV_CHECK(tenant.valid());
  if (tenant.value() >= accounts_.size()) accounts_.resize(tenant.value() + size_t{1});
  Account& account = MutableAccount(tenant, tier);
  account.limit_bytes = quota.limit_bytes;
  account.guarantee_bytes = quota.guarantee_bytes;
}

QuotaLedger::ChargeResult QuotaLedger::TryCharge(TenantId tenant, TierKind tier, uint64_t bytes) {
  Account& account = MutableAccount(tenant, tier);
  TierTotals& totals = tiers_[TierIndex(tier)];
  if (account.limit_bytes == 0) return {Charge(), Refusal::kNoTier};
  if (bytes > Room(account.limit_bytes, account.charged_bytes)) return {Charge(), Refusal::kTenantLimit};
  if (bytes > Room(totals.capacity_bytes, totals.charged_bytes + totals.reclaiming_bytes)) {
    return {Charge(), Refusal::kCapacity};
  }
  account.charged_bytes += bytes;
  account.pending_bytes += bytes;
  account.peak_bytes = std::max(account.peak_bytes, account.charged_bytes);
  ++charges_;
  account.overshoot_bytes = std::max(account.overshoot_bytes, Room(account.charged_bytes, account.limit_bytes));
  totals.charged_bytes += bytes;
  return {Charge(this, tenant, tier, bytes), Refusal::kNone};
}

void QuotaLedger::Refund(TenantId tenant, TierKind tier, uint64_t bytes, bool still_reclaiming) {
  Account& account = MutableAccount(tenant, tier);
  TierTotals& totals = tiers_[TierIndex(tier)];
  KV_CHECK(bytes <= account.charged_bytes - account.pending_bytes);
  account.charged_bytes -= bytes;
  totals.charged_bytes -= bytes;
  if (still_reclaiming) totals.reclaiming_bytes += bytes;
}

void QuotaLedger::Reclaimed(TierKind tier, uint64_t bytes) {
  TierTotals& totals = tiers_[TierIndex(tier)];
  KV_CHECK(bytes <= totals.reclaiming_bytes);
  totals.reclaiming_bytes -= bytes;
}

bool QuotaLedger::SetAside(TierKind tier, uint64_t bytes) {
  TierTotals& totals = tiers_[TierIndex(tier)];
  if (bytes > Room(totals.capacity_bytes, totals.charged_bytes + totals.reclaiming_bytes)) return false;
  totals.reclaiming_bytes += bytes;
  return true;
}

void QuotaLedger::Advance(uint64_t elapsed_ms) {
  constexpr double kMsPerSecond = 1000.0;
  const double seconds = static_cast<double>(elapsed_ms) / kMsPerSecond;
  for (auto& tenant : accounts_) {
    for (Account& account : tenant) account.byte_seconds += static_cast<double>(account.charged_bytes) * seconds;
  }
}

bool QuotaLedger::Adopt(TenantId tenant, TierKind tier, uint64_t bytes) {
  ChargeResult result = TryCharge(tenant, tier, bytes);
  if (!result.charge.valid()) return false;
  result.charge.Settle();
  return true;
}

void QuotaLedger::Forget(TenantId tenant) {
  for (TierKind tier : kAllTiers) {
    Account& account = MutableAccount(tenant, tier);
    KV_CHECK(account.charged_bytes == 0);
    account = Account();
  }
}

const Account& QuotaLedger::account(TenantId tenant, TierKind tier) const {
  KV_CHECK(tenant.value() < accounts_.size());
  return accounts_[tenant.value()][TierIndex(tier)];
}

Account& QuotaLedger::MutableAccount(TenantId tenant, TierKind tier) {
  KV_CHECK(tenant.value() < accounts_.size());
  return accounts_[tenant.value()][TierIndex(tier)];
}

void QuotaLedger::SettlePending(TenantId tenant, TierKind tier, uint64_t bytes) {
  Account& account = MutableAccount(tenant, tier);
  KV_CHECK(bytes <= account.pending_bytes);
  account.pending_bytes -= bytes;
}

void QuotaLedger::RefundPending(TenantId tenant, TierKind tier, uint64_t bytes) {
  SettlePending(tenant, tier, bytes);
  Refund(tenant, tier, bytes);
}

void QuotaLedger::CheckInvariants() const {
  for (TierKind tier : kAllTiers) {
    const TierTotals& totals = tiers_[TierIndex(tier)];
    uint64_t sum = 0;
    for (const auto& tenant : accounts_) {
      const Account& account = tenant[TierIndex(tier)];
      KV_CHECK(account.pending_bytes <= account.charged_bytes);
      KV_CHECK(account.charged_bytes <= account.peak_bytes);
      KV_CHECK(account.charged_bytes <= totals.capacity_bytes - sum);
      sum += account.charged_bytes;
    }
    KV_CHECK(sum == totals.charged_bytes);
    KV_CHECK(totals.reclaiming_bytes <= totals.capacity_bytes - sum);
  }
}

}  // namespace kvartal::policy
