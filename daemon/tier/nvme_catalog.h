// Metadata of the NVMe tier: which slot holds which block. RocksDB behind its own thread, or a fake that a test pumps.
// Confined to the engine loop; the work happens elsewhere and returns through the executor.
// Invariants: data before metadata: a record is put only after its payload was written, and no record is synced before
// the data file is; a stale record is found out by the header at the next read, so losing the newest records or deletes
// is harmless.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/ids.h"
#include "daemon/base/status.h"
#include "daemon/tier/disk_set.h"
#include "daemon/tier/erasure_record.h"
#include "daemon/tier/nvme_format.h"

namespace kvartal::tier {

struct CatalogRecord {
  SlotId slot;
  BlockHeader header;
  bool condemned = false;  // of a Load: a tombstone covers it, and it is there all the same
};

// What changes about a block after it was written.
struct RecordTimes {
  int64_t last_access_ms = 0;
  uint32_t pinned_until_s = 0;
};

// What the keys of an owner's encrypted blocks are derived with: who does not have it can decrypt none of them.
struct OwnerSalt {
  OwnerUidHash owner{};
  cipher::Salt salt{};
  int64_t made_wall_ms = 0;

  friend bool operator==(const OwnerSalt&, const OwnerSalt&) = default;
};

class NvmeCatalog {
 public:
  virtual ~NvmeCatalog() = default;

  // `done` on the engine loop once the record would survive kill -9 of this process (written to the log, not yet
  // synced). False when kCatalogQueueMax batches are waiting.
  [[nodiscard]] virtual bool Put(const CatalogRecord& record, absl::AnyInvocable<void(absl::Status)> done) = 0;
  // Forgets a slot. Never refused: those that are asked for one after the other wait as one, of which each slot is a
  // part once. What could not be written is written when records are taken again.
  virtual void Delete(SlotId slot) = 0;
  // Changes the times of the record of a slot, when there is one. `done` as of Put: what failed is the caller's to ask
  // for again. False when kCatalogQueueMax operations are waiting.
  [[nodiscard]] virtual bool Refresh(SlotId slot, const RecordTimes& times,
                                     absl::AnyInvocable<void(absl::Status)> done) = 0;
  // A date that the next life must not fall behind, as it must not behind that of any record. Never refused: asked for
  // now and then.
  virtual void KeepTime(int64_t wall_ms) = 0;
  // The latest of both before this open; 0: none.
  virtual int64_t kept_time_ms() const = 0;
  // "Nothing of this owner committed before `before_wall_ms` may come back." Its salt, when made before that, is
  // overwritten. Synced before `done`.
  virtual void PutTombstone(const OwnerUidHash& owner, int64_t before_wall_ms,
                            absl::AnyInvocable<void(absl::Status)> done) = 0;
  // In place of an owner's earlier one. Never refused, and in order with Put: a record that is put later is not told to
  // survive before the salt does. While one cannot be written, Puts of encrypted blocks fail, and no others.
  virtual void PutSalt(const OwnerSalt& salt) = 0;
  // Those that were kept when this was opened. They outlive a catalog that was lost.
  virtual std::vector<OwnerSalt> salts() const = 0;
  // What an erasure has come to. Never refused, and in order with Delete: put before the records of what it erased are
  // deleted, it is not lost unless they come back. What cannot be written is written when records are taken again.
  virtual void PutErasure(const ErasureRecord& record) = 0;
  // Its receipt is kept elsewhere.
  virtual void EndErasure(uint64_t id) = 0;
  // Those that had not ended when this was opened, by id.
  virtual std::vector<ErasureRecord> open_erasures() const = 0;
  // As of this open: what was committed before that is erased, wherever it is found.
  virtual std::map<OwnerUidHash, int64_t> tombstones() const = 0;

  // Streams every record in batches, then `done`. Of each disk those that a tombstone covers come last and are marked:
  // what is alive must find its place first. Batches run on the engine loop; once at start.
  virtual void Load(absl::AnyInvocable<void(std::vector<CatalogRecord>)> batch,
                    absl::AnyInvocable<void(absl::Status)> done) = 0;
  // Sync of the data file, then of the write-ahead log: what had been written is safe from a power cut. The former is
  // tried also where the latter takes nothing. `done` on the engine loop.
  virtual void Flush(absl::AnyInvocable<void(absl::Status)> done) = 0;
  // As of this open: disks with blocks that may have no record here, since the database was absent or unreadable once,
  // or is an earlier build's. The caller reads their headers as well. So does every later life, until one says
  // MarkComplete.
  virtual DiskSet incomplete() const = 0;
  // Every block that the headers told of has its record, or is gone.
  virtual void MarkComplete() = 0;
};

struct CatalogOptions {
  std::string path;       // a folder
  std::string device_id;  // hex uuid of the device the records are about; another one inside means "treat as empty"
  std::function<absl::Status()> sync_data = {};  // of that device; on the catalog's thread
};
// Never fails for a bad database: an unreadable one is set aside (renamed <path>.corrupt-N) and a new one made, with a
// log line.
absl::StatusOr<std::unique_ptr<NvmeCatalog>> OpenRocksCatalog(const CatalogOptions& options, Executor* executor);

}  // namespace kvartal::tier
