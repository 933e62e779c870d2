// Any bytes as a page of the NVMe file or a record of its catalog: decoding never fails a check, and what is accepted
// encodes to the very same fields again. The checksum would stop nearly every input, so each is also tried with a right
// one.
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "daemon/base/check.h"
#include "daemon/tier/nvme_format.h"

namespace {

using kvartal::kNvmeHeaderBytes;
using kvartal::SlotId;
using namespace kvartal::tier;

constexpr uint64_t kSeed = 99;
using Page = std::array<std::byte, kNvmeHeaderBytes>;

void Seal(Page* page, uint64_t seed) {
  const uint64_t checksum = XXH3_64bits_withSeed(page->data(), kNvmeHeaderBytes - 8, seed);
  std::memcpy(page->data() + kNvmeHeaderBytes - 8, &checksum, sizeof(checksum));
}

// Only fields are compared: bytes that a decoder ignores are zero after encoding.
void TryPage(const Page& page) {
  Page again;
  if (const auto superblock = DecodeSuperblock(page); superblock.ok()) {
    EncodeSuperblock(*superblock, again);
    KV_CHECK(std::equal(again.begin() + 16, again.begin() + 64, page.begin() + 16));
    KV_CHECK(DecodeSuperblock(again).ok());
  }
  if (const auto segment = DecodeSegmentHeader(page); segment.ok()) {
    EncodeSegmentHeader(*segment, again);
    KV_CHECK(std::equal(again.begin() + 16, again.begin() + 40, page.begin() + 16));
    KV_CHECK(DecodeSegmentHeader(again).ok());
  }
  uint32_t slot = 0;
  std::memcpy(&slot, page.data() + 12, sizeof(slot));
  if (const auto block = DecodeBlockHeader(page, kSeed, SlotId(slot)); block.ok()) {
    EncodeBlockHeader(*block, kSeed, SlotId(slot), again);
    KV_CHECK(std::equal(again.begin() + 16, again.begin() + 148, page.begin() + 16));
    KV_CHECK(DecodeBlockHeader(again, kSeed, SlotId(slot)).ok());
    KV_CHECK(block->identity.payload_bytes <= kvartal::kBlockBytesMax);
  }
  (void)SuperblockVersion(page);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), size);
  (void)DecodeSuperblock(input);
  (void)DecodeSegmentHeader(input);
  (void)DecodeBlockHeader(input, kSeed, SlotId(1));
  (void)SuperblockVersion(input);
  if (const auto record = DecodeBlockRecord(input); record.ok()) {
    std::array<std::byte, kBlockRecordBytes> again;
    EncodeBlockRecord(*record, again);
    KV_CHECK(std::equal(again.begin() + 4, again.begin() + 4 + 132, input.begin() + 4));
  }
  // The first byte picks a magic, the rest are the fields.
  if (size == 0) return 0;
  static constexpr const char* kMagics[] = {"KVARTALS", "KVARTALG", "KVARTALB"};
  Page page{};
  const size_t bytes = std::min(size - 1, page.size() - 8 - 8);
  std::memcpy(page.data(), kMagics[data[0] % 3], 8);
  std::memcpy(page.data() + 8, data + 1, bytes);
  if (data[0] & 0x80) {
    const uint32_t version = data[0] & 0x40 ? kNvmeEncryptedVersion : kNvmeFormatVersion;
    std::memcpy(page.data() + 8, &version, sizeof(version));
  }
  Seal(&page, data[0] % 3 == 2 ? kSeed : 0);
  TryPage(page);
  return 0;
}
