// The seam to a disk: one preallocated file (or raw device) read and written in aligned parts, off the engine loop.
// The real ones are UringBlockFile and, where io_uring is denied or of no use, PoolBlockFile (threads with pread and
// pwrite); tests/support/fake_block_file.h is the one with faults that a test pumps by hand. All pass tests/contract.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/functional/any_invocable.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/ids.h"
#include "daemon/base/status.h"

namespace kvartal::device {

// How urgent a transfer is, most urgent first. The last two are background work: they are never starved.
enum class IoClass : uint8_t {
  kDemandRead,  // a client waits for it
  kPromotion,   // a client will ask for it
  kDemotion,    // write-through, and writes because a faster tier wants the space
  kScrub,       // zeroing what policy deleted; reading headers back
};
inline constexpr size_t kIoClassCount = 4;

// One transfer of up to two memory parts (a header and its payload) that lie one after another in the file.
// Offsets, lengths and addresses are multiples of kSlotAlignBytes. Buffers stay alive and unused until `done` has run.
struct BlockIo {
  enum class Op : uint8_t { kRead, kWrite };
  Op op = Op::kRead;
  IoClass io_class = IoClass::kScrub;
  DomainId owner;  // whose bandwidth it takes; None: the node's own
  uint64_t offset = 0;
  iovec parts[2] = {};
  int part_count = 1;
  // On the disk thread, before the device is given this transfer and after it succeeded: checksums, headers and ciphers
  // belong here, not on the loop. `before` may name other memory of the same length than a part did. Not OK ends the
  // transfer with that status; from `before`, nothing is moved.
  absl::AnyInvocable<absl::Status(BlockIo& io)> before, after;
  // On the engine loop, exactly once. A short transfer is an error, never success. Unavailable: the device failed.
  absl::AnyInvocable<void(absl::Status)> done;

  uint64_t bytes() const {
    uint64_t total = 0;
    for (int i = 0; i < part_count; ++i) total += parts[i].iov_len;
    return total;
  }
};

class BlockFile {
 public:
  virtual ~BlockFile() = default;
  virtual uint64_t size_bytes() const = 0;
  virtual bool direct_io() const = 0;  // what is in effect, read back from the descriptor
  // False when as many transfers are under way as may be: a refusal; nothing of `io` will run.
  [[nodiscard]] virtual bool Submit(BlockIo io) = 0;
  // On the calling thread, for start-up only. Offset and length are multiples of kSlotAlignBytes; OutOfRange past
  // the end.
  virtual absl::Status ReadNow(uint64_t offset, void* data, size_t bytes) = 0;
  virtual absl::Status WriteNow(uint64_t offset, const void* data, size_t bytes) = 0;
  // Writes that have ended are safe from a power cut when it returns. On the calling thread, any but the engine loop
  // once that runs: a device may take long.
  virtual absl::Status Sync() = 0;
  // Accepted, `done` not yet run.
  virtual size_t Pending() const = 0;
  // Of those, with the device for longer than a transfer may take, now. It is sick, and their buffers stay its own:
  // `done` runs when it lets go of them, with what came of it.
  virtual size_t Overdue() const { return 0; }
  // A read of the first two classes that the device has not been given: taken back, nothing of it runs. False: there is
  // none, or it is too late. A file that hands everything on at once has none.
  virtual bool Withdraw(DomainId owner, uint64_t offset) {
    (void)owner;
    (void)offset;
    return false;
  }
  // Somebody waits for that read now.
  virtual void Hasten(DomainId owner, uint64_t offset) {
    (void)owner;
    (void)offset;
  }
  // An owner's share of the bandwidth, in proportion to others'. A file where transfers take no turns has none to give.
  virtual void SetWeight(DomainId owner, uint32_t weight) {
    (void)owner;
    (void)weight;
  }
};

// Who moves the bytes of a real disk.
enum class IoEngine : uint8_t { kUring, kPool };
inline const char* IoEngineName(IoEngine engine) { return engine == IoEngine::kUring ? "io_uring" : "threads"; }

struct BlockFileOptions {
  std::string path;  // a file, created when absent, or a block device
  // The file is preallocated in full at this size; a smaller one is grown to it. Of a larger one the front is used:
  // a file is never made smaller. A device must be at least this large.
  uint64_t size_bytes = 0;
  // Asked of the first kNvmeForeignProbeBytes of a file that is to grow, zeros where it ends. Not OK: it is left as it
  // is.
  std::function<absl::Status(std::span<const std::byte> front)> judge = {};
  int depth = 8;         // transfers the device works on at once; the pool has a thread for each
  size_t queue_max = 0;  // transfers under way; 0: kDiskQueueMax
  // None: io_uring, or the pool where that cannot be.
  std::optional<IoEngine> engine;
  int64_t deadline_ms = 0;  // after which a transfer is overdue; 0: kIoDeadlineMs
};

struct OpenedBlockFile {
  std::unique_ptr<BlockFile> file;
  IoEngine engine = IoEngine::kPool;
  std::string note;  // why it is the pool, though nobody asked for it, and what would help
};
// Errors: FailedPrecondition when another process holds the file (flock), ResourceExhausted when the disk is full,
// Unimplemented when io_uring was asked for and cannot be; each with the path and what to do. Callbacks are posted to
// `executor`, which must outlive the file.
absl::StatusOr<OpenedBlockFile> OpenBlockFile(const BlockFileOptions& options, Executor* executor);

}  // namespace kvartal::device
