// What slab_memory.h promises, of the fake and of the real one on simulated GPUs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "daemon/device/gpu_slab_memory.h"
#include "daemon/device/slab_memory.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/support/fake_slab_memory.h"
#include "tests/support/manual_executor.h"

namespace kvartal::device {
namespace {

using ::kvartal::testing::FakeSlabMemory;
using ::kvartal::testing::ManualExecutor;

constexpr uint64_t kGpuBytes = kSimulatedMemoryMiB * kMiB;
constexpr uint64_t kMost = kGpuBytes - 8 * kMiB;  // beside the context of who reads and writes

// A SlabMemory with a way to its bytes.
class Rig {
 public:
  virtual ~Rig() = default;
  virtual std::unique_ptr<SlabMemory> Make(Executor* executor) = 0;
  // Through a descriptor that somebody received.
  virtual std::vector<uint8_t> Read(int fd, uint64_t bytes) = 0;
  virtual void Fill(int fd, uint64_t bytes, uint8_t value) = 0;
  // The next Scrub does not succeed.
  virtual void FailNextScrub() = 0;
};

class FakeRig : public Rig {
 public:
  std::unique_ptr<SlabMemory> Make(Executor* executor) override {
    auto made = std::make_unique<FakeSlabMemory>(executor, kGpuBytes);
    memory_ = made.get();
    return made;
  }
  std::vector<uint8_t> Read(int fd, uint64_t bytes) override {
    std::vector<uint8_t> read(bytes);
    KV_CHECK(::pread(fd, read.data(), bytes, 0) == static_cast<ssize_t>(bytes));
    return read;
  }
  void Fill(int fd, uint64_t bytes, uint8_t value) override {
    const std::vector<uint8_t> written(bytes, value);
    KV_CHECK(::pwrite(fd, written.data(), bytes, 0) == static_cast<ssize_t>(bytes));
  }
  void FailNextScrub() override { memory_->FailNextScrubs(1); }

 private:
  FakeSlabMemory* memory_ = nullptr;
};

// The real one; what scrubs is a thread with a context, as a mover has one.
class GpuRig : public Rig {
 public:
  GpuRig() {
    auto loaded = GpuDriver::Load(KVARTAL_FAKE_CUDA_LIBRARY);
    KV_CHECK(loaded.ok());
    driver_ = *std::move(loaded);
    auto context = GpuContext::Open(*driver_, 0);
    KV_CHECK(context.ok());
    context_ = std::make_unique<GpuContext>(*std::move(context));
  }
  ~GpuRig() override {
    for (std::thread& scrub : scrubs_) scrub.join();
  }

  std::unique_ptr<SlabMemory> Make(Executor* executor) override {
    return NewGpuSlabMemory(
        driver_.get(), executor, [this](const GpuInfo& gpu, UniqueFd fd, uint64_t bytes, SlabMemory::ScrubDone done) {
          EXPECT_EQ(gpu.uuid, driver_->gpus()[0].uuid);
          const bool fails = std::exchange(fail_, false);
          scrubs_.emplace_back([this, fails, bytes, from = std::move(fd), end = std::move(done)]() mutable {
            if (!fails) Fill(from.get(), bytes, 0);
            from.reset();
            end(fails ? absl::UnavailableError("told to fail") : absl::OkStatus());
          });
        });
  }
  std::vector<uint8_t> Read(int fd, uint64_t bytes) override {
    std::vector<uint8_t> read(bytes);
    On(fd, bytes, [&](GpuStream& stream, DeviceAddress at) { return stream.CopyToHost(read.data(), at, bytes); });
    return read;
  }
  void Fill(int fd, uint64_t bytes, uint8_t value) override {
    On(fd, bytes, [&](GpuStream& stream, DeviceAddress at) { return stream.Fill(at, value, bytes); });
  }
  void FailNextScrub() override { fail_ = true; }

 private:
  template <typename Work>
  void On(int fd, uint64_t bytes, Work work) {
    const auto memory = driver_->Import(fd, bytes);
    KV_CHECK(memory.ok());
    const auto mapping = GpuMapping::Map(*memory, 0, GpuAccess::kReadWrite);
    auto stream = GpuStream::Open(*context_, GpuPriority::kBackground);
    KV_CHECK(mapping.ok() && stream.ok());
    KV_CHECK(work(*stream, mapping->address()).ok() && stream->Wait().ok());
  }

  std::unique_ptr<GpuDriver> driver_;
  std::unique_ptr<GpuContext> context_;
  std::vector<std::thread> scrubs_;
  bool fail_ = false;
};

struct Kind {
  const char* name;
  std::unique_ptr<Rig> (*make)();
};

class SlabMemoryContract : public ::testing::TestWithParam<Kind> {
 protected:
  SlabMemoryContract() : rig_(GetParam().make()), memory_(rig_->Make(&executor_)) {}

  absl::StatusOr<std::unique_ptr<Slab>> Create(uint64_t bytes) {
    std::optional<absl::StatusOr<std::unique_ptr<Slab>>> result;
    KV_RETURN_IF_ERROR(memory_->Create(0, bytes, [&](absl::StatusOr<std::unique_ptr<Slab>> made) {
      EXPECT_FALSE(result.has_value()) << "done ran twice";
      EXPECT_EQ(std::this_thread::get_id(), loop_thread_);
      result = std::move(made);
    }));
    EXPECT_FALSE(result.has_value()) << "done ran before the loop did";
    executor_.RunUntil([&] { return result.has_value(); });
    return *std::move(result);
  }
  std::unique_ptr<Slab> Made(uint64_t bytes) {
    auto slab = Create(bytes);
    KV_CHECK(slab.ok());
    return *std::move(slab);
  }
  absl::Status Scrub(const Slab& slab) {
    std::optional<absl::Status> result;
    KV_RETURN_IF_ERROR(memory_->Scrub(slab, [&](absl::Status status) {
      EXPECT_FALSE(result.has_value()) << "done ran twice";
      EXPECT_EQ(std::this_thread::get_id(), loop_thread_);
      result = std::move(status);
    }));
    EXPECT_FALSE(result.has_value()) << "done ran before the loop did";
    executor_.RunUntil([&] { return result.has_value(); });
    return *result;
  }
  std::vector<uint8_t> BytesOf(const Slab& slab) {
    const auto fd = slab.Export();
    KV_CHECK(fd.ok());
    return rig_->Read(fd->get(), slab.bytes());
  }
  static bool AllAre(const std::vector<uint8_t>& bytes, uint8_t value) {
    return std::all_of(bytes.begin(), bytes.end(), [value](uint8_t byte) { return byte == value; });
  }

  const std::thread::id loop_thread_ = std::this_thread::get_id();
  ManualExecutor executor_;
  const std::unique_ptr<Rig> rig_;
  std::unique_ptr<SlabMemory> memory_;
};

TEST_P(SlabMemoryContract, ASlabSaysWhatItIsAndMayHoldAnything) {
  const auto slab = Made(6 * kMiB);
  EXPECT_EQ(slab->gpu(), 0);
  EXPECT_EQ(slab->bytes(), 6 * kMiB);
  EXPECT_FALSE(AllAre(BytesOf(*slab), 0)) << "nothing here could see a scrub that does nothing";
}

TEST_P(SlabMemoryContract, AScrubZeroesAllOfASlabAndOfNoOther) {
  const auto slab = Made(4 * kMiB);
  const auto other = Made(4 * kMiB);
  for (const Slab* one : {slab.get(), other.get()}) rig_->Fill(one->Export()->get(), 4 * kMiB, 9);
  ASSERT_TRUE(Scrub(*slab).ok());
  EXPECT_TRUE(AllAre(BytesOf(*slab), 0));
  EXPECT_TRUE(AllAre(BytesOf(*other), 9));
}

TEST_P(SlabMemoryContract, AScrubThatFailsSaysSoAndCanBeTriedAgain) {
  const auto slab = Made(4 * kMiB);
  rig_->FailNextScrub();
  EXPECT_FALSE(Scrub(*slab).ok());
  ASSERT_TRUE(Scrub(*slab).ok());
  EXPECT_TRUE(AllAre(BytesOf(*slab), 0));
}

TEST_P(SlabMemoryContract, DescriptorsAreOfTheSameBytesAndOutliveTheSlab) {
  auto slab = Made(2 * kMiB);
  const auto first = slab->Export();
  const auto second = slab->Export();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->get(), second->get());
  rig_->Fill(first->get(), 2 * kMiB, 7);
  slab.reset();
  EXPECT_TRUE(AllAre(rig_->Read(second->get(), 2 * kMiB), 7));
}

TEST_P(SlabMemoryContract, AGpuThatIsFullRefusesAndASlabThatEndedIsOutOfTheWay) {
  auto slab = Made(kMost);
  EXPECT_TRUE(absl::IsResourceExhausted(Create(kMost).status()));
  slab.reset();
  EXPECT_TRUE(Create(kMost).ok());
}

TEST_P(SlabMemoryContract, TooManyRequestsAreRefusedAndTheRefusedNeverRun) {
  const auto slab = Made(2 * kMiB);
  size_t ended = 0;
  for (size_t i = 0; i < kSlabQueueMax; ++i) {
    ASSERT_TRUE(memory_->Create(0, 2 * kMiB, [&](const absl::StatusOr<std::unique_ptr<Slab>>&) { ++ended; }).ok());
  }
  bool refused_ran = false;
  EXPECT_TRUE(absl::IsResourceExhausted(
      memory_->Create(0, 2 * kMiB, [&](const absl::StatusOr<std::unique_ptr<Slab>>&) { refused_ran = true; })));
  EXPECT_TRUE(absl::IsResourceExhausted(memory_->Scrub(*slab, [&](const absl::Status&) { refused_ran = true; })));
  executor_.RunUntil([&] { return ended == kSlabQueueMax; });
  EXPECT_EQ(executor_.RunAll(), 0u);
  EXPECT_FALSE(refused_ran);
  EXPECT_TRUE(Scrub(*slab).ok()) << "there is room again";
}

TEST_P(SlabMemoryContract, RequestsOutliveSlabAndMemory) {
  auto slab = Made(2 * kMiB);
  int ended = 0;
  ASSERT_TRUE(memory_->Scrub(*slab, [&](const absl::Status&) { ++ended; }).ok());
  ASSERT_TRUE(memory_->Create(0, 2 * kMiB, [&](const absl::StatusOr<std::unique_ptr<Slab>>&) { ++ended; }).ok());
  slab.reset();
  memory_.reset();
  executor_.RunUntil([&] { return ended == 2; });
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, SlabMemoryContract,
    ::testing::Values(Kind{"Fake", [] { return std::unique_ptr<Rig>(std::make_unique<FakeRig>()); }},
                      Kind{"Gpu", [] { return std::unique_ptr<Rig>(std::make_unique<GpuRig>()); }}),
    [](const ::testing::TestParamInfo<Kind>& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace kvartal::device
