#include "daemon/engine/removal.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvartal::engine {

using index::Entry;

void Removal::Start(TenantState& tenant, absl::AnyInvocable<void(absl::StatusOr<uint64_t> bytes)> done) {
  if (tenant.dropping)
    return done(absl::AlreadyExistsError("this tenant is being erased already: wait for that to end"));
  tenant.dropping = true;
  tenant.dropped_bytes = 0;
  tenant.drop_status = absl::OkStatus();
  tenant.drop_done = std::move(done);
  if (tenant.history() != nullptr) *tenant.history() = {};
  std::vector<EntryId> pinned;
  for (const auto& [id, until_tick] : state_.pins) {
    if (&state_.TenantOf(state_.index.at(id)) == &tenant) pinned.push_back(id);
  }
  for (const EntryId id : pinned) residency_.SetPinned(id, false);
  if (state_.devices.catalog == nullptr) return Continue(tenant);
  tenant.erases_under_way = 1;  // the tombstone
  // On the clock that blocks are dated by, and after the newest of them.
  state_.devices.catalog->PutTombstone(tenant.owner, state_.WallMsOfTick(state_.NowTick() + 1),
                                       [this, owner = &tenant](absl::Status status) {
                                         Note(*owner, "the tombstone was not persisted", status);
                                         --owner->erases_under_way;
                                         Continue(*owner);
                                       });
}

void Removal::Tick() {
  for (auto& tenant : state_.tenants) {
    if (tenant->dropping) Continue(*tenant);
  }
}

void Removal::Note(TenantState& tenant, const char* what, const absl::Status& status) {
  if (status.ok() || !tenant.drop_status.ok()) return;
  tenant.drop_status = absl::Status(status.code(), absl::StrCat("tenant ", tenant.rules.name, ": ", what, ": ",
                                                                status.message(), "; repeat the drop"));
}

EntryId Removal::NextBlock(TenantState& tenant, TierKind tier) const {
  return tenant.order(tier).Victim([this](EntryId id) { return residency_.Removable(id); }, kVictimProbesMax);
}

void Removal::Continue(TenantState& tenant) {
  if (!tenant.dropping) return;
  for (uint32_t dropped = 0; dropped < kDropBlocksPerTurn; ++dropped) {
    const EntryId id = NextBlock(tenant, TierKind::kDram);
    if (!id.valid()) break;
    tenant.dropped_bytes += state_.SlotBytesOf(state_.index.at(id));
    residency_.DropCopy(id, TierKind::kDram, policy::DropReason::kRemoved);
  }
  space_.GiveBackEmpty(tenant);
  while (EraseOneFromNvme(tenant)) {
  }
  if (tenant.stats.entries > 0 || tenant.erases_under_way > 0 || tenant.reclaiming_bytes > 0) return;
  tenant.dropping = false;
  auto done = std::move(tenant.drop_done);
  if (!tenant.drop_status.ok()) return done(tenant.drop_status);
  done(tenant.dropped_bytes);
}

bool Removal::EraseOneFromNvme(TenantState& tenant) {
  const EntryId id = NextBlock(tenant, TierKind::kNvme);
  if (!id.valid()) return false;
  Entry& entry = state_.index.at(id);
  const bool queued =
      state_.devices.nvme->Erase(entry.copy(TierKind::kNvme).slot, [this, owner = &tenant, id](absl::Status status) {
        Note(*owner, "a block could not be zeroed on NVMe", status);
        --owner->erases_under_way;
        state_.index.at(id).reading = false;
        if (status.ok()) owner->dropped_bytes += state_.SlotBytesOf(state_.index.at(id));
        residency_.DropCopy(id, TierKind::kNvme, policy::DropReason::kRemoved);
        Continue(*owner);
      });
  if (!queued) return false;  // the next completion or tick goes on
  // A transfer of this copy is under way, as far as everybody else is concerned.
  entry.reading = true;
  ++tenant.erases_under_way;
  return true;
}

}  // namespace kvartal::engine
