// The RocksDB folder behind the catalog: opening it, setting an unreadable one aside, keys and values. Blocking calls.
// Confined to one thread at a time: the caller of Open, then the catalog's thread.
// Invariant: records of another device never come out.
//
//   "m"                     -> u32 format version, u8 1 when every block on the device has its record, device id
//   "s" + slot, big-endian  -> packed block header (kBlockRecordBytes)
//   "w"                     -> i64 wall milliseconds: the latest date that was kept; no record has a later one
//   "t" + owner             -> i64 wall milliseconds: nothing of the owner committed before may come back
//   "e" + id, big-endian    -> erasure whose receipt is not kept yet (erasure_record.h)
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "daemon/tier/nvme_catalog.h"

namespace rocksdb {
class DB;
class WriteBatch;
}  // namespace rocksdb

namespace kvartal::tier {

class RocksStore {
 public:
  // ResourceExhausted: the disk is full, and so it is without the ballast (a file beside the folder that takes up space
  // for this very case). FailedPrecondition: another process has the folder open. Any other trouble
  // with what is in the folder sets it aside and makes a new one.
  static absl::StatusOr<std::unique_ptr<RocksStore>> Open(const CatalogOptions& options);
  ~RocksStore();

  // As of Open: the records are not all there, and the caller reads the headers of the device.
  bool incomplete() const { return incomplete_; }
  int64_t kept_time_ms() const { return kept_time_ms_; }
  // By id.
  std::vector<ErasureRecord> Erasures() const;
  const std::map<OwnerUidHash, int64_t>& tombstones() const { return tombstones_; }

  // Collected by the first five, written by Commit, all or nothing. A record survives kill -9 from then on, power loss
  // with `sync`. Of what is not written Puts are lost; Deletes and erasures are owed, and written by Reopen.
  void Put(const CatalogRecord& record);
  void Delete(SlotId slot);
  // A no-op for a date that is not the latest.
  void KeepTime(int64_t wall_ms);
  void PutErasure(const ErasureRecord& record);
  void EndErasure(uint64_t id);
  // The record of that slot, as it was last committed, gets other times; collected too. A no-op where there is none.
  absl::Status Refresh(SlotId slot, const RecordTimes& times);
  size_t collected() const;
  absl::Status Commit(bool sync);
  void Discard();
  // What was collected before is committed with it. Synced. An older tombstone never replaces a newer one. Load heeds
  // one that could not be written, too.
  absl::Status PutTombstone(const OwnerUidHash& owner, int64_t before_wall_ms);
  absl::Status Sync();
  // What was missing at Open is there by now. Synced; a no-op when records were lost since.
  absl::Status MarkComplete();

  // Every record, kRecoveryBatchMax at a time, until `batch` says false (Cancelled); last those a tombstone covers.
  // Unreadable ones are deleted on the way.
  absl::Status Load(absl::FunctionRef<bool(std::vector<CatalogRecord>)> batch);

  // A failure closes the database: all else fails until this opens it again. What turned out to be damaged is set
  // aside then. Tombstones, erasures and Deletes that failed are written once more; what else did is the caller's.
  absl::Status Reopen();

 private:
  explicit RocksStore(const CatalogOptions& options);
  // At a start the show must go on; later the trouble may pass and the records be fine.
  enum class SetAsideWhen : uint8_t { kUnusable, kDamaged };
  absl::Status OpenFolder(SetAsideWhen when);
  absl::Status OpenUsable(SetAsideWhen when);
  absl::Status OpenDatabase();
  void TakeBallast() const;
  bool GiveUpBallast() const;
  absl::Status CheckMeta();
  absl::Status ReadTombstones();
  absl::Status ReadErasures();
  void CollectTombstone(const OwnerUidHash& owner, int64_t before_wall_ms);
  // Puts again what is erased or owed, as it is by now.
  absl::Status PutOwed();
  absl::Status PutMeta(bool complete);
  absl::Status SetAside(const absl::Status& why);
  absl::Status Closed() const;
  absl::Status CloseOnFailure(absl::Status status);

  const CatalogOptions options_;
  std::unique_ptr<rocksdb::DB> db_;  // null after a failure
  std::unique_ptr<rocksdb::WriteBatch> batch_;
  bool incomplete_ = false;
  bool made_anew_ = false;    // since Open: records of this life are lost
  int64_t kept_time_ms_ = 0;  // with the batch; what fails is followed by Reopen
  bool damaged_ = false;      // a table could not be read: the next Reopen sets the folder aside
  // As they were read or put last: they outlive that, and a batch that failed.
  std::map<OwnerUidHash, int64_t> tombstones_;
  std::map<uint64_t, ErasureRecord> erasures_;
  // Collected since the last batch that was written. A record that outlives its block would be taken for it in the
  // next life, and may take the place of another's.
  std::set<uint32_t> owed_deletes_;
  std::set<uint64_t> owed_ends_;
};

}  // namespace kvartal::tier
