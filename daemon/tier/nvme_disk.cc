#include "daemon/tier/nvme_disk.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"

namespace kvartal::tier {
namespace {

// Generations of one opening of the device follow its open count: none is ever used twice, however the clocks go.
constexpr int kGenerationCountBits = 40;

using Verdict = NvmeTransfer::Verdict;

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

NvmeDisk::NvmeDisk(device::BlockFile* file, const Clock* clock, const Superblock& superblock)
    : file_(file),
      superblock_(superblock),
      device_id_(DeviceIdOf(superblock)),
      // A SlotId has 32 bits: what lies above 16 TiB is not used.
      size_bytes_(std::min(file->size_bytes(), kNvmeBytesMax)),
      segments_(kNvmeDataStartBytes, size_bytes_, superblock.segment_bytes),
      slots_(&segments_),
      health_(clock),
      pages_(segments_.segment_count()),
      next_generation_((superblock.open_count << kGenerationCountBits) + 1),
      capacity_bytes_(segments_.capacity_bytes()) {}

absl::StatusOr<std::shared_ptr<NvmeDisk>> NvmeDisk::Open(device::BlockFile* file, const Clock* clock) {
  KV_ASSIGN_OR_RETURN(const Superblock superblock, OpenSuperblock(file));
  return std::make_shared<NvmeDisk>(file, clock, superblock);
}

uint64_t NvmeDisk::GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const {
  if (slot_bytes == 0 || slot_bytes > kBlockBytesMax || !Healthy()) return 0;
  const uint64_t bytes = NvmeSlots::ExtentBytes(PayloadOf(slot_bytes));
  return bytes <= at_most_bytes && segments_.CanReserve(PayloadOf(slot_bytes)) ? bytes : 0;
}

DiskStats NvmeDisk::Stats() const {
  DiskStats stats;
  stats.state = device_state();
  stats.capacity_bytes = capacity_bytes_;
  stats.granted_bytes = slots_.granted_bytes();
  stats.queued_bytes = slots_.transferring_bytes();
  stats.overdue_transfers = file_->Overdue();
  stats.counters = counters_;
  stats.counters.quarantined_slots = slots_.quarantined();
  return stats;
}

DiskLoad NvmeDisk::LoadFor(uint32_t slot_bytes) const {
  return {.takes = GrowthBytes(slot_bytes, UINT64_MAX) > 0,
          .queued_bytes = slots_.transferring_bytes(),
          .free_bytes = capacity_bytes_ - slots_.granted_bytes(),
          .capacity_bytes = capacity_bytes_};
}

bool NvmeDisk::MayTake(uint32_t slot_bytes) const {
  return Healthy() && segments_.segment_count() > 0 && segments_.SlotsOf(0, PayloadOf(slot_bytes)) > 0;
}

// --- transfers

NvmeDisk::TransferPtr NvmeDisk::NewTransfer(SlotId slot, const BlockIdentity& identity,
                                            std::span<const std::byte> payload) {
  KV_CHECK(payload.size() == slots_.PayloadBytesOf(slot) && identity.payload_bytes == payload.size());
  TransferPtr transfer;
  if (spare_.empty()) {
    transfer = std::make_shared<NvmeTransfer>();
    transfer->page = NewPages(kNvmeHeaderBytes);
    transfer->header_seed = superblock_.header_seed;
    transfer->bounce = &bounce_;
  } else {
    transfer = std::move(spare_.back());
    spare_.pop_back();
  }
  transfer->slot = slot;
  transfer->header = BlockHeader{.identity = identity};
  transfer->payload = {const_cast<std::byte*>(payload.data()), payload.size()};  // a write only reads it
  transfer->cipher = CipherOf(slots_.DomainOf(slot));
  transfer->verdict = Verdict::kFine;
  return transfer;
}

void NvmeDisk::Recycle(TransferPtr transfer) {
  transfer->write_done = nullptr;
  transfer->read_done = nullptr;
  transfer->payload = {};
  transfer->cipher = nullptr;
  transfer->landing = Mapping();  // it is still here when the read failed, with a part of a block in it, maybe
  bounce_.Give(std::move(transfer->encrypted));
  if (spare_.size() < kSpareTransfersMax) spare_.push_back(std::move(transfer));
}

bool NvmeDisk::Write(SlotId slot, const BlockIdentity& identity, int64_t first_commit_ms, int64_t last_access_ms,
                     std::span<const std::byte> payload, WriteDone done) {
  if (!slots_.Idle(slot)) KV_BUG("an nvme slot is written while another transfer of it is under way");
  // Whose writes wait for room already has none. Others' queues are their own.
  if (!stalled_.empty() && waiting_of_.contains(slots_.DomainOf(slot))) return false;
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
    ++waiting_of_[slots_.DomainOf(slot)];
  } else if (!SubmitWrite(transfer)) {
    Recycle(std::move(transfer));
    return false;
  }
  slots_.SetGeneration(slot, transfer->header.generation);
  slots_.SetProven(slot);
  slots_.BeginTransfer(slot);
  return true;
}

bool NvmeDisk::SubmitWrite(const TransferPtr& transfer) {
  device::BlockIo io =
      SlotIo(device::BlockIo::Op::kWrite, device::IoClass::kDemotion, slots_.DomainOf(transfer->slot), *transfer);
  io.before = [transfer](device::BlockIo& written) { return transfer->Seal(&written); };
  io.done = [self = shared_from_this(), transfer](const absl::Status& status) { self->OnWritten(transfer, status); };
  return file_->Submit(std::move(io));
}

void NvmeDisk::OnWritten(const TransferPtr& transfer, const absl::Status& status) {
  if (closed_) return;
  // Without a key nothing was asked of the device.
  const bool unasked = transfer->verdict == Verdict::kNoKey;
  if (!unasked) NoteResult(status, &counters_.write_errors);
  slots_.SetFailed(transfer->slot, !status.ok() && !unasked);
  if (status.ok()) {
    slots_.SetKeyId(transfer->slot, transfer->header.seal.key_id);
    ++counters_.blocks_written;
    counters_.bytes_written += NvmeSlots::ExtentBytes(transfer->header.identity.payload_bytes);
  }
  slots_.EndTransfer(transfer->slot);
  WriteDone done = std::move(transfer->write_done);
  absl::StatusOr<BlockHeader> result = transfer->header;
  if (!status.ok()) result = unasked ? status : absl::UnavailableError(status.message());
  Recycle(transfer);
  // What waits comes before what `done` writes next.
  SubmitStalled();
  done(std::move(result));
  OnQueueRoom();
}

bool NvmeDisk::Read(SlotId slot, const BlockIdentity& identity, std::span<std::byte> payload, device::IoClass io_class,
                    Done done) {
  if (device_state() == DeviceState::kOffline) return false;
  TransferPtr transfer = NewTransfer(slot, identity, payload);
  transfer->header.generation = slots_.GenerationOf(slot);
  transfer->read_done = std::move(done);
  device::BlockIo io = SlotIo(device::BlockIo::Op::kRead, io_class, slots_.DomainOf(slot), *transfer);
  if (!slots_.Proven(slot)) io.before = [transfer](device::BlockIo& read) { return transfer->Land(&read); };
  io.after = [transfer](device::BlockIo&) { return transfer->Verify(); };
  io.done = [self = shared_from_this(), transfer](const absl::Status& status) { self->OnRead(transfer, status); };
  if (!file_->Submit(std::move(io))) {
    Recycle(std::move(transfer));
    return false;
  }
  slots_.BeginTransfer(slot);
  return true;
}

void NvmeDisk::Hasten(SlotId slot) { file_->Hasten(slots_.DomainOf(slot), OffsetOf(slot)); }

bool NvmeDisk::TakeBack(SlotId slot) {
  if (!file_->Withdraw(slots_.DomainOf(slot), OffsetOf(slot))) return false;
  slots_.EndTransfer(slot);
  return true;
}

void NvmeDisk::OnRead(const TransferPtr& transfer, const absl::Status& status) {
  if (closed_) return;
  absl::Status result = status;
  if (transfer->verdict == Verdict::kNoKey) {
    ++counters_.keys_missing;
  } else if (transfer->verdict != Verdict::kFine) {
    uint64_t& mismatches =
        transfer->verdict == Verdict::kBadHeader ? counters_.header_mismatches : counters_.checksum_mismatches;
    if (WorthALine(++mismatches)) Log(LogLevel::kWarning, "nvme", "a block is lost: ", std::string(status.message()));
  } else {
    NoteResult(status, &counters_.read_errors);
    slots_.SetFailed(transfer->slot, !status.ok());
    if (!status.ok()) result = absl::UnavailableError(status.message());
  }
  if (status.ok()) {
    ++counters_.blocks_read;
    counters_.bytes_read += NvmeSlots::ExtentBytes(transfer->header.identity.payload_bytes);
    slots_.SetGeneration(transfer->slot, transfer->header.generation);
    slots_.SetKeyId(transfer->slot, transfer->header.seal.key_id);
    slots_.SetProven(transfer->slot);
  }
  slots_.EndTransfer(transfer->slot);
  Done done = std::move(transfer->read_done);
  Recycle(transfer);
  done(std::move(result));
  OnQueueRoom();
}

void NvmeDisk::Copy(SlotId from, const std::shared_ptr<NvmeDisk>& target, SlotId to, const BlockIdentity& identity,
                    int64_t first_commit_ms, int64_t last_access_ms, WriteDone done) {
  const auto buffer = std::make_shared<Mapping>(NewPages(identity.payload_bytes));
  const std::span<std::byte> payload(buffer->data(), identity.payload_bytes);
  const auto told = std::make_shared<WriteDone>(std::move(done));
  const absl::Status no_room = absl::ResourceExhaustedError("the disk queue is full");
  const bool queued = Read(from, identity, payload, device::IoClass::kDemotion, [=](const absl::Status& read) {
    if (!read.ok()) return (*told)(read);
    const auto on_written = [buffer, told](absl::StatusOr<BlockHeader> written) { (*told)(std::move(written)); };
    if (!target->Write(to, identity, first_commit_ms, last_access_ms, payload, on_written)) (*told)(no_room);
  });
  if (!queued) (*told)(no_room);
}

bool NvmeDisk::Erase(SlotId slot, Done done) {
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

void NvmeDisk::OnErased(SlotId slot, const absl::Status& status, Done done) {
  if (closed_) return;
  NoteResult(status, &counters_.write_errors);
  slots_.SetFailed(slot, !status.ok());
  slots_.EndTransfer(slot);
  done(status.ok() ? absl::OkStatus() : absl::UnavailableError(status.message()));
  OnQueueRoom();
}

// --- ciphers

const std::shared_ptr<PresentCipher>& NvmeDisk::CipherOf(DomainId domain) {
  std::shared_ptr<PresentCipher>& cipher = ciphers_[domain];
  if (cipher == nullptr) cipher = std::make_shared<PresentCipher>();
  return cipher;
}

bool NvmeDisk::MayWrite(DomainId domain) {
  const DomainCipher now = CipherOf(domain)->Get();
  return !now.required || (now.cipher != nullptr && now.cipher->newest_key() != 0);
}

Secrecy NvmeDisk::SecrecyOf(SlotId slot) {
  const DomainCipher now = CipherOf(slots_.DomainOf(slot))->Get();
  const uint32_t key_id = slots_.KeyIdOf(slot);
  if (key_id == 0) return now.required ? Secrecy::kInTheClear : Secrecy::kAsAsked;
  return now.cipher != nullptr && now.cipher->Has(key_id) ? Secrecy::kAsAsked : Secrecy::kKeyGone;
}

// --- the header of a segment

bool NvmeDisk::WriteSegmentPage(uint32_t segment) {
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

void NvmeDisk::OnSegmentPage(uint32_t segment, const absl::Status& status) {
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
    WaitsNoMore(*transfer);
    slots_.SetFailed(transfer->slot, true);
    slots_.EndTransfer(transfer->slot);
    WriteDone done = std::move(transfer->write_done);
    Recycle(std::move(transfer));
    done(absl::UnavailableError(absl::StrCat("the header of nvme segment ", segment, ": ", status.message())));
    if (closed_) return;
  }
  OnQueueRoom();
}

// False when the disk queue has no room for all of it.
bool NvmeDisk::SubmitWaiting(uint32_t segment) {
  SegmentPage& page = pages_[segment];
  if (page.waiting.empty() || page.writing != 0) return true;
  // Emptied meanwhile, and taken for another size.
  if (page.written != segments_.PayloadBytesOf(segment)) return WriteSegmentPage(segment);
  size_t sent = 0;
  for (; sent < page.waiting.size() && SubmitWrite(page.waiting[sent]); ++sent) WaitsNoMore(*page.waiting[sent]);
  page.waiting.erase(page.waiting.begin(), page.waiting.begin() + static_cast<ptrdiff_t>(sent));
  return page.waiting.empty();
}

void NvmeDisk::WaitsNoMore(const NvmeTransfer& transfer) {
  const auto of = waiting_of_.find(slots_.DomainOf(transfer.slot));
  if (--of->second == 0) waiting_of_.erase(of);
}

// The first segment first. An owner has a queue of its own: where one's is full, others' segments go on.
void NvmeDisk::SubmitStalled() {
  std::erase_if(stalled_, [this](uint32_t segment) { return SubmitWaiting(segment); });
}

// Every transfer that ends comes by: what the full queue had no room for is submitted now.
void NvmeDisk::OnQueueRoom() {
  if (closed_) return;
  SubmitStalled();
  if (scan_ != nullptr) scan_->Step();
}

void NvmeDisk::NoteResult(const absl::Status& status, uint64_t* errors) {
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

void NvmeDisk::Scan(absl::AnyInvocable<void(std::vector<CatalogRecord>)> batch, Done done) {
  KV_CHECK(scan_ == nullptr || scan_->finished());
  const auto on_room = [weak = weak_from_this()] {
    if (const std::shared_ptr<NvmeDisk> self = weak.lock()) self->OnQueueRoom();
  };
  scan_ = std::make_shared<HeaderScan>(file_, superblock_, &segments_, on_room, std::move(batch), std::move(done));
  scan_->Step();
}

void NvmeDisk::Close() {
  closed_ = true;
  for (SegmentPage& page : pages_) page.waiting.clear();
  if (scan_ != nullptr) scan_->Cancel();
}

}  // namespace kvartal::tier
