#include "tests/support/fake_slab_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "daemon/base/check.h"

namespace kvartal::testing {
namespace {

// What a GPU shows of others: at the start of every 2 MiB, as on a simulated one.
constexpr char kLeft[] = "left by somebody else";

UniqueFd DirtyBytes(uint64_t bytes) {
  UniqueFd fd(::memfd_create("fake-slab", MFD_CLOEXEC));
  KV_CHECK(fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  for (uint64_t at = 0; at < bytes; at += device::kSlabAlignBytes) {
    KV_CHECK(::pwrite(fd.get(), kLeft, sizeof(kLeft), static_cast<off_t>(at)) == sizeof(kLeft));
  }
  return fd;
}

}  // namespace

struct FakeSlabMemory::State : public std::enable_shared_from_this<FakeSlabMemory::State> {
  State(Executor* posted_to, uint64_t bytes) : executor(posted_to), gpu_bytes(bytes) {}

  using Request = absl::AnyInvocable<void(State&)>;

  absl::Status Submit(Request request) {
    if (counts.pending >= queue_max) return absl::ResourceExhaustedError("too many slabs are under way");
    ++counts.pending;
    requests.push_back(std::move(request));
    PostOne();
    return absl::OkStatus();
  }

  void PostOne() {
    executor->Post([state = shared_from_this()] {
      if (state->held || state->requests.empty()) return;
      Request request = std::move(state->requests.front());
      state->requests.pop_front();
      --state->counts.pending;
      request(*state);
    });
  }

  // Whether this one was told to fail.
  static bool Fails(int* left) { return *left > 0 && (*left)-- > 0; }

  Executor* const executor;
  const uint64_t gpu_bytes;
  std::deque<Request> requests;
  std::map<int, uint64_t> live_bytes;
  size_t queue_max = device::kSlabQueueMax;
  bool held = false;
  int fail_creates = 0, fail_scrubs = 0;
  Counts counts;
};

class FakeSlabMemory::FakeSlab : public device::Slab {
 public:
  // What a Scrub under way keeps of a slab that ends.
  struct Bytes {
    UniqueFd fd;
    bool dirty = true;
    bool exported = false;
  };

  FakeSlab(std::shared_ptr<State> state, int gpu, uint64_t bytes)
      : state_(std::move(state)), gpu_(gpu), bytes_(bytes), held_(std::make_shared<Bytes>()) {
    held_->fd = DirtyBytes(bytes);
    state_->live_bytes[gpu] += bytes;
  }
  ~FakeSlab() override {
    state_->live_bytes[gpu_] -= bytes_;
    if (held_->exported && held_->dirty) ++state_->counts.dirty_releases;
  }

  int gpu() const override { return gpu_; }
  uint64_t bytes() const override { return bytes_; }
  absl::StatusOr<UniqueFd> Export() const override {
    ++state_->counts.exports;
    if (held_->dirty && !held_->exported) ++state_->counts.dirty_exports;
    held_->dirty = held_->exported = true;
    return UniqueFd(::fcntl(held_->fd.get(), F_DUPFD_CLOEXEC, 0));
  }
  const std::shared_ptr<Bytes>& held() const { return held_; }

 private:
  const std::shared_ptr<State> state_;
  const int gpu_;
  const uint64_t bytes_;
  const std::shared_ptr<Bytes> held_;
};

FakeSlabMemory::FakeSlabMemory(Executor* executor, uint64_t gpu_bytes)
    : state_(std::make_shared<State>(executor, gpu_bytes)) {}
FakeSlabMemory::~FakeSlabMemory() = default;

absl::Status FakeSlabMemory::Create(int gpu, uint64_t bytes, CreateDone done) {
  KV_CHECK(bytes > 0 && bytes % device::kSlabAlignBytes == 0);
  return state_->Submit([gpu, bytes, end = std::move(done)](State& state) mutable {
    if (State::Fails(&state.fail_creates)) return end(absl::ResourceExhaustedError("create was told to fail"));
    if (state.live_bytes[gpu] + bytes > state.gpu_bytes) return end(absl::ResourceExhaustedError("the GPU is full"));
    ++state.counts.creates;
    end(std::make_unique<FakeSlab>(state.shared_from_this(), gpu, bytes));
  });
}

absl::Status FakeSlabMemory::Scrub(const device::Slab& slab, ScrubDone done) {
  return state_->Submit([held = static_cast<const FakeSlab&>(slab).held(), bytes = slab.bytes(),
                         end = std::move(done)](State& state) mutable {
    if (State::Fails(&state.fail_scrubs)) return end(absl::UnavailableError("scrub was told to fail"));
    KV_CHECK(::fallocate(held->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) ==
             0);
    held->dirty = held->exported = false;
    ++state.counts.scrubs;
    end(absl::OkStatus());
  });
}

void FakeSlabMemory::FailNextCreates(int count) { state_->fail_creates = count; }
void FakeSlabMemory::FailNextScrubs(int count) { state_->fail_scrubs = count; }
void FakeSlabMemory::Hold() { state_->held = true; }
void FakeSlabMemory::Resume() {
  state_->held = false;
  for (size_t i = 0; i < state_->requests.size(); ++i) state_->PostOne();
}
void FakeSlabMemory::SetQueueMax(size_t count) { state_->queue_max = count == 0 ? device::kSlabQueueMax : count; }
FakeSlabMemory::Counts FakeSlabMemory::counts() const { return state_->counts; }
uint64_t FakeSlabMemory::live_bytes(int gpu) const { return state_->live_bytes[gpu]; }

}  // namespace kvartal::testing
