// A mover and memory for it: the fake one over memfds, or a process with a simulated GPU (with KVARTAL_GPU_LIBRARY, a
// real one). Tests of both are written against MoverRig.
// Confined to the thread of the test, which is the mover's loop.
// Invariant: only what a simulated GPU does can be held back; Hold of a real one does nothing.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/mapping.h"
#include "daemon/device/mover_process.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/support/fake_mover.h"
#include "tests/support/manual_executor.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::device {

inline UniqueFd NewArenaFd(uint64_t bytes, int seals = F_SEAL_SHRINK | F_SEAL_GROW) {
  UniqueFd fd(::memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  KV_CHECK(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  KV_CHECK(::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

class MoverRig {
 public:
  virtual ~MoverRig() = default;
  virtual GpuMover& mover() = 0;
  virtual void EndMover() = 0;
  virtual void RunUntil(const std::function<bool()>& reached) = 0;
  // Memory of the GPU, of at least `bytes`, which it makes a size that GPUs know.
  virtual UniqueFd NewSlab(uint64_t* bytes) = 0;
  virtual void Write(const UniqueFd& slab, std::span<const uint8_t> bytes) = 0;  // from its start
  virtual std::vector<uint8_t> Read(const UniqueFd& slab, uint64_t bytes) = 0;
  virtual bool Hold() = 0;  // false: nothing is held back
  virtual void Release() = 0;
};

class FakeRig : public MoverRig {
 public:
  GpuMover& mover() override { return *mover_; }
  void EndMover() override { mover_.reset(); }
  void RunUntil(const std::function<bool()>& reached) override { executor_.RunUntil(reached); }
  UniqueFd NewSlab(uint64_t* bytes) override { return NewArenaFd(*bytes); }
  void Write(const UniqueFd& slab, std::span<const uint8_t> bytes) override {
    KV_CHECK(::pwrite(slab.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }
  std::vector<uint8_t> Read(const UniqueFd& slab, uint64_t bytes) override {
    std::vector<uint8_t> read(bytes);
    KV_CHECK(::pread(slab.get(), read.data(), bytes, 0) == static_cast<ssize_t>(bytes));
    return read;
  }
  bool Hold() override {
    mover_->Hold();
    return true;
  }
  void Release() override { mover_->Release(); }

 private:
  testing::ManualExecutor executor_;
  std::unique_ptr<testing::FakeMover> mover_ = std::make_unique<testing::FakeMover>(&executor_);
};

class ProcessRig : public MoverRig {
 public:
  // `faults`: calls of the simulated driver, in the mover alone.
  explicit ProcessRig(const std::vector<std::string>& faults = {}) {
    const char* const setting = std::getenv("KVARTAL_FAKE_CUDA");
    setting_ = setting == nullptr ? "" : setting;
    auto driver = GpuDriver::Load(GpuLibrary());
    KV_CHECK(driver.ok());
    driver_ = *std::move(driver);
    auto context = GpuContext::Open(*driver_, 0);
    KV_CHECK(context.ok());
    context_ = std::make_unique<GpuContext>(*std::move(context));
    gate_ = UniqueFd(::open(dir_.File("gate").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    SetFaults(faults);
    options.executable = absl::StrCat(KVARTAL_BIN_DIR, "/kvartal-mover");
    options.library = GpuLibrary();
    options.gpu_uuid = driver_->gpus()[0].uuid;
    options.backoff_min_ms = 1;
    options.backoff_max_ms = 8;
    auto loop = EventLoop::Create(&clock_);
    KV_CHECK(loop.ok());
    loop_ = *std::move(loop);
  }
  ~ProcessRig() override { ::setenv("KVARTAL_FAKE_CUDA", setting_.c_str(), 1); }

  // Not yet ready(). An error: as MoverProcess::Start.
  absl::Status StartMover() {
    KV_ASSIGN_OR_RETURN(mover_, MoverProcess::Start(options, loop_.get(), &clock_));
    return absl::OkStatus();
  }
  void StartReadyMover() {
    KV_CHECK(StartMover().ok());
    RunUntil([&] { return mover_->ready(); });
  }
  MoverProcess& mover() override { return *mover_; }
  void EndMover() override { mover_.reset(); }
  void RunUntil(const std::function<bool()>& reached) override {
    while (!reached()) loop_->RunOnce(-1);
  }

  UniqueFd NewSlab(uint64_t* bytes) override {
    *bytes = RoundUp(*bytes, driver_->gpus()[0].granularity_bytes);
    const auto memory = driver_->Allocate(0, *bytes);
    KV_CHECK(memory.ok());
    auto fd = memory->Export();
    KV_CHECK(fd.ok());
    return *std::move(fd);
  }
  void Write(const UniqueFd& slab, std::span<const uint8_t> bytes) override {
    Use(slab, RoundUp(bytes.size(), driver_->gpus()[0].granularity_bytes),
        [&](GpuStream& stream, DeviceAddress at) { return stream.CopyToGpu(at, bytes.data(), bytes.size()); });
  }
  std::vector<uint8_t> Read(const UniqueFd& slab, uint64_t bytes) override {
    std::vector<uint8_t> read(bytes);
    Use(slab, RoundUp(bytes, driver_->gpus()[0].granularity_bytes),
        [&](GpuStream& stream, DeviceAddress at) { return stream.CopyToHost(read.data(), at, bytes); });
    return read;
  }
  bool Hold() override {
    if (driver_->simulated()) KV_CHECK(::flock(gate_.get(), LOCK_EX) == 0);
    return driver_->simulated();
  }
  void Release() override { KV_CHECK(::flock(gate_.get(), LOCK_UN) == 0); }

  // Of movers that are started from now on.
  void SetFaults(const std::vector<std::string>& faults) {
    std::string setting = absl::StrCat(setting_, ";gate=", dir_.File("gate"));
    for (const std::string& fault : faults) absl::StrAppend(&setting, ";fault=", fault);
    ::setenv("KVARTAL_FAKE_CUDA", setting.c_str(), 1);
  }
  GpuDriver& driver() { return *driver_; }
  EventLoop& loop() { return *loop_; }

  MoverOptions options;

 private:
  // Maps the slab, whose size is `bytes`, in this process.
  void Use(const UniqueFd& slab, uint64_t bytes, const std::function<absl::Status(GpuStream&, DeviceAddress)>& use) {
    const auto memory = driver_->Import(slab.get(), bytes);
    KV_CHECK(memory.ok());
    const auto mapping = GpuMapping::Map(*memory, 0, GpuAccess::kReadWrite);
    KV_CHECK(mapping.ok());
    auto stream = GpuStream::Open(*context_, GpuPriority::kDemand);
    KV_CHECK(stream.ok() && use(*stream, mapping->address()).ok() && stream->Wait().ok());
  }

  const testing::ScratchDir dir_;
  const SystemClock clock_;
  std::string setting_;
  UniqueFd gate_;
  std::unique_ptr<GpuDriver> driver_;
  std::unique_ptr<GpuContext> context_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<MoverProcess> mover_;
};

// What a test asked for, by names of its choice: how each ended, and in which order.
class Ended {
 public:
  GpuMover::Done As(int name) {
    return [this, name](absl::Status status) {
      EXPECT_FALSE(calling_) << name << " ended within a call";
      EXPECT_TRUE(results_.emplace(name, std::move(status)).second) << name << " ended twice";
      order_.push_back(name);
    };
  }
  // Runs a call of the mover: no Done may run in it.
  absl::Status Call(const std::function<absl::Status()>& call) {
    calling_ = true;
    absl::Status status = call();
    calling_ = false;
    return status;
  }
  size_t count() const { return order_.size(); }
  bool Has(int name) const { return results_.contains(name); }
  const absl::Status& Of(int name) const { return results_.at(name); }
  const std::vector<int>& order() const { return order_; }
  size_t CountOk() const {
    size_t ok = 0;
    for (const auto& [name, status] : results_) ok += status.ok() ? 1 : 0;
    return ok;
  }

 private:
  bool calling_ = false;
  std::map<int, absl::Status> results_;
  std::vector<int> order_;
};

struct TestMemory {
  uint64_t id = 0;
  uint64_t bytes = 0;
  UniqueFd fd;
  Mapping mapping;  // of an arena

  uint8_t* data() const { return reinterpret_cast<uint8_t*>(mapping.data()); }
};

inline std::vector<uint8_t> Pattern(uint64_t bytes, uint32_t seed) {
  std::vector<uint8_t> pattern(bytes);
  for (uint64_t i = 0; i < bytes; ++i) pattern[i] = static_cast<uint8_t>((i + seed) * 2654435761U >> 13);
  return pattern;
}

// Memory that a mover has been told of, and the calls of a test in short.
class MoverCalls {
 public:
  explicit MoverCalls(MoverRig* rig) : rig_(rig) {}

  TestMemory Slab(uint64_t bytes) {
    TestMemory slab{next_id_++, bytes, {}, {}};
    slab.fd = rig_->NewSlab(&slab.bytes);
    KV_CHECK(rig_->mover().AddSlab(SlabId(slab.id), slab.fd.get(), slab.bytes).ok());
    return slab;
  }
  TestMemory Arena(uint64_t bytes) {
    TestMemory arena{next_id_++, bytes, NewArenaFd(bytes), {}};
    auto mapping = Mapping::Shared(arena.fd.get(), bytes, PROT_READ | PROT_WRITE);
    KV_CHECK(mapping.ok());
    arena.mapping = *std::move(mapping);
    KV_CHECK(rig_->mover().AddArena(ArenaId(arena.id), arena.fd.get(), bytes).ok());
    return arena;
  }

  // All of the smaller one, unless the caller changes it.
  static GpuCopy Between(const TestMemory& slab, const TestMemory& arena, GpuCopyDirection direction) {
    GpuCopy copy;
    copy.slab = SlabId(slab.id);
    copy.arena = ArenaId(arena.id);
    copy.bytes = std::min(slab.bytes, arena.bytes);
    copy.direction = direction;
    return copy;
  }
  absl::Status Copy(const GpuCopy& copy, int name) {
    return ended.Call([&] { return rig_->mover().Copy(copy, ended.As(name)); });
  }
  absl::Status Scrub(const TestMemory& slab, int name) {
    return ended.Call([&] { return rig_->mover().Scrub(SlabId(slab.id), ended.As(name)); });
  }
  absl::Status ForgetSlab(const TestMemory& slab, int name) {
    return ended.Call([&] { return rig_->mover().ForgetSlab(SlabId(slab.id), ended.As(name)); });
  }
  absl::Status ForgetArena(const TestMemory& arena, int name) {
    return ended.Call([&] { return rig_->mover().ForgetArena(ArenaId(arena.id), ended.As(name)); });
  }
  // Runs until it has ended.
  absl::Status End(absl::Status accepted, int name) {
    if (!accepted.ok()) return accepted;
    rig_->RunUntil([&] { return ended.Has(name); });
    return ended.Of(name);
  }
  absl::Status CopyNow(const GpuCopy& copy) {
    const int name = next_own_name_--;
    return End(Copy(copy, name), name);
  }
  // When it returns, the mover has got all that was asked before.
  void Arrive() {
    const TestMemory nothing = Arena(1);
    const int name = next_own_name_--;
    KV_CHECK(End(ForgetArena(nothing, name), name).ok());
  }
  void RunUntilEnded(size_t count) {
    rig_->RunUntil([&] { return ended.count() >= count; });
  }

  Ended ended;

 private:
  MoverRig* const rig_;
  uint64_t next_id_ = 0;
  int next_own_name_ = -1;
};

}  // namespace kvartal::device
