#include <pthread.h>

#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"
#include "daemon/base/mutex.h"
#include "daemon/tier/nvme_catalog.h"
#include "daemon/tier/rocks_store.h"
#include "daemon/tier/salt_file.h"

namespace kvartal::tier {
namespace {

using SteadyClock = std::chrono::steady_clock;
using StatusDone = absl::AnyInvocable<void(absl::Status)>;
using RecordBatch = absl::AnyInvocable<void(std::vector<CatalogRecord>)>;

// A catalog in RocksDB. Its thread takes all that is queued at once and writes it as one batch (group commit), so its
// rate follows the load; `done`s of one batch return as one callback. Put, Delete, ...: confined to the engine loop.
// The store: confined to the thread. The queue: guarded by mutex_. Invariant: operations take effect in the order in
// which they were asked for.
class RocksCatalog : public NvmeCatalog {
 public:
  RocksCatalog(std::unique_ptr<RocksStore> store, SaltFile salts, std::function<absl::Status()> sync_data,
               Executor* executor)
      : store_(std::move(store)),
        salt_file_(std::move(salts)),
        executor_(executor),
        incomplete_(store_->incomplete()),
        kept_time_ms_(store_->kept_time_ms()),
        open_erasures_(store_->Erasures()),
        tombstones_(store_->tombstones()),
        salts_(salt_file_.salts()),
        sync_data_(std::move(sync_data)),
        thread_([this] { RunThread(); }) {}

  // What was accepted is written and synced; its `done`s are posted.
  ~RocksCatalog() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake_.NotifyAll();
    {
      MutexLock lock(read_ahead_->mutex);
      read_ahead_->stopping = true;
    }
    read_ahead_->fewer.NotifyAll();
    thread_.join();
  }

  bool Put(const CatalogRecord& record, StatusDone done) override {
    KV_CHECK(record.slot.valid());
    if (*puts_under_way_ >= kCatalogQueueMax) return false;
    ++*puts_under_way_;
    Operation operation{Operation::Kind::kPut};
    operation.record = record;
    operation.done = std::move(done);
    Enqueue(std::move(operation));
    return true;
  }
  void Delete(SlotId slot) override {
    KV_CHECK(slot.valid());
    {
      MutexLock lock(mutex_);
      if (queue_.empty() || queue_.back().kind != Operation::Kind::kDelete)
        queue_.emplace_back(Operation::Kind::kDelete);
      queue_.back().slots.insert(slot.value());
    }
    wake_.NotifyOne();
  }
  void PutTombstone(const OwnerUidHash& owner, int64_t before_wall_ms, StatusDone done) override {
    Operation operation{Operation::Kind::kTombstone};
    operation.record.header.identity.owner = owner;
    operation.wall_ms = before_wall_ms;
    operation.done = std::move(done);
    Enqueue(std::move(operation));
  }
  void Load(RecordBatch batch, StatusDone done) override {
    Operation operation{Operation::Kind::kLoad};
    operation.batch = std::move(batch);
    operation.done = std::move(done);
    Enqueue(std::move(operation));
  }
  void Flush(StatusDone done) override {
    Operation operation{Operation::Kind::kFlush};
    operation.done = std::move(done);
    Enqueue(std::move(operation));
  }
  bool Refresh(SlotId slot, const RecordTimes& times, StatusDone done) override {
    KV_CHECK(slot.valid());
    if (*puts_under_way_ >= kCatalogQueueMax) return false;
    ++*puts_under_way_;
    Operation operation{Operation::Kind::kRefresh};
    operation.record.slot = slot;
    operation.times = times;
    operation.done = std::move(done);
    Enqueue(std::move(operation));
    return true;
  }
  void KeepTime(int64_t wall_ms) override {
    Operation operation{Operation::Kind::kKeepTime};
    operation.wall_ms = wall_ms;
    Enqueue(std::move(operation));
  }
  int64_t kept_time_ms() const override { return kept_time_ms_; }
  void PutSalt(const OwnerSalt& salt) override {
    Operation operation{Operation::Kind::kPutSalt};
    operation.salt = salt;
    Enqueue(std::move(operation));
  }
  std::vector<OwnerSalt> salts() const override { return salts_; }
  void PutErasure(const ErasureRecord& record) override {
    Operation operation{Operation::Kind::kPutErasure};
    operation.erasure = record;
    Enqueue(std::move(operation));
  }
  void EndErasure(uint64_t id) override {
    Operation operation{Operation::Kind::kEndErasure};
    operation.erasure.id = id;
    Enqueue(std::move(operation));
  }
  std::vector<ErasureRecord> open_erasures() const override { return open_erasures_; }
  std::map<OwnerUidHash, int64_t> tombstones() const override { return tombstones_; }
  DiskSet incomplete() const override { return incomplete_ ? kAllDisks : kNoDisk; }
  void MarkComplete() override { Enqueue(Operation{Operation::Kind::kMarkComplete}); }

 private:
  struct Operation {
    enum class Kind : uint8_t {
      kPut,
      kRefresh,
      kDelete,
      kKeepTime,
      kTombstone,
      kPutSalt,
      kPutErasure,
      kEndErasure,
      kLoad,
      kFlush,
      kMarkComplete,
    };
    explicit Operation(Kind what) : kind(what) {}
    Kind kind;
    CatalogRecord record;
    absl::flat_hash_set<uint32_t> slots;  // kDelete: of all that were asked for one after the other
    RecordTimes times;
    ErasureRecord erasure;
    OwnerSalt salt;
    int64_t wall_ms = 0;  // kKeepTime; kTombstone: nothing before it may come back
    RecordBatch batch;
    StatusDone done;
  };
  // Batches of a Load that the loop has not run yet. Shared with callbacks that may outlive the catalog.
  struct ReadAhead {
    Mutex mutex;
    Condition fewer;
    size_t batches ABSL_GUARDED_BY(mutex) = 0;
    bool stopping ABSL_GUARDED_BY(mutex) = false;
  };

  void Enqueue(Operation operation) {
    {
      MutexLock lock(mutex_);
      queue_.push_back(std::move(operation));
    }
    wake_.NotifyOne();
  }

  void RunThread();
  void RunOperations(std::deque<Operation> operations);
  void CollectPut(Operation operation, std::vector<StatusDone>* dones);
  void CommitCollected(std::vector<StatusDone>* dones);
  void RunTombstone(Operation operation);
  void RunLoad(Operation operation);
  void PostDone(StatusDone done, absl::Status status);
  void NoteFailure(const absl::Status& status);
  void NoteSalts(const absl::Status& status);
  void DoDueWork();
  absl::Status Sync();
  void SaveSalts(SteadyClock::time_point now);

  std::unique_ptr<RocksStore> store_;
  SaltFile salt_file_;
  Executor* const executor_;
  const bool incomplete_;
  const int64_t kept_time_ms_;
  const std::vector<ErasureRecord> open_erasures_;
  const std::map<OwnerUidHash, int64_t> tombstones_;
  const std::vector<OwnerSalt> salts_;
  // Of the loop; callbacks that lower it may outlive the catalog.
  const std::shared_ptr<size_t> puts_under_way_ = std::make_shared<size_t>(0);

  // Of the thread.
  absl::Status failure_;  // not OK: operations end with it until the store could be reopened
  SteadyClock::time_point next_reopen_;
  SteadyClock::time_point next_salts_;
  SteadyClock::time_point next_sync_ = SteadyClock::now() + std::chrono::seconds(kCatalogSyncSeconds);
  bool unsynced_ = false;
  bool data_synced_ = true;  // at the last try
  const std::function<absl::Status()> sync_data_;

  Mutex mutex_;
  Condition wake_;
  std::deque<Operation> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  const std::shared_ptr<ReadAhead> read_ahead_ = std::make_shared<ReadAhead>();
  std::thread thread_;  // last: it starts when all else is there
};

void RocksCatalog::RunThread() {
  pthread_setname_np(pthread_self(), "catalog");
  while (true) {
    std::deque<Operation> operations;
    {
      MutexLock lock(mutex_);
      if (!stopping_ && queue_.empty()) wake_.WaitFor(mutex_, std::chrono::seconds(1));  // idle: due work once a second
      if (stopping_ && queue_.empty()) break;
      operations = std::exchange(queue_, {});
    }
    DoDueWork();
    RunOperations(std::move(operations));
  }
  if (failure_.ok() && unsynced_) (void)Sync();
  store_.reset();
}

// Data before metadata, for a power cut, too.
absl::Status RocksCatalog::Sync() {
  const absl::Status data = sync_data_ == nullptr ? absl::OkStatus() : sync_data_();
  if (!data.ok() && std::exchange(data_synced_, data.ok()))
    Log(LogLevel::kError, "catalog", data.message(), ": what was written lately would not survive a power cut");
  data_synced_ = data.ok();
  absl::Status status = failure_.ok() ? store_->Sync() : failure_;
  NoteFailure(status);
  unsynced_ = unsynced_ && !status.ok();
  return status.ok() ? data : status;
}

void RocksCatalog::RunOperations(std::deque<Operation> operations) {
  std::vector<StatusDone> dones;
  bool uncommitted_puts = false;  // or deletes
  for (Operation& operation : operations) {
    switch (operation.kind) {
      case Operation::Kind::kPut:
        CollectPut(std::move(operation), &dones);
        uncommitted_puts = true;
        break;
      case Operation::Kind::kRefresh:
        // It reads what was committed: records on their way there go first.
        if (uncommitted_puts) CommitCollected(&dones);
        uncommitted_puts = false;
        NoteFailure(store_->Refresh(operation.record.slot, operation.times));
        dones.push_back(std::move(operation.done));
        break;
      case Operation::Kind::kKeepTime:
        store_->KeepTime(operation.wall_ms);
        break;
      case Operation::Kind::kDelete:
        for (const uint32_t slot : operation.slots) store_->Delete(SlotId(slot));
        uncommitted_puts = true;
        break;
      case Operation::Kind::kPutSalt:
        NoteSalts(salt_file_.Put(operation.salt));
        break;
      case Operation::Kind::kPutErasure:
        store_->PutErasure(operation.erasure);
        break;
      case Operation::Kind::kEndErasure:
        store_->EndErasure(operation.erasure.id);
        break;
      case Operation::Kind::kTombstone:
        CommitCollected(&dones);
        RunTombstone(std::move(operation));
        break;
      case Operation::Kind::kLoad:
        CommitCollected(&dones);
        RunLoad(std::move(operation));
        break;
      case Operation::Kind::kFlush:
        CommitCollected(&dones);
        PostDone(std::move(operation.done), Sync());
        break;
      case Operation::Kind::kMarkComplete:
        CommitCollected(&dones);
        if (failure_.ok()) NoteFailure(store_->MarkComplete());
        break;
    }
    if (store_->collected() >= kCatalogBatchOpsMax) CommitCollected(&dones);
  }
  CommitCollected(&dones);
}

// The key of an encrypted block could not be derived in the next life while its salt is not written.
void RocksCatalog::CollectPut(Operation operation, std::vector<StatusDone>* dones) {
  if (operation.record.header.seal.key_id == 0 || salt_file_.saved()) {
    store_->Put(operation.record);
    dones->push_back(std::move(operation.done));
    return;
  }
  executor_->Post([under_way = puts_under_way_, done = std::move(operation.done)]() mutable {
    --*under_way;
    done(absl::UnavailableError("a salt is not written yet"));
  });
}

// `dones` are those of the collected Puts and Refreshes; a Refresh of nothing collects nothing.
void RocksCatalog::CommitCollected(std::vector<StatusDone>* dones) {
  if (store_->collected() == 0 && dones->empty()) return;
  if (!failure_.ok()) store_->Discard();
  absl::Status status = failure_.ok() ? store_->Commit(false) : failure_;
  NoteFailure(status);
  unsynced_ = unsynced_ || status.ok();
  if (dones->empty()) return;
  executor_->Post([under_way = puts_under_way_, all = std::exchange(*dones, {}), status = std::move(status)]() mutable {
    *under_way -= all.size();
    for (StatusDone& done : all) done(status);
  });
}

void RocksCatalog::RunTombstone(Operation operation) {
  absl::Status status = failure_;
  const OwnerUidHash& owner = operation.record.header.identity.owner;
  status.Update(store_->PutTombstone(owner, operation.wall_ms));  // a closed store knows of it when it is opened again
  NoteFailure(status);
  const absl::Status forgotten = salt_file_.Forget(owner, operation.wall_ms);
  NoteSalts(forgotten);
  status.Update(forgotten);
  PostDone(std::move(operation.done), std::move(status));
}

// Waits for the loop when it is behind: a restart must not hold all records in memory twice.
void RocksCatalog::RunLoad(Operation operation) {
  const auto shared = std::make_shared<RecordBatch>(std::move(operation.batch));
  const auto hand_out = [&](std::vector<CatalogRecord> records) {
    ReadAhead& ahead = *read_ahead_;
    {
      MutexLock lock(ahead.mutex);
      while (ahead.batches >= kCatalogLoadBatchesMax && !ahead.stopping) ahead.fewer.Wait(ahead.mutex);
      if (ahead.stopping) return false;
      ++ahead.batches;
    }
    executor_->Post([shared, counted = read_ahead_, records = std::move(records)]() mutable {
      {
        MutexLock counted_lock(counted->mutex);
        --counted->batches;
      }
      counted->fewer.NotifyOne();
      (*shared)(std::move(records));
    });
    return true;
  };
  absl::Status status = failure_.ok() ? store_->Load(hand_out) : failure_;
  if (!absl::IsCancelled(status)) NoteFailure(status);
  PostDone(std::move(operation.done), std::move(status));
}

void RocksCatalog::PostDone(StatusDone done, absl::Status status) {
  executor_->Post([done = std::move(done), status = std::move(status)]() mutable { done(std::move(status)); });
}

void RocksCatalog::NoteFailure(const absl::Status& status) {
  if (status.ok() || !failure_.ok()) return;
  failure_ = status;
  next_reopen_ = SteadyClock::now() + std::chrono::seconds(kCatalogReopenSeconds);
  Log(LogLevel::kError, "catalog", "takes no records: ", std::string(status.message()), "; trying again in ",
      kCatalogReopenSeconds, " s");
}

void RocksCatalog::NoteSalts(const absl::Status& status) {
  if (status.ok()) return;
  next_salts_ = SteadyClock::now() + std::chrono::seconds(kCatalogReopenSeconds);
  Log(LogLevel::kError, "catalog", "takes no records of encrypted blocks: ", std::string(status.message()),
      "; trying again in ", kCatalogReopenSeconds, " s");
}

void RocksCatalog::SaveSalts(SteadyClock::time_point now) {
  if (salt_file_.saved() || now < next_salts_) return;
  const absl::Status status = salt_file_.Save();
  NoteSalts(status);
  if (status.ok()) Log(LogLevel::kInfo, "catalog", "all salts are written");
}

void RocksCatalog::DoDueWork() {
  const SteadyClock::time_point now = SteadyClock::now();
  SaveSalts(now);
  if (!failure_.ok()) {
    if (now < next_reopen_) return;
    next_reopen_ = now + std::chrono::seconds(kCatalogReopenSeconds);
    failure_ = store_->Reopen();
    if (failure_.ok()) Log(LogLevel::kInfo, "catalog", "takes records again");
  }
  if (failure_.ok() && unsynced_ && now >= next_sync_) (void)Sync();
  if (now >= next_sync_) next_sync_ = now + std::chrono::seconds(kCatalogSyncSeconds);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NvmeCatalog>> OpenRocksCatalog(const CatalogOptions& options, Executor* executor) {
  KV_ASSIGN_OR_RETURN(std::unique_ptr<RocksStore> store, RocksStore::Open(options));
  KV_ASSIGN_OR_RETURN(SaltFile salts, SaltFile::Open(options.path + ".salts"));
  return std::make_unique<RocksCatalog>(std::move(store), std::move(salts), options.sync_data, executor);
}

}  // namespace kvartal::tier
