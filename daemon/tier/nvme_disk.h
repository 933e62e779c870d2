// One disk of an NvmeTier, with slots, health, queue and superblock of its own; it knows no other. Transfers under way
// hold it, so that it outlives the tier while the disk is at work.
// Confined to the engine loop, except for what a transfer does on a disk thread (nvme_transfer.h). Invariants: the
// tier's; a SlotId is a place on this disk.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/base/mapping.h"
#include "daemon/tier/bounce_buffers.h"
#include "daemon/tier/device_health.h"
#include "daemon/tier/disk_choice.h"
#include "daemon/tier/disk_stats.h"
#include "daemon/tier/nvme_scan.h"
#include "daemon/tier/nvme_segment.h"
#include "daemon/tier/nvme_slots.h"
#include "daemon/tier/nvme_superblock.h"
#include "daemon/tier/nvme_tier.h"
#include "daemon/tier/nvme_transfer.h"

namespace kvartal::tier {

class NvmeDisk : public std::enable_shared_from_this<NvmeDisk> {
 public:
  using Done = NvmeTier::Done;
  using WriteDone = NvmeTier::WriteDone;

  // Reads or makes the superblock: the errors are NvmeTier::Open's.
  static absl::StatusOr<std::shared_ptr<NvmeDisk>> Open(device::BlockFile* file, const Clock* clock);
  NvmeDisk(device::BlockFile* file, const Clock* clock, const Superblock& superblock);

  NvmeSlots& slots() { return slots_; }
  SegmentTable& segments() { return segments_; }
  const std::string& device_id() const { return device_id_; }
  // Of the address space: what slots may lie in.
  uint64_t size_bytes() const { return size_bytes_; }
  // Of that, without what is no slot's.
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  DiskStats Stats() const;
  DiskLoad LoadFor(uint32_t slot_bytes) const;
  // By its errors; a device that holds transfers for too long is offline until it lets go of them.
  bool Hangs() const { return file_->Overdue() > 0; }
  DeviceState device_state() const { return Hangs() ? DeviceState::kOffline : health_.state(); }
  bool Healthy() const { return device_state() == DeviceState::kHealthy; }
  uint64_t GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const;
  // It takes new blocks, and a segment can hold such a slot.
  bool MayTake(uint32_t slot_bytes) const;

  bool Write(SlotId slot, const BlockIdentity& identity, int64_t first_commit_ms, int64_t last_access_ms,
             std::span<const std::byte> payload, WriteDone done);
  bool Read(SlotId slot, const BlockIdentity& identity, std::span<std::byte> payload, device::IoClass io_class,
            Done done);
  // `to` is a place on `target`, which may be this disk.
  void Copy(SlotId from, const std::shared_ptr<NvmeDisk>& target, SlotId to, const BlockIdentity& identity,
            int64_t first_commit_ms, int64_t last_access_ms, WriteDone done);
  bool Erase(SlotId slot, Done done);
  void Hasten(SlotId slot);
  bool TakeBack(SlotId slot);
  void SetWeight(DomainId domain, uint32_t weight) { file_->SetWeight(domain, weight); }
  void SetCipher(DomainId domain, DomainCipher cipher) { CipherOf(domain)->Set(std::move(cipher)); }
  bool MayWrite(DomainId domain);
  Secrecy SecrecyOf(SlotId slot);
  void Scan(absl::AnyInvocable<void(std::vector<CatalogRecord>)> batch, Done done);
  void Close();

 private:
  using TransferPtr = std::shared_ptr<NvmeTransfer>;
  // The header of a segment is written once the segment has a size and before any of its slots.
  struct SegmentPage {
    uint32_t written = 0;  // the slot size that is on the disk; 0: not known
    uint32_t writing = 0;
    std::vector<TransferPtr> waiting;  // writes of slots, in order
  };

  TransferPtr NewTransfer(SlotId slot, const BlockIdentity& identity, std::span<const std::byte> payload);
  void Recycle(TransferPtr transfer);
  bool SubmitWrite(const TransferPtr& transfer);
  void OnWritten(const TransferPtr& transfer, const absl::Status& status);
  void OnRead(const TransferPtr& transfer, const absl::Status& status);
  const std::shared_ptr<PresentCipher>& CipherOf(DomainId domain);
  void OnErased(SlotId slot, const absl::Status& status, Done done);
  bool WriteSegmentPage(uint32_t segment);
  void OnSegmentPage(uint32_t segment, const absl::Status& status);
  bool SubmitWaiting(uint32_t segment);
  void WaitsNoMore(const NvmeTransfer& transfer);
  void SubmitStalled();
  void OnQueueRoom();
  void NoteResult(const absl::Status& status, uint64_t* errors);

  device::BlockFile* const file_;
  const Superblock superblock_;
  const std::string device_id_;
  const uint64_t size_bytes_;
  SegmentTable segments_;
  NvmeSlots slots_;
  DeviceHealth health_;
  std::vector<SegmentPage> pages_;  // by segment
  // Segments whose waiting writes may be submitted as soon as the disk queue has room, the first one first.
  std::vector<uint32_t> stalled_;
  absl::flat_hash_map<DomainId, uint32_t> waiting_of_;  // writes that wait, in whatever segment
  absl::flat_hash_map<DomainId, std::shared_ptr<PresentCipher>> ciphers_;
  BounceBuffers bounce_;
  std::vector<TransferPtr> spare_;
  std::shared_ptr<HeaderScan> scan_;
  Mapping zeros_;  // never written: the kernel's zero page, whatever its size
  uint64_t next_generation_;
  const uint64_t capacity_bytes_;
  bool closed_ = false;
  DeviceState told_state_ = DeviceState::kHealthy;  // by the errors, as the log said last
  NvmeCounters counters_;
};

}  // namespace kvartal::tier
