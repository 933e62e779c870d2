#include "daemon/device/memfd_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"
#include "daemon/base/mapping.h"
#include "daemon/base/unique_fd.h"
#include "daemon/base/worker_pool.h"
#include "daemon/device/host_memory.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace kvartal::device {
namespace {

constexpr char kShmemEnabledPath[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
constexpr char kSwapsPath[] = "/proc/swaps";
constexpr char kSwapMaxPath[] = "/sys/fs/cgroup/memory.swap.max";

std::string ContentOf(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

absl::StatusOr<UniqueFd> CreateSparse(const std::string& name, uint64_t bytes) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!fd.valid() && errno == EINVAL) fd.reset(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("memfd_create of arena ", name));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("setting arena ", name, " to ", bytes, " sparse bytes"));
  }
  return fd;
}

// F_SEAL_SEAL goes with every set: whoever holds the fd could otherwise add a seal that forbids punching for good.
absl::Status Seal(const UniqueFd& fd, int seals) {
  if (::fcntl(fd.get(), F_ADD_SEALS, seals | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return absl::ErrnoToStatus(errno, "sealing an arena");
  }
  return absl::OkStatus();
}

// fds and mappings of one arena; requests under way keep them alive.
struct ArenaMemory {
  std::string name;
  UniqueFd fd, generation_fd;
  Mapping data, generations;
  bool kept_from_swap = false;
};

absl::StatusOr<std::shared_ptr<ArenaMemory>> MakeArenaMemory(const char* name, uint64_t bytes) {
  auto made = std::make_shared<ArenaMemory>();
  made->name = name;
  const uint64_t generation_bytes = RoundUp(bytes / kSlotAlignBytes * sizeof(uint32_t), kSlotAlignBytes);
  KV_ASSIGN_OR_RETURN(made->fd, CreateSparse(made->name, bytes));
  KV_ASSIGN_OR_RETURN(made->generation_fd, CreateSparse(absl::StrCat(made->name, "-generations"), generation_bytes));
  KV_ASSIGN_OR_RETURN(made->data, Mapping::Shared(made->fd.get(), bytes, PROT_READ | PROT_WRITE, MAP_NORESERVE));
  KV_ASSIGN_OR_RETURN(made->generations, Mapping::Shared(made->generation_fd.get(), generation_bytes,
                                                         PROT_READ | PROT_WRITE, MAP_NORESERVE));
  for (const Mapping* mapping : {&made->data, &made->generations}) {
    // Tenants' bytes stay out of core files, and a fork of the daemon inherits no memory of theirs.
    ::madvise(mapping->data(), mapping->size(), MADV_DONTDUMP);
    ::madvise(mapping->data(), mapping->size(), MADV_DONTFORK);
  }
  ::madvise(made->data.data(), made->data.size(), MADV_HUGEPAGE);
  made->kept_from_swap = made->data.KeepFromSwap();
  KV_RETURN_IF_ERROR(Seal(made->fd, 0));
  KV_RETURN_IF_ERROR(Seal(made->generation_fd, F_SEAL_FUTURE_WRITE));
  return made;
}

absl::Status PopulateRange(std::byte* data, uint64_t bytes, const std::string& name) {
  int result;
  do {
    result = ::madvise(data, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return absl::OkStatus();
  if (errno == ENOMEM || errno == EFAULT) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system has no memory for ", bytes, " bytes of arena ", name,
                     ": lower the DRAM capacity in the configuration, or raise the memory limit of the daemon"));
  }
  if (errno == EINVAL) {
    return absl::UnimplementedError("MADV_POPULATE_WRITE is not known to this kernel: Linux 5.14 or later is needed");
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("populating ", bytes, " bytes of arena ", name));
}

absl::Status PunchRange(const ArenaMemory& arena, uint64_t offset, uint64_t bytes) {
  int result;
  do {
    result = ::fallocate(arena.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                         static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("punching ", bytes, " bytes at ", offset, " of arena ", arena.name));
}

// One request; done part after part, so that a large one does not keep the others waiting.
struct MemoryRequest {
  enum class Kind : uint8_t { kPopulate, kPunch, kZero };
  Kind kind = Kind::kPopulate;
  std::shared_ptr<ArenaMemory> arena;
  uint64_t offset = 0;
  uint64_t left = 0;
  Arena::Done done;

  absl::Status RunPart() {
    const uint64_t bytes = std::min(left, kMemoryPartBytes);
    switch (kind) {
      case Kind::kPopulate:
        KV_RETURN_IF_ERROR(Populate(bytes));
        break;
      case Kind::kPunch:
        KV_RETURN_IF_ERROR(PunchRange(*arena, offset, bytes));
        break;
      case Kind::kZero:
        std::memset(arena->data.data() + offset, 0, bytes);
        break;
    }
    offset += bytes;
    left -= bytes;
    return absl::OkStatus();
  }

  absl::Status Populate(uint64_t bytes) {
    // The counters of the range come first: the engine loop writes them and must not take a page fault there.
    constexpr uint64_t kBytesPerCounterPage = kSlotAlignBytes / sizeof(uint32_t) * kSlotAlignBytes;
    const uint64_t first = RoundDown(offset, kBytesPerCounterPage) / kSlotAlignBytes * sizeof(uint32_t);
    const uint64_t end = RoundUp(offset + bytes, kBytesPerCounterPage) / kSlotAlignBytes * sizeof(uint32_t);
    const uint64_t counters = std::min<uint64_t>(end, arena->generations.size()) - first;
    KV_RETURN_IF_ERROR(PopulateRange(arena->generations.data() + first, counters, arena->name));
    return PopulateRange(arena->data.data() + offset, bytes, arena->name);
  }
};

// The memory thread and its bound. Confined to the engine loop, except Run, which is the memory thread.
class MemoryThread {
 public:
  explicit MemoryThread(Executor* executor)
      : executor_(executor), pending_(std::make_shared<size_t>(0)), pool_("memory", 1, kMemoryQueueMax) {}

  absl::Status Submit(std::shared_ptr<MemoryRequest> request) {
    if (*pending_ >= kMemoryQueueMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat(kMemoryQueueMax, " populates and punches are under way: try again"));
    }
    ++*pending_;
    KV_CHECK(pool_.TrySubmit([this, request = std::move(request)] { Run(request); }));
    return absl::OkStatus();
  }

 private:
  void Run(const std::shared_ptr<MemoryRequest>& request) {
    absl::Status status = request->RunPart();
    while (status.ok() && request->left > 0) {
      // Behind the others, unless the pool is going down.
      if (pool_.TrySubmit([this, request] { Run(request); })) return;
      status = request->RunPart();
    }
    executor_->Post([pending = pending_, done = std::move(request->done), result = std::move(status)]() mutable {
      --*pending;
      done(std::move(result));
    });
  }

  Executor* const executor_;
  const std::shared_ptr<size_t> pending_;  // confined to the loop: callbacks may outlive this object
  WorkerPool pool_;
};

class MemfdArena : public Arena {
 public:
  MemfdArena(std::shared_ptr<MemoryThread> thread, std::shared_ptr<ArenaMemory> memory)
      : thread_(std::move(thread)), memory_(std::move(memory)) {}

  uint64_t size_bytes() const override { return memory_->data.size(); }
  std::byte* data() const override { return memory_->data.data(); }
  int fd() const override { return memory_->fd.get(); }
  int generation_fd() const override { return memory_->generation_fd.get(); }
  std::atomic<uint32_t>* generations() const override {
    return reinterpret_cast<std::atomic<uint32_t>*>(memory_->generations.data());
  }
  absl::Status Populate(uint64_t offset, uint64_t bytes, Done done) override {
    return Submit(Kind::kPopulate, offset, bytes, std::move(done));
  }
  absl::Status Punch(uint64_t offset, uint64_t bytes, Done done) override {
    return Submit(Kind::kPunch, offset, bytes, std::move(done));
  }
  absl::Status Zero(uint64_t offset, uint64_t bytes, Done done) override {
    return Submit(Kind::kZero, offset, bytes, std::move(done));
  }
  uint64_t AllocatedBytes() const override {
    struct stat info{};
    KV_CHECK(::fstat(memory_->fd.get(), &info) == 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  }

 private:
  using Kind = MemoryRequest::Kind;
  absl::Status Submit(Kind kind, uint64_t offset, uint64_t bytes, Done done) {
    const uint64_t align = kind == Kind::kZero ? kSlotAlignBytes : kExtentAlignBytes;
    KV_CHECK(bytes > 0 && offset <= size_bytes() && bytes <= size_bytes() - offset);
    KV_CHECK(offset % align == 0 && bytes % align == 0);
    auto request = std::make_shared<MemoryRequest>();
    *request = {kind, memory_, offset, bytes, std::move(done)};
    return thread_->Submit(std::move(request));
  }

  const std::shared_ptr<MemoryThread> thread_;
  const std::shared_ptr<ArenaMemory> memory_;
};

// Thread-safe after construction; see host_memory.h.
class MemfdMemory : public HostMemory {
 public:
  explicit MemfdMemory(Executor* executor) : thread_(std::make_shared<MemoryThread>(executor)) {}

  absl::StatusOr<std::unique_ptr<Arena>> CreateArena(const char* name, uint64_t size_bytes) override {
    KV_CHECK(size_bytes > 0 && size_bytes % kExtentAlignBytes == 0);
    KV_ASSIGN_OR_RETURN(std::shared_ptr<ArenaMemory> memory, MakeArenaMemory(name, size_bytes));
    if (!memory->kept_from_swap) locked_ = false;
    return std::make_unique<MemfdArena>(thread_, std::move(memory));
  }

  bool HugePages() const override { return ShmemHugePagesEnabled(ContentOf(kShmemEnabledPath)); }
  bool Swappable() const override { return !locked_ && SystemSwaps(ContentOf(kSwapsPath), ContentOf(kSwapMaxPath)); }

 private:
  const std::shared_ptr<MemoryThread> thread_;
  std::atomic<bool> locked_ = true;  // every arena so far
};

}  // namespace

bool ShmemHugePagesEnabled(std::string_view shmem_enabled) {
  const size_t open = shmem_enabled.find('[');
  const size_t close = shmem_enabled.find(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return false;
  const std::string_view chosen = shmem_enabled.substr(open + 1, close - open - 1);
  return chosen == "always" || chosen == "within_size" || chosen == "advise" || chosen == "force";
}

bool SystemSwaps(std::string_view swaps, std::string_view swap_max) {
  const size_t heading = swaps.find('\n');
  const bool has_swap = heading != std::string_view::npos && heading + 1 < swaps.size();
  return has_swap && swap_max != "0\n";
}

std::unique_ptr<HostMemory> NewMemfdMemory(Executor* executor) { return std::make_unique<MemfdMemory>(executor); }

}  // namespace kvartal::device
