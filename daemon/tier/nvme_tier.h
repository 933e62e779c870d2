// NVMe: segments of a preallocated file, each of one slot size; a slot is a 4 KiB header kept by the daemon and the
// payload. Confined to the engine loop; transfers run on the disk threads behind BlockFile. Invariants: a slot is
// written or read only while taken; it is free for reuse only when no transfer of it is under way; no byte is delivered
// whose header or checksum disagrees.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/base/clock.h"
#include "daemon/device/block_file.h"
#include "daemon/tier/device_state.h"
#include "daemon/tier/nvme_catalog.h"
#include "daemon/tier/tier.h"

namespace kvartal::tier {

struct NvmeCounters {
  uint64_t blocks_written = 0, blocks_read = 0, bytes_written = 0, bytes_read = 0;
  uint64_t write_errors = 0, read_errors = 0;  // from the device
  uint64_t header_mismatches = 0, checksum_mismatches = 0;
  uint64_t keys_missing = 0;  // blocks whose key is gone
  uint64_t segment_headers_written = 0;
  uint64_t quarantined_slots = 0;  // now: their last write failed, nobody gets them for a while
};

// Whether a block lies on the disk as its domain's policy asks for by now: one that does not is served to nobody.
enum class Secrecy : uint8_t { kAsAsked, kInTheClear, kKeyGone };

class NvmeTier : public Tier {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // Reads or makes the superblock. FailedPrecondition: another format version, or a file that is not ours: the message
  // says to move it away. `file` and `clock` must outlive the tier.
  static absl::StatusOr<std::unique_ptr<NvmeTier>> Open(device::BlockFile* file, const Clock* clock);
  // Transfers under way end on the disk; their `done` no longer runs.
  ~NvmeTier() override;
  // Hex uuid from the superblock.
  const std::string& device_id() const;
  // By its errors; a device that holds transfers for too long is offline until it lets go of them.
  DeviceState device_state() const;

  TierKind kind() const override { return TierKind::kNvme; }
  uint64_t GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const override;
  void Grow(DomainId domain, uint32_t slot_bytes, uint64_t growth_bytes, GrowDone done) override;
  SlotId Take(DomainId domain, uint32_t slot_bytes) override;
  // Grow and Take in one, of a slot that lies right behind `after` where it can: blocks of a chain are written, and
  // given up, together. None: as a Grow that fails.
  SlotId TakeBehind(DomainId domain, uint32_t slot_bytes, SlotId after);
  void Give(DomainId domain, SlotId slot) override;
  uint64_t Shrink(DomainId domain, uint64_t keep_bytes, ShrinkDone done) override;
  uint64_t EmptyBytes(DomainId domain) const override;
  TierStats stats() const override;

  // Writes header and payload. `payload` must not move until `done`; its bytes may change meanwhile (a hostile client),
  // which makes the block unreadable, never wrong. The header with checksum and generation is what the catalog records.
  // False when the disk queue is full. FailedPrecondition: the key to encrypt it with is gone, nothing was written.
  using WriteDone = absl::AnyInvocable<void(absl::StatusOr<BlockHeader>)>;
  [[nodiscard]] bool Write(SlotId slot, const BlockIdentity& identity, int64_t first_commit_ms, int64_t last_access_ms,
                           std::span<const std::byte> payload, WriteDone done);
  // Reads into `payload` and verifies key, digest, owner, generation and checksum. DataLoss: a mismatch (treat as a
  // miss and drop the entry); FailedPrecondition: its key is gone, the same to do; Unavailable: the device failed.
  // False when the disk queue is full, or the device offline.
  [[nodiscard]] bool Read(SlotId slot, const BlockIdentity& identity, std::span<std::byte> payload, Done done);
  // The same, of a block that a client will ask for: after all reads that somebody waits for.
  [[nodiscard]] bool ReadAhead(SlotId slot, const BlockIdentity& identity, std::span<std::byte> payload, Done done);
  // Somebody waits for what is read ahead now.
  void Hasten(SlotId slot);
  // Nobody wants what a Read or ReadAhead was to bring. True: the disk had not begun with it, and its `done` will not
  // run; false: it is still to come.
  [[nodiscard]] bool TakeBack(SlotId slot);
  // Writes a block's bytes, verified, to another slot of its size. DataLoss: they were not the block's.
  // ResourceExhausted: the disk queue is full. After either nothing was written.
  void Copy(SlotId from, SlotId to, const BlockIdentity& identity, int64_t first_commit_ms, int64_t last_access_ms,
            WriteDone done);
  // Overwrites header and payload with zeros (deletion by policy, and what was copied away).
  [[nodiscard]] bool Erase(SlotId slot, Done done);
  // The domain's share of the device's bandwidth, in proportion to others'.
  void SetWeight(DomainId domain, uint32_t weight);

  // What the domain's blocks are encrypted with; null: nothing of it ever was. `required`: none is written, or taken
  // for its own, in the clear.
  void SetCipher(DomainId domain, std::shared_ptr<const cipher::TenantCipher> cipher, bool required);
  // False: they have to be encrypted, and there is no key now.
  bool MayWrite(DomainId domain) const;
  // REQUIRES: taken, and written, read or adopted with its key.
  Secrecy SecrecyOf(SlotId slot) const;

  // A segment can hold such a slot at all.
  bool Fits(uint32_t slot_bytes) const;
  // --- emptying a segment, so that slots of another size find room
  void SetHolder(SlotId slot, EntryId holder);
  // One segment hands out no slot any more until it is empty: the one with the least to move. False: there is none
  // whose blocks have a place elsewhere. REQUIRES: none is leaving.
  bool StartLeaving(uint32_t slot_bytes);
  void StopLeaving();
  bool leaving() const;
  bool IsLeaving(SlotId slot) const;
  std::vector<EntryId> LeavingHolders() const;

  // Recovery. Adopt marks a slot as taken by `domain`; false when the record does not fit this file (bounds, slot size,
  // in use). `generation` and `key_id` are the record's; a generation of 0 takes what the first read finds.
  bool Adopt(DomainId domain, SlotId slot, uint32_t slot_bytes, uint64_t generation = 0, uint32_t key_id = 0);
  // Reads every block header of the file, in batches, for a lost catalog. `batch` and `done` run on the engine loop.
  // What cannot be read is left out: DataLoss. Unavailable: the device failed so often that the scan was given up. Some
  // of the blocks were given up long ago, and one block may come twice. REQUIRES: no scan is under way.
  void ScanHeaders(absl::AnyInvocable<void(std::vector<CatalogRecord>)> batch, Done done);

  const NvmeCounters& counters() const;

 private:
  class State;
  explicit NvmeTier(std::shared_ptr<State> state);
  const std::shared_ptr<State> state_;  // shared with transfers under way
};

// Segment size for a file: a power of two between kSegmentMinBytes and kSegmentMaxBytes, about 1/64 of it. Pure.
uint64_t SegmentBytesFor(uint64_t file_bytes);

}  // namespace kvartal::tier
