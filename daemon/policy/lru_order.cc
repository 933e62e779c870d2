#include "daemon/policy/eviction_order.h"
#include "daemon/policy/leaf_rows.h"

namespace kvartal::policy {
namespace {

// Rows: what has ended goes first.
constexpr uint32_t kEndedRow = 0, kTheRow = 1;

class LruOrder : public EvictionOrder {
 public:
  void Insert(EntryId id, const BlockTraits& traits) override {
    rows_.Insert(traits.ns, RowOf(traits), PlaceOf(id, traits));
  }
  void Remove(EntryId id, const BlockTraits& traits) override {
    rows_.Remove(traits.ns, RowOf(traits), PlaceOf(id, traits));
  }
  void SetRetired(NamespaceId ns, bool retired) override { rows_.SetRetired(ns, retired); }
  void Evicted(const BlockTraits&) override {}

  EntryId Victim(absl::FunctionRef<bool(EntryId)> may_evict, uint32_t probe_max,
                 absl::FunctionRef<bool(NamespaceId)> may_be_of) const override {
    uint32_t probes = probe_max;
    std::optional<LeafPlace> victim = rows_.FirstRetired(may_evict, may_be_of, &probes);
    for (uint32_t row = 0; row < rows_.row_count() && !victim.has_value(); ++row) {
      victim = rows_.FirstInRow(row, may_evict, may_be_of, &probes);
    }
    return victim.has_value() ? victim->id : EntryId::None();
  }
  bool GoesBefore(const BlockTraits& first, const BlockTraits& second) const override {
    const bool retired = rows_.IsRetired(first.ns);
    if (retired != rows_.IsRetired(second.ns)) return retired;
    if (RowOf(first) != RowOf(second)) return RowOf(first) < RowOf(second);
    return PlaceOf(EntryId::None(), first) < PlaceOf(EntryId::None(), second);
  }
  EntryId Oldest() const override {
    const std::optional<LeafPlace> oldest = rows_.Oldest();
    return oldest.has_value() ? oldest->id : EntryId::None();
  }
  size_t size() const override { return rows_.size(); }

 private:
  static uint32_t RowOf(const BlockTraits& traits) {
    return traits.phase == SessionPhase::kEnded ? kEndedRow : kTheRow;
  }
  static LeafPlace PlaceOf(EntryId id, const BlockTraits& traits) {
    return {traits.last_touch, UINT32_MAX - traits.depth, id};
  }

  LeafRows rows_;
};

}  // namespace

std::unique_ptr<EvictionOrder> NewLruOrder() { return std::make_unique<LruOrder>(); }

}  // namespace kvartal::policy
