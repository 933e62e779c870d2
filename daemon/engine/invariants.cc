#include "daemon/engine/invariants.h"

#include <array>
#include <vector>

#include "daemon/base/check.h"

namespace kvartal::engine {
namespace {

struct Counted {
  uint64_t entries = 0;
  uint64_t of_namespaces = 0;  // the same, as those count them
  std::array<uint64_t, kTierCount> blocks{};
  std::array<uint64_t, kTierCount> leaves{};
  std::array<uint64_t, kTierCount> slot_bytes{};
  uint64_t pinned_blocks = 0;
  std::array<uint64_t, kTierCount> pinned_bytes{};
  uint64_t leased_bytes = 0, kept_bytes = 0;
};

void CountEntry(const EngineState& state, EntryId id, std::vector<Counted>* by_tenant, uint64_t* holds) {
  const index::Entry& entry = state.index.at(id);
  Counted& counted = (*by_tenant)[state.ns(entry.ns).tenant.value()];
  ++counted.entries;
  *holds += entry.lease_count + entry.hold_count;
  bool resident = false;
  for (TierKind tier : kAllTiers) {
    if (!entry.resident(tier)) continue;
    resident = true;
    ++counted.blocks[TierIndex(tier)];
    counted.slot_bytes[TierIndex(tier)] += state.SlotBytesOf(entry) + (tier == TierKind::kNvme ? kNvmeHeaderBytes : 0);
    const bool in_order = entry.state == BlockState::kCommitted && entry.copy(tier).children == 0 &&
                          !entry.leased_in(tier) && !entry.pinned_in(tier);
    if (in_order) ++counted.leaves[TierIndex(tier)];
  }
  KV_CHECK(!entry.parent.valid() || state.index.at(entry.parent).depth < entry.depth);
  const TenantState& tenant = state.tenant(state.ns(entry.ns).tenant);
  KV_CHECK(entry.pinned == tenant.pins.contains(id));
  counted.pinned_blocks += entry.pinned ? 1 : 0;
  const uint64_t header_bytes = entry.pinned_in(TierKind::kNvme) ? kNvmeHeaderBytes : 0;
  if (entry.pinned) counted.pinned_bytes[TierIndex(entry.pin_tier())] += state.SlotBytesOf(entry) + header_bytes;
  if (entry.lease_count > 0) counted.leased_bytes += state.SlotBytesOf(entry);
  if (entry.lease_count > 0 || entry.pinned_in(TierKind::kDram)) counted.kept_bytes += state.SlotBytesOf(entry);
  // One that is being stored anew may have kept its copy on NVMe, and with it the timer.
  const bool kept = entry.resident(TierKind::kNvme);
  const bool gone = entry.state == BlockState::kGone;
  const bool timed = state.timers.DueOf(id) != policy::TtlWheel::kNever;
  KV_CHECK(entry.state == BlockState::kCommitted || kept || gone || !timed);
  // Visible means resident; a placeholder is there for its children or its leases, or until its timer erases it.
  KV_CHECK((entry.state == BlockState::kCommitted) <= resident);
  if (gone) KV_CHECK(!resident && (entry.children > 0 || entry.in_use() || timed));
  if (entry.state == BlockState::kFilling) KV_CHECK(state.filling_by_entry.contains(id));
  KV_CHECK(!entry.durable || entry.resident(TierKind::kNvme));
}

}  // namespace

void CheckInvariants(const EngineState& state) {
  state.ledger.CheckInvariants();
  std::vector<Counted> by_tenant(state.tenant_by_id.size());
  uint64_t holds = 0;
  for (uint32_t number = 0; number < state.index.id_limit(); ++number) {
    if (state.index.IsLive(EntryId(number))) CountEntry(state, EntryId(number), &by_tenant, &holds);
  }
  KV_CHECK(holds == state.held_blocks);
  for (const auto& tenant : state.tenants) {
    Counted& counted = by_tenant[tenant->id.value()];
    size_t open = 0;
    for (const NamespaceId id : tenant->namespaces) {
      const NamespaceState& space = state.ns(id);
      KV_CHECK(space.tenant == tenant->id && space.users + space.entries > 0);
      counted.of_namespaces += space.entries;
      open += space.users > 0 ? 1 : 0;
    }
    KV_CHECK(counted.entries == tenant->stats.entries && counted.of_namespaces == counted.entries);
    KV_CHECK(open == tenant->open_namespaces);
    KV_CHECK(counted.pinned_blocks == tenant->pins.size() && counted.pinned_bytes == tenant->pinned_bytes);
    KV_CHECK(counted.leased_bytes == tenant->leased_bytes && counted.kept_bytes == tenant->kept_bytes);
    for (TierKind tier : kAllTiers) {
      const size_t at = TierIndex(tier);
      KV_CHECK(counted.blocks[at] == tenant->stats.tiers[at].blocks);
      size_t in_orders = 0;
      for (const auto& order : tenant->orders.tiers[at]) in_orders += order->size();
      KV_CHECK(counted.leaves[at] == in_orders);
      KV_CHECK(counted.slot_bytes[at] <= state.ledger.account(tenant->id, tier).charged_bytes);
    }
    // Every charged NVMe byte is a block's or on its way to be one.
    const uint64_t nvme_charged = state.ledger.account(tenant->id, TierKind::kNvme).charged_bytes;
    if (tenant->writes_under_way.all == 0) KV_CHECK(counted.slot_bytes[TierIndex(TierKind::kNvme)] == nvme_charged);
  }
}

}  // namespace kvartal::engine
