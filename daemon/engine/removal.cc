#include "daemon/engine/removal.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"

namespace kvartal::engine {

void Removal::Start(TenantState& tenant, absl::AnyInvocable<void(absl::StatusOr<uint64_t> bytes)> done) {
  if (tenant.dropping)
    return done(absl::AlreadyExistsError("this tenant is being erased already: wait for that to end"));
  tenant.dropping = true;
  // Of one that is removed nobody waits to be let in again.
  tenant.shut_out_tick = tenant.removed_tick == 0 ? state_.NowTick() : 0;
  // On the clock that blocks are dated by, and after the newest of them. What an earlier process left to be erased ends
  // where that one's removal began: what the owner has stored since is no part of it.
  const bool past = state_.FindOwner(tenant.owner) != &tenant;
  receipts_.Open(tenant, past ? tenant.removal.before_wall_ms : state_.RemovalDateMs(tenant));
  tenant.not_before_ms = std::max(tenant.not_before_ms, tenant.removal.before_wall_ms);
  tenant.drop_status = absl::OkStatus();
  tenant.drop_done = std::move(done);
  if (tenant.history() != nullptr) *tenant.history() = {};
  pins_.EndAll(tenant);
  if (state_.devices.catalog == nullptr) return Continue(tenant);
  PutTombstone(tenant);
}

void Removal::PutTombstone(TenantState& tenant) {
  ++tenant.erases_under_way;
  // A wall clock that is set back must not date before it what is stored from now on.
  state_.devices.catalog->KeepTime(std::max(tenant.removal.before_wall_ms, state_.WallMsOfTick(state_.NowTick())));
  // The tombstone first: it overwrites the salt there is, and what comes later is encrypted with the next one.
  state_.devices.catalog->PutTombstone(tenant.owner, tenant.removal.before_wall_ms,
                                       [this, owner = &tenant](absl::Status status) {
                                         Note(*owner, "the tombstone was not persisted", status);
                                         --owner->erases_under_way;
                                         Continue(*owner);
                                       });
  state_.ForgetCipher(tenant.owner, tenant.removal.before_wall_ms);
}

void Removal::Tick() {
  const uint32_t now_tick = state_.NowTick();
  // Who stands aside adds a tenant.
  for (size_t i = 0, count = state_.tenants.size(); i < count; ++i) {
    TenantState* const tenant = state_.tenants[i].get();
    if (tenant->dropping) {
      // A policy that came back while its tenant's removal is carried out.
      if (tenant->removed_tick == 0 && tenant->shut_out_tick == 0) tenant->shut_out_tick = now_tick;
      Continue(*tenant);
      const uint64_t left = tenant->stats.entries + tenant->reclaiming_bytes + tenant->resting_slots;
      const bool gets_on = std::exchange(tenant->drop_left, left) != left || state_.recovering;
      if (tenant->shut_out_tick != 0 && gets_on) tenant->shut_out_tick = now_tick;
      const bool stuck = tenant->dropping && !state_.recovering && tenant->shut_out_tick != 0 &&
                         now_tick - tenant->shut_out_tick >= kDropStuckTicks;
      if (stuck) StandAside(*tenant);
    } else if (tenant->removed_tick != 0 && !tenant->erased && !state_.recovering &&
               int64_t{now_tick - tenant->removed_tick} * kTickMs >= state_.options.removed_grace_ms) {
      StartRemoved(*tenant);
    }
  }
  ForgetGone();
}

void Removal::StandAside(TenantState& tenant) {
  const std::string name = tenant.stats.name;
  // Where its policy is gone, another of that name may be waiting for the answer.
  const bool returns = tenant.removed_tick == 0;
  if (returns && !state_.BeginAnew(tenant, absl::StrCat(name, "~erasing-", tenant.removal.erasure))) return;
  const absl::Status late = absl::UnavailableError(
      absl::StrCat("tenant ", name, ": nothing more could be erased in ", kDropStuckTicks * kTickMs / 1000,
                   " s, most often because a disk takes no zeros; what is left is served to nobody, and erased when "
                   "that goes on: the audit log will have the receipt, of ",
                   tenant.stats.name));
  tenant.shut_out_tick = 0;
  if (returns && state_.observer != nullptr) state_.observer->OnBegunAnew(name);
  Log(LogLevel::kError, "engine", std::string(late.message()));
  auto done = std::move(tenant.drop_done);
  tenant.drop_done = [past = tenant.stats.name](const absl::StatusOr<uint64_t>& bytes) {
    Log(bytes.ok() ? LogLevel::kInfo : LogLevel::kError, "engine", "the erasure of ", past, ": ",
        bytes.ok() ? "all is erased" : bytes.status().message());
  };
  done(late);
}

void Removal::ForgetGone() {
  if (state_.recovering) return;
  for (size_t i = 0; i < state_.tenants.size();) {
    TenantState& tenant = *state_.tenants[i];
    if (state_.Forgettable(tenant) && state_.devices.dram->CloseDomain(tenant.domain())) {
      state_.Forget(tenant);
    } else {
      ++i;
    }
  }
}

void Removal::StartRemoved(TenantState& tenant) {
  Start(tenant, [owner = &tenant](const absl::StatusOr<uint64_t>& bytes) {
    if (bytes.ok()) {
      Log(LogLevel::kInfo, "engine", "removed tenant ", owner->stats.name, " is erased: ", *bytes, " bytes");
    } else {
      Log(LogLevel::kError, "engine", "removed tenant ", owner->stats.name,
          " is not erased in full: ", bytes.status().message());
    }
  });
}

TenantState* Removal::Resume(const tier::ErasureRecord& record) {
  TenantState* const past = state_.AddPast(record.owner, absl::StrCat(record.tenant, "~erasing-", record.id));
  if (past == nullptr) {
    Log(LogLevel::kError, "engine", "no room to go on erasing tenant ", record.tenant, ": at the next start");
    return nullptr;
  }
  past->dropping = true;
  past->drop_done = [was = record.tenant](const absl::StatusOr<uint64_t>& bytes) {
    Log(bytes.ok() ? LogLevel::kInfo : LogLevel::kError, "engine", "the erasure of tenant ", was,
        " that a restart cut short is at its end: ", bytes.ok() ? "all is erased" : bytes.status().message());
  };
  receipts_.Resume(*past, record);
  owed_.push_back(past->id);
  PutTombstone(*past);
  return past;
}

TenantState* Removal::Owing(const tier::BlockHeader& header, bool condemned) {
  TenantState* of_owner = nullptr;
  for (const TenantId id : owed_) {
    TenantState& past = state_.tenant(id);
    if (past.owner != header.identity.owner) continue;
    if (header.first_commit_ms < past.removal.before_wall_ms) return &past;
    of_owner = &past;
  }
  if (!condemned || of_owner != nullptr) return condemned ? of_owner : nullptr;
  // Its removal was at an end, or is of a time that kept no note of it: what came late is erased all the same.
  const TenantState* const now = state_.FindOwner(header.identity.owner);
  return Resume({.id = ++state_.last_erasure,
                 .kind = tier::ErasureRecord::Kind::kRemoval,
                 .owner = header.identity.owner,
                 .tenant = now != nullptr ? now->stats.name : "",
                 .before_wall_ms = header.first_commit_ms + 1});
}

void Removal::Note(TenantState& tenant, const char* what, const absl::Status& status) {
  if (status.ok() || !tenant.drop_status.ok()) return;
  tenant.drop_status = absl::Status(status.code(), absl::StrCat("tenant ", tenant.rules.name, ": ", what, ": ",
                                                                status.message(), "; repeat the drop"));
}

EntryId Removal::NextBlock(TenantState& tenant, TierKind tier, tier::DiskSet disks) const {
  return residency_.First(tenant, tier, [this](EntryId id) { return residency_.Removable(id); }, disks);
}

void Removal::Continue(TenantState& tenant) {
  // What recovery still brings is to be erased, too.
  if (!tenant.dropping || state_.recovering) return;
  uint32_t dropped = 0;
  for (; dropped < kDropBlocksPerTurn; ++dropped) {
    const EntryId id = NextBlock(tenant, TierKind::kDram);
    if (!id.valid()) break;
    Receipts::Copies punched{};
    punched[TierIndex(TierKind::kDram)] = true;
    receipts_.Count(tenant, policy::DropReason::kRemoved, id, punched, true);
    residency_.DropCopy(id, TierKind::kDram, policy::DropReason::kRemoved);
  }
  if (dropped > 0) receipts_.Persist(tenant, policy::DropReason::kRemoved);
  space_.GiveBackEmpty(tenant);
  while (EraseOneFromNvme(tenant)) {
  }
  if (tenant.stats.entries > 0 || tenant.erases_under_way > 0 || tenant.reclaiming_bytes > 0) return;
  if (tenant.resting_slots > 0) return;
  if (state_.devices.catalog != nullptr && !tenant.zeros_flushed) return FlushZeros(tenant);
  Finish(tenant);
}

// What is told of its end holds against a power cut, too. A disk that takes no flush is sick, and has its own count.
void Removal::FlushZeros(TenantState& tenant) {
  ++tenant.erases_under_way;
  state_.devices.catalog->Flush([this, owner = &tenant](const absl::Status&) {
    --owner->erases_under_way;
    owner->zeros_flushed = true;
    Continue(*owner);
  });
}

void Removal::Finish(TenantState& tenant) {
  tenant.dropping = tenant.zeros_flushed = false;
  // Without its tombstone it is begun again after another grace. What could not be zeroed cannot be tried again.
  if (tenant.removed_tick != 0) {
    tenant.erased = tenant.drop_status.ok();
    if (!tenant.erased) tenant.removed_tick = state_.NowTick();
  }
  const DeletionReceipt receipt = receipts_.Close(tenant);
  if (receipt.unerased_blocks > 0) {
    Note(tenant, "blocks that could not be zeroed",
         absl::DataLossError(absl::StrCat(
             receipt.unerased_blocks,
             " so far; their bytes may still be on the device until it is overwritten or "
             "replaced",
             state_.devices.absent_disks == 0 ? "" : "; a disk is absent, and nobody knows what lies there")));
  }
  auto done = std::move(tenant.drop_done);
  if (!tenant.drop_status.ok()) return done(tenant.drop_status);
  done(receipt.bytes());
}

bool Removal::EraseOneFromNvme(TenantState& tenant) {
  if (state_.devices.nvme == nullptr) return false;
  // What hangs comes last.
  EntryId id = NextBlock(tenant, TierKind::kNvme, ~state_.devices.nvme->hanging());
  if (!id.valid()) id = NextBlock(tenant, TierKind::kNvme);
  if (!id.valid() || state_.index.at(id).resident(TierKind::kDram)) return false;
  const Erasure::Outcome outcome =
      erasure_.Start(id, policy::DropReason::kRemoved, [this, owner = &tenant](const absl::Status&) {
        --owner->erases_under_way;
        Continue(*owner);
      });
  if (outcome != Erasure::Outcome::kStarted) return false;  // the next completion or tick goes on
  ++tenant.erases_under_way;
  return true;
}

}  // namespace kvartal::engine
