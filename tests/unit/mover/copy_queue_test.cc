#include "daemon/mover/copy_queue.h"

#include <gtest/gtest.h>

#include "daemon/base/units.h"
#include "daemon/device/mover_limits.h"

namespace kvartal::mover {
namespace {

using device::GpuPriority;
using device::kMoverChunkBytes;
using device::kMoverDemandRun;

// Never touched: only its addresses are.
std::byte* const kHost = reinterpret_cast<std::byte*>(uint64_t{1} << 40);  // NOLINT(performance-no-int-to-ptr)
constexpr device::DeviceAddress kGpu = uint64_t{1} << 41;

Copy CopyAt(uint64_t operation, uint64_t gpu_offset, uint64_t host_offset, uint64_t bytes) {
  return {operation, 0, 0, kGpu + gpu_offset, kHost + host_offset, bytes};
}

std::vector<uint64_t> EndedBy(const Chunk& chunk) {
  std::vector<uint64_t> operations;
  for (const Copy& copy : chunk.ended) operations.push_back(copy.operation);
  return operations;
}

TEST(CopyQueueTest, ALargeCopyIsCutAndEndsWithItsLastChunk) {
  CopyQueue queue;
  queue.Push(CopyAt(1, 100, 7, 2 * kMoverChunkBytes + 5), GpuPriority::kDemand);
  uint64_t at = 0;
  for (const uint64_t bytes : {kMoverChunkBytes, kMoverChunkBytes, uint64_t{5}}) {
    const auto chunk = queue.Next();
    ASSERT_TRUE(chunk.has_value());
    EXPECT_EQ(chunk->bytes, bytes);
    EXPECT_EQ(chunk->gpu, kGpu + 100 + at);
    EXPECT_EQ(chunk->host, kHost + 7 + at);
    EXPECT_EQ(chunk->ended.size(), bytes == 5 ? 1u : 0u);
    at += bytes;
  }
  EXPECT_FALSE(queue.Next().has_value());
}

TEST(CopyQueueTest, CopiesThatGoOnWhereTheLastEndedAreOneChunk) {
  CopyQueue queue;
  queue.Push(CopyAt(1, 0, 0, 10), GpuPriority::kDemand);
  queue.Push(CopyAt(2, 10, 10, 20), GpuPriority::kDemand);
  queue.Push(CopyAt(3, 30, 31, 5), GpuPriority::kDemand);  // not on the host
  queue.Push(CopyAt(4, 36, 36, 5), GpuPriority::kDemand);  // not on the GPU
  Copy other = CopyAt(5, 41, 41, 5);                       // another slab, which only happens to lie there
  other.slab = 1;
  queue.Push(other, GpuPriority::kDemand);
  queue.Push({6, 1, 0, kGpu + 46, nullptr, 5}, GpuPriority::kDemand);  // a scrub
  const auto first = queue.Next();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->bytes, 30u);
  EXPECT_EQ(EndedBy(*first), (std::vector<uint64_t>{1, 2}));
  for (const uint64_t operation : {3, 4, 5, 6}) {
    const auto chunk = queue.Next();
    ASSERT_TRUE(chunk.has_value());
    EXPECT_EQ(EndedBy(*chunk), (std::vector<uint64_t>{operation}));
  }
  EXPECT_FALSE(queue.Next().has_value());
}

TEST(CopyQueueTest, AChunkOfManyCopiesIsNoLargerThanAnother) {
  CopyQueue queue;
  constexpr uint64_t kPart = kMoverChunkBytes / 4 * 3;
  queue.Push(CopyAt(1, 0, 0, kPart), GpuPriority::kDemand);
  queue.Push(CopyAt(2, kPart, kPart, kPart), GpuPriority::kDemand);
  const auto first = queue.Next(), second = queue.Next();
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_EQ(first->bytes, kMoverChunkBytes);
  EXPECT_EQ(EndedBy(*first), (std::vector<uint64_t>{1}));
  EXPECT_EQ(second->bytes, 2 * kPart - kMoverChunkBytes);
  EXPECT_EQ(EndedBy(*second), (std::vector<uint64_t>{2}));
}

TEST(CopyQueueTest, DemandComesFirstAndBackgroundHasItsPart) {
  CopyQueue queue;
  constexpr uint64_t kDemand = 3 * kMoverDemandRun;
  for (uint64_t i = 0; i < 3; ++i) queue.Push(CopyAt(100 + i, i * 50, i * 70, 10), GpuPriority::kBackground);
  for (uint64_t i = 0; i < kDemand; ++i) queue.Push(CopyAt(i, i * 50, i * 70, 10), GpuPriority::kDemand);
  for (uint64_t i = 0; i < kDemand + 3; ++i) {
    const auto chunk = queue.Next();
    ASSERT_TRUE(chunk.has_value());
    const bool turn = i % (kMoverDemandRun + 1) == kMoverDemandRun;
    EXPECT_EQ(chunk->priority, turn ? GpuPriority::kBackground : GpuPriority::kDemand) << i;
  }
  EXPECT_FALSE(queue.Next().has_value());
}

TEST(CopyQueueTest, BackgroundAloneDoesNotWait) {
  CopyQueue queue;
  queue.Push(CopyAt(1, 0, 0, 10), GpuPriority::kBackground);
  const auto chunk = queue.Next();
  ASSERT_TRUE(chunk.has_value());
  EXPECT_EQ(chunk->priority, GpuPriority::kBackground);
}

}  // namespace
}  // namespace kvartal::mover
