// The bytes on disk: superblock, segment headers, block headers. docs/ON_DISK_FORMAT.md describes them; this file is
// the only code that encodes or decodes them. Pure functions over byte spans; little-endian; any input is safe to
// decode.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "daemon/base/ids.h"
#include "daemon/base/limits.h"
#include "daemon/base/status.h"
#include "daemon/block/block_key.h"
#include "daemon/block/namespace_digest.h"
#include "daemon/cipher/tenant_cipher.h"

namespace kvartal::tier {

inline constexpr uint32_t kNvmeFormatVersion = 1;
// Of the header of an encrypted block alone: a build that cannot decrypt takes it for a miss.
inline constexpr uint32_t kNvmeEncryptedVersion = 2;
// Of the catalog and its records.
inline constexpr uint32_t kCatalogVersion = 2;
// Of one that knows no numbers of keys. It is read on, since it has what is erased and owed, and the headers are read,
// too. One of any other version is set aside.
inline constexpr uint32_t kKeylessCatalogVersion = 1;
using OwnerUidHash = std::array<uint8_t, 16>;  // of the tenant's uid: owners survive renaming and restarts

// Who a block is, everywhere outside this process. What a header must say for a read to count.
struct BlockIdentity {
  BlockKey key;
  NamespaceDigest digest;
  OwnerUidHash owner{};
  BlockKey parent;  // all zero for a head
  uint32_t depth = 0;
  uint32_t payload_bytes = 0;  // slot payload, padding included
  uint32_t tokens_per_block = 0;
  uint32_t shard_count = 1;
  uint32_t shard_bytes = 0;
};

struct BlockHeader {
  BlockIdentity identity;
  uint64_t generation = 0;      // one counter a device: tells a reused slot from its past
  int64_t first_commit_ms = 0;  // wall clock
  int64_t last_access_ms = 0;   // wall clock, as of the write; a catalog record is refreshed at times
  uint32_t pinned_until_s = 0;  // wall clock, seconds; 0: not pinned. In catalog records alone
  uint64_t payload_xxh3 = 0;    // 0 where the block is encrypted: a tag is stronger, and this would tell of its bytes
  cipher::BlockSeal seal{};     // in headers; a catalog record has the number of its key alone
};

// Once a device, in two copies (pages 0 and 1).
struct Superblock {
  std::array<uint8_t, 16> device_uuid{};
  uint64_t file_bytes = 0;
  uint64_t segment_bytes = 0;
  uint64_t header_seed =
      0;  // random and secret: what keeps a block header inside a client's payload from passing for ours
  uint64_t open_count = 0;  // raised and synced at every open, so that no generation is ever used twice
};

struct SegmentHeader {
  std::array<uint8_t, 16> device_uuid{};
  uint32_t segment = 0;
  uint32_t payload_bytes = 0;  // of each slot; slots follow the segment header back to back
};

// Each encodes into exactly kNvmeHeaderBytes, the last eight of which are the checksum of the others. Decode: DataLoss
// with what was wrong (magic, checksum, bounds); FailedPrecondition when an undamaged page has another format version.
void EncodeSuperblock(const Superblock& in, std::span<std::byte> out);
absl::StatusOr<Superblock> DecodeSuperblock(std::span<const std::byte> in);
// The version a page with a superblock's magic claims, damaged or not; nullopt for any other page.
std::optional<uint32_t> SuperblockVersion(std::span<const std::byte> in);
void EncodeSegmentHeader(const SegmentHeader& in, std::span<std::byte> out);
absl::StatusOr<SegmentHeader> DecodeSegmentHeader(std::span<const std::byte> in);
// `header_seed` is the device's; `slot` is where the header lies, so that a misplaced one is found out.
void EncodeBlockHeader(const BlockHeader& in, uint64_t header_seed, SlotId slot, std::span<std::byte> out);
absl::StatusOr<BlockHeader> DecodeBlockHeader(std::span<const std::byte> in, uint64_t header_seed, SlotId slot);
// What of an encoded header its encrypted payload is bound to: everything before the tag.
std::span<const std::byte> BoundToPayload(std::span<const std::byte> header_page);

// The same fields packed, and the number of the key: the value of a catalog record. One of kKeylessCatalogVersion is
// decoded as well: its block counts as one in the clear until its header says more.
inline constexpr size_t kBlockRecordBytes = 176;
void EncodeBlockRecord(const BlockHeader& in, std::span<std::byte> out);
absl::StatusOr<BlockHeader> DecodeBlockRecord(std::span<const std::byte> in);

uint64_t PayloadChecksum(std::span<const std::byte> payload);  // xxh3-64

}  // namespace kvartal::tier
