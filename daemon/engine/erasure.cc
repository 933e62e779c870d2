#include "daemon/engine/erasure.h"

#include <optional>
#include <utility>

namespace kvartal::engine {

using index::Entry;

struct Erasure::Job {
  EntryId id;
  policy::DropReason reason = policy::DropReason::kMaxAge;
  Done done;
  uint32_t parts = 0;  // under way
  std::optional<size_t> disk;
  Receipts::Copies erased{};
  absl::Status status;
};

Erasure::Outcome Erasure::Start(EntryId id, policy::DropReason reason, Done done) {
  if (!residency_.Erasable(id)) return Outcome::kInUse;
  Entry& entry = state_.index.at(id);
  if (in_memory_ + state_.ThatEnd(on_disk_) >= kErasuresMax) return Outcome::kQueueFull;
  auto job = std::make_shared<Job>();
  job->id = id;
  job->reason = reason;
  job->done = std::move(done);
  if (entry.resident(TierKind::kDram) && ZeroDram(job)) ++job->parts;
  if (entry.resident(TierKind::kNvme)) {
    // What hangs holds up nothing elsewhere.
    const size_t disk = state_.devices.nvme->DiskOf(entry.copy(TierKind::kNvme).slot);
    if (on_disk_.on[disk] < kErasuresMax && ZeroNvme(job)) {
      ++job->parts;
      job->disk = disk;
    }
  }
  if (job->parts == 0) return Outcome::kQueueFull;
  entry.reading = true;  // a transfer of its copies is under way, as far as everybody else is concerned
  entry.erasing = true;
  if (job->disk.has_value()) {
    on_disk_.Begin(*job->disk);
  } else {
    ++in_memory_;
  }
  return Outcome::kStarted;
}

bool Erasure::ZeroDram(const std::shared_ptr<Job>& job) {
  const Entry& entry = state_.index.at(job->id);
  return state_.devices.dram->Zero(state_.TenantOf(entry).domain(), entry.copy(TierKind::kDram).slot,
                                   [this, alive = std::weak_ptr<bool>(alive_), job] {
                                     if (!alive.expired()) EndPart(job, TierKind::kDram, absl::OkStatus());
                                   });
}

bool Erasure::ZeroNvme(const std::shared_ptr<Job>& job) {
  const Entry& entry = state_.index.at(job->id);
  const bool queued = state_.devices.nvme->Erase(
      entry.copy(TierKind::kNvme).slot, [this, alive = std::weak_ptr<bool>(alive_), job](const absl::Status& status) {
        if (!alive.expired()) EndPart(job, TierKind::kNvme, status);
      });
  if (queued) state_.SpendWrite(state_.SlotBytesOf(entry) + kNvmeHeaderBytes);
  return queued;
}

void Erasure::EndPart(const std::shared_ptr<Job>& job, TierKind tier, const absl::Status& status) {
  job->erased[TierIndex(tier)] = true;
  job->status.Update(status);
  if (--job->parts > 0) return;
  if (job->disk.has_value()) {
    on_disk_.End(*job->disk);
  } else {
    --in_memory_;
  }
  Entry& erased = state_.index.at(job->id);
  erased.reading = erased.erasing = false;
  TenantState& tenant = state_.TenantOf(erased);
  receipts_.Count(tenant, job->reason, job->id, job->erased, job->status.ok());
  receipts_.Persist(tenant, job->reason);
  for (TierKind each : kAllTiers) {
    if (job->erased[TierIndex(each)]) residency_.DropCopy(job->id, each, job->reason);
  }
  job->done(job->status);
}

}  // namespace kvartal::engine
