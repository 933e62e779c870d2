#include "absl/container/btree_set.h"
#include "daemon/base/check.h"
#include "daemon/policy/eviction_order.h"

namespace kvartal::policy {
namespace {

// A sorted set rather than a list: recovery brings blocks back in any order, and an evicted leaf's parent enters near
// the front. Only leaves are in it, so a request moves one element a chain, not one a block.
class LruOrder : public EvictionOrder {
 public:
  void Insert(EntryId id, const BlockTraits& traits) override { KV_CHECK(order_.insert(Rank(id, traits)).second); }
  void Remove(EntryId id, const BlockTraits& traits) override { KV_CHECK(order_.erase(Rank(id, traits)) == 1); }
  void Touch(EntryId id, const BlockTraits& before, const BlockTraits& after) override {
    Remove(id, before);
    Insert(id, after);
  }

  EntryId Victim(absl::FunctionRef<bool(EntryId)> may_evict, uint32_t probe_max) const override {
    uint32_t probes = 0;
    for (const Place& place : order_) {
      if (probes++ == probe_max) break;
      if (may_evict(place.id)) return place.id;
    }
    return EntryId::None();
  }
  EntryId Oldest() const override { return order_.empty() ? EntryId::None() : order_.begin()->id; }
  size_t size() const override { return order_.size(); }

 private:
  struct Place {
    uint64_t last_touch;
    uint32_t height;  // UINT32_MAX - depth: the deepest of a request sorts first
    EntryId id;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  static_assert(sizeof(Place) == 16);
  static Place Rank(EntryId id, const BlockTraits& traits) {
    return {traits.last_touch, UINT32_MAX - traits.depth, id};
  }

  absl::btree_set<Place> order_;
};

}  // namespace

std::unique_ptr<EvictionOrder> NewLruOrder() { return std::make_unique<LruOrder>(); }

}  // namespace kvartal::policy
