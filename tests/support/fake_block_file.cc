#include "tests/support/fake_block_file.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"

namespace kvartal::testing {
namespace {

using device::BlockIo;

void CheckShape(const BlockIo& io, uint64_t disk_bytes) {
  KV_CHECK(io.done != nullptr && io.part_count >= 1 && io.part_count <= 2);
  KV_CHECK(io.offset % kSlotAlignBytes == 0);
  for (int i = 0; i < io.part_count; ++i) {
    KV_CHECK(io.parts[i].iov_len > 0 && io.parts[i].iov_len % kSlotAlignBytes == 0);
    KV_CHECK(reinterpret_cast<uintptr_t>(io.parts[i].iov_base) % kSlotAlignBytes == 0);
  }
  KV_CHECK(io.offset + io.bytes() <= disk_bytes);
}

// Moves the first `limit` bytes of the transfer.
void Transfer(const BlockIo& io, std::byte* disk, uint64_t limit) {
  uint64_t moved = 0;
  for (int i = 0; i < io.part_count && moved < limit; ++i) {
    const uint64_t now = std::min<uint64_t>(io.parts[i].iov_len, limit - moved);
    std::byte* on_disk = disk + io.offset + moved;
    if (io.op == BlockIo::Op::kWrite) {
      std::memcpy(on_disk, io.parts[i].iov_base, now);
    } else {
      std::memcpy(io.parts[i].iov_base, on_disk, now);
    }
    moved += now;
  }
}

void FlipBit(const BlockIo& io, std::byte* disk, uint64_t bit) {
  uint64_t at = bit / 8;
  const std::byte mask{static_cast<unsigned char>(1u << (bit % 8))};
  if (io.op == BlockIo::Op::kWrite) {
    disk[io.offset + at] ^= mask;
    return;
  }
  const int part = at < io.parts[0].iov_len ? 0 : 1;
  if (part == 1) at -= io.parts[0].iov_len;
  static_cast<std::byte*>(io.parts[part].iov_base)[at] ^= mask;
}

}  // namespace

std::shared_ptr<FakeDisk> MakeFakeDisk(uint64_t size_bytes) {
  auto disk = std::make_shared<FakeDisk>();
  absl::StatusOr<Mapping> bytes = Mapping::Anonymous(size_bytes);
  KV_CHECK(bytes.ok());
  disk->bytes = *std::move(bytes);
  return disk;
}

struct FakeBlockFile::State : public std::enable_shared_from_this<FakeBlockFile::State> {
  State(std::shared_ptr<FakeDisk> opened, Executor* posted_to) : disk(std::move(opened)), executor(posted_to) {}

  const std::shared_ptr<FakeDisk> disk;
  Executor* const executor;
  std::deque<BlockIo> ios;
  std::vector<BlockIo> lost;
  size_t queue_max = kDiskQueueMax;
  size_t overdue = 0;
  bool held = false;
  bool fail_now = false;
  bool reorder = false;
  DiskFault next_fault = DiskFault::kNone;
  int next_fault_count = 0;
  DiskFaultRates rates;
  std::mt19937_64 fault_random{1};
  std::mt19937_64 order_random{1};
  std::deque<std::pair<uint64_t, uint64_t>> recent;  // offset and bytes of the last writes
  Counts counts;

  void PostOne() {
    executor->Post([state = shared_from_this()] { state->CompleteOne(); });
  }

  void CompleteOne() {
    if (held || ios.empty()) return;
    const size_t at = reorder ? order_random() % ios.size() : 0;
    BlockIo io = std::move(ios[at]);
    ios.erase(ios.begin() + static_cast<ptrdiff_t>(at));
    const DiskFault fault = DrawFault();
    if (fault != DiskFault::kNone) ++counts.faults;
    if (fault == DiskFault::kNeverCompletes) {
      lost.push_back(std::move(io));
      return;
    }
    absl::Status status = Perform(&io, fault);
    io.done(std::move(status));
  }

  DiskFault DrawFault() {
    if (next_fault_count > 0) {
      --next_fault_count;
      return next_fault;
    }
    uint64_t draw = fault_random() % 100;
    const std::pair<uint32_t, DiskFault> chances[] = {{rates.io_error, DiskFault::kIoError},
                                                      {rates.short_transfer, DiskFault::kShortTransfer},
                                                      {rates.torn_write, DiskFault::kTornWrite},
                                                      {rates.bit_flip, DiskFault::kBitFlip},
                                                      {rates.never_completes, DiskFault::kNeverCompletes}};
    for (const auto& [percent, fault] : chances) {
      if (draw < percent) return fault;
      draw -= percent;
    }
    return DiskFault::kNone;
  }

  absl::Status Perform(BlockIo* io, DiskFault fault) {
    const bool write = io->op == BlockIo::Op::kWrite;
    if (write && io->on_disk_thread != nullptr) KV_RETURN_IF_ERROR(io->on_disk_thread());
    if (fault == DiskFault::kIoError) return absl::UnavailableError("the fake disk was told to fail (EIO)");
    const uint64_t total = io->bytes();
    const bool front_only = fault == DiskFault::kShortTransfer || (write && fault == DiskFault::kTornWrite);
    const uint64_t moved = front_only ? fault_random() % (total / kSlotAlignBytes) * kSlotAlignBytes : total;
    Transfer(*io, disk->bytes.data(), moved);
    if (write) NoteWrite(io->offset, moved);
    (write ? counts.writes : counts.reads) += 1;
    (write ? counts.bytes_written : counts.bytes_read) += moved;
    if (fault == DiskFault::kShortTransfer) return absl::UnavailableError("the fake disk was told to transfer less");
    if (fault == DiskFault::kBitFlip) FlipBit(*io, disk->bytes.data(), fault_random() % (total * 8));
    if (!write && io->on_disk_thread != nullptr) KV_RETURN_IF_ERROR(io->on_disk_thread());
    return absl::OkStatus();
  }

  void NoteWrite(uint64_t offset, uint64_t bytes) {
    recent.emplace_back(offset, bytes);
    if (recent.size() > kRecentWrites) recent.pop_front();
  }

  absl::Status CheckNow(uint64_t offset, size_t bytes) const {
    if (fail_now) return absl::UnavailableError("the fake disk was told to fail (EIO)");
    KV_CHECK(offset % kSlotAlignBytes == 0 && bytes % kSlotAlignBytes == 0);
    if (offset + bytes > disk->bytes.size()) return absl::OutOfRangeError("past the end of the fake disk");
    return absl::OkStatus();
  }
};

FakeBlockFile::FakeBlockFile(std::shared_ptr<FakeDisk> disk, Executor* executor)
    : state_(std::make_shared<State>(std::move(disk), executor)) {
  state_->disk->in_use = true;
}

FakeBlockFile::FakeBlockFile(uint64_t size_bytes, Executor* executor)
    : FakeBlockFile(MakeFakeDisk(size_bytes), executor) {}

absl::StatusOr<std::unique_ptr<FakeBlockFile>> FakeBlockFile::Open(std::shared_ptr<FakeDisk> disk, Executor* executor) {
  if (disk->in_use) return absl::FailedPreconditionError("the fake disk is in use");
  return std::unique_ptr<FakeBlockFile>(new FakeBlockFile(std::move(disk), executor));
}

FakeBlockFile::~FakeBlockFile() {
  for (BlockIo& io : state_->ios) {
    absl::Status status = state_->Perform(&io, DiskFault::kNone);
    state_->executor->Post(
        [done = std::move(io.done), status = std::move(status)]() mutable { done(std::move(status)); });
  }
  state_->ios.clear();
  state_->disk->in_use = false;
}

uint64_t FakeBlockFile::size_bytes() const { return state_->disk->bytes.size(); }

bool FakeBlockFile::Submit(BlockIo io) {
  CheckShape(io, size_bytes());
  if (Pending() >= state_->queue_max) return false;
  state_->ios.push_back(std::move(io));
  state_->PostOne();
  return true;
}

absl::Status FakeBlockFile::ReadNow(uint64_t offset, void* data, size_t bytes) {
  KV_RETURN_IF_ERROR(state_->CheckNow(offset, bytes));
  std::memcpy(data, state_->disk->bytes.data() + offset, bytes);
  return absl::OkStatus();
}

absl::Status FakeBlockFile::WriteNow(uint64_t offset, const void* data, size_t bytes) {
  KV_RETURN_IF_ERROR(state_->CheckNow(offset, bytes));
  std::memcpy(state_->disk->bytes.data() + offset, data, bytes);
  return absl::OkStatus();
}

absl::Status FakeBlockFile::Sync() { return state_->CheckNow(0, 0); }

size_t FakeBlockFile::Pending() const { return state_->ios.size() + state_->lost.size(); }

size_t FakeBlockFile::Overdue() const { return state_->overdue; }

bool FakeBlockFile::Withdraw(DomainId owner, uint64_t offset) {
  const auto found = std::find_if(state_->ios.begin(), state_->ios.end(), [&](const BlockIo& io) {
    const bool foreground = io.io_class == device::IoClass::kDemandRead || io.io_class == device::IoClass::kPromotion;
    return io.op == BlockIo::Op::kRead && foreground && io.owner == owner && io.offset == offset;
  });
  if (found == state_->ios.end()) return false;
  state_->ios.erase(found);
  return true;
}

void FakeBlockFile::SetOverdue(size_t count) { state_->overdue = count; }

void FakeBlockFile::FaultNext(DiskFault fault, int count) {
  state_->next_fault = fault;
  state_->next_fault_count = count;
}

void FakeBlockFile::SetFaultRates(const DiskFaultRates& rates, uint64_t seed) {
  state_->rates = rates;
  state_->fault_random.seed(seed);
}

void FakeBlockFile::SetReorder(bool reorder, uint64_t seed) {
  state_->reorder = reorder;
  state_->order_random.seed(seed);
}

void FakeBlockFile::FailNow(bool fail) { state_->fail_now = fail; }
void FakeBlockFile::Hold() { state_->held = true; }

void FakeBlockFile::Release() {
  state_->held = false;
  for (size_t i = 0; i < state_->ios.size(); ++i) state_->PostOne();
}

void FakeBlockFile::SetQueueMax(size_t count) { state_->queue_max = count == 0 ? kDiskQueueMax : count; }

void FakeBlockFile::FailLost() {
  std::vector<BlockIo> lost = std::exchange(state_->lost, {});
  for (BlockIo& io : lost) io.done(absl::UnavailableError("the fake disk lost this transfer"));
}

void FakeBlockFile::CutPower() {
  state_->ios.clear();
  state_->lost.clear();
}

void FakeBlockFile::Kill(uint64_t seed) {
  std::mt19937_64 random(seed);
  for (BlockIo& io : state_->ios) {
    if (io.op != BlockIo::Op::kWrite || random() % 3 == 0) continue;
    // What it comes to is told to nobody.
    (void)state_->Perform(&io, random() % 2 == 0 ? DiskFault::kNone : DiskFault::kTornWrite);
  }
  CutPower();
}

void FakeBlockFile::LoseRecentWrites(uint64_t seed) {
  std::mt19937_64 random(seed);
  for (const auto& [offset, bytes] : state_->recent) {
    for (uint64_t at = offset; at < offset + bytes; at += kSlotAlignBytes) {
      if (random() % 3 == 0) std::memset(state_->disk->bytes.data() + at, 0xAA, kSlotAlignBytes);
    }
  }
}

FakeBlockFile::Counts FakeBlockFile::counts() const { return state_->counts; }

std::span<std::byte> FakeBlockFile::bytes() { return {state_->disk->bytes.data(), state_->disk->bytes.size()}; }

}  // namespace kvartal::testing
