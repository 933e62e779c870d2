#include "daemon/policy/fair_share.h"

#include <algorithm>
#include <numeric>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::policy {
namespace {

using Wide = unsigned __int128;

uint64_t WeightOf(const Standing& tenant) { return std::max<uint64_t>(tenant.weight, 1); }
uint64_t Above(uint64_t value, uint64_t floor) { return value > floor ? value - floor : 0; }

// Gives out at most `bytes`, everyone at the speed of its weight until it has `room` more. Returns what is left.
uint64_t Fill(std::span<const Standing> tenants, std::span<const uint64_t> room, uint64_t bytes,
              std::span<uint64_t> shares) {
  std::vector<size_t> order;
  Wide weights = 0;
  for (size_t i = 0; i < tenants.size(); ++i) {
    if (room[i] == 0) continue;
    order.push_back(i);
    weights += WeightOf(tenants[i]);
  }
  // Who is full first, first.
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return Wide{room[a]} * WeightOf(tenants[b]) < Wide{room[b]} * WeightOf(tenants[a]);
  });
  size_t next = 0;
  for (; next < order.size(); ++next) {
    const size_t i = order[next];
    const uint64_t weight = WeightOf(tenants[i]);
    if (room[i] * weights > Wide{bytes} * weight) break;
    shares[i] += room[i];
    bytes -= room[i];
    weights -= weight;
  }
  // The rest is cut off at one level.
  const uint64_t level_bytes = bytes;
  for (; next < order.size(); ++next) {
    const size_t i = order[next];
    const auto given = static_cast<uint64_t>(Wide{level_bytes} * WeightOf(tenants[i]) / weights);
    shares[i] += given;
    bytes -= given;
  }
  return bytes;
}

// The floors, at most the capacity together. Returns what is left of it.
uint64_t GiveGuarantees(std::span<const Standing> tenants, uint64_t capacity_bytes, std::span<uint64_t> shares) {
  Wide wanted = 0;
  for (size_t i = 0; i < tenants.size(); ++i) {
    shares[i] = std::min({tenants[i].guarantee_bytes, tenants[i].demand_bytes, tenants[i].limit_bytes});
    wanted += shares[i];
  }
  if (wanted <= capacity_bytes) return capacity_bytes - static_cast<uint64_t>(wanted);
  uint64_t left = capacity_bytes;
  for (uint64_t& share : shares) {
    share = static_cast<uint64_t>(Wide{share} * capacity_bytes / wanted);
    left -= share;
  }
  return left;
}

}  // namespace

uint64_t SoftCapBytes(uint64_t capacity_bytes, uint32_t soft_cap_percent) {
  return static_cast<uint64_t>(Wide{capacity_bytes} * soft_cap_percent / 100);
}

std::vector<uint64_t> FairShares(std::span<const Standing> tenants, uint64_t capacity_bytes, uint64_t cap_bytes) {
  std::vector<uint64_t> shares(tenants.size());
  std::vector<uint64_t> room(tenants.size());
  uint64_t left = GiveGuarantees(tenants, capacity_bytes, shares);
  for (const bool idle_only : {false, true}) {
    for (const bool capped : {true, false}) {
      for (size_t i = 0; i < tenants.size(); ++i) {
        uint64_t ceiling = std::min(tenants[i].demand_bytes, tenants[i].limit_bytes);
        if (capped) ceiling = std::min(ceiling, std::max(cap_bytes, tenants[i].guarantee_bytes));
        room[i] = tenants[i].idle_only == idle_only ? Above(ceiling, shares[i]) : 0;
      }
      left = Fill(tenants, room, left, shares);
    }
  }
  return shares;
}

Claim ClaimOf(const Standing& taker, uint64_t bytes) {
  if (bytes > Above(taker.limit_bytes, taker.used_bytes)) return Claim::kNone;
  if (bytes <= Above(taker.guarantee_bytes, taker.used_bytes)) return Claim::kGuarantee;
  return bytes <= Above(taker.share_bytes, taker.used_bytes) ? Claim::kShare : Claim::kNone;
}

bool MayBeVictim(const Standing& victim, Claim claim) {
  if (claim == Claim::kNone || victim.used_bytes <= victim.guarantee_bytes) return false;
  if (claim == Claim::kGuarantee) return true;
  const uint64_t entitled = victim.entitled_bytes();
  return victim.used_bytes > entitled && victim.used_bytes - entitled > entitled / 100 * kShareSlackPercent;
}

std::optional<size_t> ChooseVictim(std::span<const Standing> tenants, size_t taker, Claim claim,
                                   const std::vector<bool>& may_give) {
  // Above its share by more for its weight. Signed: for a guarantee, those within their shares give, too.
  const auto gives_before = [&](size_t a, size_t b) {
    const auto over = [](const Standing& tenant) {
      return static_cast<__int128>(tenant.used_bytes) - static_cast<__int128>(tenant.entitled_bytes());
    };
    const __int128 over_a = over(tenants[a]) * static_cast<__int128>(WeightOf(tenants[b]));
    const __int128 over_b = over(tenants[b]) * static_cast<__int128>(WeightOf(tenants[a]));
    if (over_a != over_b) return over_a > over_b;
    return tenants[a].sla < tenants[b].sla;
  };
  std::optional<size_t> best;
  for (size_t i = 0; i < tenants.size(); ++i) {
    if (i == taker || !may_give[i] || !MayBeVictim(tenants[i], claim)) continue;
    if (!best.has_value() || gives_before(i, *best)) best = i;
  }
  return best;
}

}  // namespace kvartal::policy
