// A disk in memory that a test pumps by hand, with the faults of faulty_block_file.h: transfers take effect when the
// executor runs them. Confined to the thread that pumps the executor.
// Invariant: `done` of an accepted transfer runs exactly once, unless the test asked for a transfer that never
// completes or for a power cut.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "daemon/base/event_loop.h"
#include "daemon/base/mapping.h"
#include "daemon/device/block_file.h"
#include "tests/support/crash_journal.h"
#include "tests/support/faulty_block_file.h"

namespace kvartal::testing {

// What outlives the file that is open on it: reopen the same disk to test a restart.
struct FakeDisk {
  Mapping bytes;
  bool in_use = false;
  CrashJournal* journal = nullptr;  // hears of every write and sync; outlives the disk
};
std::shared_ptr<FakeDisk> MakeFakeDisk(uint64_t size_bytes);

class FakeBlockFile : public FaultyBlockFile {
 public:
  static constexpr size_t kRecentWrites = 32;
  struct Counts {
    uint64_t reads = 0, writes = 0, bytes_read = 0, bytes_written = 0;  // taken effect, faults included
  };

  FakeBlockFile(uint64_t size_bytes, Executor* executor);
  // FailedPrecondition when the disk is open already.
  static absl::StatusOr<std::unique_ptr<FakeBlockFile>> Open(std::shared_ptr<FakeDisk> disk, Executor* executor);

  void Hold();
  void Release();
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
  class MemoryFile;
  FakeBlockFile(std::unique_ptr<MemoryFile> memory, Executor* executor);
  MemoryFile* const memory_;  // the file below
};

}  // namespace kvartal::testing
