#include "tests/support/fake_block_file.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <utility>

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

}  // namespace

std::shared_ptr<FakeDisk> MakeFakeDisk(uint64_t size_bytes) {
  auto disk = std::make_shared<FakeDisk>();
  absl::StatusOr<Mapping> bytes = Mapping::Anonymous(size_bytes);
  KV_CHECK(bytes.ok());
  disk->bytes = *std::move(bytes);
  return disk;
}

// A disk without faults. Confined like the file over it. Invariant: transfers take effect in the order they came in.
class FakeBlockFile::MemoryFile : public device::BlockFile {
 public:
  MemoryFile(std::shared_ptr<FakeDisk> disk, Executor* executor) : state_(std::make_shared<State>()) {
    state_->disk = std::move(disk);
    state_->executor = executor;
    state_->disk->in_use = true;
  }
  ~MemoryFile() override {
    for (State::Queued& queued : state_->ios) {
      absl::Status status = state_->Perform(&queued);
      state_->executor->Post(
          [done = std::move(queued.io.done), status = std::move(status)]() mutable { done(std::move(status)); });
    }
    state_->ios.clear();
    state_->disk->in_use = false;
  }

  uint64_t size_bytes() const override { return state_->disk->bytes.size(); }
  bool direct_io() const override { return false; }
  bool Submit(BlockIo io) override {
    CheckShape(io, size_bytes());
    CrashJournal* const journal = state_->disk->journal;
    state_->ios.push_back({std::move(io), journal == nullptr ? 0 : journal->size()});
    state_->PostOne();
    return true;
  }
  absl::Status ReadNow(uint64_t offset, void* data, size_t bytes) override {
    KV_RETURN_IF_ERROR(CheckNow(offset, bytes));
    std::memcpy(data, state_->disk->bytes.data() + offset, bytes);
    return absl::OkStatus();
  }
  absl::Status WriteNow(uint64_t offset, const void* data, size_t bytes) override {
    KV_RETURN_IF_ERROR(CheckNow(offset, bytes));
    std::memcpy(state_->disk->bytes.data() + offset, data, bytes);
    if (CrashJournal* const journal = state_->disk->journal; journal != nullptr) {
      journal->NoteWrite(offset, {static_cast<const std::byte*>(data), bytes}, journal->size());
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    if (state_->disk->journal != nullptr) state_->disk->journal->NoteDiskSync();
    return absl::OkStatus();
  }
  size_t Pending() const override { return state_->ios.size(); }
  bool Withdraw(DomainId owner, uint64_t offset) override {
    const auto found = std::find_if(state_->ios.begin(), state_->ios.end(), [&](const State::Queued& queued) {
      return MayBeWithdrawn(queued.io, owner, offset);
    });
    if (found == state_->ios.end()) return false;
    state_->ios.erase(found);
    return true;
  }

  void Hold() { state_->held = true; }
  void Release() {
    state_->held = false;
    for (size_t i = 0; i < state_->ios.size(); ++i) state_->PostOne();
  }
  void CutPower() { state_->ios.clear(); }
  void Kill(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (State::Queued& queued : state_->ios) {
      if (queued.io.op != BlockIo::Op::kWrite || random() % 3 == 0) continue;
      const uint64_t pages = queued.io.bytes() / kSlotAlignBytes;
      // What it comes to is told to nobody.
      (void)state_->Perform(&queued, (random() % 2 == 0 ? pages : random() % pages) * kSlotAlignBytes);
    }
    CutPower();
  }
  void LoseRecentWrites(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (const auto& [offset, bytes] : state_->recent) {
      for (uint64_t at = offset; at < offset + bytes; at += kSlotAlignBytes) {
        if (random() % 3 == 0) std::memset(state_->disk->bytes.data() + at, 0xAA, kSlotAlignBytes);
      }
    }
  }
  const Counts& counts() const { return state_->counts; }
  FakeDisk& disk() { return *state_->disk; }

 private:
  // Posted completions hold it weakly: they may come after the file is gone.
  struct State : public std::enable_shared_from_this<State> {
    struct Queued {
      BlockIo io;
      size_t submitted_at;  // in the journal
    };

    std::shared_ptr<FakeDisk> disk;
    Executor* executor = nullptr;
    std::deque<Queued> ios;
    bool held = false;
    std::deque<std::pair<uint64_t, uint64_t>> recent;  // offset and bytes of the last writes
    Counts counts;

    void PostOne() {
      executor->Post([weak = weak_from_this()] {
        if (const std::shared_ptr<State> state = weak.lock()) state->CompleteOne();
      });
    }

    void CompleteOne() {
      if (held || ios.empty()) return;
      Queued queued = std::move(ios.front());
      ios.pop_front();
      absl::Status status = Perform(&queued);
      queued.io.done(std::move(status));
    }

    absl::Status Perform(Queued* queued, uint64_t bytes_max = UINT64_MAX) {
      BlockIo& io = queued->io;
      const bool write = io.op == BlockIo::Op::kWrite;
      if (io.before != nullptr) KV_RETURN_IF_ERROR(io.before(io));
      const uint64_t moved = std::min(io.bytes(), bytes_max);
      Transfer(io, disk->bytes.data(), moved);
      if (write) NoteWrite(io.offset, moved, queued->submitted_at);
      (write ? counts.writes : counts.reads) += 1;
      (write ? counts.bytes_written : counts.bytes_read) += moved;
      return io.after == nullptr ? absl::OkStatus() : io.after(io);
    }

    void NoteWrite(uint64_t offset, uint64_t bytes, size_t submitted_at) {
      recent.emplace_back(offset, bytes);
      if (recent.size() > kRecentWrites) recent.pop_front();
      if (disk->journal != nullptr)
        disk->journal->NoteWrite(offset, {disk->bytes.data() + offset, bytes}, submitted_at);
    }
  };

  absl::Status CheckNow(uint64_t offset, size_t bytes) const {
    KV_CHECK(offset % kSlotAlignBytes == 0 && bytes % kSlotAlignBytes == 0);
    if (offset + bytes > size_bytes()) return absl::OutOfRangeError("past the end of the fake disk");
    return absl::OkStatus();
  }

  const std::shared_ptr<State> state_;
};

FakeBlockFile::FakeBlockFile(std::unique_ptr<MemoryFile> memory, Executor* executor)
    : FaultyBlockFile(std::move(memory), executor), memory_(static_cast<MemoryFile*>(file())) {}

FakeBlockFile::FakeBlockFile(uint64_t size_bytes, Executor* executor)
    : FakeBlockFile(std::make_unique<MemoryFile>(MakeFakeDisk(size_bytes), executor), executor) {}

absl::StatusOr<std::unique_ptr<FakeBlockFile>> FakeBlockFile::Open(std::shared_ptr<FakeDisk> disk, Executor* executor) {
  if (disk->in_use) return absl::FailedPreconditionError("the fake disk is in use");
  auto memory = std::make_unique<MemoryFile>(std::move(disk), executor);
  return std::unique_ptr<FakeBlockFile>(new FakeBlockFile(std::move(memory), executor));
}

void FakeBlockFile::Hold() { memory_->Hold(); }
void FakeBlockFile::Release() { memory_->Release(); }

void FakeBlockFile::CutPower() {
  Forget();
  memory_->CutPower();
}

void FakeBlockFile::Kill(uint64_t seed) {
  Forget();
  memory_->Kill(seed);
}

void FakeBlockFile::LoseRecentWrites(uint64_t seed) { memory_->LoseRecentWrites(seed); }
FakeBlockFile::Counts FakeBlockFile::counts() const { return memory_->counts(); }
std::span<std::byte> FakeBlockFile::bytes() {
  Mapping& bytes = memory_->disk().bytes;
  return {bytes.data(), bytes.size()};
}

}  // namespace kvartal::testing
