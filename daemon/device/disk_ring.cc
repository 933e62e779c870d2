#include "daemon/device/disk_ring.h"

#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"

namespace kvartal::device {
namespace {

constexpr uint64_t kWake = UINT64_MAX - 1;  // UINT64_MAX is liburing's own
constexpr uint64_t kCancel = UINT64_MAX - 2;

}  // namespace

absl::StatusOr<std::unique_ptr<DiskRing>> DiskRing::Start(const DiskFile* file, size_t depth, int64_t deadline_ms,
                                                          Executor* executor) {
  KV_ASSIGN_OR_RETURN(Ring ring, MakeRing(kRingEntries));
  // Blocking, or the ring's read of it would fail instead of wait.
  UniqueFd wake_fd(::eventfd(0, EFD_CLOEXEC));
  if (!wake_fd.valid()) return absl::ErrnoToStatus(errno, "eventfd of a disk thread");
  return std::unique_ptr<DiskRing>(
      new DiskRing(file, depth, deadline_ms, executor, std::move(ring), std::move(wake_fd)));
}

DiskRing::DiskRing(const DiskFile* file, size_t depth, int64_t deadline_ms, Executor* executor, Ring ring,
                   UniqueFd wake_fd)
    : file_(*file),
      depth_(depth),
      deadline_ns_(deadline_ms * kNsPerMs),
      executor_(executor),
      parts_(kRingPartsMax),
      wake_fd_(std::move(wake_fd)),
      ring_(std::move(ring)) {
  for (uint32_t i = 0; i < kRingPartsMax; ++i) free_parts_.push_back(kRingPartsMax - 1 - i);
  thread_ = std::thread([this] { Run(); });
}

DiskRing::~DiskRing() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  KV_CHECK(::eventfd_write(wake_fd_.get(), 1) == 0);
  thread_.join();
}

void DiskRing::Submit(BlockIo io) {
  bool wake;
  {
    MutexLock lock(mutex_);
    inbox_.push_back(std::move(io));
    wake = std::exchange(asleep_, false);
  }
  if (wake) KV_CHECK(::eventfd_write(wake_fd_.get(), 1) == 0);
}

size_t DiskRing::overdue() const {
  const size_t noted = overdue_.load(std::memory_order_relaxed);
  const int64_t oldest_ns = oldest_ns_.load(std::memory_order_relaxed);
  if (noted > 0 || oldest_ns == INT64_MAX) return noted;
  return clock_.MonotonicNs() - oldest_ns >= deadline_ns_ ? 1 : 0;
}

void DiskRing::Run() {
  pthread_setname_np(pthread_self(), "disk-ring");
  KV_CHECK(EnableRing(ring_.get()).ok());  // ProbeUring could, with a ring of the same kind
  ArmWake();
  for (;;) {
    TakeInbox();
    Reap();
    if (!wake_armed_ && !stop_) ArmWake();
    if (Step()) continue;
    if (stop_ && active_.empty() && !wake_armed_) return;
    Wait();
  }
}

// One piece of work, so that completions are seen between two hashes. The device comes first: it is kept busy, then
// what it brought is verified, then what it will be given next is hashed.
bool DiskRing::Step() {
  if (sending_ != nullptr && !free_parts_.empty()) return SendParts(), true;
  const bool room = sending_ == nullptr && active_.size() < depth_ && !free_parts_.empty();
  if (room && !ready_.empty()) return StartNext(), true;
  if (room && !waiting_.empty()) return HookNext(), true;
  if (!read_.empty()) return FinishNext(), true;
  if (!waiting_.empty()) return HookNext(), true;
  return false;
}

void DiskRing::TakeInbox() {
  MutexLock lock(mutex_);
  // The word to stop may have been taken for another one. A wake that is still armed has a buffer with the kernel, and
  // nobody else ends it any more.
  if (stopping_ && !stop_) KV_CHECK(::eventfd_write(wake_fd_.get(), 1) == 0);
  stop_ = stopping_;
  for (BlockIo& io : inbox_) {
    auto transfer = std::make_unique<Transfer>();
    transfer->total = io.bytes();
    transfer->io = std::move(io);
    waiting_.push_back(std::move(transfer));
  }
  inbox_.clear();
}

void DiskRing::HookNext() {
  TransferPtr transfer = std::move(waiting_.front());
  waiting_.pop_front();
  if (transfer->io.before != nullptr) {
    transfer->failure = transfer->io.before(transfer->io);
    if (!transfer->failure.ok()) return Post(std::move(transfer));
  }
  ready_.push_back(std::move(transfer));
}

void DiskRing::StartNext() {
  Transfer* const transfer = ready_.front().get();
  transfer->started_ns = clock_.MonotonicNs();
  transfer->place = active_.insert(active_.end(), std::move(ready_.front()));
  ready_.pop_front();
  NoteOldest();
  sending_ = transfer;
  SendParts();
}

void DiskRing::SendParts() {
  Transfer* const transfer = sending_;
  while (transfer->sent < transfer->total && !free_parts_.empty()) {
    const uint32_t number = free_parts_.back();
    free_parts_.pop_back();
    Part& part = parts_[number];
    part = {transfer, transfer->sent, std::min(kIoPartBytes, transfer->total - transfer->sent)};
    transfer->sent += part.bytes;
    ++transfer->parts_out;
    SendPart(number);
  }
  if (transfer->sent == transfer->total) sending_ = nullptr;
  Enter();
}

// What is left of it.
void DiskRing::SendPart(uint32_t number) {
  Part& part = parts_[number];
  const BlockIo& io = part.transfer->io;
  const uint64_t from = part.at + part.moved;
  const auto count = static_cast<unsigned>(SliceOf(io, from, part.bytes - part.moved, part.memory));
  io_uring_sqe* const sqe = NextSqe();
  if (io.op == BlockIo::Op::kRead) {
    io_uring_prep_readv(sqe, file_.fd(), part.memory, count, io.offset + from);
  } else {
    io_uring_prep_writev(sqe, file_.fd(), part.memory, count, io.offset + from);
  }
  io_uring_sqe_set_data64(sqe, number);
}

void DiskRing::Reap() {
  // With deferred completions the kernel does them when it is asked.
  if (!active_.empty()) io_uring_get_events(ring_.get());
  unsigned head;
  unsigned seen = 0;
  io_uring_cqe* cqe;
  io_uring_for_each_cqe(ring_.get(), head, cqe) {
    ++seen;
    if (cqe->user_data == kWake) {
      wake_armed_ = false;
    } else if (cqe->user_data != kCancel) {
      OnPart(static_cast<uint32_t>(cqe->user_data), cqe->res);
    }
  }
  io_uring_cq_advance(ring_.get(), seen);
}

void DiskRing::OnPart(uint32_t number, int result) {
  Part& part = parts_[number];
  Transfer* const transfer = part.transfer;
  KV_CHECK(transfer != nullptr);
  const bool again = result == -EINTR || result == -EAGAIN;
  if (result > 0) part.moved += static_cast<uint64_t>(result);
  KV_CHECK(part.moved <= part.bytes);
  const bool short_of = result > 0 && part.moved < part.bytes && OnSlotBoundary(part.moved);
  if ((again || short_of) && !transfer->overdue) return SendPart(number);

  if (result < 0) {
    Fail(transfer,
         transfer->overdue ? Late(*transfer) : file_.ErrorOf(transfer->io.op, transfer->io.offset + part.at, -result));
  } else if (part.moved < part.bytes) {
    Fail(transfer, file_.EndedShort(transfer->io, part.at + part.moved));
  }
  part.transfer = nullptr;
  free_parts_.push_back(number);
  --transfer->parts_out;
  if (transfer->parts_out == 0 && transfer->sent == transfer->total) End(transfer);
}

// What was not sent is not sent any more; what was is waited for.
void DiskRing::Fail(Transfer* transfer, absl::Status why) {
  if (transfer->failure.ok()) transfer->failure = std::move(why);
  transfer->sent = transfer->total;
  if (sending_ == transfer) sending_ = nullptr;
}

void DiskRing::End(Transfer* transfer) {
  TransferPtr ended = std::move(*transfer->place);
  active_.erase(ended->place);
  NoteOldest();
  if (ended->overdue) overdue_.fetch_sub(1, std::memory_order_relaxed);
  if (ended->io.after == nullptr || !ended->failure.ok()) return Post(std::move(ended));
  read_.push_back(std::move(ended));
}

void DiskRing::NoteOldest() {
  oldest_ns_.store(active_.empty() ? INT64_MAX : active_.front()->started_ns, std::memory_order_relaxed);
}

void DiskRing::FinishNext() {
  TransferPtr transfer = std::move(read_.front());
  read_.pop_front();
  transfer->failure = transfer->io.after(transfer->io);
  Post(std::move(transfer));
}

void DiskRing::Post(TransferPtr transfer) {
  executor_->Post([done = std::move(transfer->io.done), status = std::move(transfer->failure)]() mutable {
    done(std::move(status));
  });
}

void DiskRing::Wait() {
  {
    MutexLock lock(mutex_);
    if (!inbox_.empty() || stopping_ != stop_) return;
    asleep_ = true;
  }
  const int64_t now_ns = clock_.MonotonicNs();
  NoteOverdue(now_ns);
  const std::optional<int64_t> due_ns = NextDueNs();
  __kernel_timespec timeout{};
  if (due_ns.has_value()) timeout = {(*due_ns - now_ns) / kNsPerSecond, (*due_ns - now_ns) % kNsPerSecond};
  io_uring_cqe* cqe = nullptr;
  const int result =
      io_uring_submit_and_wait_timeout(ring_.get(), &cqe, 1, due_ns.has_value() ? &timeout : nullptr, nullptr);
  KV_CHECK(result >= 0 || result == -ETIME || result == -EINTR || result == -EAGAIN || result == -EBUSY);
  MutexLock lock(mutex_);
  asleep_ = false;
}

std::optional<int64_t> DiskRing::NextDueNs() const {
  for (const TransferPtr& transfer : active_) {
    if (!transfer->overdue) return transfer->started_ns + deadline_ns_;
  }
  return std::nullopt;
}

// What the kernel has not handed to the device can be called back; the rest is the device's until it says so.
void DiskRing::NoteOverdue(int64_t now_ns) {
  for (const TransferPtr& transfer : active_) {
    if (transfer->overdue) continue;
    if (transfer->started_ns + deadline_ns_ > now_ns) return;
    transfer->overdue = true;
    if (overdue_.fetch_add(1, std::memory_order_relaxed) == 0) {
      Log(LogLevel::kWarning, "device", Late(*transfer).message());
    }
    if (sending_ == transfer.get()) Fail(sending_, Late(*transfer));
    for (uint32_t number = 0; number < parts_.size(); ++number) {
      if (parts_[number].transfer != transfer.get()) continue;
      io_uring_sqe* const sqe = NextSqe();
      io_uring_prep_cancel64(sqe, number, 0);
      io_uring_sqe_set_data64(sqe, kCancel);
    }
  }
}

absl::Status DiskRing::Late(const Transfer& transfer) const {
  return absl::UnavailableError(absl::StrCat(transfer.io.op == BlockIo::Op::kRead ? "reading " : "writing ",
                                             file_.path(), " at ", transfer.io.offset, ": not done within ",
                                             deadline_ns_ / kNsPerMs, " ms: the disk hangs"));
}

void DiskRing::ArmWake() {
  io_uring_sqe* const sqe = NextSqe();
  io_uring_prep_read(sqe, wake_fd_.get(), &wake_count_, sizeof(wake_count_), 0);
  io_uring_sqe_set_data64(sqe, kWake);
  wake_armed_ = true;
}

// What the kernel has no room for now stays in the ring's queue and goes with the next call.
void DiskRing::Enter() {
  const int result = io_uring_submit(ring_.get());
  KV_CHECK(result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY);
}

io_uring_sqe* DiskRing::NextSqe() {
  io_uring_sqe* sqe = io_uring_get_sqe(ring_.get());
  if (sqe == nullptr) {
    Enter();
    sqe = io_uring_get_sqe(ring_.get());
  }
  KV_CHECK(sqe != nullptr);
  return sqe;
}

}  // namespace kvartal::device
