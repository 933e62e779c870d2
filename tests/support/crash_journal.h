// What reached a disk and its catalog, in order, so that every state a crash could have left can be made again.
// Confined to the thread that pumps the fakes.
// Invariants: an event is noted when it takes effect; a write carries the moment it was submitted, so that what was
// under way at a cut is known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "daemon/base/ids.h"

namespace kvartal::testing {

struct CatalogDisk;
struct FakeDisk;

// A place in the journal: everything before it has happened.
using CrashPoint = size_t;

// What a crash leaves behind.
struct CrashImage {
  std::shared_ptr<FakeDisk> disk;
  std::shared_ptr<CatalogDisk> catalog;
};

class CrashJournal {
 public:
  using CatalogChange = std::function<void(CatalogDisk&)>;

  void NoteWrite(uint64_t offset, std::span<const std::byte> bytes, CrashPoint submitted_at);
  void NoteDiskSync();
  void NoteCatalog(CatalogChange change);
  // Everything noted of the catalog so far survives a power cut.
  void NoteCatalogSync();
  // The record of this slot is to go: nothing is promised about its block any more.
  void NoteForgotten(SlotId slot) { forgotten_.emplace_back(size(), slot); }

  CrashPoint size() const { return events_.size(); }
  const std::vector<std::pair<CrashPoint, SlotId>>& forgotten() const { return forgotten_; }

  // What was noted before that, of disk and catalog, survives a power cut at `point`.
  CrashPoint SafeAt(CrashPoint point) const;

  // The process ended at `point`: what had taken effect is there; of the writes that were under way each may have
  // reached the disk whole, in part (at 4 KiB) or not at all.
  CrashImage KilledAt(CrashPoint point, uint64_t disk_bytes, std::mt19937_64* random) const;
  // The power went: of the writes since the last sync of the disk any subset is there, torn or whole, beside those that
  // were under way; of the catalog a prefix that holds at least what was synced. Returns how long that is, too.
  CrashImage PowerCutAt(CrashPoint point, uint64_t disk_bytes, std::mt19937_64* random) const;

 private:
  struct Event {
    enum class Kind : uint8_t { kWrite, kDiskSync, kCatalog, kCatalogSync };
    Kind kind;
    uint64_t offset = 0;
    std::vector<std::byte> bytes;
    CrashPoint submitted_at = 0;
    CatalogChange change;
  };
  // The last event of that kind before `point`; 0: none.
  CrashPoint LastBefore(CrashPoint point, Event::Kind kind) const;
  CrashImage Make(CrashPoint disk_until, CrashPoint point, CrashPoint catalog_until, uint64_t disk_bytes,
                  std::mt19937_64* random) const;

  std::vector<Event> events_;
  std::vector<std::pair<CrashPoint, SlotId>> forgotten_;
};

}  // namespace kvartal::testing
