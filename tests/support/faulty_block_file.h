// A block file that fails as a test tells it to, over one that does not: a disk in memory (FakeBlockFile) or a real
// file (the daemon of `kvartal-bench soak`). Seeded: the same seed and the same transfers give the same faults.
// Confined to the thread that pumps the executor.
// Invariants: what a client lends for a write is never changed; a transfer ends once, unless it was told never to.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/base/event_loop.h"
#include "daemon/device/block_file.h"

namespace kvartal::testing {

enum class DiskFault : uint8_t {
  kNone,
  kIoError,         // Unavailable; nothing is written
  kNoSpace,         // ResourceExhausted; nothing is written (reads are fine)
  kShortTransfer,   // Unavailable; a 4 KiB-aligned front part is transferred
  kTornWrite,       // OK, yet only a 4 KiB-aligned front part reaches the disk (reads are whole)
  kBitFlip,         // OK, yet one bit is wrong: on the disk after a write, in the buffer after a read
  kDelayed,         // fine, but only after the executor had kDelayTurns other turns: later ones overtake it
  kNeverCompletes,  // stays pending until FailLost
};

// Chance of each fault for any transfer, in ten-thousandths; drawn from a seeded generator.
struct DiskFaultRates {
  uint32_t io_error = 0, short_transfer = 0, torn_write = 0, bit_flip = 0, never_completes = 0, no_space = 0,
           delayed = 0;
};
inline constexpr uint32_t kDiskFaultsOf = 10'000;

// Whether it is such a read as Withdraw(owner, offset) takes back.
bool MayBeWithdrawn(const device::BlockIo& io, DomainId owner, uint64_t offset);

class FaultyBlockFile : public device::BlockFile {
 public:
  static constexpr uint32_t kDelayTurns = 40;

  // REQUIRES: `file` takes kDiskQueueMax transfers. `executor` is the one it calls back on.
  FaultyBlockFile(std::unique_ptr<device::BlockFile> file, Executor* executor);
  // What was accepted still takes effect; `done`s are posted.
  ~FaultyBlockFile() override;

  uint64_t size_bytes() const override;
  bool direct_io() const override;
  bool Submit(device::BlockIo io) override;
  absl::Status ReadNow(uint64_t offset, void* data, size_t bytes) override;
  absl::Status WriteNow(uint64_t offset, const void* data, size_t bytes) override;
  absl::Status Sync() override;
  size_t Pending() const override;
  size_t Overdue() const override;
  void SetWeight(DomainId owner, uint32_t weight) override;
  bool Withdraw(DomainId owner, uint64_t offset) override;
  void Hasten(DomainId owner, uint64_t offset) override;

  // What was asked for last, of kRecentMax accepted transfers, the newest at the end.
  struct Asked {
    device::BlockIo::Op op;
    device::IoClass io_class;
    uint64_t offset;
    friend bool operator==(const Asked&, const Asked&) = default;
  };
  static constexpr size_t kRecentMax = 16;
  std::vector<Asked> recent() const;
  // Offsets that somebody came to wait for, as Hasten told.
  uint64_t hastened() const;

  // The next `count` transfers have this fault.
  void FaultNext(DiskFault fault, int count = 1);
  void SetFaultRates(const DiskFaultRates& rates, uint64_t seed);
  // Transfers reach the file in a random order (seeded) instead of first come, first served.
  void SetReorder(bool reorder, uint64_t seed = 1);
  // ReadNow, WriteNow and Sync fail with Unavailable while set.
  void FailNow(bool fail);
  // From now on Submit refuses when `count` are under way; 0: kDiskQueueMax.
  void SetQueueMax(size_t count);
  // There is no clock here: the test says when what never completes has taken too long.
  void SetOverdue(size_t count);
  // One is, once that has been asked so often.
  void SetOverdueAfter(size_t questions);
  // Ends the transfers that never completed, with Unavailable.
  void FailLost();
  // How many those are by now.
  size_t Lost() const;
  // So far, of any kind.
  uint64_t faults() const;

 protected:
  device::BlockFile* file() const;
  // What has not reached the file never will, and no `done` of it runs.
  void Forget();

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with turns that are posted
};

}  // namespace kvartal::testing
