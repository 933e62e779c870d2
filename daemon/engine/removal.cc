#include "daemon/engine/removal.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"

namespace kvartal::engine {

using index::Entry;

void Removal::Start(TenantState& tenant, absl::AnyInvocable<void(absl::StatusOr<uint64_t> bytes)> done) {
  if (tenant.dropping)
    return done(absl::AlreadyExistsError("this tenant is being erased already: wait for that to end"));
  tenant.dropping = true;
  tenant.receipt = DeletionReceipt{.tenant = tenant.stats.name, .reason = policy::DropReason::kRemoved};
  tenant.drop_status = absl::OkStatus();
  tenant.drop_done = std::move(done);
  if (tenant.history() != nullptr) *tenant.history() = {};
  pins_.EndAll(tenant);
  if (state_.devices.catalog == nullptr) return Continue(tenant);
  tenant.erases_under_way = 1;  // the tombstone
  // On the clock that blocks are dated by, and after the newest of them. A wall clock that is set back must not date
  // before it what is stored from now on.
  const int64_t before_ms = state_.WallMsOfTick(state_.NowTick() + 1);
  state_.devices.catalog->KeepTime(before_ms);
  state_.devices.catalog->PutTombstone(tenant.owner, before_ms, [this, owner = &tenant](absl::Status status) {
    Note(*owner, "the tombstone was not persisted", status);
    --owner->erases_under_way;
    Continue(*owner);
  });
}

void Removal::Tick() {
  const uint32_t now_tick = state_.NowTick();
  for (auto& tenant : state_.tenants) {
    if (tenant->dropping) {
      Continue(*tenant);
    } else if (tenant->removed_tick != 0 && !tenant->erased && !state_.recovering &&
               int64_t{now_tick - tenant->removed_tick} * kTickMs >= state_.options.removed_grace_ms) {
      StartRemoved(*tenant);
    }
  }
}

void Removal::StartRemoved(TenantState& tenant) {
  Start(tenant, [this, owner = &tenant](const absl::StatusOr<uint64_t>& bytes) {
    if (owner->removed_tick == 0) return;  // it came back meanwhile, and begins anew
    owner->erased = bytes.ok();
    if (bytes.ok()) {
      Log(LogLevel::kInfo, "engine", "removed tenant ", owner->stats.name, " is erased: ", *bytes, " bytes");
    } else {
      owner->removed_tick = state_.NowTick();
      Log(LogLevel::kError, "engine", "removed tenant ", owner->stats.name,
          " is not erased in full, trying again later: ", bytes.status().message());
    }
  });
}

void Removal::Note(TenantState& tenant, const char* what, const absl::Status& status) {
  if (status.ok() || !tenant.drop_status.ok()) return;
  tenant.drop_status = absl::Status(status.code(), absl::StrCat("tenant ", tenant.rules.name, ": ", what, ": ",
                                                                status.message(), "; repeat the drop"));
}

// A block with copies in two tiers goes in two steps, and counts with its last.
void Removal::NoteBlock(TenantState& tenant, EntryId id) {
  const Entry& entry = state_.index.at(id);
  const int64_t first_ms = state_.WallMsOfTick(entry.first_commit_tick);
  int64_t& oldest_ms = tenant.receipt.oldest_first_commit_ms;
  oldest_ms = oldest_ms == 0 ? first_ms : std::min(oldest_ms, first_ms);
  if (!entry.resident(TierKind::kDram) || !entry.resident(TierKind::kNvme)) ++tenant.receipt.blocks;
}

EntryId Removal::NextBlock(TenantState& tenant, TierKind tier) const {
  return tenant.order(tier).Victim([this](EntryId id) { return residency_.Removable(id); }, kVictimProbesMax);
}

void Removal::Continue(TenantState& tenant) {
  // What recovery still brings is to be erased, too.
  if (!tenant.dropping || state_.recovering) return;
  for (uint32_t dropped = 0; dropped < kDropBlocksPerTurn; ++dropped) {
    const EntryId id = NextBlock(tenant, TierKind::kDram);
    if (!id.valid()) break;
    NoteBlock(tenant, id);
    tenant.receipt.bytes += state_.SlotBytesOf(state_.index.at(id));
    residency_.DropCopy(id, TierKind::kDram, policy::DropReason::kRemoved);
  }
  space_.GiveBackEmpty(tenant);
  while (EraseOneFromNvme(tenant)) {
  }
  if (tenant.stats.entries > 0 || tenant.erases_under_way > 0 || tenant.reclaiming_bytes > 0) return;
  Finish(tenant);
}

void Removal::Finish(TenantState& tenant) {
  tenant.dropping = false;
  tenant.receipt.tenant = tenant.stats.name;  // by now its old one may be somebody else's
  // Also what an earlier drop, or maxAge, failed at: no receipt may say that it is gone.
  tenant.receipt.unerased_blocks = tenant.unzeroed_blocks;
  if (tenant.unzeroed_blocks > 0) {
    Note(tenant, "blocks that could not be zeroed",
         absl::DataLossError(absl::StrCat(tenant.unzeroed_blocks,
                                          " since the start of the daemon; their bytes may still "
                                          "be on the device until it is overwritten or replaced")));
  }
  tenant.receipt.wall_ms = state_.devices.clock->WallMs();
  if (state_.observer != nullptr) state_.observer->OnDeletion(tenant.receipt);
  auto done = std::move(tenant.drop_done);
  if (!tenant.drop_status.ok()) return done(tenant.drop_status);
  done(tenant.receipt.bytes);
}

bool Removal::EraseOneFromNvme(TenantState& tenant) {
  const EntryId id = NextBlock(tenant, TierKind::kNvme);
  if (!id.valid() || state_.index.at(id).resident(TierKind::kDram)) return false;
  const Erasure::Outcome outcome =
      erasure_.Start(id, policy::DropReason::kRemoved, [this, owner = &tenant](const Erasure::Erased& erased) {
        Note(*owner, "a block could not be zeroed on NVMe", erased.status);
        owner->receipt.bytes += erased.status.ok() ? erased.bytes : 0;
        owner->unzeroed_blocks += erased.status.ok() ? 0 : 1;
        --owner->erases_under_way;
        Continue(*owner);
      });
  if (outcome != Erasure::Outcome::kStarted) return false;  // the next completion or tick goes on
  NoteBlock(tenant, id);
  ++tenant.erases_under_way;
  return true;
}

}  // namespace kvartal::engine
