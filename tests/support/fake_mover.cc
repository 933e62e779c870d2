#include "tests/support/fake_mover.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/device/mover_limits.h"

namespace kvartal::testing {

using device::GpuCopyDirection;
using device::GpuPriority;

FakeMover::FakeMover(Executor* executor) : executor_(executor) {}

FakeMover::~FakeMover() {
  EndAll(absl::CancelledError("the mover has ended"));
  *alive_ = false;
}

absl::Status FakeMover::AddSlab(device::SlabId id, int fd, uint64_t bytes) {
  return Add(&slabs_, id.value(), fd, bytes);
}

absl::Status FakeMover::AddArena(device::ArenaId id, int fd, uint64_t bytes) {
  return Add(&arenas_, id.value(), fd, bytes);
}

absl::Status FakeMover::Add(Memories* memories, uint64_t id, int fd, uint64_t bytes) {
  KV_RETURN_IF_ERROR(memories->MayAdd(id, bytes));
  KV_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Shared(fd, bytes, PROT_READ | PROT_WRITE, MAP_NORESERVE));
  memories->Add(id, bytes, {std::move(mapping)});
  return absl::OkStatus();
}

absl::Status FakeMover::ForgetSlab(device::SlabId id, Done done) {
  return Forget(&slabs_, id.value(), std::move(done));
}

absl::Status FakeMover::ForgetArena(device::ArenaId id, Done done) {
  return Forget(&arenas_, id.value(), std::move(done));
}

absl::Status FakeMover::Forget(Memories* memories, uint64_t id, Done done) {
  KV_ASSIGN_OR_RETURN(Memories::Memory * memory, memories->Known(id));
  if (under_way() >= device::kMoverOperationsMax) return Refuse(absl::ResourceExhaustedError("too many operations"));
  memory->leaving = true;
  forgets_.push_back({memories, id, std::move(done)});
  PostTurn();
  return absl::OkStatus();
}

absl::Status FakeMover::Copy(const device::GpuCopy& copy, Done done) {
  auto slab = slabs_.Range(copy.slab.value(), copy.slab_offset, copy.bytes);
  if (!slab.ok()) return Refuse(slab.status());
  auto arena = arenas_.Range(copy.arena.value(), copy.arena_offset, copy.bytes);
  if (!arena.ok()) return Refuse(arena.status());
  const bool to_gpu = copy.direction == GpuCopyDirection::kToGpu;
  std::byte* const gpu = (*slab)->held.mapping.data() + copy.slab_offset;
  std::byte* const host = (*arena)->held.mapping.data() + copy.arena_offset;
  Operation operation{
      .effect = [=, bytes = copy.bytes] { std::memcpy(to_gpu ? gpu : host, to_gpu ? host : gpu, bytes); },
      .slab = *slab,
      .arena = *arena,
      .counter = to_gpu ? &stats_.bytes_to_gpu : &stats_.bytes_to_host,
      .bytes = copy.bytes,
      .done = std::move(done)};
  return Submit(copy.priority == GpuPriority::kDemand ? &demand_ : &background_, std::move(operation));
}

absl::Status FakeMover::Scrub(device::SlabId slab, Done done) {
  auto known = slabs_.Known(slab.value());
  if (!known.ok()) return Refuse(known.status());
  const Mapping& all = (*known)->held.mapping;
  Operation operation{.effect = [&all] { std::memset(all.data(), 0, all.size()); },
                      .slab = *known,
                      .counter = &stats_.bytes_scrubbed,
                      .bytes = all.size(),
                      .done = std::move(done)};
  return Submit(&background_, std::move(operation));
}

absl::Status FakeMover::Submit(std::deque<Operation>* line, Operation operation) {
  if (!ready_) return Refuse(absl::UnavailableError("the mover is being started again"));
  if (under_way() >= device::kMoverOperationsMax) return Refuse(absl::ResourceExhaustedError("too many operations"));
  ++operation.slab->held.uses;
  if (operation.arena != nullptr) ++operation.arena->held.uses;
  line->push_back(std::move(operation));
  PostTurn();
  return absl::OkStatus();
}

absl::Status FakeMover::Refuse(absl::Status why) {
  ++stats_.refused;
  return why;
}

void FakeMover::PostTurn() {
  executor_->Post([this, alive = alive_] {
    if (*alive) RunTurn();
  });
}

void FakeMover::RunTurn() {
  if (!RunForget()) RunOperation();
}

bool FakeMover::RunForget() {
  const auto idle = std::find_if(forgets_.begin(), forgets_.end(), [](const Forgetting& forgetting) {
    return forgetting.memories->Find(forgetting.id)->held.uses == 0;
  });
  if (idle == forgets_.end()) return false;
  Forgetting forgetting = std::move(*idle);
  forgets_.erase(idle);
  forgetting.memories->Erase(forgetting.id);
  forgetting.done(absl::OkStatus());
  return true;
}

bool FakeMover::RunOperation() {
  std::deque<Operation>& line = demand_.empty() ? background_ : demand_;
  if (held_ || line.empty()) return false;
  Operation operation = std::move(line.front());
  line.pop_front();
  --operation.slab->held.uses;
  if (operation.arena != nullptr) --operation.arena->held.uses;
  PostTurn();  // a Forget may have waited for it
  if (fail_next_ > 0) {
    --fail_next_;
    ++stats_.operations_failed;
    operation.done(absl::UnavailableError("the mover was told to fail"));
    return true;
  }
  operation.effect();
  *operation.counter += operation.bytes;
  operation.done(absl::OkStatus());
  return true;
}

void FakeMover::Release() {
  held_ = false;
  for (size_t i = 0; i < under_way(); ++i) PostTurn();
}

void FakeMover::Crash() {
  ready_ = false;
  EndAll(absl::UnavailableError("the mover was told to crash"));
}

void FakeMover::Restart() {
  KV_CHECK(!ready_);
  ++stats_.restarts;
  ready_ = true;
}

void FakeMover::EndAll(const absl::Status& status) {
  std::deque<Operation> ended = std::exchange(demand_, {});
  std::move(background_.begin(), background_.end(), std::back_inserter(ended));
  background_.clear();
  for (Operation& operation : ended) {
    --operation.slab->held.uses;
    if (operation.arena != nullptr) --operation.arena->held.uses;
    ++stats_.operations_failed;
    executor_->Post([done = std::move(operation.done), status]() mutable { done(status); });
  }
  for (Forgetting& forgetting : std::exchange(forgets_, {})) {
    forgetting.memories->Erase(forgetting.id);
    executor_->Post([done = std::move(forgetting.done)]() mutable { done(absl::OkStatus()); });
  }
}

}  // namespace kvartal::testing
