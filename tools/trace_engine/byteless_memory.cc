#include "tools/trace_engine/byteless_memory.h"

#include <sys/mman.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/mapping.h"

namespace kvartal::trace_engine {
namespace {

class BytelessArena : public device::Arena {
 public:
  BytelessArena(Executor* executor, Mapping addresses, Mapping generations)
      : executor_(executor), addresses_(std::move(addresses)), generations_(std::move(generations)) {}

  uint64_t size_bytes() const override { return addresses_.size(); }
  std::byte* data() const override { return addresses_.data(); }
  int fd() const override { return -1; }
  int generation_fd() const override { return -1; }
  std::atomic<uint32_t>* generations() const override {
    return reinterpret_cast<std::atomic<uint32_t>*>(generations_.data());
  }
  absl::Status Populate(uint64_t, uint64_t bytes, Done done) override {
    *present_bytes_ += bytes;
    executor_->Post([done = std::move(done)]() mutable { done(absl::OkStatus()); });
    return absl::OkStatus();
  }
  absl::Status Punch(uint64_t, uint64_t bytes, Done done) override {
    executor_->Post([present = present_bytes_, bytes, done = std::move(done)]() mutable {
      *present -= bytes;
      done(absl::OkStatus());
    });
    return absl::OkStatus();
  }
  void Copy(uint64_t, uint64_t, uint64_t) override {}
  absl::Status Zero(uint64_t, uint64_t, Done done) override {
    executor_->Post([done = std::move(done)]() mutable { done(absl::OkStatus()); });
    return absl::OkStatus();
  }
  uint64_t AllocatedBytes() const override { return *present_bytes_; }

 private:
  Executor* const executor_;
  const Mapping addresses_;
  const Mapping generations_;
  // What memory would be present. Callbacks may outlive the arena.
  const std::shared_ptr<uint64_t> present_bytes_ = std::make_shared<uint64_t>(0);
};

absl::StatusOr<Mapping> Reserve(uint64_t bytes, int protection) {
  absl::StatusOr<Mapping> made = Mapping::Shared(-1, bytes, protection, MAP_ANONYMOUS | MAP_NORESERVE);
  if (made.ok()) return made;
  return absl::ResourceExhaustedError(absl::StrCat("cannot reserve ", bytes / kGiB,
                                                   " GiB of addresses for one tenant (", made.status().message(),
                                                   "): simulate a smaller DRAM capacity or fewer tenants"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<device::Arena>> BytelessMemory::CreateArena(const char*, uint64_t size_bytes) {
  const uint64_t counter_bytes = RoundUp(size_bytes / kSlotAlignBytes * sizeof(uint32_t), kSlotAlignBytes);
  KV_ASSIGN_OR_RETURN(Mapping addresses, Reserve(size_bytes, PROT_NONE));
  KV_ASSIGN_OR_RETURN(Mapping generations, Reserve(counter_bytes, PROT_READ | PROT_WRITE));
  return std::make_unique<BytelessArena>(executor_, std::move(addresses), std::move(generations));
}

}  // namespace kvartal::trace_engine
