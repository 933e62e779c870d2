#include "daemon/tier/nvme_format.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace kvartal::tier {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian and fields are copied as they are");

// Every page: magic 0..8, format version 8..12, ..., checksum of all that in the last eight bytes. These three places
// are the same in every format version, so that a page of another version is told from a damaged one.
constexpr size_t kMagicBytes = 8;
constexpr size_t kVersionAt = 8;
constexpr size_t kSlotAt = 12;  // block headers only
constexpr size_t kFieldsAt = 16;
constexpr size_t kSealAt = 184;  // block headers only: key id, four zeros, random, tag
constexpr size_t kTagAt = kSealAt + 2 * sizeof(uint32_t) + cipher::kBlockRandomBytes;
constexpr size_t kChecksumAt = kNvmeHeaderBytes - sizeof(uint64_t);

struct PageKind {
  char magic[kMagicBytes + 1];
  const char* name;
};
constexpr PageKind kSuperblockPage = {"KVARTALS", "superblock"};
constexpr PageKind kSegmentPage = {"KVARTALG", "segment header"};
constexpr PageKind kBlockPage = {"KVARTALB", "block header"};

class FieldWriter {
 public:
  explicit FieldWriter(std::span<std::byte> out) : out_(out) {}
  template <typename T>
  void Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    KV_CHECK(at_ + sizeof(T) <= out_.size());
    std::memcpy(out_.data() + at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  size_t written() const { return at_; }

 private:
  std::span<std::byte> out_;
  size_t at_ = 0;
};

class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> in) : in_(in) {}
  template <typename T>
  void Get(T* value) {
    static_assert(std::is_trivially_copyable_v<T>);
    KV_CHECK(at_ + sizeof(T) <= in_.size());
    std::memcpy(value, in_.data() + at_, sizeof(T));
    at_ += sizeof(T);
  }

 private:
  std::span<const std::byte> in_;
  size_t at_ = 0;
};

template <typename T>
T Load(std::span<const std::byte> in, size_t at) {
  T value;
  std::memcpy(&value, in.data() + at, sizeof(T));
  return value;
}

uint64_t PageChecksum(std::span<const std::byte> page, uint64_t seed) {
  return XXH3_64bits_withSeed(page.data(), kChecksumAt, seed);
}

void BeginPage(const PageKind& kind, std::span<std::byte> out, uint32_t version = kNvmeFormatVersion) {
  KV_CHECK(out.size() == kNvmeHeaderBytes);
  std::fill(out.begin(), out.end(), std::byte{0});
  std::memcpy(out.data(), kind.magic, kMagicBytes);
  std::memcpy(out.data() + kVersionAt, &version, sizeof(version));
}

void EndPage(uint64_t seed, std::span<std::byte> out) {
  const uint64_t checksum = PageChecksum(out, seed);
  std::memcpy(out.data() + kChecksumAt, &checksum, sizeof(checksum));
}

absl::Status CheckPage(const PageKind& kind, uint64_t seed, std::span<const std::byte> in,
                       uint32_t newest = kNvmeFormatVersion) {
  if (in.size() != kNvmeHeaderBytes) {
    return absl::DataLossError(absl::StrCat(kind.name, ": ", in.size(), " bytes, expected ", kNvmeHeaderBytes));
  }
  if (std::memcmp(in.data(), kind.magic, kMagicBytes) != 0) {
    const absl::string_view found(reinterpret_cast<const char*>(in.data()), kMagicBytes);
    return absl::DataLossError(
        absl::StrCat(kind.name, ": magic is \"", absl::CHexEscape(found), "\", expected \"", kind.magic, "\""));
  }
  const auto version = Load<uint32_t>(in, kVersionAt);
  const auto found = Load<uint64_t>(in, kChecksumAt);
  const uint64_t expected = PageChecksum(in, seed);
  if (found != expected) {
    return absl::DataLossError(absl::StrCat(kind.name, " of format version ", version, ": checksum is ",
                                            absl::Hex(found, absl::kZeroPad16), ", its bytes give ",
                                            absl::Hex(expected, absl::kZeroPad16)));
  }
  if (version < kNvmeFormatVersion || version > newest) {
    return absl::FailedPreconditionError(
        absl::StrCat(kind.name, ": format version ", version, ", this build reads and writes ", newest));
  }
  return absl::OkStatus();
}

// What a block header and a catalog record have in common.
void PutBlockFields(const BlockHeader& in, FieldWriter* out) {
  const BlockIdentity& id = in.identity;
  out->Put(id.key.bytes);
  out->Put(id.digest.bytes);
  out->Put(id.owner);
  out->Put(id.parent.bytes);
  out->Put(id.depth);
  out->Put(id.payload_bytes);
  out->Put(id.tokens_per_block);
  out->Put(id.shard_count);
  out->Put(id.shard_bytes);
  out->Put(in.pinned_until_s);
  out->Put(in.generation);
  out->Put(in.first_commit_ms);
  out->Put(in.last_access_ms);
  out->Put(in.payload_xxh3);
}

absl::StatusOr<BlockHeader> GetBlockFields(const char* what, FieldReader in) {
  BlockHeader out;
  BlockIdentity& id = out.identity;
  in.Get(&id.key.bytes);
  in.Get(&id.digest.bytes);
  in.Get(&id.owner);
  in.Get(&id.parent.bytes);
  in.Get(&id.depth);
  in.Get(&id.payload_bytes);
  in.Get(&id.tokens_per_block);
  in.Get(&id.shard_count);
  in.Get(&id.shard_bytes);
  in.Get(&out.pinned_until_s);
  in.Get(&out.generation);
  in.Get(&out.first_commit_ms);
  in.Get(&out.last_access_ms);
  in.Get(&out.payload_xxh3);
  if (id.payload_bytes == 0 || id.payload_bytes % kSlotAlignBytes != 0 || id.payload_bytes > kBlockBytesMax) {
    return absl::DataLossError(absl::StrCat(what, ": payload of ", id.payload_bytes, " bytes, expected a multiple of ",
                                            kSlotAlignBytes, " up to ", kBlockBytesMax));
  }
  if (id.shard_count == 0 || id.shard_count > kShardsMax || id.shard_bytes > id.payload_bytes) {
    return absl::DataLossError(absl::StrCat(what, ": ", id.shard_count, " shards of ", id.shard_bytes,
                                            " bytes, expected 1 to ", kShardsMax, " within ", id.payload_bytes));
  }
  return out;
}

}  // namespace

void EncodeSuperblock(const Superblock& in, std::span<std::byte> out) {
  BeginPage(kSuperblockPage, out);
  FieldWriter fields(out.subspan(kFieldsAt));
  fields.Put(in.device_uuid);
  fields.Put(in.file_bytes);
  fields.Put(in.segment_bytes);
  fields.Put(in.header_seed);
  fields.Put(in.open_count);
  EndPage(0, out);
}

absl::StatusOr<Superblock> DecodeSuperblock(std::span<const std::byte> in) {
  KV_RETURN_IF_ERROR(CheckPage(kSuperblockPage, 0, in));
  Superblock out;
  FieldReader fields(in.subspan(kFieldsAt));
  fields.Get(&out.device_uuid);
  fields.Get(&out.file_bytes);
  fields.Get(&out.segment_bytes);
  fields.Get(&out.header_seed);
  fields.Get(&out.open_count);
  if (!std::has_single_bit(out.segment_bytes) || out.segment_bytes < kSegmentMinBytes ||
      out.segment_bytes > kSegmentMaxBytes) {
    return absl::DataLossError(absl::StrCat("superblock: segments of ", out.segment_bytes,
                                            " bytes, expected a power of two from ", kSegmentMinBytes, " to ",
                                            kSegmentMaxBytes));
  }
  return out;
}

std::optional<uint32_t> SuperblockVersion(std::span<const std::byte> in) {
  if (in.size() < kFieldsAt || std::memcmp(in.data(), kSuperblockPage.magic, kMagicBytes) != 0) return std::nullopt;
  return Load<uint32_t>(in, kVersionAt);
}

void EncodeSegmentHeader(const SegmentHeader& in, std::span<std::byte> out) {
  BeginPage(kSegmentPage, out);
  FieldWriter fields(out.subspan(kFieldsAt));
  fields.Put(in.device_uuid);
  fields.Put(in.segment);
  fields.Put(in.payload_bytes);
  EndPage(0, out);
}

absl::StatusOr<SegmentHeader> DecodeSegmentHeader(std::span<const std::byte> in) {
  KV_RETURN_IF_ERROR(CheckPage(kSegmentPage, 0, in));
  SegmentHeader out;
  FieldReader fields(in.subspan(kFieldsAt));
  fields.Get(&out.device_uuid);
  fields.Get(&out.segment);
  fields.Get(&out.payload_bytes);
  if (out.payload_bytes == 0 || out.payload_bytes % kSlotAlignBytes != 0 || out.payload_bytes > kBlockBytesMax) {
    return absl::DataLossError(absl::StrCat("segment header: slots of ", out.payload_bytes,
                                            " bytes, expected a multiple of ", kSlotAlignBytes, " up to ",
                                            kBlockBytesMax));
  }
  return out;
}

void EncodeBlockHeader(const BlockHeader& in, uint64_t header_seed, SlotId slot, std::span<std::byte> out) {
  const bool encrypted = in.seal.key_id != 0;
  BeginPage(kBlockPage, out, encrypted ? kNvmeEncryptedVersion : kNvmeFormatVersion);
  const uint32_t at = slot.value();
  std::memcpy(out.data() + kSlotAt, &at, sizeof(at));
  FieldWriter fields(out.subspan(kFieldsAt));
  PutBlockFields(in, &fields);
  KV_CHECK(kFieldsAt + fields.written() == kSealAt);
  if (encrypted) {
    fields.Put(in.seal.key_id);
    fields.Put(uint32_t{0});
    fields.Put(in.seal.random);
    fields.Put(in.seal.tag);
  }
  EndPage(header_seed, out);
}

absl::StatusOr<BlockHeader> DecodeBlockHeader(std::span<const std::byte> in, uint64_t header_seed, SlotId slot) {
  KV_RETURN_IF_ERROR(CheckPage(kBlockPage, header_seed, in, kNvmeEncryptedVersion));
  const auto found = Load<uint32_t>(in, kSlotAt);
  if (found != slot.value()) {
    return absl::DataLossError(absl::StrCat("block header: belongs to slot ", found, ", found in slot ", slot.value()));
  }
  absl::StatusOr<BlockHeader> header = GetBlockFields("block header", FieldReader(in.subspan(kFieldsAt)));
  if (!header.ok() || Load<uint32_t>(in, kVersionAt) != kNvmeEncryptedVersion) return header;
  FieldReader fields(in.subspan(kSealAt));
  uint32_t unused = 0;
  fields.Get(&header->seal.key_id);
  fields.Get(&unused);
  fields.Get(&header->seal.random);
  fields.Get(&header->seal.tag);
  if (header->seal.key_id == 0) return absl::DataLossError("block header: is of an encrypted block and names no key");
  return header;
}

std::span<const std::byte> BoundToPayload(std::span<const std::byte> header_page) {
  KV_CHECK(header_page.size() == kNvmeHeaderBytes);
  return header_page.first(kTagAt);
}

void EncodeBlockRecord(const BlockHeader& in, std::span<std::byte> out) {
  KV_CHECK(out.size() == kBlockRecordBytes);
  FieldWriter fields(out);
  fields.Put(kCatalogVersion);
  PutBlockFields(in, &fields);
  fields.Put(in.seal.key_id);
  KV_CHECK(fields.written() == kBlockRecordBytes);
}

absl::StatusOr<BlockHeader> DecodeBlockRecord(std::span<const std::byte> in) {
  const bool keyless = in.size() == kBlockRecordBytes - sizeof(uint32_t);
  if (in.size() != kBlockRecordBytes && !keyless) {
    return absl::DataLossError(absl::StrCat("catalog record: ", in.size(), " bytes, expected ", kBlockRecordBytes));
  }
  const auto version = Load<uint32_t>(in, 0);
  if (version != (keyless ? kKeylessCatalogVersion : kCatalogVersion)) {
    return absl::FailedPreconditionError(
        absl::StrCat("catalog record: format version ", version, ", this build reads ", kCatalogVersion));
  }
  absl::StatusOr<BlockHeader> header = GetBlockFields("catalog record", FieldReader(in.subspan(sizeof(version))));
  if (header.ok() && !keyless) header->seal.key_id = Load<uint32_t>(in, kBlockRecordBytes - sizeof(uint32_t));
  return header;
}

uint64_t PayloadChecksum(std::span<const std::byte> payload) { return XXH3_64bits(payload.data(), payload.size()); }

}  // namespace kvartal::tier
