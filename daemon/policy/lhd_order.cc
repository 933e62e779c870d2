#include "daemon/policy/lhd_order.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/base/check.h"
#include "daemon/policy/leaf_rows.h"

namespace kvartal::policy {
namespace {

constexpr double kResidenceMinS = 5;  // a burst that turns everything over must not make all blocks look alike
constexpr double kResidenceWeight = 0.001;

constexpr uint32_t kEndedRow = 0;
// A tenant has one slot size a model layout: one or two. Who has more than these many at once has them judged as the
// nearest of those, so that a victim costs no more however many layouts a client makes.
constexpr uint32_t kSizesMax = 8;

// Row 0 is what has ended, every other one class of blocks of one slot size.
// Invariant: all leaves of one slot size are in rows of the same size; a size without leaves has none.
class LhdOrder : public EvictionOrder {
 public:
  LhdOrder(const ReuseClasses* classes, Residence* residence) : classes_(*classes), residence_(*residence) {}

  void Insert(EntryId id, const BlockTraits& traits) override {
    uint32_t row = kEndedRow;
    if (traits.phase != SessionPhase::kEnded) {
      Size& size = SizeOf(traits.slot_bytes);
      ++size.leaves;
      ++row_sizes_[size.rows].leaves;
      row = RowOf(size, traits);
    }
    rows_.Insert(traits.ns, row, PlaceOf(id, traits));
  }
  void Remove(EntryId id, const BlockTraits& traits) override {
    uint32_t row = kEndedRow;
    if (traits.phase != SessionPhase::kEnded) {
      const auto size = sizes_.find(traits.slot_bytes);
      KV_CHECK(size != sizes_.end());
      row = RowOf(size->second, traits);
      --row_sizes_[size->second.rows].leaves;
      if (--size->second.leaves == 0) sizes_.erase(size);
    }
    rows_.Remove(traits.ns, row, PlaceOf(id, traits));
  }
  void SetRetired(NamespaceId ns, bool retired) override { rows_.SetRetired(ns, retired); }
  void Evicted(const BlockTraits& traits) override {
    const double stayed_s = std::max(kResidenceMinS, classes_.IdleSeconds(traits.last_access_tick));
    residence_.seconds += kResidenceWeight * (stayed_s - residence_.seconds);
  }

  EntryId Victim(absl::FunctionRef<bool(EntryId)> may_evict, uint32_t probe_max,
                 absl::FunctionRef<bool(NamespaceId)> may_be_of) const override {
    uint32_t probes = probe_max;
    if (const auto retired = rows_.FirstRetired(may_evict, may_be_of, &probes)) return retired->id;
    if (rows_.row_count() == 0) return EntryId::None();
    if (const auto ended = rows_.FirstInRow(kEndedRow, may_evict, may_be_of, &probes)) return ended->id;
    EntryId victim;
    double least = std::numeric_limits<double>::infinity();
    for (uint32_t row = kEndedRow + 1; row < rows_.row_count() && probes > 0; ++row) {
      const std::optional<LeafPlace> oldest = rows_.FirstInRow(row, may_evict, may_be_of, &probes);
      if (!oldest.has_value()) continue;
      const double value =
          Value((row - 1) % kReuseClassCount, TickOf(*oldest), row_sizes_[(row - 1) / kReuseClassCount].slot_bytes);
      if (value >= least) continue;
      least = value;
      victim = oldest->id;
    }
    return victim;
  }

  bool GoesBefore(const BlockTraits& first, const BlockTraits& second) const override {
    const bool retired = rows_.IsRetired(first.ns);
    if (retired != rows_.IsRetired(second.ns)) return retired;
    const bool ended = first.phase == SessionPhase::kEnded;
    if (ended != (second.phase == SessionPhase::kEnded)) return ended;
    return Value(ReuseClassOf(first), first.last_access_tick, first.slot_bytes) <
           Value(ReuseClassOf(second), second.last_access_tick, second.slot_bytes);
  }

  EntryId Oldest() const override {
    const std::optional<LeafPlace> oldest = rows_.Oldest();
    return oldest.has_value() ? oldest->id : EntryId::None();
  }
  size_t size() const override { return rows_.size(); }

 private:
  // By time, and by request within a tick.
  static LeafPlace PlaceOf(EntryId id, const BlockTraits& traits) {
    return {uint64_t{traits.last_access_tick} << 32 | static_cast<uint32_t>(traits.last_touch),
            UINT32_MAX - traits.depth, id};
  }
  static uint32_t TickOf(const LeafPlace& place) { return static_cast<uint32_t>(place.age_key >> 32); }

  // Of leaves that have not ended.
  struct Size {
    uint32_t rows = 0;  // in row_sizes_
    size_t leaves = 0;
  };
  struct RowSize {
    uint32_t slot_bytes = 0;
    size_t leaves = 0;  // of any size
  };
  static uint32_t RowOf(const Size& size, const BlockTraits& traits) {
    return kEndedRow + 1 + size.rows * kReuseClassCount + ReuseClassOf(traits);
  }
  Size& SizeOf(uint32_t slot_bytes) {
    const auto [size, is_new] = sizes_.try_emplace(slot_bytes);
    if (is_new) size->second.rows = RowsFor(slot_bytes);
    return size->second;
  }
  // Layouts come and go: the rows of a size without a leaf are the next one's.
  uint32_t RowsFor(uint32_t slot_bytes) {
    auto rows =
        std::find_if(row_sizes_.begin(), row_sizes_.end(), [](const RowSize& size) { return size.leaves == 0; });
    if (rows == row_sizes_.end() && row_sizes_.size() < kSizesMax) rows = row_sizes_.insert(rows, RowSize{});
    if (rows != row_sizes_.end()) {
      rows->slot_bytes = slot_bytes;
    } else {
      const auto distance = [slot_bytes](const RowSize& size) {
        return static_cast<double>(std::max(slot_bytes, size.slot_bytes)) / std::min(slot_bytes, size.slot_bytes);
      };
      rows = std::min_element(row_sizes_.begin(), row_sizes_.end(),
                              [&](const RowSize& a, const RowSize& b) { return distance(a) < distance(b); });
    }
    return static_cast<uint32_t>(rows - row_sizes_.begin());
  }
  double Value(uint32_t reuse_class, uint32_t last_tick, uint32_t slot_bytes) const {
    return classes_.HitDensity(reuse_class, last_tick, residence_.seconds) / slot_bytes;
  }

  const ReuseClasses& classes_;
  Residence& residence_;
  LeafRows rows_;
  absl::flat_hash_map<uint32_t, Size> sizes_;  // by slot bytes
  std::vector<RowSize> row_sizes_;             // kSizesMax at most
};

}  // namespace

std::unique_ptr<EvictionOrder> NewLhdOrder(const ReuseClasses* classes, Residence* residence) {
  return std::make_unique<LhdOrder>(classes, residence);
}

}  // namespace kvartal::policy
