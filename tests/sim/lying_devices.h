// Decorators over the fakes of the seams. The catalog's tells what passes through it; the others are there for planted
// faults only: devices that keep their interface and break their word. Confined to the thread of the simulation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/device/block_file.h"
#include "daemon/device/host_memory.h"
#include "daemon/tier/nvme_catalog.h"
#include "tests/sim/plan.h"
#include "tests/sim/random.h"
#include "tests/support/fake_block_file.h"

namespace kvartal::sim {

class LyingMemory : public device::HostMemory {
 public:
  LyingMemory(device::HostMemory* honest, Planted planted, Executor* executor)
      : honest_(honest), planted_(planted), executor_(executor) {}
  absl::StatusOr<std::unique_ptr<device::Arena>> CreateArena(const char* name, uint64_t size_bytes) override;
  bool HugePages() const override { return honest_->HugePages(); }

 private:
  device::HostMemory* const honest_;
  const Planted planted_;
  Executor* const executor_;
  std::byte* first_ = nullptr;  // of the first arena made
};

class WatchedCatalog : public tier::NvmeCatalog {
 public:
  WatchedCatalog(tier::NvmeCatalog* honest, Planted planted, Executor* executor, std::function<void(SlotId)> on_delete)
      : honest_(honest), planted_(planted), executor_(executor), on_delete_(std::move(on_delete)) {}

  // The slot whose record was just persisted, while the callback that says so runs.
  std::optional<SlotId> recorded() const { return recorded_; }

  bool Put(const tier::CatalogRecord& record, absl::AnyInvocable<void(absl::Status)> done) override;
  bool Refresh(SlotId slot, const tier::RecordTimes& times, absl::AnyInvocable<void(absl::Status)> done) override {
    return honest_->Refresh(slot, times, std::move(done));
  }
  void KeepTime(int64_t wall_ms) override { honest_->KeepTime(wall_ms); }
  int64_t kept_time_ms() const override { return honest_->kept_time_ms(); }
  void Delete(SlotId slot) override;
  void PutTombstone(const tier::OwnerUidHash& owner, int64_t before_wall_ms,
                    absl::AnyInvocable<void(absl::Status)> done) override;
  // What a removal promised is told by both: who loses tombstones loses these.
  void PutErasure(const tier::ErasureRecord& record) override {
    if (planted_ != Planted::kLosesTombstones) honest_->PutErasure(record);
  }
  void PutSalt(const tier::OwnerSalt& salt) override { honest_->PutSalt(salt); }
  std::vector<tier::OwnerSalt> salts() const override { return honest_->salts(); }
  void EndErasure(uint64_t id) override { honest_->EndErasure(id); }
  std::vector<tier::ErasureRecord> open_erasures() const override { return honest_->open_erasures(); }
  void Load(absl::AnyInvocable<void(std::vector<tier::CatalogRecord>)> batch,
            absl::AnyInvocable<void(absl::Status)> done) override;
  void Flush(absl::AnyInvocable<void(absl::Status)> done) override { honest_->Flush(std::move(done)); }
  std::map<tier::OwnerUidHash, int64_t> tombstones() const override { return honest_->tombstones(); }
  tier::DiskSet incomplete() const override { return honest_->incomplete(); }
  void MarkComplete() override { honest_->MarkComplete(); }

 private:
  tier::NvmeCatalog* const honest_;
  const Planted planted_;
  Executor* const executor_;
  const std::function<void(SlotId)> on_delete_;
  std::optional<SlotId> recorded_;
  uint64_t puts_ = 0;
};

class LyingFile : public device::BlockFile {
 public:
  LyingFile(testing::FakeBlockFile* honest, Planted planted, Executor* executor)
      : honest_(honest), planted_(planted), executor_(executor) {}
  uint64_t size_bytes() const override { return honest_->size_bytes(); }
  bool direct_io() const override { return honest_->direct_io(); }
  bool Submit(device::BlockIo io) override;
  absl::Status ReadNow(uint64_t offset, void* data, size_t bytes) override {
    return honest_->ReadNow(offset, data, bytes);
  }
  absl::Status WriteNow(uint64_t offset, const void* data, size_t bytes) override {
    return honest_->WriteNow(offset, data, bytes);
  }
  absl::Status Sync() override { return honest_->Sync(); }
  size_t Pending() const override { return honest_->Pending(); }
  size_t Overdue() const override { return honest_->Overdue(); }
  bool Withdraw(DomainId owner, uint64_t offset) override { return honest_->Withdraw(owner, offset); }
  void Hasten(DomainId owner, uint64_t offset) override { honest_->Hasten(owner, offset); }
  void SetWeight(DomainId owner, uint32_t weight) override { honest_->SetWeight(owner, weight); }

 private:
  testing::FakeBlockFile* const honest_;
  const Planted planted_;
  Executor* const executor_;
  uint64_t writes_ = 0;
  std::map<uint64_t, std::vector<std::byte>> before_;  // by offset: what the last write replaced
};

// What the engine takes for time.
class SimClock : public Clock {
 public:
  SimClock(const ManualClock* honest, Planted planted)
      : honest_(honest), planted_(planted), start_ns_(honest->MonotonicNs()), start_wall_ms_(honest->WallMs()) {}
  int64_t MonotonicNs() const override { return planted_ == Planted::kSlowClock ? start_ns_ : honest_->MonotonicNs(); }
  int64_t WallMs() const override {
    return skew_ms_ + (planted_ == Planted::kSlowClock ? start_wall_ms_ : honest_->WallMs());
  }
  void SkewWall(int64_t ms) { skew_ms_ = ms; }

 private:
  const ManualClock* const honest_;
  const Planted planted_;
  const int64_t start_ns_;
  const int64_t start_wall_ms_;
  int64_t skew_ms_ = 0;
};

}  // namespace kvartal::sim
