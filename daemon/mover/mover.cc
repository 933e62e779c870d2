#include "daemon/mover/mover.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/device/mover_limits.h"

namespace kvartal::mover {
namespace {

using device::GpuPriority;
using device::MoverRequest;
using device::MoverVerb;

absl::StatusOr<int> OrdinalOf(const device::GpuDriver& driver, const std::string& uuid) {
  std::string seen;
  for (const device::GpuInfo& gpu : driver.gpus()) {
    if (gpu.uuid == uuid) return gpu.ordinal;
    absl::StrAppend(&seen, " ", gpu.uuid);
  }
  return absl::NotFoundError(
      absl::StrCat("no GPU ", uuid, " is visible here; visible:", seen.empty() ? " none" : seen));
}

// Memory that could become shorter would end this process at a touch.
absl::StatusOr<Mapping> MapArena(const UniqueFd& fd, uint64_t bytes) {
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return absl::ErrnoToStatus(errno, "looking at an arena");
  if (static_cast<uint64_t>(info.st_size) < bytes) {
    return absl::InvalidArgumentError(absl::StrCat("an arena of ", bytes, " bytes has only ", info.st_size));
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::FailedPreconditionError("an arena is not sealed against shrinking");
  }
  KV_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Shared(fd.get(), bytes, PROT_READ | PROT_WRITE, MAP_NORESERVE));
  ::madvise(mapping.data(), mapping.size(), MADV_DONTDUMP);
  ::madvise(mapping.data(), mapping.size(), MADV_HUGEPAGE);
  return mapping;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mover>> Mover::Open(const std::string& library, const std::string& gpu_uuid,
                                                   DaemonChannel* channel) {
  KV_ASSIGN_OR_RETURN(std::unique_ptr<device::GpuDriver> driver, device::GpuDriver::Load(library));
  KV_ASSIGN_OR_RETURN(const int ordinal, OrdinalOf(*driver, gpu_uuid));
  KV_ASSIGN_OR_RETURN(device::GpuContext context, device::GpuContext::Open(*driver, ordinal));
  std::unique_ptr<Mover> mover(new Mover(std::move(driver), ordinal, std::move(context), channel));
  KV_RETURN_IF_ERROR(mover->OpenStreams());
  KV_RETURN_IF_ERROR(channel->SayHello(mover->driver_->simulated()));
  return mover;
}

Mover::Mover(std::unique_ptr<device::GpuDriver> driver, int ordinal, device::GpuContext context, DaemonChannel* channel)
    : driver_(std::move(driver)), ordinal_(ordinal), context_(std::move(context)), channel_(channel) {}

absl::Status Mover::OpenStreams() {
  for (Direction& direction : directions_) {
    for (const GpuPriority priority : {GpuPriority::kDemand, GpuPriority::kBackground}) {
      KV_ASSIGN_OR_RETURN(device::GpuStream stream, device::GpuStream::Open(context_, priority));
      direction.streams.push_back({std::move(stream), {}});
    }
  }
  return absl::OkStatus();
}

absl::Status Mover::Run() {
  while (true) {
    const absl::Status taken = TakeRequests();
    if (absl::IsCancelled(taken)) return absl::OkStatus();
    KV_RETURN_IF_ERROR(taken);
    for (Direction& direction : directions_) {
      KV_RETURN_IF_ERROR(TakeFromGpu(&direction));
      KV_RETURN_IF_ERROR(GiveToGpu(&direction));
    }
    if (!channel_->Flush().ok()) return absl::OkStatus();
    channel_->Wait(copies_ > 0 ? device::kMoverPollUs : -1);
  }
}

absl::Status Mover::TakeRequests() {
  for (size_t i = 0; i < device::kMoverRequestsPerTurn; ++i) {
    KV_ASSIGN_OR_RETURN(const std::optional<ReceivedRequest> received, channel_->Receive());
    if (!received.has_value()) break;
    KV_RETURN_IF_ERROR(Take(received->request, received->fd));
  }
  return absl::OkStatus();
}

// An error of it ends the mover; one of the request alone is its answer.
absl::Status Mover::Take(const MoverRequest& request, const UniqueFd& fd) {
  absl::Status refused;
  switch (request.verb) {
    case MoverVerb::kAddSlab:
      return Add(&slabs_, request.slab, request, MapSlab(fd, request.bytes));
    case MoverVerb::kAddArena:
      return Add(&arenas_, request.arena, request, MapArena(fd, request.bytes));
    case MoverVerb::kForgetSlab:
      Forget(&slabs_, request.slab, request.operation);
      return absl::OkStatus();
    case MoverVerb::kForgetArena:
      Forget(&arenas_, request.arena, request.operation);
      return absl::OkStatus();
    case MoverVerb::kCopyToGpu:
    case MoverVerb::kCopyToHost:
      refused = QueueCopy(request);
      break;
    case MoverVerb::kScrub:
      refused = QueueScrub(request);
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("verb ", static_cast<uint32_t>(request.verb), " is not known"));
  }
  if (!refused.ok()) channel_->Answer(request.operation, refused);
  return absl::OkStatus();
}

absl::StatusOr<device::GpuMapping> Mover::MapSlab(const UniqueFd& fd, uint64_t bytes) const {
  if (!fd.valid()) return absl::InvalidArgumentError("the descriptor of a slab has not arrived");
  KV_ASSIGN_OR_RETURN(const device::GpuMemory memory, driver_->Import(fd.get(), bytes));
  return device::GpuMapping::Map(memory, ordinal_, device::GpuAccess::kReadWrite);
}

template <typename Mapped>
absl::Status Mover::Add(Table<Mapped>* table, uint64_t id, const MoverRequest& request, absl::StatusOr<Mapped> mapped) {
  if (absl::IsAborted(mapped.status())) return mapped.status();
  absl::Status result = table->MayAdd(id, request.bytes);
  if (result.ok()) {
    result = mapped.status();
    table->Add(id, request.bytes, {std::move(mapped)});
  }
  channel_->Answer(request.operation, result);
  return absl::OkStatus();
}

absl::Status Mover::MayQueue() const {
  if (copies_ < device::kMoverOperationsMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(device::kMoverOperationsMax, " copies are under way"));
}

absl::Status Mover::QueueCopy(const MoverRequest& request) {
  KV_RETURN_IF_ERROR(MayQueue());
  if (request.background > 1) return absl::InvalidArgumentError("a copy is demand or background");
  KV_ASSIGN_OR_RETURN(Table<device::GpuMapping>::Memory * slab,
                      slabs_.Range(request.slab, request.slab_offset, request.bytes));
  KV_ASSIGN_OR_RETURN(Table<Mapping>::Memory * arena,
                      arenas_.Range(request.arena, request.arena_offset, request.bytes));
  KV_RETURN_IF_ERROR(slab->held.mapped.status());
  KV_RETURN_IF_ERROR(arena->held.mapped.status());
  const Copy copy = {request.operation,
                     request.slab,
                     request.arena,
                     slab->held.mapped->address() + request.slab_offset,
                     arena->held.mapped->data() + request.arena_offset,
                     request.bytes};
  Direction& direction = request.verb == MoverVerb::kCopyToGpu ? to_gpu() : to_host();
  direction.queue.Push(copy, request.background == 1 ? GpuPriority::kBackground : GpuPriority::kDemand);
  ++slab->held.uses;
  ++arena->held.uses;
  ++copies_;
  return absl::OkStatus();
}

absl::Status Mover::QueueScrub(const MoverRequest& request) {
  KV_RETURN_IF_ERROR(MayQueue());
  KV_ASSIGN_OR_RETURN(Table<device::GpuMapping>::Memory * slab, slabs_.Known(request.slab));
  KV_RETURN_IF_ERROR(slab->held.mapped.status());
  const Copy all = {request.operation, request.slab, 0, slab->held.mapped->address(), nullptr, slab->bytes};
  to_gpu().queue.Push(all, GpuPriority::kBackground);
  ++slab->held.uses;
  ++copies_;
  return absl::OkStatus();
}

template <typename Mapped>
void Mover::Forget(Table<Mapped>* table, uint64_t id, uint64_t operation) {
  auto known = table->Known(id);
  if (!known.ok()) return channel_->Answer(operation, known.status());
  (*known)->leaving = true;
  (*known)->held.forget = operation;
  ++(*known)->held.uses;  // this one
  EndUse(table, id);
}

template <typename Mapped>
void Mover::EndUse(Table<Mapped>* table, uint64_t id) {
  auto* const memory = table->Find(id);
  if (--memory->held.uses > 0 || !memory->leaving) return;
  const uint64_t operation = memory->held.forget;
  table->Erase(id);
  channel_->Answer(operation, absl::OkStatus());
}

absl::Status Mover::GiveToGpu(Direction* direction) {
  while (direction->chunks_on_gpu < device::kMoverOnGpuChunks && direction->bytes_on_gpu < device::kMoverOnGpuBytes) {
    std::optional<Chunk> chunk = direction->queue.Next();
    if (!chunk.has_value()) break;
    Stream& stream = direction->streams[static_cast<size_t>(chunk->priority)];
    if (chunk->host == nullptr) {
      KV_RETURN_IF_ERROR(stream.stream.Fill(chunk->gpu, 0, chunk->bytes));
    } else if (direction == &to_gpu()) {
      KV_RETURN_IF_ERROR(stream.stream.CopyToGpu(chunk->gpu, chunk->host, chunk->bytes));
    } else {
      KV_RETURN_IF_ERROR(stream.stream.CopyToHost(chunk->host, chunk->gpu, chunk->bytes));
    }
    KV_ASSIGN_OR_RETURN(device::GpuEvent event, stream.stream.Mark());
    ++direction->chunks_on_gpu;
    direction->bytes_on_gpu += chunk->bytes;
    stream.on_gpu.push_back({std::move(event), *std::move(chunk)});
  }
  return absl::OkStatus();
}

absl::Status Mover::TakeFromGpu(Direction* direction) {
  for (Stream& stream : direction->streams) {
    while (!stream.on_gpu.empty()) {
      KV_ASSIGN_OR_RETURN(const bool done, stream.on_gpu.front().event.Done());
      if (!done) break;
      const Chunk chunk = std::move(stream.on_gpu.front().chunk);
      stream.on_gpu.pop_front();
      --direction->chunks_on_gpu;
      direction->bytes_on_gpu -= chunk.bytes;
      for (const Copy& copy : chunk.ended) {
        --copies_;
        channel_->Answer(copy.operation, absl::OkStatus());
        EndUse(&slabs_, copy.slab);
        if (copy.host != nullptr) EndUse(&arenas_, copy.arena);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace kvartal::mover
