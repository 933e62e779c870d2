#include "daemon/engine/removal.h"

#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/log.h"

namespace kvartal::engine {

using index::Entry;

void Removal::Start(TenantState& tenant, absl::AnyInvocable<void(uint64_t bytes)> done) {
  if (tenant.dropping) return done(0);
  tenant.dropping = true;
  tenant.dropped_bytes = 0;
  tenant.drop_done = std::move(done);
  if (state_.devices.catalog == nullptr) return Continue(tenant);
  tenant.erases_under_way = 1;  // the tombstone
  state_.devices.catalog->PutTombstone(tenant.owner, state_.devices.clock->WallMs() + 1,
                                       [this, owner = &tenant](absl::Status status) {
                                         if (!status.ok()) {
                                           Log(LogLevel::kError, "engine", "tombstone of tenant ", owner->rules.name,
                                               " was not persisted: ", status.ToString());
                                         }
                                         --owner->erases_under_way;
                                         Continue(*owner);
                                       });
}

void Removal::Tick() {
  for (auto& tenant : state_.tenants) {
    if (tenant->dropping) Continue(*tenant);
  }
}

void Removal::Continue(TenantState& tenant) {
  if (!tenant.dropping) return;
  const auto may_drop = [this](EntryId id) {
    const Entry& entry = state_.index.at(id);
    return !entry.in_use() && !entry.writing && !entry.reading;
  };
  while (true) {
    const EntryId id = tenant.order(TierKind::kDram).Victim(may_drop, kVictimProbesMax);
    if (!id.valid()) break;
    tenant.dropped_bytes += state_.SlotBytesOf(state_.index.at(id));
    residency_.DropCopy(id, TierKind::kDram);
  }
  space_.GiveBackEmpty(tenant);
  while (EraseOneFromNvme(tenant)) {
  }
  if (tenant.stats.entries > 0 || tenant.erases_under_way > 0) return;
  if (state_.ledger.reclaiming_bytes(TierKind::kDram) > 0) return;  // not punched yet
  tenant.dropping = false;
  auto done = std::move(tenant.drop_done);
  done(tenant.dropped_bytes);
}

bool Removal::EraseOneFromNvme(TenantState& tenant) {
  const EntryId id = tenant.order(TierKind::kNvme)
                         .Victim(
                             [this](EntryId candidate) {
                               const Entry& entry = state_.index.at(candidate);
                               return !entry.in_use() && !entry.writing && !entry.reading;
                             },
                             kVictimProbesMax);
  if (!id.valid()) return false;
  Entry& entry = state_.index.at(id);
  const bool queued =
      state_.devices.nvme->Erase(entry.copy(TierKind::kNvme).slot, [this, owner = &tenant, id](absl::Status status) {
        if (!status.ok()) {
          Log(LogLevel::kError, "engine", "a block of tenant ", owner->rules.name,
              " could not be zeroed: ", status.ToString());
        }
        --owner->erases_under_way;
        state_.index.at(id).reading = false;
        owner->dropped_bytes += state_.SlotBytesOf(state_.index.at(id));
        residency_.DropCopy(id, TierKind::kNvme);
        Continue(*owner);
      });
  if (!queued) return false;  // the next completion or tick goes on
  // A transfer of this copy is under way, as far as everybody else is concerned.
  entry.reading = true;
  ++tenant.erases_under_way;
  return true;
}

}  // namespace kvartal::engine
