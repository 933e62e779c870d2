// The pages of one rank for one group of layers: their bytes.
// Confined to the thread of the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/block_copy.h"
#include "tests/fake_engine/kv_content.h"

namespace kvartal::fake_engine {

class RankMemory {
 public:
  // The rank holds heads [first_head, first_head + heads) of the group.
  RankMemory(const LayerGroup& group, uint32_t group_number, uint32_t first_head, uint32_t heads,
             kernels::PageOrder order, uint32_t pages);

  const kernels::PageShape& shape() const { return shape_; }
  // As the model would: what the block `key` is on this rank.
  void Compute(uint32_t page, const client::Key& key);
  bool Holds(uint32_t page, const client::Key& key) const;
  // What no block looks like.
  void Poison(uint32_t page);
  void Gather(uint32_t page, void* slot) const;
  void Scatter(const void* slot, uint32_t page);

 private:
  // Calls `visit(words, place)` for the content of each token of each head of each layer.
  template <typename Visit>
  void ForEachContent(uint32_t page, Visit visit) const;

  const uint32_t group_, first_head_;
  const kernels::PageShape shape_;
  const kernels::PageStrides strides_;
  std::vector<uint64_t> words_;
};

}  // namespace kvartal::fake_engine
