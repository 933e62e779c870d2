#include "daemon/policy/leaf_rows.h"

#include "daemon/base/check.h"

namespace kvartal::policy {

void LeafRows::Insert(NamespaceId ns, uint32_t row, const LeafPlace& place) {
  if (row >= rows_.size()) rows_.resize(row + 1);
  Space& space = spaces_[ns];
  if (row >= space.shelves.size()) space.shelves.resize(row + 1);
  std::unique_ptr<Shelf>& shelf = space.shelves[row];
  if (shelf == nullptr) shelf = std::make_unique<Shelf>(Shelf{.ns = ns, .row = row, .leaves = {}});
  const bool empty = shelf->leaves.empty();
  if (empty || place < *shelf->leaves.begin()) {
    Heads& heads = HeadsOf(space, *shelf);
    if (!empty) heads.erase({*shelf->leaves.begin(), nullptr});
    heads.insert({place, shelf.get()});
  }
  KV_CHECK(shelf->leaves.insert(place).second);
  ++size_;
}

void LeafRows::Remove(NamespaceId ns, uint32_t row, const LeafPlace& place) {
  auto space = spaces_.find(ns);
  KV_CHECK(space != spaces_.end() && row < space->second.shelves.size() && space->second.shelves[row] != nullptr);
  Shelf& shelf = *space->second.shelves[row];
  auto leaf = shelf.leaves.find(place);
  KV_CHECK(leaf != shelf.leaves.end());
  const bool was_head = leaf == shelf.leaves.begin();
  shelf.leaves.erase(leaf);
  --size_;
  if (!was_head) return;
  Heads& heads = HeadsOf(space->second, shelf);
  heads.erase({place, nullptr});
  if (!shelf.leaves.empty()) heads.insert({*shelf.leaves.begin(), &shelf});
}

void LeafRows::SetRetired(NamespaceId ns, bool retired) {
  Space& space = spaces_[ns];
  if (space.retired == retired) return;
  for (const auto& shelf : space.shelves) {
    if (shelf == nullptr || shelf->leaves.empty()) continue;
    const Head head{*shelf->leaves.begin(), shelf.get()};
    (space.retired ? retired_ : rows_[shelf->row]).erase(head);
    (retired ? retired_ : rows_[shelf->row]).insert(head);
  }
  space.retired = retired;
}

bool LeafRows::IsRetired(NamespaceId ns) const {
  const auto space = spaces_.find(ns);
  return space != spaces_.end() && space->second.retired;
}

std::optional<LeafPlace> LeafRows::First(const Heads& heads, Accept accept, AcceptNamespace of, uint32_t* probes) {
  std::optional<LeafPlace> first;
  for (const Head& head : heads) {
    if (*probes == 0 || (first.has_value() && *first < head.place)) break;
    if (!of(head.shelf->ns)) {
      --*probes;
      continue;
    }
    for (const LeafPlace& place : head.shelf->leaves) {
      if (*probes == 0 || (first.has_value() && *first < place)) break;
      if (accept(place.id)) {
        first = place;
        break;
      }
      --*probes;
    }
  }
  return first;
}

std::optional<LeafPlace> LeafRows::FirstInRow(uint32_t row, Accept accept, AcceptNamespace of, uint32_t* probes) const {
  return First(rows_[row], accept, of, probes);
}

std::optional<LeafPlace> LeafRows::FirstRetired(Accept accept, AcceptNamespace of, uint32_t* probes) const {
  return First(retired_, accept, of, probes);
}

std::optional<LeafPlace> LeafRows::Oldest() const {
  std::optional<LeafPlace> oldest;
  const auto look = [&oldest](const Heads& heads) {
    if (!heads.empty() && (!oldest.has_value() || heads.begin()->place < *oldest)) oldest = heads.begin()->place;
  };
  for (const Heads& heads : rows_) look(heads);
  look(retired_);
  return oldest;
}

}  // namespace kvartal::policy
