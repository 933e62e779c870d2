// NVMe: one disk or several, each a preallocated file in segments of one slot size; a slot is a 4 KiB header kept by
// the daemon and the payload. Confined to the engine loop; transfers run on the disk threads behind BlockFile.
// Invariants: a slot is written or read only while taken; it is free for reuse only when no transfer of it is under
// way; no byte is delivered whose header or checksum disagrees; a disk that is sick takes no new blocks and costs the
// others nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/base/clock.h"
#include "daemon/device/block_file.h"
#include "daemon/tier/device_state.h"
#include "daemon/tier/disk_choice.h"
#include "daemon/tier/disk_map.h"
#include "daemon/tier/disk_set.h"
#include "daemon/tier/disk_stats.h"
#include "daemon/tier/nvme_catalog.h"
#include "daemon/tier/tier.h"

namespace kvartal::tier {

class NvmeDisk;

// Whether a block lies on the disk as its domain's policy asks for by now: one that does not is served to nobody.
enum class Secrecy : uint8_t { kAsAsked, kInTheClear, kKeyGone };

class NvmeTier : public Tier {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // A tier of one disk. Reads or makes the superblock. FailedPrecondition: another format version, or a file that is
  // not ours: the message says to move it away. `file` and `clock` must outlive the tier.
  static absl::StatusOr<std::unique_ptr<NvmeTier>> Open(device::BlockFile* file, const Clock* clock);
  // At least one, at most kDisksMax, of kNvmeBytesMax together.
  explicit NvmeTier(std::vector<std::shared_ptr<NvmeDisk>> disks);
  // Transfers under way end on the disks; their `done` no longer runs.
  ~NvmeTier() override;
  // Which slots lie on which disk.
  const DiskMap& map() const { return map_; }
  // Hex uuid from the superblock.
  const std::string& device_id(size_t disk = 0) const;
  // Of the best of the disks: what may be asked of the tier.
  DeviceState device_state() const;
  bool all_healthy() const;
  // Those that hold transfers for too long.
  DiskSet hanging() const;
  // REQUIRES: below, it lies on one.
  size_t DiskOf(SlotId slot) const;
  // Of the disk that a slot lies on.
  DeviceState DeviceStateOf(SlotId slot) const;
  // By the place of the disk.
  std::vector<DiskStats> disk_stats() const;

  TierKind kind() const override { return TierKind::kNvme; }
  uint64_t GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const override;
  void Grow(DomainId domain, uint32_t slot_bytes, uint64_t growth_bytes, GrowDone done) override;
  SlotId Take(DomainId domain, uint32_t slot_bytes) override;
  // Grow and Take in one, of a slot that lies right behind `after` where it can, on the disk that ChooseDisk says:
  // blocks of a chain are written, and given up, together. None: as a Grow that fails.
  SlotId TakeBehind(DomainId domain, uint32_t slot_bytes, SlotId after);
  // What lies in `parent` has a block behind it now: others begin runs of their own.
  void GoOnBehind(SlotId parent);
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
  // False when the disk queue is full, or the disk offline.
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
  void SetCipher(DomainId domain, const std::shared_ptr<const cipher::TenantCipher>& cipher, bool required);
  // False: they have to be encrypted, and there is no key now.
  bool MayWrite(DomainId domain) const;
  // REQUIRES: taken, and written, read or adopted with its key.
  Secrecy SecrecyOf(SlotId slot) const;

  // A segment of some disk that takes new blocks can hold such a slot at all.
  bool Fits(uint32_t slot_bytes) const { return DisksThatTake(slot_bytes) != kNoDisk; }
  // Those disks: only what is given up on one of them may make room for such a slot.
  DiskSet DisksThatTake(uint32_t slot_bytes) const;
  // In free slots of other sizes, on disks that take new blocks.
  uint64_t FreeInOtherSizes(uint32_t slot_bytes) const;
  // --- emptying a segment, so that slots of another size find room
  void SetHolder(SlotId slot, EntryId holder);
  // One segment hands out no slot any more until it is empty: of the first disk that has one to give, the one with the
  // least to move. Until then Grow finds room on that disk first. False: there is none whose blocks have a place
  // elsewhere. REQUIRES: none is leaving.
  bool StartLeaving(uint32_t slot_bytes);
  void StopLeaving();
  bool leaving() const;
  // And its slots are of that size: what is free of it is kept for its blocks.
  bool LeavesSize(uint32_t slot_bytes) const;
  // The disk that it lies on is. REQUIRES: one is leaving.
  bool LeavingHealthy() const;
  bool IsLeaving(SlotId slot) const;
  std::vector<EntryId> LeavingHolders() const;

  // Recovery. Adopt marks a slot as taken by `domain`; false when the record does not fit this file (bounds, slot size,
  // in use). `generation` and `key_id` are the record's; a generation of 0 takes what the first read finds.
  bool Adopt(DomainId domain, SlotId slot, uint32_t slot_bytes, uint64_t generation = 0, uint32_t key_id = 0);
  // Of a taken slot, by the header that lies there: what its block is encrypted under. False: that is known, or it is
  // in the clear, or the header is not that block's.
  bool LearnKey(SlotId slot, uint64_t generation, uint32_t key_id);
  // Reads every block header of those disks, in batches, for a lost catalog. `batch` and `done` run on the engine loop.
  // What cannot be read is left out: DataLoss. Unavailable: the device failed so often that the scan was given up. Some
  // of the blocks were given up long ago, and one block may come twice. REQUIRES: no scan is under way.
  void ScanHeaders(absl::AnyInvocable<void(std::vector<CatalogRecord>)> batch, Done done, DiskSet which = kAllDisks);

  // Of all disks together.
  NvmeCounters counters() const;

 private:
  struct Place {
    const std::shared_ptr<NvmeDisk>& disk;
    SlotId slot;  // on it
  };

  Place At(SlotId slot) const;
  std::optional<size_t> Choose(uint32_t slot_bytes, const std::optional<ChainRun>& run) const;
  std::optional<size_t> LeavingDisk() const;
  // Of a slot that has just been added to the domain there.
  SlotId TakeOn(size_t disk, DomainId domain, uint32_t slot_bytes);

  const std::vector<std::shared_ptr<NvmeDisk>> disks_;  // shared with transfers under way
  const DiskMap map_;
};

// Segment size for a file: a power of two between kSegmentMinBytes and kSegmentMaxBytes, about 1/64 of it. Pure.
uint64_t SegmentBytesFor(uint64_t file_bytes);

}  // namespace kvartal::tier
