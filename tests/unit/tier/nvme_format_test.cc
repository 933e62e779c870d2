#include "daemon/tier/nvme_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace kvartal::tier {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 0x1234567890abcdef;
constexpr SlotId kSlot{4242};

template <size_t N>
std::array<uint8_t, N> Pattern(uint8_t first) {
  std::array<uint8_t, N> out;
  for (size_t i = 0; i < N; ++i) out[i] = static_cast<uint8_t>(first + i);
  return out;
}

BlockHeader SomeHeader() {
  BlockHeader header;
  header.identity.key.bytes = Pattern<32>(1);
  header.identity.digest.bytes = Pattern<32>(101);
  header.identity.owner = Pattern<16>(201);
  header.identity.parent.bytes = Pattern<32>(60);
  header.identity.depth = 77;
  header.identity.payload_bytes = 5 * 4096;
  header.identity.tokens_per_block = 256;
  header.identity.shard_count = 2;
  header.identity.shard_bytes = 9000;
  header.generation = 0x0102030405060708;
  header.first_commit_ms = 1'700'000'000'123;
  header.last_access_ms = 1'700'000'999'456;
  header.pinned_until_s = 4'000'000'000;  // beyond what a signed number of seconds holds
  header.payload_xxh3 = 0xfeedfacecafebeef;
  return header;
}

void ExpectSame(const BlockHeader& a, const BlockHeader& b) {
  EXPECT_EQ(a.identity.key, b.identity.key);
  EXPECT_EQ(a.identity.digest, b.identity.digest);
  EXPECT_EQ(a.identity.owner, b.identity.owner);
  EXPECT_EQ(a.identity.parent, b.identity.parent);
  EXPECT_EQ(a.identity.depth, b.identity.depth);
  EXPECT_EQ(a.identity.payload_bytes, b.identity.payload_bytes);
  EXPECT_EQ(a.identity.tokens_per_block, b.identity.tokens_per_block);
  EXPECT_EQ(a.identity.shard_count, b.identity.shard_count);
  EXPECT_EQ(a.identity.shard_bytes, b.identity.shard_bytes);
  EXPECT_EQ(a.generation, b.generation);
  EXPECT_EQ(a.first_commit_ms, b.first_commit_ms);
  EXPECT_EQ(a.last_access_ms, b.last_access_ms);
  EXPECT_EQ(a.pinned_until_s, b.pinned_until_s);
  EXPECT_EQ(a.payload_xxh3, b.payload_xxh3);
}

using Page = std::vector<std::byte>;

Page BlockPage() {
  Page page(kNvmeHeaderBytes);
  EncodeBlockHeader(SomeHeader(), kSeed, kSlot, page);
  return page;
}

void Poke(Page* page, size_t at, const void* data, size_t bytes) { std::memcpy(page->data() + at, data, bytes); }

// As another build would have written it: what was poked in is under a right checksum.
void Reseal(Page* page, uint64_t seed) {
  const uint64_t checksum = XXH3_64bits_withSeed(page->data(), kNvmeHeaderBytes - 8, seed);
  Poke(page, kNvmeHeaderBytes - 8, &checksum, sizeof(checksum));
}

TEST(NvmeFormat, BlockHeaderComesBackAsItWas) {
  const absl::StatusOr<BlockHeader> decoded = DecodeBlockHeader(BlockPage(), kSeed, kSlot);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ExpectSame(*decoded, SomeHeader());
}

TEST(NvmeFormat, SuperblockAndSegmentHeaderComeBackAsTheyWere) {
  Page page(kNvmeHeaderBytes);
  EncodeSuperblock({Pattern<16>(9), 7 * kGiB, 64 * kMiB, kSeed, 12}, page);
  const absl::StatusOr<Superblock> superblock = DecodeSuperblock(page);
  ASSERT_TRUE(superblock.ok()) << superblock.status();
  EXPECT_EQ(superblock->device_uuid, (Pattern<16>(9)));
  EXPECT_EQ(superblock->file_bytes, 7 * kGiB);
  EXPECT_EQ(superblock->segment_bytes, 64 * kMiB);
  EXPECT_EQ(superblock->header_seed, kSeed);
  EXPECT_EQ(superblock->open_count, 12u);

  EncodeSegmentHeader({Pattern<16>(9), 3, 8192}, page);
  const absl::StatusOr<SegmentHeader> segment = DecodeSegmentHeader(page);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ(segment->device_uuid, (Pattern<16>(9)));
  EXPECT_EQ(segment->segment, 3u);
  EXPECT_EQ(segment->payload_bytes, 8192u);
}

// The places documented in docs/ON_DISK_FORMAT.md: moving a field is a new format version.
TEST(NvmeFormat, FieldsLieWhereTheDocumentSays) {
  const Page page = BlockPage();
  const auto u32 = [&](size_t at) {
    uint32_t value;
    std::memcpy(&value, page.data() + at, sizeof(value));
    return value;
  };
  const auto u64 = [&](size_t at) {
    uint64_t value;
    std::memcpy(&value, page.data() + at, sizeof(value));
    return value;
  };
  EXPECT_EQ(std::memcmp(page.data(), "KVARTALB", 8), 0);
  EXPECT_EQ(u32(8), 1u);
  EXPECT_EQ(u32(12), kSlot.value());
  EXPECT_EQ(page[16], std::byte{1});    // key
  EXPECT_EQ(page[48], std::byte{101});  // digest
  EXPECT_EQ(page[80], std::byte{201});  // owner
  EXPECT_EQ(page[96], std::byte{60});   // parent
  EXPECT_EQ(u32(128), 77u);
  EXPECT_EQ(u32(132), 5u * 4096);
  EXPECT_EQ(u32(136), 256u);
  EXPECT_EQ(u32(140), 2u);
  EXPECT_EQ(u32(144), 9000u);
  EXPECT_EQ(u64(152), 0x0102030405060708u);
  EXPECT_EQ(u64(160), 1'700'000'000'123u);
  EXPECT_EQ(u64(168), 1'700'000'999'456u);
  EXPECT_EQ(u64(176), 0xfeedfacecafebeefu);
  EXPECT_EQ(u64(4088), XXH3_64bits_withSeed(page.data(), 4088, kSeed));
}

TEST(NvmeFormat, AHeaderOfAnEncryptedBlockIsAsTheDocumentSays) {
  BlockHeader header = *DecodeBlockHeader(BlockPage(), kSeed, kSlot);
  header.seal.key_id = 0x01020304;
  header.seal.random.fill(std::byte{0xd1});
  header.seal.tag.fill(std::byte{0xd2});
  Page page(kNvmeHeaderBytes);
  EncodeBlockHeader(header, kSeed, kSlot, page);
  EXPECT_EQ(page[8], std::byte{2});
  EXPECT_EQ(page[184], std::byte{4});
  EXPECT_EQ(page[187], std::byte{1});
  EXPECT_EQ(page[188], std::byte{0});
  EXPECT_EQ(page[192], std::byte{0xd1});
  EXPECT_EQ(page[223], std::byte{0xd1});
  EXPECT_EQ(page[224], std::byte{0xd2});
  EXPECT_EQ(page[239], std::byte{0xd2});
  EXPECT_EQ(BoundToPayload(page).size(), 224u);
  const absl::StatusOr<BlockHeader> decoded = DecodeBlockHeader(page, kSeed, kSlot);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->seal.key_id, header.seal.key_id);
  EXPECT_EQ(decoded->seal.random, header.seal.random);
  EXPECT_EQ(decoded->seal.tag, header.seal.tag);
  EXPECT_EQ(decoded->identity.key, header.identity.key);
}

TEST(NvmeFormat, EveryFlippedBitOfAHeaderIsFound) {
  Page page = BlockPage();
  for (size_t bit = 0; bit < kNvmeHeaderBytes * 8; ++bit) {
    const std::byte mask{static_cast<unsigned char>(1u << (bit % 8))};
    page[bit / 8] ^= mask;
    const absl::StatusOr<BlockHeader> decoded = DecodeBlockHeader(page, kSeed, kSlot);
    ASSERT_TRUE(absl::IsDataLoss(decoded.status())) << "bit " << bit << ": " << decoded.status();
    page[bit / 8] ^= mask;
  }
  EXPECT_TRUE(DecodeBlockHeader(page, kSeed, kSlot).ok());
}

TEST(NvmeFormat, AnotherVersionIsToldFromDamage) {
  Page page = BlockPage();
  const uint32_t version = kNvmeEncryptedVersion + 1;
  Poke(&page, 8, &version, sizeof(version));
  EXPECT_TRUE(absl::IsDataLoss(DecodeBlockHeader(page, kSeed, kSlot).status()));  // as a flipped bit would do
  Reseal(&page, kSeed);
  const absl::Status status = DecodeBlockHeader(page, kSeed, kSlot).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("format version 3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("writes 2"));
}

TEST(NvmeFormat, HeaderIsBoundToItsDeviceAndSlot) {
  const Page page = BlockPage();
  EXPECT_TRUE(absl::IsDataLoss(DecodeBlockHeader(page, kSeed + 1, kSlot).status()));
  const absl::Status misplaced = DecodeBlockHeader(page, kSeed, SlotId(4243)).status();
  EXPECT_TRUE(absl::IsDataLoss(misplaced));
  EXPECT_THAT(std::string(misplaced.message()), HasSubstr("belongs to slot 4242, found in slot 4243"));
}

TEST(NvmeFormat, KindsAreNotMixedUp) {
  Page page(kNvmeHeaderBytes);
  EncodeSegmentHeader({Pattern<16>(9), 3, 8192}, page);
  const absl::Status status = DecodeSuperblock(page).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("magic is \"KVARTALG\", expected \"KVARTALS\""));
  EXPECT_TRUE(absl::IsDataLoss(DecodeBlockHeader(page, 0, kSlot).status()));
}

TEST(NvmeFormat, FieldsOutOfBoundsAreRefusedThoughTheChecksumIsRight) {
  struct Case {
    size_t at;
    uint32_t value;
  };
  for (const Case& wrong : {Case{132, 0}, Case{132, 4097}, Case{132, static_cast<uint32_t>(kBlockBytesMax + 4096)},
                            Case{140, 0}, Case{140, kShardsMax + 1}, Case{144, 5 * 4096 + 1}}) {
    Page page = BlockPage();
    Poke(&page, wrong.at, &wrong.value, sizeof(wrong.value));
    Reseal(&page, kSeed);
    EXPECT_TRUE(absl::IsDataLoss(DecodeBlockHeader(page, kSeed, kSlot).status())) << wrong.at << " " << wrong.value;
  }
  for (const uint64_t segment_bytes :
       {uint64_t{0}, kSegmentMinBytes / 2, kSegmentMaxBytes * 2, kSegmentMinBytes + 4096}) {
    Page page(kNvmeHeaderBytes);
    EncodeSuperblock({Pattern<16>(9), kGiB, segment_bytes, kSeed, 1}, page);
    EXPECT_TRUE(absl::IsDataLoss(DecodeSuperblock(page).status())) << segment_bytes;
  }
}

TEST(NvmeFormat, AnyInputIsSafeToDecode) {
  std::mt19937_64 random(7);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{15}, size_t{4095}, size_t{4096}, size_t{4097}}) {
    for (int round = 0; round < 50; ++round) {
      Page page(bytes);
      for (std::byte& byte : page) byte = static_cast<std::byte>(random());
      EXPECT_FALSE(DecodeSuperblock(page).ok());
      EXPECT_FALSE(DecodeSegmentHeader(page).ok());
      EXPECT_FALSE(DecodeBlockHeader(page, kSeed, kSlot).ok());
      EXPECT_FALSE(DecodeBlockRecord(page).ok());
    }
  }
}

TEST(NvmeFormat, CatalogRecordComesBackAsItWas) {
  Page record(kBlockRecordBytes);
  BlockHeader header = SomeHeader();
  header.seal.key_id = 7;
  EncodeBlockRecord(header, record);
  const absl::StatusOr<BlockHeader> decoded = DecodeBlockRecord(record);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ExpectSame(*decoded, header);
  EXPECT_EQ(decoded->seal.key_id, 7u);
  record.pop_back();
  EXPECT_TRUE(absl::IsDataLoss(DecodeBlockRecord(record).status()));
}

TEST(NvmeFormat, ARecordOfTheFirstVersionComesBackWithoutAKey) {
  Page record(kBlockRecordBytes);
  BlockHeader header = SomeHeader();
  header.seal.key_id = 7;
  EncodeBlockRecord(header, record);
  record.resize(kBlockRecordBytes - sizeof(uint32_t));
  EXPECT_FALSE(DecodeBlockRecord(record).ok()) << "one of this version, cut short";
  record[0] = std::byte{1};
  const absl::StatusOr<BlockHeader> decoded = DecodeBlockRecord(record);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ExpectSame(*decoded, header);
  EXPECT_EQ(decoded->seal.key_id, 0u);
  record.resize(kBlockRecordBytes);
  EXPECT_FALSE(DecodeBlockRecord(record).ok()) << "one of that version, and longer";
}

}  // namespace
}  // namespace kvartal::tier
