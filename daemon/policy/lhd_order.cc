#include "daemon/policy/lhd_order.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "daemon/policy/leaf_rows.h"

namespace kvartal::policy {
namespace {

constexpr double kResidenceMinS = 5;  // a burst that turns everything over must not make all blocks look alike
constexpr double kResidenceWeight = 0.001;

constexpr uint32_t kEndedRow = 0;

// Row 0 is what has ended, every other one class of blocks of one slot size.
class LhdOrder : public EvictionOrder {
 public:
  LhdOrder(const ReuseClasses* classes, Residence* residence) : classes_(*classes), residence_(*residence) {}

  void Insert(EntryId id, const BlockTraits& traits) override {
    rows_.Insert(traits.ns, RowOf(traits), PlaceOf(id, traits));
  }
  void Remove(EntryId id, const BlockTraits& traits) override {
    rows_.Remove(traits.ns, RowOf(traits), PlaceOf(id, traits));
  }
  void SetRetired(NamespaceId ns, bool retired) override { rows_.SetRetired(ns, retired); }
  void Evicted(const BlockTraits& traits) override {
    const double stayed_s = std::max(kResidenceMinS, classes_.IdleSeconds(traits.last_access_tick));
    residence_.seconds += kResidenceWeight * (stayed_s - residence_.seconds);
  }

  EntryId Victim(absl::FunctionRef<bool(EntryId)> may_evict, uint32_t probe_max) const override {
    uint32_t probes = probe_max;
    if (const auto retired = rows_.FirstRetired(may_evict, &probes)) return retired->id;
    if (rows_.row_count() == 0) return EntryId::None();
    if (const auto ended = rows_.FirstInRow(kEndedRow, may_evict, &probes)) return ended->id;
    EntryId victim;
    double least = std::numeric_limits<double>::infinity();
    for (uint32_t row = kEndedRow + 1; row < rows_.row_count() && probes > 0; ++row) {
      const std::optional<LeafPlace> oldest = rows_.FirstInRow(row, may_evict, &probes);
      if (!oldest.has_value()) continue;
      const double value =
          Value((row - 1) % kReuseClassCount, TickOf(*oldest), slot_sizes_[(row - 1) / kReuseClassCount]);
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

  static uint32_t FirstRowOf(uint32_t size) { return kEndedRow + 1 + size * kReuseClassCount; }
  uint32_t RowOf(const BlockTraits& traits) {
    if (traits.phase == SessionPhase::kEnded) return kEndedRow;
    // A tenant has one slot size a model layout: one or two.
    const auto known = std::find(slot_sizes_.begin(), slot_sizes_.end(), traits.slot_bytes);
    const auto size = static_cast<uint32_t>(known - slot_sizes_.begin());
    if (known != slot_sizes_.end()) return FirstRowOf(size) + ReuseClassOf(traits);
    // Layouts come and go: the rows of a size without a leaf are the next one's.
    for (uint32_t other = 0; other < slot_sizes_.size(); ++other) {
      if (!rows_.IsEmpty(FirstRowOf(other), kReuseClassCount)) continue;
      slot_sizes_[other] = traits.slot_bytes;
      return FirstRowOf(other) + ReuseClassOf(traits);
    }
    slot_sizes_.push_back(traits.slot_bytes);
    return FirstRowOf(size) + ReuseClassOf(traits);
  }
  double Value(uint32_t reuse_class, uint32_t last_tick, uint32_t slot_bytes) const {
    return classes_.HitDensity(reuse_class, last_tick, residence_.seconds) / slot_bytes;
  }

  const ReuseClasses& classes_;
  Residence& residence_;
  LeafRows rows_;
  std::vector<uint32_t> slot_sizes_;
};

}  // namespace

std::unique_ptr<EvictionOrder> NewLhdOrder(const ReuseClasses* classes, Residence* residence) {
  return std::make_unique<LhdOrder>(classes, residence);
}

}  // namespace kvartal::policy
