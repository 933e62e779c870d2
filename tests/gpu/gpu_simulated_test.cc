// What only simulated GPUs can be made to do: faults, full memory, other eyes; and that they are as unforgiving as real
// ones.
#include <gtest/gtest-death-test.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/gpu_peer_process.h"

namespace kvartal::device {
namespace {

constexpr uint64_t kAllBytes = kSimulatedMemoryMiB * kMiB;

using GpuSimulatedTest = GpuTest;

// Of this process's address space.
uint64_t MappedBytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

TEST_F(GpuSimulatedTest, ItSaysThatItIsSimulated) {
  EXPECT_TRUE(driver_->simulated());
  EXPECT_NE(driver_->gpus()[0].name.find("Simulated"), std::string::npos);
}

TEST_F(GpuSimulatedTest, TheSameGpuHasTheSameUuidUnderAnotherOrdinal) {
  ASSERT_EQ(driver_->gpus().size(), 2u) << "this process sees GPUs 2 and 0 of four";
  EXPECT_NE(driver_->gpus()[0].uuid, driver_->gpus()[1].uuid);
  EXPECT_EQ(driver_->gpus()[0].uuid.substr(driver_->gpus()[0].uuid.size() - 2), "02");
}

TEST_F(GpuSimulatedTest, NodesWithoutDriverOrGpuAreTold) {
  const auto none = GpuDriver::Load("libno-such-driver.so.1");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound) << none.status();
  Inject("cuInit=100");
  const auto blind = GpuDriver::Load(GpuLibrary());
  EXPECT_EQ(blind.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(blind.status().message().find("NVIDIA_VISIBLE_DEVICES"), absl::string_view::npos) << blind.status();
}

TEST_F(GpuSimulatedTest, ALibraryThatIsNoDriverIsRefused) {
  const auto other = GpuDriver::Load("libz.so.1");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition) << other.status();
}

TEST_F(GpuSimulatedTest, AGpuIsFullWhileAnyProcessHoldsItsMemory) {
  GpuPeer peer(kAllBytes / 2, 1);
  ASSERT_TRUE(peer.memory().valid());
  EXPECT_EQ(driver_->Allocate(0, kAllBytes / 2).status().code(), absl::StatusCode::kResourceExhausted)
      << "the peer's context takes some as well";
  EXPECT_TRUE(driver_->Allocate(1, kAllBytes / 2).ok()) << "another GPU has its own";
  peer.Kill();
  EXPECT_FALSE(driver_->Allocate(0, kAllBytes / 2 + Granule()).ok()) << "a descriptor alone holds it";
  peer.memory().reset();
  EXPECT_TRUE(driver_->Allocate(0, kAllBytes).ok());
}

TEST_F(GpuSimulatedTest, AContextTakesMemoryOfItsGpu) {
  auto context = GpuContext::Open(*driver_, 0);
  ASSERT_TRUE(context.ok());
  EXPECT_FALSE(driver_->Allocate(0, kAllBytes).ok());
  EXPECT_TRUE(driver_->Allocate(0, kAllBytes - kSimulatedContextMiB * kMiB).ok());
}

TEST_F(GpuSimulatedTest, NewMemoryIsNotZero) {
  const auto context = GpuContext::Open(*driver_, 0);
  const auto memory = driver_->Allocate(0, Granule());
  ASSERT_TRUE(context.ok() && memory.ok());
  const auto mapping = GpuMapping::Map(*memory, 0, GpuAccess::kRead);
  auto stream = GpuStream::Open(*context, GpuPriority::kBackground);
  ASSERT_TRUE(mapping.ok() && stream.ok());
  const std::vector<uint8_t> bytes = Read(*stream, mapping->address(), Granule());
  EXPECT_TRUE(std::any_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte != 0; }));
}

TEST_F(GpuSimulatedTest, AWriteThroughAReadOnlyMappingLosesTheContextForGood) {
  const auto memory = driver_->Allocate(0, Granule());
  ASSERT_TRUE(memory.ok());
  const auto mapping = GpuMapping::Map(*memory, 0, GpuAccess::kRead);
  const auto context = GpuContext::Open(*driver_, 0);
  ASSERT_TRUE(mapping.ok() && context.ok());
  auto stream = GpuStream::Open(*context, GpuPriority::kDemand);
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE(stream->Fill(mapping->address(), 1, 1).ok()) << "it is only given to the GPU here";
  EXPECT_EQ(stream->Wait().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(stream->Mark().status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(GpuStream::Open(*context, GpuPriority::kDemand).status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(driver_->Allocate(0, Granule()).ok()) << "what needs no context goes on";
}

TEST_F(GpuSimulatedTest, AnotherGpuDoesNotReachAMapping) {
  const auto memory = driver_->Allocate(0, Granule());
  ASSERT_TRUE(memory.ok());
  const auto mapping = GpuMapping::Map(*memory, 0, GpuAccess::kReadWrite);
  const auto other = GpuContext::Open(*driver_, 1);
  ASSERT_TRUE(mapping.ok() && other.ok());
  auto stream = GpuStream::Open(*other, GpuPriority::kDemand);
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE(stream->Fill(mapping->address(), 1, 1).ok());
  EXPECT_EQ(stream->Wait().code(), absl::StatusCode::kAborted);
}

TEST_F(GpuSimulatedTest, WorkOnMemoryThatIsNoLongerMappedLosesTheContext) {
  const auto memory = driver_->Allocate(0, Granule());
  ASSERT_TRUE(memory.ok());
  const auto context = GpuContext::Open(*driver_, 0);
  ASSERT_TRUE(context.ok());
  auto stream = GpuStream::Open(*context, GpuPriority::kDemand);
  ASSERT_TRUE(stream.ok());
  DeviceAddress gone = 0;
  {
    const auto mapping = GpuMapping::Map(*memory, 0, GpuAccess::kReadWrite);
    ASSERT_TRUE(mapping.ok());
    gone = mapping->address();
  }
  ASSERT_TRUE(stream->Fill(gone, 1, 1).ok());
  EXPECT_EQ(stream->Wait().code(), absl::StatusCode::kAborted);
}

TEST_F(GpuSimulatedTest, TheHostCannotTouchADeviceAddress) {
  const auto memory = driver_->Allocate(0, Granule());
  ASSERT_TRUE(memory.ok());
  const auto mapping = GpuMapping::Map(*memory, 0, GpuAccess::kReadWrite);
  ASSERT_TRUE(mapping.ok());
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(mapping->address()) = 1, "");
}

TEST_F(GpuSimulatedTest, AFailedMappingLeavesNothingReserved) {
  const auto memory = driver_->Allocate(0, Granule());
  ASSERT_TRUE(memory.ok());
  constexpr uint64_t kTries = 100;
  for (const char* fault : {"cuMemSetAccess=2", "cuMemMap=2"}) {
    const uint64_t before = MappedBytes();
    Inject(fault);
    for (uint64_t i = 0; i < kTries; ++i) {
      const auto mapping = GpuMapping::Map(*memory, 0, GpuAccess::kReadWrite);
      EXPECT_EQ(mapping.status().code(), absl::StatusCode::kResourceExhausted);
    }
    Inject("");
    EXPECT_LT(MappedBytes(), before + kTries * Granule() / 2) << fault;
  }
  EXPECT_TRUE(GpuMapping::Map(*memory, 0, GpuAccess::kReadWrite).ok());
}

}  // namespace
}  // namespace kvartal::device
