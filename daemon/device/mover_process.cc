#include "daemon/device/mover_process.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"

namespace kvartal::device {
namespace {

bool Adds(MoverVerb verb) { return verb == MoverVerb::kAddSlab || verb == MoverVerb::kAddArena; }
bool Forgets(MoverVerb verb) { return verb == MoverVerb::kForgetSlab || verb == MoverVerb::kForgetArena; }
bool OnSlab(MoverVerb verb) { return verb == MoverVerb::kAddSlab || verb == MoverVerb::kForgetSlab; }

MoverRequest MemoryRequest(MoverVerb verb, uint64_t id, uint64_t bytes) {
  MoverRequest request;
  request.verb = verb;
  (OnSlab(verb) ? request.slab : request.arena) = id;
  request.bytes = bytes;
  return request;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MoverProcess>> MoverProcess::Start(MoverOptions options, EventLoop* loop,
                                                                  const Clock* clock) {
  std::unique_ptr<MoverProcess> mover(new MoverProcess(std::move(options), loop, clock));
  KV_RETURN_IF_ERROR(mover->Begin());
  return mover;
}

MoverProcess::MoverProcess(MoverOptions options, EventLoop* loop, const Clock* clock)
    : options_(std::move(options)), loop_(loop), clock_(clock) {}

MoverProcess::~MoverProcess() {
  if (tick_timer_ != 0) loop_->CancelTimer(tick_timer_);
  if (begin_timer_ != 0) loop_->CancelTimer(begin_timer_);
  if (!child_.has_value()) return;
  loop_->Remove(child_->socket());
  loop_->Remove(child_->exit_fd());
  child_.reset();
  loop_->Post([ended = std::move(operations_)]() mutable {
    for (auto& [number, operation] : ended) {
      if (!operation.done) continue;
      const bool forgotten = Forgets(operation.request.verb);
      operation.done(forgotten ? absl::OkStatus() : absl::CancelledError("the daemon has ended its mover"));
    }
  });
}

absl::Status MoverProcess::AddSlab(SlabId id, int fd, uint64_t bytes) {
  return Add(&slabs_, MoverVerb::kAddSlab, id.value(), fd, bytes);
}

absl::Status MoverProcess::AddArena(ArenaId id, int fd, uint64_t bytes) {
  return Add(&arenas_, MoverVerb::kAddArena, id.value(), fd, bytes);
}

absl::Status MoverProcess::ForgetSlab(SlabId id, Done done) {
  return Forget(&slabs_, MoverVerb::kForgetSlab, id.value(), std::move(done));
}

absl::Status MoverProcess::ForgetArena(ArenaId id, Done done) {
  return Forget(&arenas_, MoverVerb::kForgetArena, id.value(), std::move(done));
}

absl::Status MoverProcess::Copy(const GpuCopy& copy, Done done) {
  return CountRefusal([&]() -> absl::Status {
    KV_RETURN_IF_ERROR(slabs_.Range(copy.slab.value(), copy.slab_offset, copy.bytes).status());
    KV_RETURN_IF_ERROR(arenas_.Range(copy.arena.value(), copy.arena_offset, copy.bytes).status());
    MoverRequest request;
    request.verb = copy.direction == GpuCopyDirection::kToGpu ? MoverVerb::kCopyToGpu : MoverVerb::kCopyToHost;
    request.background = copy.priority == GpuPriority::kBackground ? 1 : 0;
    request.slab = copy.slab.value();
    request.slab_offset = copy.slab_offset;
    request.arena = copy.arena.value();
    request.arena_offset = copy.arena_offset;
    request.bytes = copy.bytes;
    return Submit(request, copy.deadline_ms, std::move(done));
  }());
}

absl::Status MoverProcess::Scrub(SlabId slab, Done done) {
  return CountRefusal([&]() -> absl::Status {
    KV_ASSIGN_OR_RETURN(const Memories::Memory* memory, slabs_.Known(slab.value()));
    MoverRequest request;
    request.verb = MoverVerb::kScrub;
    request.slab = slab.value();
    request.bytes = memory->bytes;
    return Submit(request, options_.call_ms, std::move(done));
  }());
}

absl::Status MoverProcess::Add(Memories* memories, MoverVerb verb, uint64_t id, int fd, uint64_t bytes) {
  KV_RETURN_IF_ERROR(memories->MayAdd(id, bytes));
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) return absl::ErrnoToStatus(errno, "keeping a descriptor for the mover");
  memories->Add(id, bytes, std::move(own));
  if (ready()) Say(MemoryRequest(verb, id, bytes));
  return absl::OkStatus();
}

absl::Status MoverProcess::Forget(Memories* memories, MoverVerb verb, uint64_t id, Done done) {
  KV_ASSIGN_OR_RETURN(Memories::Memory * memory, memories->Known(id));
  if (!told_hello_) {  // a process, if there is one, has not been told of it
    memories->Erase(id);
    loop_->Post([done = std::move(done)]() mutable { done(absl::OkStatus()); });
    return absl::OkStatus();
  }
  KV_RETURN_IF_ERROR(CountRefusal(Accept(MemoryRequest(verb, id, 0), options_.call_ms, std::move(done))));
  memory->leaving = true;
  return absl::OkStatus();
}

absl::Status MoverProcess::Submit(const MoverRequest& request, int64_t deadline_ms, Done done) {
  if (!ready()) {
    return absl::UnavailableError(last_end_.empty() ? absl::StrCat("the mover of ", options_.gpu_uuid, " is starting")
                                                    : absl::StrCat(last_end_, "; it is being started again"));
  }
  return Accept(request, deadline_ms, std::move(done));
}

absl::Status MoverProcess::Accept(MoverRequest request, int64_t deadline_ms, Done done) {
  if (operations_.size() - unacked_fds_ >= kMoverOperationsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(kMoverOperationsMax, " operations are under way at the mover of ",
                                                     options_.gpu_uuid, ": try again"));
  }
  request.operation = ++last_operation_;
  operations_[request.operation] = Operation{request, std::move(done), clock_->MonotonicNs(), deadline_ms};
  Say(request);
  ArmTick();
  return absl::OkStatus();
}

absl::Status MoverProcess::CountRefusal(absl::Status status) {
  if (!status.ok()) ++stats_.refused;
  return status;
}

absl::Status MoverProcess::Begin() {
  KV_ASSIGN_OR_RETURN(MoverChild child, MoverChild::Spawn({options_.executable, "--library", options_.library, "--gpu",
                                                           options_.gpu_uuid}));
  const int socket = child.socket();
  KV_RETURN_IF_ERROR(loop_->Add(socket, EPOLLIN, [this](uint32_t events) { OnSocket(events); }));
  absl::Status watched = loop_->Add(child.exit_fd(), EPOLLIN, [this](uint32_t) { OnGone(); });
  if (!watched.ok()) {
    loop_->Remove(socket);
    return watched;
  }
  child_.emplace(std::move(child));
  began_ns_ = clock_->MonotonicNs();
  ArmTick();
  return absl::OkStatus();
}

void MoverProcess::BeginLater() {
  const bool lasted = clock_->MonotonicNs() - began_ns_ >= options_.backoff_max_ms * kNsPerMs;
  backoff_ms_ = std::clamp(lasted ? 0 : 2 * backoff_ms_, options_.backoff_min_ms, options_.backoff_max_ms);
  begin_timer_ = loop_->RunAfterMs(backoff_ms_, [this] {
    begin_timer_ = 0;
    ++stats_.restarts;
    const absl::Status begun = Begin();
    if (begun.ok()) return;
    last_end_ = std::string(begun.message());
    BeginLater();
  });
}

void MoverProcess::OnHello(const MoverHello& hello) {
  if (hello.magic != kMoverMagic || hello.version != kMoverVersion) {
    return Kill(absl::StrCat("it speaks version ", hello.version, ", this daemon ", kMoverVersion,
                             ": both have to be of one build"));
  }
  told_hello_ = true;
  simulated_ = hello.simulated != 0;
  heard_ns_.fill(clock_->MonotonicNs());
  Log(LogLevel::kInfo, "mover", "process ", pid(), " serves ", simulated_ ? "the SIMULATED " : "", options_.gpu_uuid);
  for (const auto& [id, memory] : slabs_.all()) Say(MemoryRequest(MoverVerb::kAddSlab, id, memory.bytes));
  for (const auto& [id, memory] : arenas_.all()) Say(MemoryRequest(MoverVerb::kAddArena, id, memory.bytes));
}

void MoverProcess::Kill(std::string why) {
  if (killed_) return;
  killed_ = true;
  if (why_.empty()) why_ = std::move(why);
  child_->Kill();
}

void MoverProcess::OnGone() {
  killed_ = true;
  while (Hear()) {  // what it said before its end
  }
  loop_->Remove(child_->socket());
  loop_->Remove(child_->exit_fd());
  const std::string end = child_->Reap();
  child_.reset();
  last_end_ = absl::StrCat("the mover of ", options_.gpu_uuid, " is gone: ", end, why_.empty() ? "" : ": ", why_);
  Log(LogLevel::kWarning, "mover", last_end_);
  told_hello_ = killed_ = false;
  why_.clear();
  outbox_.clear();
  unacked_fds_ = 0;
  BeginLater();
  auto ended = std::exchange(operations_, {});
  for (const auto& [number, operation] : ended) {
    if (Forgets(operation.request.verb)) Erase(operation.request);
  }
  for (auto& [number, operation] : ended) {
    absl::Status status = absl::UnavailableError(last_end_);
    if (operation.overdue) status = absl::DeadlineExceededError(last_end_);
    if (Forgets(operation.request.verb)) status = absl::OkStatus();
    End(std::move(operation), std::move(status));
  }
}

void MoverProcess::ArmTick() {
  const bool needed = child_.has_value() && !killed_ && (!told_hello_ || !operations_.empty());
  if (needed && tick_timer_ == 0) tick_timer_ = loop_->RunAfterMs(kMoverTickMs, [this] { OnTick(); });
}

void MoverProcess::OnTick() {
  tick_timer_ = 0;
  if (!child_.has_value() || killed_) return;
  const int64_t now_ns = clock_->MonotonicNs();
  if (!told_hello_ && now_ns - began_ns_ >= options_.start_ms * kNsPerMs) {
    ++stats_.hangs;
    return Kill(absl::StrCat("it had not said a word after ", options_.start_ms, " ms"));
  }
  bool hangs = false;
  int64_t waited_ms = 0;
  for (auto& [number, operation] : operations_) {
    const int64_t since_ns = std::max(operation.began_ns, HeardNs(operation.request.verb));
    operation.overdue = now_ns - since_ns >= operation.deadline_ms * kNsPerMs;
    hangs = hangs || operation.overdue;
    if (operation.overdue) waited_ms = std::max(waited_ms, operation.deadline_ms);
  }
  if (!hangs) return ArmTick();
  ++stats_.hangs;
  Kill(absl::StrCat("it or its GPU hangs: nothing had ended in ", waited_ms, " ms"));
}

// That one of these moves on says nothing of the others.
int64_t& MoverProcess::HeardNs(MoverVerb verb) {
  switch (verb) {
    case MoverVerb::kCopyToGpu:
    case MoverVerb::kScrub:
      return heard_ns_[0];
    case MoverVerb::kCopyToHost:
      return heard_ns_[1];
    default:
      return heard_ns_[2];
  }
}

void MoverProcess::Say(const MoverRequest& request) {
  outbox_.push_back(request);
  Flush();
}

void MoverProcess::Flush() {
  while (!outbox_.empty() && ready()) {
    MoverRequest request = outbox_.front();
    int fd = -1;
    if (Adds(request.verb)) {
      if (unacked_fds_ >= kUnackedFdsMax) return;
      request.operation = ++last_operation_;
      fd = (OnSlab(request.verb) ? slabs_.Find(request.slab) : arenas_.Find(request.arena))->held.get();
    }
    switch (child_->Send(request, fd)) {
      case MoverChild::Sent::kSent:
        break;
      case MoverChild::Sent::kFull:
        return WatchSocket(EPOLLIN | EPOLLOUT);
      case MoverChild::Sent::kBroken:
        return Kill("its socket is broken");
    }
    outbox_.pop_front();
    if (fd < 0) continue;
    ++unacked_fds_;
    operations_[request.operation] = Operation{request, nullptr, clock_->MonotonicNs(), options_.call_ms};
    ArmTick();
  }
}

void MoverProcess::WatchSocket(uint32_t events) {
  if (const absl::Status changed = loop_->Modify(child_->socket(), events); !changed.ok()) {
    Kill(std::string(changed.message()));
  }
}

void MoverProcess::OnSocket(uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    WatchSocket(EPOLLIN);
    Flush();
  }
  for (size_t packets = 0; packets < kMoverPacketsPerWakeMax; ++packets) {
    if (!Hear()) return;
  }
}

bool MoverProcess::Hear() {
  std::array<std::byte, kMoverAnswersPerPacket * sizeof(MoverAnswer)> buffer;
  size_t bytes = 0;
  switch (child_->Receive(buffer, &bytes)) {
    case MoverChild::Received::kPacket:
      OnPacket(std::span(buffer).first(bytes));
      return true;
    case MoverChild::Received::kNothing:
      return false;
    case MoverChild::Received::kEnded:
      loop_->Remove(child_->socket());
      Kill("");  // it ends; OnGone says of what
      return false;
  }
  return false;
}

void MoverProcess::OnPacket(std::span<const std::byte> packet) {
  if (!told_hello_ && packet.size() == sizeof(MoverHello)) {
    MoverHello hello;
    std::memcpy(&hello, packet.data(), sizeof(hello));
    return OnHello(hello);
  }
  if (packet.size() % sizeof(MoverAnswer) != 0) return Kill(absl::StrCat("it sent ", packet.size(), " strange bytes"));
  for (size_t at = 0; at < packet.size(); at += sizeof(MoverAnswer)) {
    MoverAnswer answer;
    std::memcpy(&answer, packet.data() + at, sizeof(answer));
    OnAnswer(answer);
  }
}

void MoverProcess::OnAnswer(const MoverAnswer& answer) {
  absl::Status status = answer.status();
  if (answer.operation == 0) {
    why_ = std::string(status.message());
    return;
  }
  auto found = operations_.extract(answer.operation);
  if (found.empty()) return Kill(absl::StrCat("it answered what nobody had asked: ", answer.operation));
  const MoverRequest request = found.mapped().request;
  HeardNs(request.verb) = clock_->MonotonicNs();
  if (Adds(request.verb)) {
    --unacked_fds_;
    if (!status.ok()) Log(LogLevel::kWarning, "mover", options_.gpu_uuid, ": ", status.message());
    return Flush();
  }
  if (Forgets(request.verb)) Erase(request);
  End(std::move(found.mapped()), std::move(status));
}

void MoverProcess::Erase(const MoverRequest& request) {
  OnSlab(request.verb) ? slabs_.Erase(request.slab) : arenas_.Erase(request.arena);
}

void MoverProcess::End(Operation operation, absl::Status status) {
  if (!operation.done) return;
  const MoverRequest& request = operation.request;
  if (!status.ok()) {
    ++stats_.operations_failed;
  } else if (request.verb == MoverVerb::kCopyToGpu) {
    stats_.bytes_to_gpu += request.bytes;
  } else if (request.verb == MoverVerb::kCopyToHost) {
    stats_.bytes_to_host += request.bytes;
  } else if (request.verb == MoverVerb::kScrub) {
    stats_.bytes_scrubbed += request.bytes;
  }
  operation.done(std::move(status));
}

}  // namespace kvartal::device
