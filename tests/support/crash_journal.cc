#include "tests/support/crash_journal.h"

#include <algorithm>
#include <cstring>

#include "daemon/base/limits.h"
#include "tests/support/fake_block_file.h"
#include "tests/support/fake_catalog.h"

namespace kvartal::testing {

void CrashJournal::NoteWrite(uint64_t offset, std::span<const std::byte> bytes, CrashPoint submitted_at) {
  events_.push_back({Event::Kind::kWrite, offset, {bytes.begin(), bytes.end()}, submitted_at, nullptr});
}

void CrashJournal::NoteDiskSync() { events_.push_back({Event::Kind::kDiskSync, 0, {}, 0, nullptr}); }

void CrashJournal::NoteCatalog(CatalogChange change) {
  events_.push_back({Event::Kind::kCatalog, 0, {}, 0, std::move(change)});
}

void CrashJournal::NoteCatalogSync() { events_.push_back({Event::Kind::kCatalogSync, 0, {}, 0, nullptr}); }

CrashPoint CrashJournal::LastBefore(CrashPoint point, Event::Kind kind) const {
  while (point > 0 && events_[point - 1].kind != kind) --point;
  return point;
}

CrashPoint CrashJournal::SafeAt(CrashPoint point) const {
  return std::min(LastBefore(point, Event::Kind::kDiskSync), LastBefore(point, Event::Kind::kCatalogSync));
}

CrashImage CrashJournal::KilledAt(CrashPoint point, uint64_t disk_bytes, std::mt19937_64* random) const {
  return Make(point, point, point, disk_bytes, random);
}

CrashImage CrashJournal::PowerCutAt(CrashPoint point, uint64_t disk_bytes, std::mt19937_64* random) const {
  const CrashPoint synced = LastBefore(point, Event::Kind::kCatalogSync);
  const CrashPoint catalog_until = synced + (*random)() % (point - synced + 1);
  return Make(LastBefore(point, Event::Kind::kDiskSync), point, catalog_until, disk_bytes, random);
}

// Writes before `disk_until` are there; of those after it that were submitted before `point`, some.
CrashImage CrashJournal::Make(CrashPoint disk_until, CrashPoint point, CrashPoint catalog_until, uint64_t disk_bytes,
                              std::mt19937_64* random) const {
  CrashImage image{MakeFakeDisk(disk_bytes), std::make_shared<CatalogDisk>()};
  // Nearly all, nearly none or half of them: subsets of every kind.
  const uint64_t kept_of_4 = 1 + (*random)() % 3;
  for (CrashPoint at = 0; at < events_.size(); ++at) {
    const Event& event = events_[at];
    if (event.kind == Event::Kind::kCatalog && at < catalog_until) event.change(*image.catalog);
    if (event.kind != Event::Kind::kWrite || event.submitted_at > point) continue;
    uint64_t bytes = event.bytes.size();
    if (at >= disk_until) {
      if ((*random)() % 4 >= kept_of_4) continue;
      if ((*random)() % 4 == 0) bytes = (*random)() % (bytes / kSlotAlignBytes) * kSlotAlignBytes;
    }
    std::memcpy(image.disk->bytes.data() + event.offset, event.bytes.data(), bytes);
  }
  return image;
}

}  // namespace kvartal::testing
