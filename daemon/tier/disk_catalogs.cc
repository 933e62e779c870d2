#include "daemon/tier/disk_catalogs.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/log.h"
#include "daemon/tier/all_of.h"

namespace kvartal::tier {
namespace {

using StatusDone = absl::AnyInvocable<void(absl::Status)>;
using RecordBatch = absl::AnyInvocable<void(std::vector<CatalogRecord>)>;

bool OfOneErasure(const ErasureRecord& a, const ErasureRecord& b) {
  return a.kind == b.kind && a.owner == b.owner && a.before_wall_ms == b.before_wall_ms;
}

bool CountsMore(const ErasureRecord& a, const ErasureRecord& b) {
  return a.blocks + a.unzeroed_blocks > b.blocks + b.unzeroed_blocks;
}

}  // namespace

DiskCatalogs::DiskCatalogs(std::vector<std::unique_ptr<NvmeCatalog>> catalogs, DiskMap map)
    : catalogs_(std::move(catalogs)), map_(std::move(map)) {
  KV_CHECK(catalogs_.size() == map_.disks());
  JoinTimes();
  JoinTombstones();
  JoinSalts();
  JoinErasures();
}

void DiskCatalogs::Close(absl::FunctionRef<void(size_t disk)> before) {
  for (size_t disk = 0; disk < catalogs_.size(); ++disk) {
    before(disk);
    catalogs_[disk].reset();
  }
}

// --- what is of the node: made equal at a start

void DiskCatalogs::JoinTimes() {
  for (const auto& catalog : catalogs_) kept_time_ms_ = std::max(kept_time_ms_, catalog->kept_time_ms());
  for (const auto& catalog : catalogs_) {
    if (catalog->kept_time_ms() < kept_time_ms_) catalog->KeepTime(kept_time_ms_);
  }
}

void DiskCatalogs::JoinTombstones() {
  for (const auto& catalog : catalogs_) {
    for (const auto& [owner, before_ms] : catalog->tombstones()) {
      int64_t& latest_ms = tombstones_.try_emplace(owner, before_ms).first->second;
      latest_ms = std::max(latest_ms, before_ms);
    }
  }
  for (const auto& catalog : catalogs_) {
    const std::map<OwnerUidHash, int64_t> known = catalog->tombstones();
    for (const auto& [owner, before_ms] : tombstones_) {
      const auto found = known.find(owner);
      if (found != known.end() && found->second == before_ms) continue;
      // The records of one that does not take it are judged by tombstones().
      catalog->PutTombstone(owner, before_ms, [](const absl::Status& status) {
        if (!status.ok())
          Log(LogLevel::kError, "catalog",
              "a disk has not been told of a deletion while it was away: ", std::string(status.message()));
      });
    }
  }
}

// The newest of an owner is the one that blocks are written under by now; an older one outlived its disk's absence.
void DiskCatalogs::JoinSalts() {
  for (const auto& catalog : catalogs_) {
    for (const OwnerSalt& salt : catalog->salts()) {
      const auto tombstone = tombstones_.find(salt.owner);
      if (tombstone != tombstones_.end() && salt.made_wall_ms < tombstone->second) continue;
      OwnerSalt& newest = salts_.try_emplace(salt.owner, salt).first->second;
      if (salt.made_wall_ms > newest.made_wall_ms) newest = salt;
    }
  }
  for (const auto& catalog : catalogs_) {
    const std::vector<OwnerSalt> known = catalog->salts();
    for (const auto& [owner, salt] : salts_) {
      if (std::find(known.begin(), known.end(), salt) == known.end()) catalog->PutSalt(salt);
    }
  }
}

// The same erasure may have come further on one disk than on another. A disk that was away may have given a number to
// another one: that gets a new one.
void DiskCatalogs::JoinErasures() {
  uint64_t last = 0;
  for (const auto& catalog : catalogs_) {
    for (const ErasureRecord& erasure : catalog->open_erasures()) last = std::max(last, erasure.id);
  }
  for (const auto& catalog : catalogs_) {
    for (ErasureRecord erasure : catalog->open_erasures()) {
      const auto [known, fresh] = erasures_.try_emplace(erasure.id, erasure);
      if (fresh) continue;
      if (!OfOneErasure(known->second, erasure)) {
        erasure.id = ++last;
        erasures_[erasure.id] = erasure;
      } else if (CountsMore(erasure, known->second)) {
        known->second = erasure;
      }
    }
  }
  for (const auto& catalog : catalogs_) {
    const std::vector<ErasureRecord> known = catalog->open_erasures();
    // Those with new numbers first: what had such a number before is overwritten after that.
    for (auto erasure = erasures_.rbegin(); erasure != erasures_.rend(); ++erasure) {
      if (std::find(known.begin(), known.end(), erasure->second) == known.end()) catalog->PutErasure(erasure->second);
    }
  }
}

void DiskCatalogs::KeepTime(int64_t wall_ms) {
  for (const auto& catalog : catalogs_) catalog->KeepTime(wall_ms);
}

void DiskCatalogs::PutTombstone(const OwnerUidHash& owner, int64_t before_wall_ms, StatusDone done) {
  const auto end = AllOf(catalogs_.size(), std::move(done));
  for (const auto& catalog : catalogs_) catalog->PutTombstone(owner, before_wall_ms, end);
}

void DiskCatalogs::PutSalt(const OwnerSalt& salt) {
  for (const auto& catalog : catalogs_) catalog->PutSalt(salt);
}

std::vector<OwnerSalt> DiskCatalogs::salts() const {
  std::vector<OwnerSalt> salts;
  salts.reserve(salts_.size());
  for (const auto& [owner, salt] : salts_) salts.push_back(salt);
  return salts;
}

void DiskCatalogs::PutErasure(const ErasureRecord& record) {
  for (const auto& catalog : catalogs_) catalog->PutErasure(record);
}

void DiskCatalogs::EndErasure(uint64_t id) {
  for (const auto& catalog : catalogs_) catalog->EndErasure(id);
}

std::vector<ErasureRecord> DiskCatalogs::open_erasures() const {
  std::vector<ErasureRecord> erasures;
  erasures.reserve(erasures_.size());
  for (const auto& [id, erasure] : erasures_) erasures.push_back(erasure);
  return erasures;
}

// --- what is of a disk

bool DiskCatalogs::Put(const CatalogRecord& record, StatusDone done) {
  const std::optional<DiskMap::Place> place = map_.Find(record.slot);
  KV_CHECK(place.has_value());
  CatalogRecord on_disk = record;
  on_disk.slot = place->slot;
  return catalogs_[place->disk]->Put(on_disk, std::move(done));
}

void DiskCatalogs::Delete(SlotId slot) {
  const std::optional<DiskMap::Place> place = map_.Find(slot);
  KV_CHECK(place.has_value());
  catalogs_[place->disk]->Delete(place->slot);
}

bool DiskCatalogs::Refresh(SlotId slot, const RecordTimes& times, absl::AnyInvocable<void(absl::Status)> done) {
  const std::optional<DiskMap::Place> place = map_.Find(slot);
  KV_CHECK(place.has_value());
  return catalogs_[place->disk]->Refresh(place->slot, times, std::move(done));
}

void DiskCatalogs::Load(RecordBatch batch, StatusDone done) {
  const auto shared = std::make_shared<RecordBatch>(std::move(batch));
  const auto end = AllOf(catalogs_.size(), std::move(done));
  for (size_t disk = 0; disk < catalogs_.size(); ++disk) {
    catalogs_[disk]->Load(
        [this, disk, shared](std::vector<CatalogRecord> records) {
          std::vector<CatalogRecord> mapped;
          mapped.reserve(records.size());
          for (CatalogRecord& record : records) {
            // A place that a disk no longer has, since it is smaller now, would be one of the next disk.
            const std::optional<SlotId> slot = map_.SlotAt(disk, record.slot);
            if (!slot.has_value()) {
              catalogs_[disk]->Delete(record.slot);
              continue;
            }
            record.slot = *slot;
            mapped.push_back(record);
          }
          (*shared)(std::move(mapped));
        },
        end);
  }
}

void DiskCatalogs::Flush(StatusDone done) {
  const auto end = AllOf(catalogs_.size(), std::move(done));
  for (const auto& catalog : catalogs_) catalog->Flush(end);
}

DiskSet DiskCatalogs::incomplete() const {
  DiskSet disks = kNoDisk;
  for (size_t disk = 0; disk < catalogs_.size(); ++disk) {
    if (catalogs_[disk]->incomplete() != kNoDisk) disks |= SetOfDisk(disk);
  }
  return disks;
}

void DiskCatalogs::MarkComplete() {
  for (const auto& catalog : catalogs_) {
    if (catalog->incomplete() != kNoDisk) catalog->MarkComplete();
  }
}

}  // namespace kvartal::tier
