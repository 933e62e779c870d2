// 32-bit hash -> entry number: open addressing with linear probing, grown a few cells an insert so that no insert
// stalls. Confined to the engine loop. Invariants: at most 4/5 full; a cell lies between its home and the next empty
// cell; an entry is in exactly one of the two regions; the region that is being left gets no new cells and is emptied a
// whole cluster at a time, so probing it stays right.
#pragma once

#include <cstddef>
#include <cstdint>

#include "daemon/index/huge_buffer.h"

namespace kvartal::index {

class KeyTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  KeyTable();

  // Does not look for equal hashes: the caller knows the key is absent.
  void Insert(uint32_t hash, uint32_t entry);
  // REQUIRES: present.
  void Erase(uint32_t hash, uint32_t entry);

  // The first entry under `hash` that `same` accepts, kNone when there is none.
  template <typename Same>
  uint32_t Find(uint32_t hash, Same&& same) const {
    const uint32_t found = FindIn(current_, hash, same);
    if (found != kNone || !InLeaving(hash)) return found;
    return FindIn(leaving_, hash, same);
  }
  // The first entry under `hash`: the right one unless two hashes agree in all 32 bits.
  uint32_t FirstCandidate(uint32_t hash) const {
    return Find(hash, [](uint32_t) { return true; });
  }
  void Prefetch(uint32_t hash) const {
    __builtin_prefetch(&current_.cells[current_.Home(hash)]);
    if (InLeaving(hash)) __builtin_prefetch(&leaving_.cells[leaving_.Home(hash)]);
  }

  size_t size() const { return size_; }
  bool growing() const { return leaving_.cells != nullptr; }
  size_t MemoryBytes() const { return current_.memory.size() + leaving_.memory.size() - dropped_bytes_; }

 private:
  struct Cell {
    uint32_t hash;
    uint32_t entry_plus_one;  // 0: empty, which fresh memory is
  };
  // The home of a hash is its high bits: growing doubles every home, so cells move in order and both regions are walked
  // forward instead of at random.
  struct Region {
    Region() = default;
    explicit Region(uint32_t bits);
    uint32_t Home(uint32_t hash) const { return static_cast<uint32_t>(uint64_t{hash} >> shift); }
    HugeBuffer memory;
    Cell* cells = nullptr;
    uint32_t mask = 0;
    uint32_t shift = 32;
  };

  template <typename Same>
  static uint32_t FindIn(const Region& region, uint32_t hash, Same&& same) {
    for (uint32_t i = region.Home(hash);; i = (i + 1) & region.mask) {
      const Cell& cell = region.cells[i];
      if (cell.entry_plus_one == 0) return kNone;
      if (cell.hash == hash && same(cell.entry_plus_one - 1)) return cell.entry_plus_one - 1;
    }
  }
  // Whether `hash` may still be in the region that is being left.
  bool InLeaving(uint32_t hash) const {
    return growing() && ((leaving_.Home(hash) - leaving_start_) & leaving_.mask) >= leaving_walked_;
  }
  static void Place(Region& region, uint32_t hash, uint32_t entry_plus_one);
  static bool EraseFrom(Region& region, uint32_t hash, uint32_t entry_plus_one);
  void StartGrowing();
  void MoveSome();

  Region current_;
  Region leaving_;  // without cells: not growing
  uint32_t leaving_start_ = 0;
  uint32_t leaving_walked_ = 0;  // cells from leaving_start_ on that are empty for good
  size_t dropped_bytes_ = 0;     // of leaving_, given back already
  uint32_t bits_ = 0;
  size_t size_ = 0;
};

}  // namespace kvartal::index
