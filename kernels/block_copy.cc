#include "kernels/block_copy.h"

#include <cstring>
#include <string_view>

namespace kvartal::kernels {
namespace {

std::string_view NameOf(PageOrder order) {
  static constexpr std::array<std::string_view, kPageOrders.size()> kNames = {"LBHN", "LBNH", "LHBN",
                                                                              "BLHN", "BLNH", "BHLN"};
  return kNames[static_cast<size_t>(order)];
}

// Calls `copy(in the pool, in the slot, bytes)` for each run that lies together in both.
template <typename Copy>
void ForEachRun(const PageShape& shape, const PageStrides& strides, uint32_t block, Copy copy) {
  const bool tokens_together = strides.token == shape.content_bytes;
  const size_t run = tokens_together ? size_t{shape.tokens} * shape.content_bytes : shape.content_bytes;
  const uint32_t runs = tokens_together ? 1 : shape.tokens;
  size_t at = 0;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (uint32_t head = 0; head < shape.heads; ++head) {
      for (uint32_t i = 0; i < runs; ++i, at += run) {
        copy(layer * strides.layer + block * strides.block + head * strides.head + i * strides.token, at, run);
      }
    }
  }
}

}  // namespace

PageStrides StridesOf(const PageShape& shape, PageOrder order, uint32_t blocks) {
  PageStrides strides;
  size_t stride = shape.content_bytes;
  const std::string_view name = NameOf(order);
  for (auto dimension = name.rbegin(); dimension != name.rend(); ++dimension) {
    switch (*dimension) {
      case 'L':
        strides.layer = stride;
        stride *= shape.layers;
        break;
      case 'B':
        strides.block = stride;
        stride *= blocks;
        break;
      case 'H':
        strides.head = stride;
        stride *= shape.heads;
        break;
      default:
        strides.token = stride;
        stride *= shape.tokens;
    }
  }
  return strides;
}

void GatherBlock(const std::byte* pool, const PageShape& shape, const PageStrides& strides, uint32_t block,
                 std::byte* slot) {
  ForEachRun(shape, strides, block,
             [&](size_t in_pool, size_t in_slot, size_t bytes) { std::memcpy(slot + in_slot, pool + in_pool, bytes); });
}

void ScatterBlock(const std::byte* slot, const PageShape& shape, const PageStrides& strides, uint32_t block,
                  std::byte* pool) {
  ForEachRun(shape, strides, block,
             [&](size_t in_pool, size_t in_slot, size_t bytes) { std::memcpy(pool + in_pool, slot + in_slot, bytes); });
}

}  // namespace kvartal::kernels
