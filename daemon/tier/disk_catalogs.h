// The catalogs of several disks as one. A record is in that of its disk; what is of the node (tombstones, salts, open
// erasures, the latest date) is in each, so that none of it goes with one disk.
// Confined to the engine loop. Invariants: SlotIds outside are the tier's, in a catalog those of its disk; before a
// record is read the catalogs agree on what is of the node, so that the past of a disk that was away brings nothing
// back.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "daemon/tier/disk_map.h"
#include "daemon/tier/nvme_catalog.h"

namespace kvartal::tier {

class DiskCatalogs : public NvmeCatalog {
 public:
  // One a disk of `map`, in its order.
  DiskCatalogs(std::vector<std::unique_ptr<NvmeCatalog>> catalogs, DiskMap map);
  // One after another: what was accepted is written first. `before` is told which is next, by its disk. The last call.
  void Close(absl::FunctionRef<void(size_t disk)> before);

  bool Put(const CatalogRecord& record, absl::AnyInvocable<void(absl::Status)> done) override;
  void Delete(SlotId slot) override;
  bool Refresh(SlotId slot, const RecordTimes& times, absl::AnyInvocable<void(absl::Status)> done) override;
  void KeepTime(int64_t wall_ms) override;
  int64_t kept_time_ms() const override { return kept_time_ms_; }
  // OK when each disk has it: one that has not would bring the owner's blocks back if it were the last one left.
  void PutTombstone(const OwnerUidHash& owner, int64_t before_wall_ms,
                    absl::AnyInvocable<void(absl::Status)> done) override;
  void PutSalt(const OwnerSalt& salt) override;
  std::vector<OwnerSalt> salts() const override;
  void PutErasure(const ErasureRecord& record) override;
  void EndErasure(uint64_t id) override;
  std::vector<ErasureRecord> open_erasures() const override;
  std::map<OwnerUidHash, int64_t> tombstones() const override { return tombstones_; }
  // All disks at once: each hands out what is condemned there last.
  void Load(absl::AnyInvocable<void(std::vector<CatalogRecord>)> batch,
            absl::AnyInvocable<void(absl::Status)> done) override;
  void Flush(absl::AnyInvocable<void(absl::Status)> done) override;
  DiskSet incomplete() const override;
  void MarkComplete() override;

 private:
  void JoinTimes();
  void JoinTombstones();
  void JoinSalts();
  void JoinErasures();

  std::vector<std::unique_ptr<NvmeCatalog>> catalogs_;
  const DiskMap map_;
  // As of this open, of all of them.
  int64_t kept_time_ms_ = 0;
  std::map<OwnerUidHash, int64_t> tombstones_;
  std::map<OwnerUidHash, OwnerSalt> salts_;
  std::map<uint64_t, ErasureRecord> erasures_;
};

}  // namespace kvartal::tier
