// Reads every segment header and block header of the file, for a lost catalog: bounded batches, several reads under
// way. Confined to the engine loop. Invariants: `done` runs once, whatever the disk does, unless the scan is cancelled;
// at most kScanReadsMax reads are under way.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/base/mapping.h"
#include "daemon/device/block_file.h"
#include "daemon/tier/nvme_catalog.h"
#include "daemon/tier/nvme_format.h"
#include "daemon/tier/nvme_segment.h"

namespace kvartal::tier {

class HeaderScan : public std::enable_shared_from_this<HeaderScan> {
 public:
  using Batch = absl::AnyInvocable<void(std::vector<CatalogRecord>)>;
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // `segments` is used for geometry alone. `on_room` runs after each read, when the disk queue has room for others too.
  HeaderScan(device::BlockFile* file, const Superblock& superblock, const SegmentTable* segments,
             absl::AnyInvocable<void()> on_room, Batch batch, Done done);

  // Submits what it may. To be called once at the start, and whenever the disk queue may have room again.
  void Step();
  void Cancel() { finished_ = true; }
  bool finished() const { return finished_; }

 private:
  struct Read;
  bool SubmitNext();
  void OnRead(Read* read, const absl::Status& status);
  void OnSegmentHeader(const Read& read);
  void OnBlockHeader(const Read& read);
  void HandOut();
  bool GaveUp() const;
  bool HasNext() const;

  device::BlockFile* const file_;
  const Superblock superblock_;
  const SegmentTable* const segments_;
  absl::AnyInvocable<void()> on_room_;
  Batch batch_;
  Done done_;

  struct Range {
    uint32_t segment;
    uint32_t payload_bytes;
    uint32_t next_index;
  };
  std::vector<Range> ranges_;  // segments whose slots are being read; the last one first
  uint32_t next_segment_ = 0;
  size_t reads_under_way_ = 0;
  std::vector<Mapping> spare_pages_;
  std::vector<CatalogRecord> records_;
  uint64_t errors_ = 0;
  bool finished_ = false;
};

}  // namespace kvartal::tier
