// Leaves in numbered rows, each row oldest first. A row is kept as one sorted shelf a namespace and the heads of those
// shelves, so that a namespace retires, and comes back, by moving its heads and none of its leaves.
// Confined to the engine loop.
// Invariant: the head of every shelf that is not empty is listed once: in its row, or in the retired row when its
// namespace is retired.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "daemon/base/ids.h"

namespace kvartal::policy {

// Where a leaf is in its row: the smaller `age_key` first, then the deeper block.
struct LeafPlace {
  uint64_t age_key = 0;
  uint32_t height = 0;  // UINT32_MAX - depth
  EntryId id;
  friend auto operator<=>(const LeafPlace&, const LeafPlace&) = default;
};
static_assert(sizeof(LeafPlace) == 16);

class LeafRows {
 public:
  using Accept = absl::FunctionRef<bool(EntryId)>;
  using AcceptNamespace = absl::FunctionRef<bool(NamespaceId)>;

  void Insert(NamespaceId ns, uint32_t row, const LeafPlace& place);
  // REQUIRES: there.
  void Remove(NamespaceId ns, uint32_t row, const LeafPlace& place);
  void SetRetired(NamespaceId ns, bool retired);
  bool IsRetired(NamespaceId ns) const;

  // The oldest leaf of a row that `accept` takes, of a namespace that `of` takes; of the retired row, over all rows.
  // Each refused leaf or shelf costs one of `*probes`, and nothing more is asked at 0.
  std::optional<LeafPlace> FirstInRow(uint32_t row, Accept accept, AcceptNamespace of, uint32_t* probes) const;
  std::optional<LeafPlace> FirstRetired(Accept accept, AcceptNamespace of, uint32_t* probes) const;
  // The oldest of all, retired or not.
  std::optional<LeafPlace> Oldest() const;

  uint32_t row_count() const { return static_cast<uint32_t>(rows_.size()); }
  size_t size() const { return size_; }

 private:
  struct Shelf {
    NamespaceId ns;
    uint32_t row = 0;
    absl::btree_set<LeafPlace> leaves;
  };
  struct Head {
    LeafPlace place;
    const Shelf* shelf = nullptr;
    friend bool operator<(const Head& a, const Head& b) { return a.place < b.place; }
  };
  using Heads = absl::btree_set<Head>;
  struct Space {
    bool retired = false;
    std::vector<std::unique_ptr<Shelf>> shelves;  // by row, nullptr where it never had a leaf
  };

  Heads& HeadsOf(const Space& space, const Shelf& shelf) { return space.retired ? retired_ : rows_[shelf.row]; }
  static std::optional<LeafPlace> First(const Heads& heads, Accept accept, AcceptNamespace of, uint32_t* probes);

  absl::flat_hash_map<NamespaceId, Space> spaces_;
  std::vector<Heads> rows_;
  Heads retired_;
  size_t size_ = 0;
};

}  // namespace kvartal::policy
