// What Kvartal counts on a GPU driver for. These run on simulated GPUs, and on real ones with KVARTAL_GPU_LIBRARY.
#include <algorithm>
#include <set>

#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/gpu_peer_process.h"

namespace kvartal::device {
namespace {

constexpr uint8_t kOurs = 0x5a, kTheirs = 0xc3;

class GpuDriverContractTest : public GpuTest {
 protected:
  GpuDriverContractTest() {
    auto context = GpuContext::Open(*driver_, 0);
    KV_CHECK(context.ok());
    context_ = std::make_unique<GpuContext>(*std::move(context));
    auto stream = GpuStream::Open(*context_, GpuPriority::kDemand);
    KV_CHECK(stream.ok());
    stream_ = std::make_unique<GpuStream>(*std::move(stream));
  }

  static bool AllAre(const std::vector<uint8_t>& bytes, uint8_t value) {
    return !bytes.empty() && std::all_of(bytes.begin(), bytes.end(), [&](uint8_t byte) { return byte == value; });
  }

  std::unique_ptr<GpuContext> context_;
  std::unique_ptr<GpuStream> stream_;
};

TEST_F(GpuDriverContractTest, EveryGpuHasAnUuidOfItsOwnAndAGranularityOf2MiB) {
  std::set<std::string> uuids;
  ASSERT_FALSE(driver_->gpus().empty());
  for (const GpuInfo& gpu : driver_->gpus()) {
    EXPECT_TRUE(uuids.insert(gpu.uuid).second) << gpu.uuid;
    EXPECT_EQ(gpu.uuid.size(), std::string("GPU-01234567-89ab-cdef-0123-456789abcdef").size()) << gpu.uuid;
    EXPECT_GT(gpu.memory_bytes, 0u);
    ASSERT_TRUE(gpu.shares_by_fd);
    EXPECT_EQ(gpu.granularity_bytes % (2 * kMiB), 0u);
  }
}

TEST_F(GpuDriverContractTest, BytesGoToTheGpuAndBack) {
  const auto memory = driver_->Allocate(0, Granule());
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto mapping = GpuMapping::Map(*memory, 0, GpuAccess::kReadWrite);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  std::vector<uint8_t> sent(Granule());
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<uint8_t>(i * 31 + i / 4096);
  ASSERT_TRUE(stream_->CopyToGpu(mapping->address(), sent.data(), sent.size()).ok());
  EXPECT_TRUE(Read(*stream_, mapping->address(), sent.size()) == sent);
}

TEST_F(GpuDriverContractTest, AStreamDoesItsWorkInOrder) {
  const auto memory = driver_->Allocate(0, 2 * Granule());
  ASSERT_TRUE(memory.ok());
  const auto mapping = GpuMapping::Map(*memory, 0, GpuAccess::kReadWrite);
  ASSERT_TRUE(mapping.ok());
  const DeviceAddress first = mapping->address(), second = first + Granule();
  ASSERT_TRUE(stream_->Fill(first, kOurs, Granule()).ok());
  ASSERT_TRUE(stream_->CopyWithinGpu(second, first, Granule()).ok());
  ASSERT_TRUE(stream_->Fill(first, kTheirs, Granule()).ok());
  EXPECT_TRUE(AllAre(Read(*stream_, second, Granule()), kOurs));
  EXPECT_TRUE(AllAre(Read(*stream_, first, Granule()), kTheirs));
}

TEST_F(GpuDriverContractTest, AnEventIsDoneWhenTheWorkBeforeItIs) {
  const auto memory = driver_->Allocate(0, Granule());
  ASSERT_TRUE(memory.ok());
  const auto mapping = GpuMapping::Map(*memory, 0, GpuAccess::kReadWrite);
  ASSERT_TRUE(mapping.ok());
  std::vector<uint8_t> host(Granule());
  ASSERT_TRUE(stream_->Fill(mapping->address(), kOurs, Granule()).ok());
  ASSERT_TRUE(stream_->CopyToHost(host.data(), mapping->address(), host.size()).ok());
  const auto mark = stream_->Mark();
  ASSERT_TRUE(mark.ok());
  absl::StatusOr<bool> done = false;
  while (done.ok() && !*done) done = mark->Done();
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_TRUE(AllAre(host, kOurs));
}

TEST_F(GpuDriverContractTest, WhatOneProcessExportsAnotherReads) {
  GpuPeer peer(Granule(), kTheirs);
  ASSERT_TRUE(peer.memory().valid());
  const auto memory = driver_->Import(peer.memory().get(), Granule());
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto mapping = GpuMapping::Map(*memory, 0, GpuAccess::kRead);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  EXPECT_TRUE(AllAre(Read(*stream_, mapping->address(), Granule()), kTheirs));
}

TEST_F(GpuDriverContractTest, BytesOutliveTheProcessThatMadeThemWhileAnybodyHasTheDescriptor) {
  GpuPeer peer(Granule(), kTheirs);
  ASSERT_TRUE(peer.memory().valid());
  peer.Kill();
  const auto memory = driver_->Import(peer.memory().get(), Granule());
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto mapping = GpuMapping::Map(*memory, 0, GpuAccess::kRead);
  ASSERT_TRUE(mapping.ok());
  EXPECT_TRUE(AllAre(Read(*stream_, mapping->address(), Granule()), kTheirs));
}

TEST_F(GpuDriverContractTest, AMappingKeepsTheBytesWithoutHandleOrDescriptor) {
  GpuPeer peer(Granule(), kTheirs);
  ASSERT_TRUE(peer.memory().valid());
  absl::StatusOr<GpuMapping> mapping = absl::UnknownError("not mapped");
  {
    const auto memory = driver_->Import(peer.memory().get(), Granule());
    ASSERT_TRUE(memory.ok());
    mapping = GpuMapping::Map(*memory, 0, GpuAccess::kRead);
  }
  ASSERT_TRUE(mapping.ok());
  peer.memory().reset();
  peer.Kill();
  EXPECT_TRUE(AllAre(Read(*stream_, mapping->address(), Granule()), kTheirs));
}

TEST_F(GpuDriverContractTest, MoreThanTheGpuHasIsRefusedWithWhatToDo) {
  const uint64_t too_much = driver_->gpus()[0].memory_bytes + Granule();
  const auto memory = driver_->Allocate(0, too_much / Granule() * Granule());
  ASSERT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted) << memory.status();
  EXPECT_NE(memory.status().message().find("hbmPerGpu"), absl::string_view::npos) << memory.status();
}

TEST_F(GpuDriverContractTest, ASizeThatIsNoMultipleOfTheGranularityIsRefused) {
  EXPECT_EQ(driver_->Allocate(0, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(driver_->Allocate(0, Granule() + 4096).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GpuDriverContractTest, AnImportOfAnotherSizeThanThePeerSaidIsNotMapped) {
  GpuPeer peer(Granule(), kTheirs);
  ASSERT_TRUE(peer.memory().valid());
  const auto memory = driver_->Import(peer.memory().get(), 2 * Granule());
  EXPECT_FALSE(memory.ok() && GpuMapping::Map(*memory, 0, GpuAccess::kRead).ok());
}

TEST_F(GpuDriverContractTest, ADescriptorThatIsNoGpuMemoryIsRefused) {
  std::array<int, 2> pair{};
  ASSERT_EQ(::pipe(pair.data()), 0);
  const UniqueFd in(pair[0]), out(pair[1]);
  EXPECT_FALSE(driver_->Import(in.get(), Granule()).ok());
}

}  // namespace
}  // namespace kvartal::device
