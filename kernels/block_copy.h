// One block between an engine's paged KV pool, in whatever order that keeps its dimensions, and a slot, which has one
// order: [layer][head][token][content]. Content is what a token has for a head in a layer: K and V, opaque here.
// Pure functions over memory, any thread. The pool's six orders are those of vLLM 0.29's KVCacheLayout.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvartal::kernels {

// Outermost first: Layer, Block, Head, tokeN, Content.
enum class PageOrder : uint8_t { kLBHNC, kLBNHC, kLHBNC, kBLHNC, kBLNHC, kBHLNC };
inline constexpr std::array kPageOrders = {PageOrder::kLBHNC, PageOrder::kLBNHC, PageOrder::kLHBNC,
                                           PageOrder::kBLHNC, PageOrder::kBLNHC, PageOrder::kBHLNC};

// Of the part of the model that one rank holds.
struct PageShape {
  uint32_t layers = 0, heads = 0, tokens = 0;  // tokens: of a block
  uint32_t content_bytes = 0;

  size_t BlockBytes() const { return size_t{layers} * heads * tokens * content_bytes; }
};

// Bytes from one layer, block, head or token to the next; the content of a token lies together.
struct PageStrides {
  size_t layer = 0, block = 0, head = 0, token = 0;
};
PageStrides StridesOf(const PageShape& shape, PageOrder order, uint32_t blocks);

// `slot`: shape.BlockBytes().
void GatherBlock(const std::byte* pool, const PageShape& shape, const PageStrides& strides, uint32_t block,
                 std::byte* slot);
void ScatterBlock(const std::byte* slot, const PageShape& shape, const PageStrides& strides, uint32_t block,
                  std::byte* pool);

}  // namespace kvartal::kernels
