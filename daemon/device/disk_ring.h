// A disk thread with one io_uring. It keeps up to `depth` transfers with the device, each in parts of at most
// kIoPartBytes that are all under way at once, and hashes the next ones meanwhile.
// Submit and overdue: any thread. Everything private: the ring's own thread.
// Invariants: a transfer's buffers are the kernel's from its first part until the completion of its last, and `done` is
// posted after that, whatever failed or was late before; memory is pinned for one transfer only, never registered, so a
// hole punched afterwards is a hole for the disk as well.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/mutex.h"
#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/block_file.h"
#include "daemon/device/disk_file.h"
#include "daemon/device/uring.h"

namespace kvartal::device {

class DiskRing {
 public:
  // Unimplemented when there can be no ring. `file` and `executor` must outlive it.
  static absl::StatusOr<std::unique_ptr<DiskRing>> Start(const DiskFile* file, size_t depth, int64_t deadline_ms,
                                                         Executor* executor);
  // Everything submitted is finished first; its `done` is posted.
  ~DiskRing();

  void Submit(BlockIo io);
  size_t overdue() const;

 private:
  struct Transfer {
    BlockIo io;
    uint64_t total = 0;
    uint64_t sent = 0;     // bytes given to the kernel in parts, or left out because of `failure`
    size_t parts_out = 0;  // not completed
    int64_t started_ns = 0;
    bool overdue = false;
    absl::Status failure;                                  // the first one
    std::list<std::unique_ptr<Transfer>>::iterator place;  // in active_
  };
  using TransferPtr = std::unique_ptr<Transfer>;
  // What one submission moves. Its number is the completion's user_data.
  struct Part {
    Transfer* transfer = nullptr;  // null: free
    uint64_t at = 0;               // in the transfer
    uint64_t bytes = 0, moved = 0;
    iovec memory[2] = {};  // of what is left of it: the kernel reads it at submission
  };

  DiskRing(const DiskFile* file, size_t depth, int64_t deadline_ms, Executor* executor, Ring ring, UniqueFd wake_fd);
  void Run();
  bool Step();
  void TakeInbox();
  void HookNext();
  void StartNext();
  void SendParts();
  void SendPart(uint32_t number);
  void FinishNext();
  void Reap();
  void OnPart(uint32_t number, int result);
  void Fail(Transfer* transfer, absl::Status why);
  void End(Transfer* transfer);
  void NoteOldest();
  void Post(TransferPtr transfer);
  void Wait();
  std::optional<int64_t> NextDueNs() const;
  void NoteOverdue(int64_t now_ns);
  absl::Status Late(const Transfer& transfer) const;
  void ArmWake();
  void Enter();
  io_uring_sqe* NextSqe();

  const DiskFile& file_;
  const size_t depth_;
  const int64_t deadline_ns_;
  Executor* const executor_;
  const SystemClock clock_;
  std::atomic<size_t> overdue_ = 0;
  // Of what is with the device, the start of the longest; INT64_MAX: nothing is. Else a ring whose own thread hangs, in
  // a submission that the kernel does not end, would be taken for a fine one.
  std::atomic<int64_t> oldest_ns_ = INT64_MAX;

  Mutex mutex_;
  std::vector<BlockIo> inbox_ ABSL_GUARDED_BY(mutex_);
  bool asleep_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::deque<TransferPtr> waiting_;  // writes among them have not been hashed
  std::deque<TransferPtr> ready_;    // for the device
  std::list<TransferPtr> active_;    // with it, the longest first
  Transfer* sending_ = nullptr;      // the last of them while it has parts the ring has no room for
  std::deque<TransferPtr> read_;     // whole, not verified yet
  std::vector<Part> parts_;
  std::vector<uint32_t> free_parts_;
  bool stop_ = false;
  bool wake_armed_ = false;
  uint64_t wake_count_ = 0;  // the kernel writes it while the wake is armed

  const UniqueFd wake_fd_;
  const Ring ring_;
  std::thread thread_;  // last: uses everything above
};

}  // namespace kvartal::device
