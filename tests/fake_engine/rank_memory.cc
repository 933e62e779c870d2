#include "tests/fake_engine/rank_memory.h"

#include <algorithm>

namespace kvartal::fake_engine {
namespace {

constexpr uint64_t kPoison = 0xdeadbeefdeadbeef;

}  // namespace

RankMemory::RankMemory(const LayerGroup& group, uint32_t group_number, uint32_t first_head, uint32_t heads,
                       kernels::PageOrder order, uint32_t pages)
    : group_(group_number),
      first_head_(first_head),
      shape_{group.layers, heads, group.tokens, group.content_bytes},
      strides_(kernels::StridesOf(shape_, order, pages)),
      words_(shape_.BlockBytes() * pages / sizeof(uint64_t), kPoison) {}

template <typename Visit>
void RankMemory::ForEachContent(uint32_t page, Visit visit) const {
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    for (uint32_t head = 0; head < shape_.heads; ++head) {
      for (uint32_t token = 0; token < shape_.tokens; ++token) {
        const size_t at =
            page * strides_.block + layer * strides_.layer + head * strides_.head + token * strides_.token;
        visit(at / sizeof(uint64_t), Place{group_, layer, first_head_ + head, token});
      }
    }
  }
}

void RankMemory::Compute(uint32_t page, const client::Key& key) {
  const uint32_t words = shape_.content_bytes / sizeof(uint64_t);
  ForEachContent(page, [&](size_t at, const Place& place) {
    for (uint32_t i = 0; i < words; ++i) words_[at + i] = ContentWord(key, place, i);
  });
}

bool RankMemory::Holds(uint32_t page, const client::Key& key) const {
  const uint32_t words = shape_.content_bytes / sizeof(uint64_t);
  bool same = true;
  ForEachContent(page, [&](size_t at, const Place& place) {
    for (uint32_t i = 0; i < words; ++i) same = same && words_[at + i] == ContentWord(key, place, i);
  });
  return same;
}

void RankMemory::Poison(uint32_t page) {
  const uint32_t words = shape_.content_bytes / sizeof(uint64_t);
  ForEachContent(page, [&](size_t at, const Place&) {
    std::fill_n(words_.begin() + static_cast<std::ptrdiff_t>(at), words, kPoison);
  });
}

void RankMemory::Gather(uint32_t page, void* slot) const {
  kernels::GatherBlock(reinterpret_cast<const std::byte*>(words_.data()), shape_, strides_, page,
                       static_cast<std::byte*>(slot));
}

void RankMemory::Scatter(const void* slot, uint32_t page) {
  kernels::ScatterBlock(static_cast<const std::byte*>(slot), shape_, strides_, page,
                        reinterpret_cast<std::byte*>(words_.data()));
}

}  // namespace kvartal::fake_engine
