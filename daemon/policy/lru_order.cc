#include "daemon/policy/eviction_order.h"
#include "daemon/policy/leaf_rows.h"

namespace kvartal::policy {
namespace {

constexpr uint32_t kTheRow = 0;

class LruOrder : public EvictionOrder {
 public:
  void Insert(EntryId id, const BlockTraits& traits) override { rows_.Insert(traits.ns, kTheRow, PlaceOf(id, traits)); }
  void Remove(EntryId id, const BlockTraits& traits) override { rows_.Remove(traits.ns, kTheRow, PlaceOf(id, traits)); }
  void SetRetired(NamespaceId ns, bool retired) override { rows_.SetRetired(ns, retired); }
  void Evicted(const BlockTraits&) override {}

  EntryId Victim(absl::FunctionRef<bool(EntryId)> may_evict, uint32_t probe_max) const override {
    uint32_t probes = probe_max;
    std::optional<LeafPlace> victim = rows_.FirstRetired(may_evict, &probes);
    if (!victim.has_value() && rows_.row_count() > 0) victim = rows_.FirstInRow(kTheRow, may_evict, &probes);
    return victim.has_value() ? victim->id : EntryId::None();
  }
  bool GoesBefore(const BlockTraits& first, const BlockTraits& second) const override {
    const bool retired = rows_.IsRetired(first.ns);
    if (retired != rows_.IsRetired(second.ns)) return retired;
    return PlaceOf(EntryId::None(), first) < PlaceOf(EntryId::None(), second);
  }
  EntryId Oldest() const override {
    const std::optional<LeafPlace> oldest = rows_.Oldest();
    return oldest.has_value() ? oldest->id : EntryId::None();
  }
  size_t size() const override { return rows_.size(); }

 private:
  static LeafPlace PlaceOf(EntryId id, const BlockTraits& traits) {
    return {traits.last_touch, UINT32_MAX - traits.depth, id};
  }

  LeafRows rows_;
};

}  // namespace

std::unique_ptr<EvictionOrder> NewLruOrder() { return std::make_unique<LruOrder>(); }

}  // namespace kvartal::policy
