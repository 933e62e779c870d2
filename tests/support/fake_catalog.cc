#include "tests/support/fake_catalog.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::testing {

using tier::BlockHeader;
using tier::CatalogRecord;
using tier::OwnerUidHash;

struct FakeCatalog::State : public std::enable_shared_from_this<FakeCatalog::State> {
  using Operation = absl::AnyInvocable<void(State&)>;

  Executor* executor = nullptr;
  std::shared_ptr<CatalogDisk> disk;
  bool incomplete = true;
  std::map<tier::OwnerUidHash, int64_t> tombstones;  // at the open
  std::map<uint64_t, tier::ErasureRecord> erasures;  // as they are to be
  int64_t kept_time_ms = 0;
  std::vector<tier::ErasureRecord> open_erasures;
  std::vector<tier::OwnerSalt> salts;
  std::map<OwnerUidHash, tier::OwnerSalt> unsaved_salts;  // what writes that failed left behind
  std::set<uint32_t> owed_deletes;                        // that, too
  bool loaded = false;
  std::deque<Operation> operations;
  size_t puts_under_way = 0;
  size_t queue_max = kCatalogQueueMax;
  size_t load_batch = 16;
  bool held = false;
  absl::Status write_status;
  absl::Status salt_status;
  absl::Status load_status;
  std::function<absl::Status()> sync_data;
  Counts counts;

  void Enqueue(Operation operation) {
    operations.push_back(std::move(operation));
    PostOne();
  }

  // Weak: what is still queued when the catalog is gone was lost with the process.
  void PostOne() {
    executor->Post([weak = weak_from_this()] {
      if (std::shared_ptr<State> state = weak.lock()) state->RunOne();
    });
  }

  void RunOne() {
    if (held || operations.empty()) return;
    Operation operation = std::move(operations.front());
    operations.pop_front();
    operation(*this);
  }

  void Change(CrashJournal::CatalogChange change) {
    change(*disk);
    if (disk->journal != nullptr) disk->journal->NoteCatalog(std::move(change));
  }

  // Before whatever is written after them.
  void SaveSalts() {
    if (!write_status.ok() || !salt_status.ok()) return;
    for (const auto& [owner, salt] : std::exchange(unsaved_salts, {}))
      Change([salt = salt](CatalogDisk& kept) { kept.salts[salt.owner] = salt; });
  }

  void NoteSync() {
    if (disk->journal != nullptr && write_status.ok()) disk->journal->NoteCatalogSync();
  }

  bool Covered(const BlockHeader& header) const {
    const auto tombstone = disk->tombstones.find(header.identity.owner);
    return tombstone != disk->tombstones.end() && header.first_commit_ms < tombstone->second;
  }

  std::vector<std::vector<CatalogRecord>> Batches() const {
    std::vector<std::vector<CatalogRecord>> batches;
    for (const bool condemned : {false, true}) {
      for (const auto& [slot, header] : disk->records) {
        if (Covered(header) != condemned) continue;
        if (batches.empty() || batches.back().size() >= load_batch) batches.emplace_back();
        batches.back().push_back({SlotId(slot), header, condemned});
      }
    }
    return batches;
  }
};

FakeCatalog::FakeCatalog(Executor* executor) : FakeCatalog(executor, std::make_shared<CatalogDisk>()) {}

FakeCatalog::FakeCatalog(Executor* executor, std::shared_ptr<CatalogDisk> disk) : state_(std::make_shared<State>()) {
  state_->executor = executor;
  state_->incomplete = !disk->complete;
  state_->tombstones = disk->tombstones;
  state_->erasures = disk->erasures;
  state_->kept_time_ms = disk->kept_time_ms;
  for (const auto& [id, erasure] : disk->erasures) state_->open_erasures.push_back(erasure);
  for (const auto& [owner, salt] : disk->salts) state_->salts.push_back(salt);
  state_->disk = std::move(disk);
}

FakeCatalog::~FakeCatalog() = default;

bool FakeCatalog::Put(const CatalogRecord& record, absl::AnyInvocable<void(absl::Status)> done) {
  KV_CHECK(record.slot.valid() && done != nullptr);
  if (state_->puts_under_way >= state_->queue_max) return false;
  ++state_->puts_under_way;
  state_->Enqueue([record, done = std::move(done)](State& state) mutable {
    --state.puts_under_way;
    ++state.counts.puts;
    state.SaveSalts();
    absl::Status status = state.write_status;
    if (record.header.seal.key_id != 0 && !state.unsaved_salts.empty()) status.Update(state.salt_status);
    if (status.ok()) {
      state.Change([record](CatalogDisk& disk) {
        disk.records[record.slot.value()] = record.header;
        disk.KeepTime(std::max(record.header.first_commit_ms, record.header.last_access_ms));
      });
    }
    done(std::move(status));
  });
  return true;
}

bool FakeCatalog::Refresh(SlotId slot, const tier::RecordTimes& times, absl::AnyInvocable<void(absl::Status)> done) {
  KV_CHECK(slot.valid() && done != nullptr);
  if (state_->puts_under_way >= state_->queue_max) return false;
  ++state_->puts_under_way;
  state_->Enqueue([slot, times, done = std::move(done)](State& state) mutable {
    --state.puts_under_way;
    ++state.counts.refreshes;
    if (state.write_status.ok()) {
      state.Change([slot, times](CatalogDisk& disk) {
        const auto record = disk.records.find(slot.value());
        if (record == disk.records.end()) return;
        disk.KeepTime(times.last_access_ms);
        record->second.last_access_ms = times.last_access_ms;
        record->second.pinned_until_s = times.pinned_until_s;
      });
    }
    done(state.write_status);
  });
  return true;
}

void FakeCatalog::KeepTime(int64_t wall_ms) {
  state_->Enqueue([wall_ms](State& state) {
    if (state.write_status.ok()) state.Change([wall_ms](CatalogDisk& disk) { disk.KeepTime(wall_ms); });
  });
}

int64_t FakeCatalog::kept_time_ms() const { return state_->kept_time_ms; }

void FakeCatalog::Delete(SlotId slot) {
  KV_CHECK(slot.valid());
  if (state_->disk->journal != nullptr) state_->disk->journal->NoteForgotten(slot);
  state_->Enqueue([slot](State& state) {
    ++state.counts.deletes;
    if (!state.write_status.ok()) return void(state.owed_deletes.insert(slot.value()));
    state.Change([slot](CatalogDisk& disk) { disk.records.erase(slot.value()); });
  });
}

void FakeCatalog::PutTombstone(const OwnerUidHash& owner, int64_t before_wall_ms,
                               absl::AnyInvocable<void(absl::Status)> done) {
  state_->Enqueue([owner, before_wall_ms, done = std::move(done)](State& state) mutable {
    ++state.counts.tombstones;
    state.SaveSalts();
    if (state.write_status.ok()) {
      std::erase_if(state.unsaved_salts, [&](const auto& unsaved) {
        return unsaved.first == owner && unsaved.second.made_wall_ms < before_wall_ms;
      });
      state.Change([owner, before_wall_ms](CatalogDisk& disk) {
        int64_t& before = disk.tombstones[owner];
        before = std::max(before, before_wall_ms);
        const auto salt = disk.salts.find(owner);
        if (salt != disk.salts.end() && salt->second.made_wall_ms < before_wall_ms) disk.salts.erase(salt);
      });
    }
    state.NoteSync();
    done(state.write_status);
  });
}

void FakeCatalog::PutSalt(const tier::OwnerSalt& salt) {
  state_->Enqueue([salt](State& state) {
    state.unsaved_salts[salt.owner] = salt;
    state.SaveSalts();
  });
}

std::vector<tier::OwnerSalt> FakeCatalog::salts() const { return state_->salts; }

void FakeCatalog::PutErasure(const tier::ErasureRecord& record) {
  state_->Enqueue([record](State& state) {
    state.erasures[record.id] = record;
    if (state.write_status.ok()) state.Change([record](CatalogDisk& disk) { disk.erasures[record.id] = record; });
  });
}

void FakeCatalog::EndErasure(uint64_t id) {
  state_->Enqueue([id](State& state) {
    state.erasures.erase(id);
    if (state.write_status.ok()) state.Change([id](CatalogDisk& disk) { disk.erasures.erase(id); });
  });
}

std::vector<tier::ErasureRecord> FakeCatalog::open_erasures() const { return state_->open_erasures; }

void FakeCatalog::Load(absl::AnyInvocable<void(std::vector<CatalogRecord>)> batch,
                       absl::AnyInvocable<void(absl::Status)> done) {
  KV_CHECK(!state_->loaded);
  state_->loaded = true;
  auto shared = std::make_shared<absl::AnyInvocable<void(std::vector<CatalogRecord>)>>(std::move(batch));
  state_->Enqueue([shared, done = std::move(done)](State& state) mutable {
    ++state.counts.loads;
    std::vector<std::vector<CatalogRecord>> batches = state.Batches();
    absl::Status status = std::exchange(state.load_status, absl::OkStatus());
    if (!status.ok() && batches.size() > 1) batches.resize(1);
    // Each batch is a callback of its own: lookups and deletes come in between.
    for (std::vector<CatalogRecord>& records : batches) {
      state.Enqueue([shared, records = std::move(records)](State&) mutable { (*shared)(std::move(records)); });
    }
    state.Enqueue([done = std::move(done), status = std::move(status)](State&) mutable { done(std::move(status)); });
  });
}

void FakeCatalog::Flush(absl::AnyInvocable<void(absl::Status)> done) {
  state_->Enqueue([done = std::move(done)](State& state) mutable {
    ++state.counts.flushes;
    const absl::Status data = state.sync_data == nullptr ? absl::OkStatus() : state.sync_data();
    state.NoteSync();
    done(state.write_status.ok() ? data : state.write_status);
  });
}

tier::DiskSet FakeCatalog::incomplete() const { return state_->incomplete ? tier::kAllDisks : tier::kNoDisk; }
void FakeCatalog::MarkComplete() {
  // Said by a value, not by the code: g++ 12 takes an empty lambda in there for uninitialized.
  state_->Enqueue([complete = true](State& state) {
    if (state.write_status.ok()) state.Change([complete](CatalogDisk& disk) { disk.complete = complete; });
    state.NoteSync();
  });
}

std::map<OwnerUidHash, int64_t> FakeCatalog::tombstones() const { return state_->tombstones; }

void FakeCatalog::SetSyncData(std::function<absl::Status()> sync_data) { state_->sync_data = std::move(sync_data); }

void FakeCatalog::FailWrites(absl::Status status) {
  if (status.ok() && !state_->write_status.ok()) {
    state_->Change([erasures = state_->erasures, deletes = std::exchange(state_->owed_deletes, {})](CatalogDisk& disk) {
      disk.erasures = erasures;
      for (const uint32_t slot : deletes) disk.records.erase(slot);
    });
  }
  state_->write_status = std::move(status);
}
void FakeCatalog::FailSalts(absl::Status status) { state_->salt_status = std::move(status); }
void FakeCatalog::FailNextLoad(absl::Status status) { state_->load_status = std::move(status); }
void FakeCatalog::SetQueueMax(size_t count) { state_->queue_max = count == 0 ? kCatalogQueueMax : count; }
void FakeCatalog::Hold() { state_->held = true; }

void FakeCatalog::Release() {
  state_->held = false;
  for (size_t i = 0; i < state_->operations.size(); ++i) state_->PostOne();
}

void FakeCatalog::SetLoadBatch(size_t records) {
  KV_CHECK(records > 0);
  state_->load_batch = records;
}

std::shared_ptr<CatalogDisk> FakeCatalog::disk() const { return state_->disk; }
FakeCatalog::Counts FakeCatalog::counts() const { return state_->counts; }

}  // namespace kvartal::testing
