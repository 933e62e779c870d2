// A disk in memory that a test pumps by hand: transfers take effect when the executor runs them, whole or with a fault.
// Confined to the thread that pumps the executor.
// Invariant: `done` of an accepted transfer runs exactly once, unless the test asked for a transfer that never
// completes or for a power cut.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "daemon/base/event_loop.h"
#include "daemon/base/mapping.h"
#include "daemon/device/block_file.h"

namespace kvartal::testing {

// What outlives the file that is open on it: reopen the same disk to test a restart.
struct FakeDisk {
  Mapping bytes;
  bool in_use = false;
};
std::shared_ptr<FakeDisk> MakeFakeDisk(uint64_t size_bytes);

enum class DiskFault : uint8_t {
  kNone,
  kIoError,         // Unavailable; nothing is transferred
  kShortTransfer,   // Unavailable; a 4 KiB-aligned front part is transferred
  kTornWrite,       // OK, yet only a 4 KiB-aligned front part reaches the disk (reads are whole)
  kBitFlip,         // OK, yet one bit is wrong: on the disk after a write, in the buffer after a read
  kNeverCompletes,  // stays pending until FailLost
};

// Chance of each fault for any transfer, in percent; drawn from a seeded generator.
struct DiskFaultRates {
  uint32_t io_error = 0, short_transfer = 0, torn_write = 0, bit_flip = 0, never_completes = 0;
};

class FakeBlockFile : public device::BlockFile {
 public:
  static constexpr size_t kRecentWrites = 32;
  struct Counts {
    uint64_t reads = 0, writes = 0, bytes_read = 0, bytes_written = 0;  // taken effect, faults included
    uint64_t faults = 0;
  };

  FakeBlockFile(uint64_t size_bytes, Executor* executor);
  // FailedPrecondition when the disk is open already.
  static absl::StatusOr<std::unique_ptr<FakeBlockFile>> Open(std::shared_ptr<FakeDisk> disk, Executor* executor);
  // What was accepted still takes effect; `done`s are posted.
  ~FakeBlockFile() override;

  uint64_t size_bytes() const override;
  bool direct_io() const override { return false; }
  bool Submit(device::BlockIo io) override;
  absl::Status ReadNow(uint64_t offset, void* data, size_t bytes) override;
  absl::Status WriteNow(uint64_t offset, const void* data, size_t bytes) override;
  absl::Status Sync() override;
  size_t Pending() const override;
  size_t Overdue() const override;
  bool Withdraw(DomainId owner, uint64_t offset) override;

  // The next `count` transfers have this fault.
  void FaultNext(DiskFault fault, int count = 1);
  void SetFaultRates(const DiskFaultRates& rates, uint64_t seed);
  // Transfers complete in a random order (seeded) instead of first come, first served.
  void SetReorder(bool reorder, uint64_t seed = 1);
  // ReadNow, WriteNow and Sync fail with Unavailable while set.
  void FailNow(bool fail);
  void Hold();
  void Release();
  // From now on Submit refuses when `count` are under way; 0: kDiskQueueMax.
  void SetQueueMax(size_t count);
  // There is no clock here: the test says when what never completes has taken too long.
  void SetOverdue(size_t count);
  // Ends the transfers that never completed, with Unavailable.
  void FailLost();
  // What is under way is forgotten: nothing more reaches the disk and no `done` runs.
  void CutPower();
  // As kill -9 does it: no `done` runs, yet each write under way reached the disk whole, in part or not at all.
  void Kill(uint64_t seed);
  // A cache of the disk lost power: pages of the last writes (kRecentWrites of them) hold garbage, though they were
  // acknowledged.
  void LoseRecentWrites(uint64_t seed);
  Counts counts() const;
  // The disk itself, to look at or to corrupt.
  std::span<std::byte> bytes();

 private:
  struct State;
  FakeBlockFile(std::shared_ptr<FakeDisk> disk, Executor* executor);
  std::shared_ptr<State> state_;
};

}  // namespace kvartal::testing
