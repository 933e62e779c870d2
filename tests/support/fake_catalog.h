// A catalog in memory that a test pumps by hand: an operation takes effect when the executor runs it, in the order
// asked for. Confined to the thread that pumps the executor. Invariant: what has not been run when the catalog is
// destroyed never happens: destroying it is kill -9.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "daemon/base/event_loop.h"
#include "daemon/tier/nvme_catalog.h"
#include "tests/support/crash_journal.h"

namespace kvartal::testing {

// What outlives the catalog that is open on it: open another one on it to test a restart.
struct CatalogDisk {
  std::map<uint32_t, tier::BlockHeader> records;  // by SlotId
  std::map<tier::OwnerUidHash, int64_t> tombstones;
  std::map<uint64_t, tier::ErasureRecord> erasures;  // by id
  std::map<tier::OwnerUidHash, tier::OwnerSalt> salts;
  int64_t kept_time_ms = 0;
  void KeepTime(int64_t wall_ms) { kept_time_ms = std::max(kept_time_ms, wall_ms); }
  bool complete = false;            // false: the next catalog says incomplete()
  CrashJournal* journal = nullptr;  // hears of every change and sync; outlives the disk
};

class FakeCatalog : public tier::NvmeCatalog {
 public:
  struct Counts {
    uint64_t puts = 0, refreshes = 0, deletes = 0, tombstones = 0, loads = 0,
             flushes = 0;  // taken effect, failures included
  };

  // A disk of its own, as after the folder was deleted.
  explicit FakeCatalog(Executor* executor);
  FakeCatalog(Executor* executor, std::shared_ptr<CatalogDisk> disk);
  ~FakeCatalog() override;

  bool Put(const tier::CatalogRecord& record, absl::AnyInvocable<void(absl::Status)> done) override;
  bool Refresh(SlotId slot, const tier::RecordTimes& times, absl::AnyInvocable<void(absl::Status)> done) override;
  void KeepTime(int64_t wall_ms) override;
  int64_t kept_time_ms() const override;
  void Delete(SlotId slot) override;
  void PutTombstone(const tier::OwnerUidHash& owner, int64_t before_wall_ms,
                    absl::AnyInvocable<void(absl::Status)> done) override;
  void PutSalt(const tier::OwnerSalt& salt) override;
  std::vector<tier::OwnerSalt> salts() const override;
  void PutErasure(const tier::ErasureRecord& record) override;
  void EndErasure(uint64_t id) override;
  std::vector<tier::ErasureRecord> open_erasures() const override;
  void Load(absl::AnyInvocable<void(std::vector<tier::CatalogRecord>)> batch,
            absl::AnyInvocable<void(absl::Status)> done) override;
  void Flush(absl::AnyInvocable<void(absl::Status)> done) override;
  std::map<tier::OwnerUidHash, int64_t> tombstones() const override;
  tier::DiskSet incomplete() const override;
  void MarkComplete() override;

  // While set, Put, Refresh, PutErasure, PutTombstone and Delete end with `status` and change nothing (a full disk).
  // OkStatus() ends that: erasures and Deletes are as they would be, the rest is not written.
  void FailWrites(absl::Status status);
  // While set no new salt is written, as when their file cannot be made: Puts of encrypted blocks end with `status`.
  void FailSalts(absl::Status status);
  // The next Load hands out its first batch, then ends with `status`.
  void FailNextLoad(absl::Status status);
  // From now on Put is refused when `count` are under way; 0: kCatalogQueueMax.
  void SetQueueMax(size_t count);
  // While held nothing takes effect and no `done` runs; Release lets all of it run at the next pump.
  void Hold();
  void Release();
  // What a Flush syncs first.
  void SetSyncData(std::function<absl::Status()> sync_data);
  // Records of each Load batch; small by default, so that a restart sees more than one.
  void SetLoadBatch(size_t records);

  std::shared_ptr<CatalogDisk> disk() const;
  Counts counts() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace kvartal::testing
