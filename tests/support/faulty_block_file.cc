#include "tests/support/faulty_block_file.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/mapping.h"

namespace kvartal::testing {
namespace {

using device::BlockIo;

absl::Status IoError() { return absl::UnavailableError("the disk was told to fail (EIO)"); }

// It is got ready, then it ends with `told` and moves nothing.
void MoveNothing(BlockIo* io, absl::Status told) {
  io->before = [hook = std::move(io->before), told = std::move(told)](BlockIo& moved) mutable {
    if (hook != nullptr) KV_RETURN_IF_ERROR(hook(moved));
    return told;
  };
}

void TellInstead(BlockIo* io, absl::Status told) {
  io->done = [done = std::move(io->done), told = std::move(told)](const absl::Status& status) mutable {
    done(status.ok() || absl::IsCancelled(status) ? std::move(told) : status);
  };
}

// A front part is moved; the caller is told `told`.
void MoveFront(BlockIo* io, uint64_t bytes, absl::Status told) {
  io->after = nullptr;  // there is nothing whole to look at
  TellInstead(io, std::move(told));
  if (bytes == 0) return MoveNothing(io, absl::CancelledError("nothing is moved"));
  io->part_count = bytes <= io->parts[0].iov_len ? 1 : 2;
  if (io->part_count == 1) {
    io->parts[0].iov_len = bytes;
  } else {
    io->parts[1].iov_len = bytes - io->parts[0].iov_len;
  }
}

std::byte* ByteAt(const BlockIo& io, uint64_t at) {
  const bool first = at < io.parts[0].iov_len;
  return static_cast<std::byte*>(io.parts[first ? 0 : 1].iov_base) + (first ? at : at - io.parts[0].iov_len);
}

void FlipInBuffer(BlockIo* io, uint64_t bit) {
  io->after = [bit, hook = std::move(io->after)](BlockIo& read) mutable {
    *ByteAt(read, bit / 8) ^= std::byte{1} << (bit % 8);
    return hook == nullptr ? absl::OkStatus() : hook(read);
  };
}

// The bytes of a write belong to who lent them: a copy is made, after the hook has had its say.
void FlipOnDisk(BlockIo* io, uint64_t bit) {
  const auto copy = std::make_shared<Mapping>(*Mapping::Anonymous(io->bytes()));
  BlockIo meant;
  meant.op = io->op;
  std::copy(io->parts, io->parts + io->part_count, meant.parts);
  meant.part_count = io->part_count;
  io->before = [copy, meant = std::move(meant), bit, hook = std::move(io->before)](BlockIo&) mutable {
    if (hook != nullptr) KV_RETURN_IF_ERROR(hook(meant));
    uint64_t at = 0;
    for (int i = 0; i < meant.part_count; ++i) {
      std::memcpy(copy->data() + at, meant.parts[i].iov_base, meant.parts[i].iov_len);
      at += meant.parts[i].iov_len;
    }
    copy->data()[bit / 8] ^= std::byte{1} << (bit % 8);
    return absl::OkStatus();
  };
  io->parts[0] = {copy->data(), copy->size()};
  io->part_count = 1;
}

}  // namespace

bool MayBeWithdrawn(const BlockIo& io, DomainId owner, uint64_t offset) {
  const bool foreground = io.io_class == device::IoClass::kDemandRead || io.io_class == device::IoClass::kPromotion;
  return io.op == BlockIo::Op::kRead && foreground && io.owner == owner && io.offset == offset;
}

struct FaultyBlockFile::State : public std::enable_shared_from_this<FaultyBlockFile::State> {
  struct Waiting {
    BlockIo io;
    uint32_t turns = 0;  // of others, before its own
  };

  std::unique_ptr<device::BlockFile> file;  // null: closed
  Executor* executor = nullptr;
  std::vector<Waiting> waiting;  // not handed to the file
  std::vector<BlockIo> lost;
  size_t queue_max = kDiskQueueMax;
  size_t overdue = 0;
  size_t overdue_after = 0;  // questions; 0: none is awaited
  bool fail_now = false;
  bool reorder = false;
  DiskFault next_fault = DiskFault::kNone;
  int next_fault_count = 0;
  DiskFaultRates rates;
  std::mt19937_64 fault_random{1};
  std::mt19937_64 order_random{1};
  uint64_t faults = 0;
  std::deque<Asked> recent;
  uint64_t hastened = 0;

  DiskFault DrawFault() {
    if (next_fault_count > 0) {
      --next_fault_count;
      return next_fault;
    }
    uint64_t draw = fault_random() % kDiskFaultsOf;
    const std::pair<uint32_t, DiskFault> chances[] = {
        {rates.io_error, DiskFault::kIoError},     {rates.short_transfer, DiskFault::kShortTransfer},
        {rates.torn_write, DiskFault::kTornWrite}, {rates.bit_flip, DiskFault::kBitFlip},
        {rates.no_space, DiskFault::kNoSpace},     {rates.never_completes, DiskFault::kNeverCompletes},
        {rates.delayed, DiskFault::kDelayed}};
    for (const auto& [chance, fault] : chances) {
      if (draw < chance) return fault;
      draw -= chance;
    }
    return DiskFault::kNone;
  }

  // Of what is done to bytes; when it happens is the caller's.
  void Spoil(BlockIo* io, DiskFault fault) {
    const bool write = io->op == BlockIo::Op::kWrite;
    const uint64_t total = io->bytes();
    const uint64_t front = fault_random() % (total / kSlotAlignBytes) * kSlotAlignBytes;
    switch (fault) {
      case DiskFault::kIoError:
        return MoveNothing(io, IoError());
      case DiskFault::kNoSpace:
        if (write) MoveNothing(io, absl::ResourceExhaustedError("the disk was told to be full (ENOSPC)"));
        return;
      case DiskFault::kShortTransfer:
        return MoveFront(io, front, absl::UnavailableError("the disk was told to transfer less"));
      case DiskFault::kTornWrite:
        if (write) MoveFront(io, front, absl::OkStatus());
        return;
      case DiskFault::kBitFlip:
        return write ? FlipOnDisk(io, fault_random() % (total * 8)) : FlipInBuffer(io, fault_random() % (total * 8));
      case DiskFault::kNone:
      case DiskFault::kDelayed:
      case DiskFault::kNeverCompletes:
        return;
    }
  }

  void HandOn(BlockIo io) { KV_CHECK(file->Submit(std::move(io))); }

  void PostTurn() {
    executor->Post([state = shared_from_this()] { state->TakeTurn(); });
  }

  void TakeTurn() {
    if (file == nullptr || waiting.empty()) return;
    const size_t at = reorder ? order_random() % waiting.size() : 0;
    for (Waiting& other : waiting) other.turns -= std::min<uint32_t>(other.turns, 1);
    const auto due = std::find_if(waiting.begin() + static_cast<ptrdiff_t>(at), waiting.end(),
                                  [](const Waiting& waits) { return waits.turns == 0; });
    if (due != waiting.end()) {
      BlockIo io = std::move(due->io);
      waiting.erase(due);
      HandOn(std::move(io));
    }
    // A turn is posted for each that waits; those that were too early come again.
    if (due == waiting.end() && !waiting.empty()) PostTurn();
  }
};

FaultyBlockFile::FaultyBlockFile(std::unique_ptr<device::BlockFile> file, Executor* executor)
    : state_(std::make_shared<State>()) {
  state_->file = std::move(file);
  state_->executor = executor;
}

FaultyBlockFile::~FaultyBlockFile() {
  for (State::Waiting& waits : std::exchange(state_->waiting, {})) state_->HandOn(std::move(waits.io));
  state_->file.reset();
}

device::BlockFile* FaultyBlockFile::file() const { return state_->file.get(); }

void FaultyBlockFile::Forget() {
  state_->waiting.clear();
  state_->lost.clear();
}

bool FaultyBlockFile::Submit(BlockIo io) {
  if (Pending() >= state_->queue_max) return false;
  state_->recent.push_back({io.op, io.io_class, io.offset});
  if (state_->recent.size() > kRecentMax) state_->recent.pop_front();
  const DiskFault fault = state_->DrawFault();
  if (fault != DiskFault::kNone) {
    ++state_->faults;
    state_->Spoil(&io, fault);
  }
  if (fault == DiskFault::kNeverCompletes) {
    state_->lost.push_back(std::move(io));
  } else if (fault == DiskFault::kDelayed || state_->reorder) {
    state_->waiting.push_back({std::move(io), fault == DiskFault::kDelayed ? kDelayTurns : 0});
    state_->PostTurn();
  } else {
    state_->HandOn(std::move(io));
  }
  return true;
}

absl::Status FaultyBlockFile::ReadNow(uint64_t offset, void* data, size_t bytes) {
  return state_->fail_now ? IoError() : state_->file->ReadNow(offset, data, bytes);
}

absl::Status FaultyBlockFile::WriteNow(uint64_t offset, const void* data, size_t bytes) {
  return state_->fail_now ? IoError() : state_->file->WriteNow(offset, data, bytes);
}

absl::Status FaultyBlockFile::Sync() { return state_->fail_now ? IoError() : state_->file->Sync(); }

uint64_t FaultyBlockFile::size_bytes() const { return state_->file->size_bytes(); }
bool FaultyBlockFile::direct_io() const { return state_->file->direct_io(); }
size_t FaultyBlockFile::Overdue() const {
  if (state_->overdue_after > 0 && --state_->overdue_after == 0) ++state_->overdue;
  return state_->overdue + state_->file->Overdue();
}
size_t FaultyBlockFile::Pending() const {
  return state_->waiting.size() + state_->lost.size() + state_->file->Pending();
}
std::vector<FaultyBlockFile::Asked> FaultyBlockFile::recent() const {
  return {state_->recent.begin(), state_->recent.end()};
}
uint64_t FaultyBlockFile::hastened() const { return state_->hastened; }
void FaultyBlockFile::Hasten(DomainId owner, uint64_t offset) {
  ++state_->hastened;
  state_->file->Hasten(owner, offset);
}
void FaultyBlockFile::SetWeight(DomainId owner, uint32_t weight) { state_->file->SetWeight(owner, weight); }

bool FaultyBlockFile::Withdraw(DomainId owner, uint64_t offset) {
  const auto found = std::find_if(state_->waiting.begin(), state_->waiting.end(),
                                  [&](const State::Waiting& waits) { return MayBeWithdrawn(waits.io, owner, offset); });
  if (found == state_->waiting.end()) return state_->file->Withdraw(owner, offset);
  state_->waiting.erase(found);
  return true;
}

void FaultyBlockFile::FaultNext(DiskFault fault, int count) {
  state_->next_fault = fault;
  state_->next_fault_count = count;
}

void FaultyBlockFile::SetFaultRates(const DiskFaultRates& rates, uint64_t seed) {
  state_->rates = rates;
  state_->fault_random.seed(seed);
}

void FaultyBlockFile::SetReorder(bool reorder, uint64_t seed) {
  state_->reorder = reorder;
  state_->order_random.seed(seed);
}

void FaultyBlockFile::FailNow(bool fail) { state_->fail_now = fail; }
void FaultyBlockFile::SetQueueMax(size_t count) { state_->queue_max = count == 0 ? kDiskQueueMax : count; }
void FaultyBlockFile::SetOverdue(size_t count) {
  state_->overdue = count;
  state_->overdue_after = 0;
}
void FaultyBlockFile::SetOverdueAfter(size_t questions) { state_->overdue_after = questions; }
uint64_t FaultyBlockFile::faults() const { return state_->faults; }
size_t FaultyBlockFile::Lost() const { return state_->lost.size(); }

void FaultyBlockFile::FailLost() {
  std::vector<BlockIo> lost = std::exchange(state_->lost, {});
  for (BlockIo& io : lost) io.done(absl::UnavailableError("the disk lost this transfer"));
}

}  // namespace kvartal::testing
