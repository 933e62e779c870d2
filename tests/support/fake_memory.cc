#include "tests/support/fake_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/mapping.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::testing {
namespace {

absl::StatusOr<UniqueFd> SparseFd(const char* name, uint64_t bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return absl::ErrnoToStatus(errno, "ftruncate");
  return fd;
}

// The bytes of one arena; operations under way keep them alive.
struct ArenaBytes {
  UniqueFd fd, generation_fd;
  Mapping data, generations;
  std::vector<bool> present;  // by extent-aligned unit
};

struct MemoryOp {
  bool populate = false;
  std::shared_ptr<ArenaBytes> arena;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  device::Arena::Done done;
};

}  // namespace

struct FakeMemory::State : public std::enable_shared_from_this<FakeMemory::State> {
  explicit State(Executor* posted_to) : executor(posted_to) {}

  Executor* const executor;
  std::deque<MemoryOp> ops;
  size_t queue_max = kMemoryQueueMax;
  bool held = false;
  bool fail_create = false;
  bool huge = true;
  int fail_populates = 0;
  int fail_punches = 0;
  Counts counts;

  absl::Status Submit(MemoryOp op) {
    KV_CHECK(op.bytes > 0 && op.offset % kExtentAlignBytes == 0 && op.bytes % kExtentAlignBytes == 0);
    KV_CHECK(op.offset + op.bytes <= op.arena->data.size());
    if (counts.pending >= queue_max) return absl::ResourceExhaustedError("too many memory requests are under way");
    ++counts.pending;
    if (op.populate) counts.populating_bytes += op.bytes;
    ops.push_back(std::move(op));
    PostOne();
    return absl::OkStatus();
  }

  void PostOne() {
    executor->Post([state = shared_from_this()] { state->CompleteOne(); });
  }

  void CompleteOne() {
    if (held || ops.empty()) return;
    MemoryOp op = std::move(ops.front());
    ops.pop_front();
    --counts.pending;
    if (op.populate) counts.populating_bytes -= op.bytes;
    op.done(op.populate ? Populate(op) : Punch(op));
  }

  absl::Status Populate(const MemoryOp& op) {
    if (fail_populates > 0) {
      --fail_populates;
      ++counts.failures;
      return absl::ResourceExhaustedError("populate was told to fail");
    }
    Mark(op, true);
    ++counts.populates;
    counts.populated_bytes += op.bytes;
    return absl::OkStatus();
  }

  absl::Status Punch(const MemoryOp& op) {
    if (fail_punches > 0) {
      --fail_punches;
      ++counts.failures;
      return absl::InternalError("punch was told to fail");
    }
    KV_CHECK(::fallocate(op.arena->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(op.offset),
                         static_cast<off_t>(op.bytes)) == 0);
    Mark(op, false);
    ++counts.punches;
    counts.punched_bytes += op.bytes;
    return absl::OkStatus();
  }

  static void Mark(const MemoryOp& op, bool present) {
    for (uint64_t at = op.offset; at < op.offset + op.bytes; at += kExtentAlignBytes) {
      op.arena->present[at / kExtentAlignBytes] = present;
    }
  }
};

class FakeArena : public device::Arena {
 public:
  FakeArena(std::shared_ptr<FakeMemory::State> state, std::shared_ptr<ArenaBytes> bytes)
      : state_(std::move(state)), bytes_(std::move(bytes)) {}

  uint64_t size_bytes() const override { return bytes_->data.size(); }
  std::byte* data() const override { return bytes_->data.data(); }
  int fd() const override { return bytes_->fd.get(); }
  int generation_fd() const override { return bytes_->generation_fd.get(); }
  std::atomic<uint32_t>* generations() const override {
    return reinterpret_cast<std::atomic<uint32_t>*>(bytes_->generations.data());
  }
  absl::Status Populate(uint64_t offset, uint64_t bytes, Done done) override {
    return state_->Submit({true, bytes_, offset, bytes, std::move(done)});
  }
  absl::Status Punch(uint64_t offset, uint64_t bytes, Done done) override {
    return state_->Submit({false, bytes_, offset, bytes, std::move(done)});
  }
  uint64_t AllocatedBytes() const override {
    uint64_t units = 0;
    for (const bool present : bytes_->present) units += present ? 1 : 0;
    return units * kExtentAlignBytes;
  }

  void Touch(uint64_t offset, uint64_t bytes) {
    KV_CHECK(bytes > 0 && offset + bytes <= size_bytes());
    for (uint64_t unit = offset / kExtentAlignBytes; unit <= (offset + bytes - 1) / kExtentAlignBytes; ++unit) {
      bytes_->present[unit] = true;
    }
  }

 private:
  const std::shared_ptr<FakeMemory::State> state_;
  const std::shared_ptr<ArenaBytes> bytes_;
};

FakeMemory::FakeMemory(Executor* executor) : state_(std::make_shared<State>(executor)) {}
FakeMemory::~FakeMemory() = default;

absl::StatusOr<std::unique_ptr<device::Arena>> FakeMemory::CreateArena(const char* name, uint64_t size_bytes) {
  KV_CHECK(size_bytes > 0 && size_bytes % kExtentAlignBytes == 0);
  if (state_->fail_create) return absl::ResourceExhaustedError(absl::StrCat("arena ", name, " was told to fail"));
  auto bytes = std::make_shared<ArenaBytes>();
  const uint64_t generation_bytes = RoundUp(size_bytes / kSlotAlignBytes * sizeof(uint32_t), kSlotAlignBytes);
  KV_ASSIGN_OR_RETURN(bytes->fd, SparseFd(name, size_bytes));
  KV_ASSIGN_OR_RETURN(bytes->generation_fd, SparseFd(name, generation_bytes));
  KV_ASSIGN_OR_RETURN(bytes->data, Mapping::Shared(bytes->fd.get(), size_bytes, PROT_READ | PROT_WRITE, MAP_NORESERVE));
  KV_ASSIGN_OR_RETURN(bytes->generations, Mapping::Shared(bytes->generation_fd.get(), generation_bytes,
                                                          PROT_READ | PROT_WRITE, MAP_NORESERVE));
  KV_CHECK(::fcntl(bytes->fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  KV_CHECK(::fcntl(bytes->generation_fd.get(), F_ADD_SEALS,
                   F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0);
  bytes->present.resize(size_bytes / kExtentAlignBytes);
  return std::make_unique<FakeArena>(state_, std::move(bytes));
}

bool FakeMemory::HugePages() const { return state_->huge; }
void FakeMemory::FailNextPopulates(int count) { state_->fail_populates = count; }
void FakeMemory::FailNextPunches(int count) { state_->fail_punches = count; }
void FakeMemory::Hold() { state_->held = true; }
void FakeMemory::Release() {
  state_->held = false;
  for (size_t i = 0; i < state_->ops.size(); ++i) state_->PostOne();
}
void FakeMemory::SetQueueMax(size_t count) { state_->queue_max = count == 0 ? kMemoryQueueMax : count; }
void FakeMemory::FailCreate(bool fail) { state_->fail_create = fail; }
void FakeMemory::SetHugePages(bool huge) { state_->huge = huge; }
FakeMemory::Counts FakeMemory::counts() const { return state_->counts; }

void FakeMemory::TouchHole(device::Arena* arena, uint64_t offset, uint64_t bytes) {
  static_cast<FakeArena*>(arena)->Touch(offset, bytes);
}

}  // namespace kvartal::testing
