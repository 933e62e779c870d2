#include "daemon/index/key_table.h"

#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::index {
namespace {
constexpr uint32_t kFirstBits = 10;
constexpr uint32_t kBitsMax = 32;
// Linear probing finds a present key after 3 cells on average at 4/5 full and sees 13 for an absent one: two cache
// lines.
constexpr uint64_t kFullNumerator = 4;
constexpr uint64_t kFullDenominator = 5;
constexpr size_t kDropBytes = 2 * kMiB;
}  // namespace

KeyTable::Region::Region(uint32_t bits)
    : memory((size_t{1} << bits) * sizeof(Cell)),
      cells(reinterpret_cast<Cell*>(memory.data())),
      mask(static_cast<uint32_t>((uint64_t{1} << bits) - 1)),
      shift(32 - bits) {}

KeyTable::KeyTable() : current_(kFirstBits), bits_(kFirstBits) {}

void KeyTable::Place(Region& region, uint32_t hash, uint32_t entry_plus_one) {
  uint32_t i = region.Home(hash);
  while (region.cells[i].entry_plus_one != 0) i = (i + 1) & region.mask;
  region.cells[i] = {hash, entry_plus_one};
}

void KeyTable::Insert(uint32_t hash, uint32_t entry) {
  KV_DCHECK(entry != kNone);
  if ((size_ + 1) * kFullDenominator > (uint64_t{1} << bits_) * kFullNumerator) StartGrowing();
  Place(current_, hash, entry + 1);
  ++size_;
  MoveSome();
}

void KeyTable::Erase(uint32_t hash, uint32_t entry) {
  const bool erased = EraseFrom(current_, hash, entry + 1) || (InLeaving(hash) && EraseFrom(leaving_, hash, entry + 1));
  KV_CHECK(erased);
  --size_;
  MoveSome();
}

// Closes the hole by moving later cells of the cluster back, so that there are no tombstones and probing never
// degrades.
bool KeyTable::EraseFrom(Region& region, uint32_t hash, uint32_t entry_plus_one) {
  uint32_t hole = region.Home(hash);
  while (region.cells[hole].entry_plus_one != entry_plus_one || region.cells[hole].hash != hash) {
    if (region.cells[hole].entry_plus_one == 0) return false;
    hole = (hole + 1) & region.mask;
  }
  for (uint32_t i = (hole + 1) & region.mask; region.cells[i].entry_plus_one != 0; i = (i + 1) & region.mask) {
    const uint32_t from_home = (i - region.Home(region.cells[i].hash)) & region.mask;
    const uint32_t from_hole = (i - hole) & region.mask;
    if (from_home < from_hole) continue;  // it would lie before its home
    region.cells[hole] = region.cells[i];
    hole = i;
  }
  region.cells[hole] = {};
  return true;
}

void KeyTable::StartGrowing() {
  while (growing()) MoveSome();
  KV_CHECK(bits_ < kBitsMax);
  leaving_ = std::exchange(current_, Region(++bits_));
  dropped_bytes_ = 0;
  leaving_walked_ = 0;
  // The walk begins behind an empty cell, so that it never cuts a cluster.
  leaving_start_ = 0;
  while (leaving_.cells[leaving_start_].entry_plus_one != 0) ++leaving_start_;
  leaving_start_ = (leaving_start_ + 1) & leaving_.mask;
}

void KeyTable::MoveSome() {
  if (!growing()) return;
  for (uint32_t walked = 1;; ++walked) {
    const uint32_t i = (leaving_start_ + leaving_walked_) & leaving_.mask;
    Cell& cell = leaving_.cells[i];
    const bool cluster_ends = cell.entry_plus_one == 0;
    if (!cluster_ends) Place(current_, cell.hash, std::exchange(cell.entry_plus_one, 0));
    // Walked memory goes back piece by piece: freeing a large table in one go would be a stall of its own.
    const uint64_t end_bytes = (uint64_t{i} + 1) * sizeof(Cell);
    if (end_bytes % kDropBytes == 0 && (uint64_t{leaving_walked_} + 1) * sizeof(Cell) >= kDropBytes) {
      leaving_.memory.Drop(end_bytes - kDropBytes, kDropBytes);
      dropped_bytes_ += kDropBytes;
    }
    if (leaving_walked_++ == leaving_.mask) {
      leaving_ = Region();
      dropped_bytes_ = 0;
      return;
    }
    if (cluster_ends && walked >= kIndexCellsPerMove) return;
  }
}

}  // namespace kvartal::index
