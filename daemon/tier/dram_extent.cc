#include "daemon/tier/dram_extent.h"

#include <bit>

#include "daemon/base/check.h"

namespace kvartal::tier {
namespace {

constexpr uint32_t kWordBits = 64;

uint32_t WordsFor(uint32_t bits) { return (bits + kWordBits - 1) / kWordBits; }
uint64_t BitOf(uint32_t index) { return uint64_t{1} << (index % kWordBits); }

void SetFirst(std::vector<uint64_t>* words, uint32_t bits) {
  for (uint32_t i = 0; i < bits; ++i) (*words)[i / kWordBits] |= BitOf(i);
}

}  // namespace

DramExtent::DramExtent(const AddressRange& range, uint32_t slot_bytes)
    : range_(range),
      slot_bytes_(slot_bytes),
      slot_count_(static_cast<uint32_t>(range.bytes / slot_bytes)),
      free_count_(slot_count_),
      free_bits_(WordsFor(slot_count_)),
      holders_(slot_count_),
      word_bits_(WordsFor(WordsFor(slot_count_))) {
  KV_CHECK(slot_count_ > 0);
  SetFirst(&free_bits_, slot_count_);
  SetFirst(&word_bits_, WordsFor(slot_count_));
}

uint64_t DramExtent::Take() {
  KV_CHECK(free_count_ > 0);
  uint32_t top = 0;
  while (word_bits_[top] == 0) ++top;
  const uint32_t word = top * kWordBits + static_cast<uint32_t>(std::countr_zero(word_bits_[top]));
  const uint32_t slot = word * kWordBits + static_cast<uint32_t>(std::countr_zero(free_bits_[word]));
  free_bits_[word] &= ~BitOf(slot);
  if (free_bits_[word] == 0) word_bits_[top] &= ~BitOf(word);
  --free_count_;
  return range_.offset + uint64_t{slot} * slot_bytes_;
}

uint32_t DramExtent::IndexOf(uint64_t offset) const {
  KV_CHECK(offset >= range_.offset && (offset - range_.offset) % slot_bytes_ == 0);
  const uint64_t slot = (offset - range_.offset) / slot_bytes_;
  KV_CHECK(slot < slot_count_);
  return static_cast<uint32_t>(slot);
}

std::vector<std::pair<uint64_t, EntryId>> DramExtent::Taken() const {
  std::vector<std::pair<uint64_t, EntryId>> taken;
  taken.reserve(slot_count_ - free_count_);
  for (uint32_t index = 0; index < slot_count_; ++index) {
    if ((free_bits_[index / kWordBits] & BitOf(index)) != 0) continue;
    taken.emplace_back(range_.offset + uint64_t{index} * slot_bytes_, holders_[index]);
  }
  return taken;
}

void DramExtent::Give(uint64_t offset) {
  const uint32_t index = IndexOf(offset);
  const uint32_t word = index / kWordBits;
  KV_CHECK((free_bits_[word] & BitOf(index)) == 0);
  free_bits_[word] |= BitOf(index);
  word_bits_[word / kWordBits] |= BitOf(word);
  holders_[index] = EntryId::None();
  ++free_count_;
}

}  // namespace kvartal::tier
