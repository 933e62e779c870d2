#include "daemon/tier/nvme_tier.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"
#include "daemon/base/mapping.h"
#include "daemon/base/units.h"
#include "daemon/tier/device_health.h"
#include "daemon/tier/nvme_scan.h"
#include "daemon/tier/nvme_segment.h"
#include "daemon/tier/nvme_slots.h"
#include "daemon/tier/nvme_superblock.h"
#include "daemon/tier/nvme_transfer.h"

namespace kvartal::tier {
namespace {

// Generations of one opening of the device follow its open count: none is ever used twice, however the clocks go.
constexpr int kGenerationCountBits = 40;

using Verdict = NvmeTransfer::Verdict;

uint32_t PayloadOf(uint32_t slot_bytes) { return static_cast<uint32_t>(RoundUp(slot_bytes, kSlotAlignBytes)); }
uint64_t OffsetOf(SlotId slot) { return uint64_t{slot.value()} * kSlotAlignBytes; }

// A disk or a client may fail a million times: the log grows with the logarithm.
bool WorthALine(uint64_t times_seen) { return std::has_single_bit(times_seen); }

Mapping NewPages(uint64_t bytes) {
  absl::StatusOr<Mapping> pages = Mapping::Anonymous(bytes);
  KV_CHECK(pages.ok());
  return *std::move(pages);
}

device::BlockIo SlotIo(device::BlockIo::Op op, device::IoClass io_class, DomainId owner, const NvmeTransfer& transfer) {
  device::BlockIo io;
  io.op = op;
  io.io_class = io_class;
  io.owner = owner;
  io.offset = OffsetOf(transfer.slot);
  io.parts[0] = {transfer.page.data(), transfer.page.size()};
  io.parts[1] = {transfer.payload.data(), transfer.payload.size()};
  io.part_count = 2;
  return io;
}

}  // namespace

uint64_t SegmentBytesFor(uint64_t file_bytes) {
  return std::clamp(std::bit_floor(std::max<uint64_t>(file_bytes / 64, 1)), kSegmentMinBytes, kSegmentMaxBytes);
}

class NvmeTier::State : public std::enable_shared_from_this<NvmeTier::State> {
 public:
  State(device::BlockFile* file, const Clock* clock, const Superblock& superblock);

  NvmeSlots& slots() { return slots_; }
  SegmentTable& segments() { return segments_; }
  const std::string& device_id() const { return device_id_; }
  NvmeCounters& counters();
  DeviceState device_state() const { return file_->Overdue() > 0 ? DeviceState::kOffline : health_.state(); }
  bool Healthy() const { return device_state() == DeviceState::kHealthy; }
  uint64_t GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const;
  TierStats Stats() const;

  bool Write(SlotId slot, const BlockIdentity& identity, int64_t first_commit_ms, int64_t last_access_ms,
             std::span<const std::byte> payload, WriteDone done);
  bool Read(SlotId slot, const BlockIdentity& identity, std::span<std::byte> payload, device::IoClass io_class,
            Done done);
  void Copy(SlotId from, SlotId to, const BlockIdentity& identity, int64_t first_commit_ms, int64_t last_access_ms,
            WriteDone done);
  bool Erase(SlotId slot, Done done);
  void Hasten(SlotId slot) { file_->Hasten(slots_.DomainOf(slot), OffsetOf(slot)); }
  bool TakeBack(SlotId slot);
  void SetWeight(DomainId domain, uint32_t weight) { file_->SetWeight(domain, weight); }
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
  void OnErased(SlotId slot, const absl::Status& status, Done done);
  bool WriteSegmentPage(uint32_t segment);
  void OnSegmentPage(uint32_t segment, const absl::Status& status);
  bool SubmitWaiting(uint32_t segment);
  void OnQueueRoom();
  void NoteResult(const absl::Status& status, uint64_t* errors);

  device::BlockFile* const file_;
  const Superblock superblock_;
  const std::string device_id_;
  SegmentTable segments_;
  NvmeSlots slots_;
  DeviceHealth health_;
  std::vector<SegmentPage> pages_;  // by segment
  std::vector<uint32_t>
      stalled_;  // segments with waiting writes that may be submitted as soon as the disk queue has room
  std::vector<TransferPtr> spare_;
  std::shared_ptr<HeaderScan> scan_;
  Mapping zeros_;  // never written: the kernel's zero page, whatever its size
  uint64_t next_generation_;
  const uint64_t capacity_bytes_;
  bool closed_ = false;
  DeviceState told_state_ = DeviceState::kHealthy;  // by the errors, as the log said last
  NvmeCounters counters_;
};

NvmeTier::State::State(device::BlockFile* file, const Clock* clock, const Superblock& superblock)
    : file_(file),
      superblock_(superblock),
      device_id_(DeviceIdOf(superblock)),
      // A SlotId has 32 bits: what lies above 16 TiB is not used.
      segments_(kNvmeDataStartBytes, std::min(file->size_bytes(), uint64_t{UINT32_MAX} * kSlotAlignBytes),
                superblock.segment_bytes),
      slots_(&segments_),
      health_(clock),
      pages_(segments_.segment_count()),
      next_generation_((superblock.open_count << kGenerationCountBits) + 1),
      capacity_bytes_(segments_.capacity_bytes()) {}

uint64_t NvmeTier::State::GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const {
  if (slot_bytes == 0 || slot_bytes > kBlockBytesMax || !Healthy()) return 0;
  const uint64_t bytes = NvmeSlots::ExtentBytes(PayloadOf(slot_bytes));
  return bytes <= at_most_bytes && segments_.CanReserve(PayloadOf(slot_bytes)) ? bytes : 0;
}

TierStats NvmeTier::State::Stats() const {
  TierStats stats;
  stats.capacity_bytes = capacity_bytes_;
  stats.granted_bytes = slots_.granted_bytes();
  stats.used_bytes = slots_.used_bytes();
  stats.slots_used = slots_.slots_taken();
  stats.healthy = Healthy();
  return stats;
}

// --- transfers

NvmeTier::State::TransferPtr NvmeTier::State::NewTransfer(SlotId slot, const BlockIdentity& identity,
                                                          std::span<const std::byte> payload) {
  KV_CHECK(payload.size() == slots_.PayloadBytesOf(slot) && identity.payload_bytes == payload.size());
  TransferPtr transfer;
  if (spare_.empty()) {
    transfer = std::make_shared<NvmeTransfer>();
    transfer->page = NewPages(kNvmeHeaderBytes);
    transfer->header_seed = superblock_.header_seed;
  } else {
    transfer = std::move(spare_.back());
    spare_.pop_back();
  }
  transfer->slot = slot;
  transfer->header = BlockHeader{.identity = identity};
  transfer->payload = {const_cast<std::byte*>(payload.data()), payload.size()};  // a write only reads it
  transfer->verdict = Verdict::kFine;
  return transfer;
}

void NvmeTier::State::Recycle(TransferPtr transfer) {
  transfer->write_done = nullptr;
  transfer->read_done = nullptr;
  transfer->payload = {};
  if (spare_.size() < kSpareTransfersMax) spare_.push_back(std::move(transfer));
}

bool NvmeTier::State::Write(SlotId slot, const BlockIdentity& identity, int64_t first_commit_ms, int64_t last_access_ms,
                            std::span<const std::byte> payload, WriteDone done) {
  if (!slots_.Idle(slot)) KV_BUG("an nvme slot is written while another transfer of it is under way");
  const uint32_t segment = *segments_.SegmentOf(slot);
  SegmentPage& page = pages_[segment];
  const bool first = page.writing == 0 && page.waiting.empty();
  const bool wait = !first || page.written != payload.size();
  if (wait && first && !WriteSegmentPage(segment)) return false;

  TransferPtr transfer = NewTransfer(slot, identity, payload);
  transfer->header.generation = next_generation_++;
  transfer->header.first_commit_ms = first_commit_ms;
  transfer->header.last_access_ms = last_access_ms;
  transfer->write_done = std::move(done);
  if (wait) {
    page.waiting.push_back(transfer);
  } else if (!SubmitWrite(transfer)) {
    Recycle(std::move(transfer));
    return false;
  }
  slots_.SetGeneration(slot, transfer->header.generation);
  slots_.BeginTransfer(slot);
  return true;
}

bool NvmeTier::State::SubmitWrite(const TransferPtr& transfer) {
  device::BlockIo io =
      SlotIo(device::BlockIo::Op::kWrite, device::IoClass::kDemotion, slots_.DomainOf(transfer->slot), *transfer);
  io.on_disk_thread = [transfer] { return transfer->Seal(); };
  io.done = [self = shared_from_this(), transfer](const absl::Status& status) { self->OnWritten(transfer, status); };
  return file_->Submit(std::move(io));
}

void NvmeTier::State::OnWritten(const TransferPtr& transfer, const absl::Status& status) {
  if (closed_) return;
  NoteResult(status, &counters_.write_errors);
  slots_.SetWriteFailed(transfer->slot, !status.ok());
  if (status.ok()) {
    ++counters_.blocks_written;
    counters_.bytes_written += NvmeSlots::ExtentBytes(transfer->header.identity.payload_bytes);
  }
  slots_.EndTransfer(transfer->slot);
  WriteDone done = std::move(transfer->write_done);
  absl::StatusOr<BlockHeader> result = transfer->header;
  if (!status.ok()) result = absl::UnavailableError(status.message());
  Recycle(transfer);
  done(std::move(result));
  OnQueueRoom();
}

bool NvmeTier::State::Read(SlotId slot, const BlockIdentity& identity, std::span<std::byte> payload,
                           device::IoClass io_class, Done done) {
  if (device_state() == DeviceState::kOffline) return false;
  TransferPtr transfer = NewTransfer(slot, identity, payload);
  transfer->header.generation = slots_.GenerationOf(slot);
  transfer->read_done = std::move(done);
  device::BlockIo io = SlotIo(device::BlockIo::Op::kRead, io_class, slots_.DomainOf(slot), *transfer);
  io.on_disk_thread = [transfer] { return transfer->Verify(); };
  io.done = [self = shared_from_this(), transfer](const absl::Status& status) { self->OnRead(transfer, status); };
  if (!file_->Submit(std::move(io))) {
    Recycle(std::move(transfer));
    return false;
  }
  slots_.BeginTransfer(slot);
  return true;
}

bool NvmeTier::State::TakeBack(SlotId slot) {
  if (!file_->Withdraw(slots_.DomainOf(slot), OffsetOf(slot))) return false;
  slots_.EndTransfer(slot);
  return true;
}

void NvmeTier::State::OnRead(const TransferPtr& transfer, const absl::Status& status) {
  if (closed_) return;
  absl::Status result = status;
  if (transfer->verdict != Verdict::kFine) {
    uint64_t& mismatches =
        transfer->verdict == Verdict::kBadHeader ? counters_.header_mismatches : counters_.checksum_mismatches;
    if (WorthALine(++mismatches)) Log(LogLevel::kWarning, "nvme", "a block is lost: ", std::string(status.message()));
  } else {
    NoteResult(status, &counters_.read_errors);
    if (!status.ok()) result = absl::UnavailableError(status.message());
  }
  if (status.ok()) {
    ++counters_.blocks_read;
    counters_.bytes_read += NvmeSlots::ExtentBytes(transfer->header.identity.payload_bytes);
    slots_.SetGeneration(transfer->slot, transfer->header.generation);
  }
  slots_.EndTransfer(transfer->slot);
  Done done = std::move(transfer->read_done);
  Recycle(transfer);
  done(std::move(result));
  OnQueueRoom();
}

void NvmeTier::State::Copy(SlotId from, SlotId to, const BlockIdentity& identity, int64_t first_commit_ms,
                           int64_t last_access_ms, WriteDone done) {
  const auto buffer = std::make_shared<Mapping>(NewPages(identity.payload_bytes));
  const std::span<std::byte> payload(buffer->data(), identity.payload_bytes);
  const auto told = std::make_shared<WriteDone>(std::move(done));
  const absl::Status no_room = absl::ResourceExhaustedError("the disk queue is full");
  const bool queued = Read(from, identity, payload, device::IoClass::kDemotion, [=, this](const absl::Status& read) {
    if (!read.ok()) return (*told)(read);
    const auto on_written = [buffer, told](absl::StatusOr<BlockHeader> written) { (*told)(std::move(written)); };
    if (!Write(to, identity, first_commit_ms, last_access_ms, payload, on_written)) (*told)(no_room);
  });
  if (!queued) (*told)(no_room);
}

bool NvmeTier::State::Erase(SlotId slot, Done done) {
  if (!slots_.Idle(slot)) KV_BUG("an nvme slot is erased while a transfer of it is under way");
  if (zeros_.data() == nullptr) zeros_ = NewPages(kNvmeHeaderBytes + kBlockBytesMax);
  device::BlockIo io;
  io.op = device::BlockIo::Op::kWrite;
  io.owner = slots_.DomainOf(slot);
  io.offset = OffsetOf(slot);
  io.parts[0] = {zeros_.data(), NvmeSlots::ExtentBytes(slots_.PayloadBytesOf(slot))};
  io.done = [self = shared_from_this(), slot, erased = std::move(done)](const absl::Status& status) mutable {
    self->OnErased(slot, status, std::move(erased));
  };
  if (!file_->Submit(std::move(io))) return false;
  slots_.BeginTransfer(slot);
  return true;
}

void NvmeTier::State::OnErased(SlotId slot, const absl::Status& status, Done done) {
  if (closed_) return;
  NoteResult(status, &counters_.write_errors);
  slots_.SetWriteFailed(slot, !status.ok());
  slots_.EndTransfer(slot);
  done(status.ok() ? absl::OkStatus() : absl::UnavailableError(status.message()));
  OnQueueRoom();
}

// --- the header of a segment

bool NvmeTier::State::WriteSegmentPage(uint32_t segment) {
  auto page = std::make_shared<Mapping>(NewPages(kNvmeHeaderBytes));
  const uint32_t payload_bytes = segments_.PayloadBytesOf(segment);
  EncodeSegmentHeader({superblock_.device_uuid, segment, payload_bytes}, {page->data(), page->size()});
  device::BlockIo io;
  io.op = device::BlockIo::Op::kWrite;
  io.io_class = device::IoClass::kDemotion;
  io.offset = segments_.HeaderOffsetOf(segment);
  io.parts[0] = {page->data(), page->size()};
  io.done = [self = shared_from_this(), page, segment](const absl::Status& status) {
    self->OnSegmentPage(segment, status);
  };
  if (!file_->Submit(std::move(io))) return false;
  pages_[segment].written = 0;
  pages_[segment].writing = payload_bytes;
  return true;
}

void NvmeTier::State::OnSegmentPage(uint32_t segment, const absl::Status& status) {
  if (closed_) return;
  NoteResult(status, &counters_.write_errors);
  SegmentPage& page = pages_[segment];
  page.written = status.ok() ? page.writing : 0;
  page.writing = 0;
  std::vector<TransferPtr> failed;
  if (status.ok()) {
    ++counters_.segment_headers_written;
    stalled_.push_back(segment);
  } else {
    failed = std::exchange(page.waiting, {});
  }
  for (TransferPtr& transfer : failed) {
    slots_.SetWriteFailed(transfer->slot, true);
    slots_.EndTransfer(transfer->slot);
    WriteDone done = std::move(transfer->write_done);
    Recycle(std::move(transfer));
    done(absl::UnavailableError(absl::StrCat("the header of nvme segment ", segment, ": ", status.message())));
    if (closed_) return;
  }
  OnQueueRoom();
}

// False when the disk queue has no room for all of it.
bool NvmeTier::State::SubmitWaiting(uint32_t segment) {
  SegmentPage& page = pages_[segment];
  if (page.waiting.empty() || page.writing != 0) return true;
  // Emptied meanwhile, and taken for another size.
  if (page.written != segments_.PayloadBytesOf(segment)) return WriteSegmentPage(segment);
  size_t sent = 0;
  while (sent < page.waiting.size() && SubmitWrite(page.waiting[sent])) ++sent;
  page.waiting.erase(page.waiting.begin(), page.waiting.begin() + static_cast<ptrdiff_t>(sent));
  return page.waiting.empty();
}

// Every transfer that ends comes by: what the full queue had no room for is submitted now.
void NvmeTier::State::OnQueueRoom() {
  if (closed_) return;
  while (!stalled_.empty() && SubmitWaiting(stalled_.back())) stalled_.pop_back();
  if (scan_ != nullptr) scan_->Step();
}

void NvmeTier::State::NoteResult(const absl::Status& status, uint64_t* errors) {
  if (status.ok()) {
    health_.OnSuccess();
  } else {
    health_.OnError();
    if (WorthALine(++*errors)) Log(LogLevel::kWarning, "nvme", "device error: ", std::string(status.message()));
  }
  if (health_.state() == told_state_) return;
  told_state_ = health_.state();
  constexpr const char* kWhat[] = {" takes new blocks again",
                                   " failed too often: it takes no new blocks for now, reads go on",
                                   " failed again and again: it is left alone for now, what it holds is kept"};
  Log(told_state_ == DeviceState::kHealthy ? LogLevel::kInfo : LogLevel::kError, "nvme", "device ", device_id_,
      kWhat[static_cast<size_t>(told_state_)]);
}

void NvmeTier::State::Scan(absl::AnyInvocable<void(std::vector<CatalogRecord>)> batch, Done done) {
  KV_CHECK(scan_ == nullptr || scan_->finished());
  const auto on_room = [weak = weak_from_this()] {
    if (const std::shared_ptr<State> self = weak.lock()) self->OnQueueRoom();
  };
  scan_ = std::make_shared<HeaderScan>(file_, superblock_, &segments_, on_room, std::move(batch), std::move(done));
  scan_->Step();
}

NvmeCounters& NvmeTier::State::counters() {
  counters_.quarantined_slots = slots_.quarantined();
  return counters_;
}

void NvmeTier::State::Close() {
  closed_ = true;
  for (SegmentPage& page : pages_) page.waiting.clear();
  if (scan_ != nullptr) scan_->Cancel();
}

// --- the tier

NvmeTier::NvmeTier(std::shared_ptr<State> state) : state_(std::move(state)) {}
NvmeTier::~NvmeTier() { state_->Close(); }

absl::StatusOr<std::unique_ptr<NvmeTier>> NvmeTier::Open(device::BlockFile* file, const Clock* clock) {
  KV_ASSIGN_OR_RETURN(const Superblock superblock, OpenSuperblock(file));
  return std::unique_ptr<NvmeTier>(new NvmeTier(std::make_shared<State>(file, clock, superblock)));
}

const std::string& NvmeTier::device_id() const { return state_->device_id(); }
DeviceState NvmeTier::device_state() const { return state_->device_state(); }
const NvmeCounters& NvmeTier::counters() const { return state_->counters(); }

uint64_t NvmeTier::GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const {
  return state_->GrowthBytes(slot_bytes, at_most_bytes);
}
void NvmeTier::Grow(DomainId domain, uint32_t slot_bytes, uint64_t growth_bytes, GrowDone done) {
  KV_CHECK(slot_bytes > 0 && growth_bytes == NvmeSlots::ExtentBytes(PayloadOf(slot_bytes)));
  const bool grown = state_->slots().Grow(domain, PayloadOf(slot_bytes));
  done(grown ? absl::OkStatus()
             : absl::ResourceExhaustedError(absl::StrCat("no free nvme slot for ", slot_bytes, " bytes")));
}
SlotId NvmeTier::TakeBehind(DomainId domain, uint32_t slot_bytes, SlotId after) {
  if (!state_->slots().GrowBehind(domain, PayloadOf(slot_bytes), after)) return SlotId::None();
  return state_->slots().Take(domain, PayloadOf(slot_bytes));
}
SlotId NvmeTier::Take(DomainId domain, uint32_t slot_bytes) {
  return state_->slots().Take(domain, PayloadOf(slot_bytes));
}
void NvmeTier::Give(DomainId domain, SlotId slot) { state_->slots().Give(domain, slot); }
uint64_t NvmeTier::Shrink(DomainId domain, uint64_t keep_bytes, ShrinkDone done) {
  const uint64_t bytes = state_->slots().Shrink(domain, keep_bytes);
  done();
  return bytes;
}
uint64_t NvmeTier::EmptyBytes(DomainId domain) const { return state_->slots().EmptyBytes(domain); }
TierStats NvmeTier::stats() const { return state_->Stats(); }

bool NvmeTier::Write(SlotId slot, const BlockIdentity& identity, int64_t first_commit_ms, int64_t last_access_ms,
                     std::span<const std::byte> payload, WriteDone done) {
  return state_->Write(slot, identity, first_commit_ms, last_access_ms, payload, std::move(done));
}
bool NvmeTier::Read(SlotId slot, const BlockIdentity& identity, std::span<std::byte> payload, Done done) {
  return state_->Read(slot, identity, payload, device::IoClass::kDemandRead, std::move(done));
}
bool NvmeTier::ReadAhead(SlotId slot, const BlockIdentity& identity, std::span<std::byte> payload, Done done) {
  return state_->Read(slot, identity, payload, device::IoClass::kPromotion, std::move(done));
}
void NvmeTier::Hasten(SlotId slot) { state_->Hasten(slot); }
bool NvmeTier::TakeBack(SlotId slot) { return state_->TakeBack(slot); }
void NvmeTier::Copy(SlotId from, SlotId to, const BlockIdentity& identity, int64_t first_commit_ms,
                    int64_t last_access_ms, WriteDone done) {
  state_->Copy(from, to, identity, first_commit_ms, last_access_ms, std::move(done));
}
bool NvmeTier::Erase(SlotId slot, Done done) { return state_->Erase(slot, std::move(done)); }
void NvmeTier::SetWeight(DomainId domain, uint32_t weight) { state_->SetWeight(domain, weight); }
bool NvmeTier::Fits(uint32_t slot_bytes) const {
  const SegmentTable& segments = state_->segments();
  return segments.segment_count() > 0 && segments.SlotsOf(0, PayloadOf(slot_bytes)) > 0;
}
void NvmeTier::SetHolder(SlotId slot, EntryId holder) { state_->slots().SetHolder(slot, holder); }
bool NvmeTier::StartLeaving(uint32_t slot_bytes) { return state_->slots().StartLeaving(PayloadOf(slot_bytes)); }
void NvmeTier::StopLeaving() { state_->segments().StopLeaving(); }
bool NvmeTier::leaving() const { return state_->segments().leaving().has_value(); }
bool NvmeTier::IsLeaving(SlotId slot) const {
  return leaving() && state_->segments().SegmentOf(slot) == state_->segments().leaving();
}
std::vector<EntryId> NvmeTier::LeavingHolders() const { return state_->slots().LeavingHolders(); }
bool NvmeTier::Adopt(DomainId domain, SlotId slot, uint32_t slot_bytes, uint64_t generation) {
  if (slot_bytes == 0 || slot_bytes > kBlockBytesMax) return false;
  return state_->slots().Adopt(domain, slot, PayloadOf(slot_bytes), generation);
}
void NvmeTier::ScanHeaders(absl::AnyInvocable<void(std::vector<CatalogRecord>)> batch, Done done) {
  state_->Scan(std::move(batch), std::move(done));
}

}  // namespace kvartal::tier
