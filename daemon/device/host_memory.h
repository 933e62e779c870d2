// The seam to host memory: arenas (sparse memfds) whose ranges are populated and punched off the engine loop.
// MemfdMemory is the real one; tests/support/fake_memory.h the one a test pumps by hand. Both pass tests/contract.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"

namespace kvartal::device {

// DRAM of one domain: one sparse memfd mapped whole by the daemon, and beside it the generation table, a second memfd
// that clients may only read (sealed against future writes after the daemon mapped it). Confined to the engine loop;
// the bytes themselves are shared memory.
class Arena {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  virtual ~Arena() = default;

  virtual uint64_t size_bytes() const = 0;
  virtual std::byte* data() const = 0;    // size_bytes() of address space
  virtual int fd() const = 0;             // what a pod of the domain receives, read-write
  virtual int generation_fd() const = 0;  // what it receives read-only
  // One counter per kSlotAlignBytes of the arena, at the slot's first page. Raised (release order) before a slot's
  // bytes may change under a reader; a reader that sees another value than its lookup gave has a failed load, not
  // wrong bytes.
  virtual std::atomic<uint32_t>* generations() const = 0;

  // Makes [offset, offset + bytes) present (Populate) or gives it back to the system, reading as zeros from then on,
  // for every mapping (Punch). Multiples of kExtentAlignBytes. `done` runs on the engine loop. ResourceExhausted at
  // once when kMemoryQueueMax requests are under way: then `done` is never run. Requests are done part after part in
  // turn with others: two that overlap must not be under way at once. After a Populate that failed, part of the range
  // may be present.
  [[nodiscard]] virtual absl::Status Populate(uint64_t offset, uint64_t bytes, Done done) = 0;
  [[nodiscard]] virtual absl::Status Punch(uint64_t offset, uint64_t bytes, Done done) = 0;

  // Copies present bytes within the arena, at once. Two ranges that do not overlap.
  virtual void Copy(uint64_t from, uint64_t to, uint64_t bytes) { std::memcpy(data() + to, data() + from, bytes); }
  // Overwrites bytes of a range that is present with zeros. Multiples of kSlotAlignBytes; else as Populate and Punch.
  [[nodiscard]] virtual absl::Status Zero(uint64_t offset, uint64_t bytes, Done done) = 0;

  // Bytes of memory the system really holds for the arena.
  virtual uint64_t AllocatedBytes() const = 0;
};

class HostMemory {
 public:
  virtual ~HostMemory() = default;
  // `name` shows in /proc/<pid>/maps.
  virtual absl::StatusOr<std::unique_ptr<Arena>> CreateArena(const char* name, uint64_t size_bytes) = 0;
  // False: shared memory gets no huge pages on this machine (shmem_enabled); populating costs about ten times more.
  virtual bool HugePages() const = 0;
  // True: the system may write arenas to swap, since it has some and lets this process lock no memory of that size.
  virtual bool Swappable() const { return false; }
};

// memfds, with one memory thread for populate and punch. Callbacks are posted to `executor`, which must outlive it.
std::unique_ptr<HostMemory> NewMemfdMemory(Executor* executor);

}  // namespace kvartal::device
