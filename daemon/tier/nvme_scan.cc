#include "daemon/tier/nvme_scan.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/mapping.h"

namespace kvartal::tier {

struct HeaderScan::Read {
  Mapping page;
  uint32_t segment = 0;
  uint32_t payload_bytes = 0;  // 0: this is the segment's header
  SlotId slot;
  std::span<const std::byte> bytes() const { return {page.data(), page.size()}; }
};

HeaderScan::HeaderScan(device::BlockFile* file, const Superblock& superblock, const SegmentTable* segments,
                       absl::AnyInvocable<void()> on_room, Batch batch, Done done)
    : file_(file),
      superblock_(superblock),
      segments_(segments),
      on_room_(std::move(on_room)),
      batch_(std::move(batch)),
      done_(std::move(done)) {}

bool HeaderScan::GaveUp() const { return errors_ >= kScanErrorsMax; }

bool HeaderScan::HasNext() const {
  return !GaveUp() && (!ranges_.empty() || next_segment_ < segments_->segment_count());
}

void HeaderScan::Step() {
  if (finished_) return;
  while (reads_under_way_ < kScanReadsMax && HasNext() && SubmitNext()) {
  }
  if (finished_ || HasNext() || reads_under_way_ > 0) return;
  const std::shared_ptr<HeaderScan> alive = shared_from_this();
  HandOut();
  if (finished_) return;  // cancelled by what was handed the batch
  finished_ = true;
  if (GaveUp())
    return done_(absl::UnavailableError(absl::StrCat("gave up reading headers after ", errors_, " device errors")));
  done_(errors_ == 0 ? absl::OkStatus() : absl::DataLossError(absl::StrCat(errors_, " headers could not be read")));
}

// False when the disk takes no more now: some transfer that ends will bring Step back.
bool HeaderScan::SubmitNext() {
  auto read = std::make_unique<Read>();
  if (spare_pages_.empty()) {
    absl::StatusOr<Mapping> page = Mapping::Anonymous(kNvmeHeaderBytes);
    KV_CHECK(page.ok());
    spare_pages_.push_back(*std::move(page));
  }
  read->page = std::move(spare_pages_.back());
  spare_pages_.pop_back();
  device::BlockIo io;
  if (!ranges_.empty()) {
    const Range& range = ranges_.back();
    read->segment = range.segment;
    read->payload_bytes = range.payload_bytes;
    read->slot = segments_->SlotAt(range.segment, range.payload_bytes, range.next_index);
    io.offset = uint64_t{read->slot.value()} * kSlotAlignBytes;
  } else {
    read->segment = next_segment_;
    io.offset = segments_->HeaderOffsetOf(next_segment_);
  }
  const bool of_slot = read->slot.valid();
  io.op = device::BlockIo::Op::kRead;
  io.parts[0] = {read->page.data(), read->page.size()};
  io.done = [scan = shared_from_this(), read = std::move(read)](const absl::Status& status) {
    scan->OnRead(read.get(), status);
  };
  if (!file_->Submit(std::move(io))) return false;
  ++reads_under_way_;
  if (!of_slot) {
    ++next_segment_;
  } else if (++ranges_.back().next_index >= segments_->SlotsOf(ranges_.back().segment, ranges_.back().payload_bytes)) {
    ranges_.pop_back();
  }
  return true;
}

void HeaderScan::OnRead(Read* read, const absl::Status& status) {
  if (finished_) return;
  --reads_under_way_;
  if (!status.ok()) {
    ++errors_;
  } else if (read->slot.valid()) {
    OnBlockHeader(*read);
  } else {
    OnSegmentHeader(*read);
  }
  spare_pages_.push_back(std::move(read->page));
  on_room_();
  Step();
}

// A segment that was never used, or was used by an earlier life of the file, has no header of this device.
void HeaderScan::OnSegmentHeader(const Read& read) {
  const absl::StatusOr<SegmentHeader> header = DecodeSegmentHeader(read.bytes());
  if (!header.ok() || header->device_uuid != superblock_.device_uuid || header->segment != read.segment) return;
  if (segments_->SlotsOf(read.segment, header->payload_bytes) == 0) return;
  ranges_.push_back({read.segment, header->payload_bytes, 0});
}

void HeaderScan::OnBlockHeader(const Read& read) {
  const absl::StatusOr<BlockHeader> header = DecodeBlockHeader(read.bytes(), superblock_.header_seed, read.slot);
  if (!header.ok() || header->identity.payload_bytes != read.payload_bytes) return;
  records_.push_back({read.slot, *header});
  if (records_.size() >= kRecoveryBatchMax) HandOut();
}

void HeaderScan::HandOut() {
  if (!records_.empty()) batch_(std::exchange(records_, {}));
}

}  // namespace kvartal::tier
