// What gpu_mover.h promises, of the fake and of the real one.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "tests/gpu/mover_rig.h"

namespace kvartal::device {
namespace {

constexpr auto kToGpu = GpuCopyDirection::kToGpu;
constexpr auto kToHost = GpuCopyDirection::kToHost;

struct Kind {
  const char* name;
  std::function<std::unique_ptr<MoverRig>()> make;
};

class MoverContract : public ::testing::TestWithParam<Kind> {
 protected:
  MoverContract() : rig_(GetParam().make()), calls_(rig_.get()) {}

  static void Fill(const TestMemory& arena, uint32_t seed) {
    const std::vector<uint8_t> pattern = Pattern(arena.bytes, seed);
    std::copy(pattern.begin(), pattern.end(), arena.data());
  }

  const std::unique_ptr<MoverRig> rig_;
  MoverCalls calls_;
};

TEST_P(MoverContract, BytesGoBothWaysAtOddOffsetsAndNothingBesideChanges) {
  const TestMemory slab = calls_.Slab(4 * kMiB);
  const TestMemory from = calls_.Arena(3 * kMiB), to = calls_.Arena(3 * kMiB);
  Fill(from, 1);
  const std::vector<uint8_t> before = Pattern(slab.bytes, 2);
  rig_->Write(slab.fd, before);
  GpuCopy copy = MoverCalls::Between(slab, from, kToGpu);
  copy.slab_offset = 12'345;
  copy.arena_offset = 777;
  copy.bytes = 2 * kMiB + 13;
  ASSERT_TRUE(calls_.CopyNow(copy).ok());

  std::vector<uint8_t> expected = before;
  std::copy_n(from.data() + 777, copy.bytes, expected.begin() + 12'345);
  EXPECT_TRUE(rig_->Read(slab.fd, slab.bytes) == expected);

  copy.arena = ArenaId(to.id);
  copy.arena_offset = 4'321;
  copy.direction = kToHost;
  ASSERT_TRUE(calls_.CopyNow(copy).ok());
  std::vector<uint8_t> host(to.bytes);
  std::copy_n(from.data() + 777, copy.bytes, host.begin() + 4'321);
  EXPECT_TRUE(std::equal(host.begin(), host.end(), to.data()));
  EXPECT_EQ(rig_->mover().stats().bytes_to_gpu, copy.bytes);
  EXPECT_EQ(rig_->mover().stats().bytes_to_host, copy.bytes);
}

TEST_P(MoverContract, ACopyOfManyChunksIsWhole) {
  const TestMemory slab = calls_.Slab(24 * kMiB);
  const TestMemory from = calls_.Arena(24 * kMiB), to = calls_.Arena(24 * kMiB);
  Fill(from, 3);
  GpuCopy copy = MoverCalls::Between(slab, from, kToGpu);
  copy.bytes = 20 * kMiB + 7;
  ASSERT_TRUE(calls_.CopyNow(copy).ok());
  copy.arena = ArenaId(to.id);
  copy.direction = kToHost;
  ASSERT_TRUE(calls_.CopyNow(copy).ok());
  EXPECT_TRUE(std::equal(from.data(), from.data() + copy.bytes, to.data()));
}

// Pieces that lie side by side here, and in another order there: some go on where others end, most do not.
TEST_P(MoverContract, ManyAtOnceInBothDirectionsEachEndOnceWithTheirOwnBytes) {
  constexpr int kPieces = 96;
  constexpr uint64_t kPiece = 17'771;
  const TestMemory slab = calls_.Slab(4 * kMiB);
  const TestMemory from = calls_.Arena(kPieces * kPiece), to = calls_.Arena(kPieces * kPiece);
  Fill(from, 4);
  std::vector<int> place(kPieces);
  for (int i = 0; i < kPieces; ++i) place[static_cast<size_t>(i)] = i;
  std::mt19937 random(20);
  std::shuffle(place.begin() + kPieces / 2, place.end(), random);
  for (const GpuCopyDirection direction : {kToGpu, kToHost}) {
    for (int i = 0; i < kPieces; ++i) {
      const auto at = static_cast<uint64_t>(i) * kPiece;
      GpuCopy copy = MoverCalls::Between(slab, direction == kToGpu ? from : to, direction);
      copy.arena_offset = at;
      copy.slab_offset = static_cast<uint64_t>(place[static_cast<size_t>(i)]) * kPiece;
      copy.bytes = kPiece;
      copy.priority = i % 3 == 0 ? GpuPriority::kBackground : GpuPriority::kDemand;
      ASSERT_TRUE(calls_.Copy(copy, direction == kToGpu ? i : kPieces + i).ok());
    }
    calls_.RunUntilEnded(direction == kToGpu ? kPieces : 2 * kPieces);
  }
  EXPECT_EQ(calls_.ended.CountOk(), 2u * kPieces);
  EXPECT_TRUE(std::equal(from.data(), from.data() + from.bytes, to.data()));
}

TEST_P(MoverContract, DemandOvertakesBackground) {
  constexpr int kBackground = 4, kDemand = 9;
  const TestMemory slab = calls_.Slab(kBackground * kMoverChunkBytes);
  const TestMemory arena = calls_.Arena(kBackground * kMoverChunkBytes);
  rig_->Hold();
  for (int i = 0; i < kBackground; ++i) {
    GpuCopy copy = MoverCalls::Between(slab, arena, kToHost);
    copy.slab_offset = copy.arena_offset = static_cast<uint64_t>(i) * kMoverChunkBytes;
    copy.bytes = kMoverChunkBytes;
    copy.priority = GpuPriority::kBackground;
    ASSERT_TRUE(calls_.Copy(copy, i).ok());
  }
  GpuCopy demand = MoverCalls::Between(slab, arena, kToHost);
  demand.bytes = 4096;
  ASSERT_TRUE(calls_.Copy(demand, kDemand).ok());
  calls_.Arrive();
  rig_->Release();
  rig_->RunUntil([&] { return calls_.ended.Has(kDemand) && calls_.ended.Has(kBackground - 1); });
  const std::vector<int>& order = calls_.ended.order();
  const auto at = [&](int name) { return std::find(order.begin(), order.end(), name) - order.begin(); };
  EXPECT_LT(at(kDemand), at(kMoverOnGpuBytes / kMoverChunkBytes)) << "only what the GPU had before may come first";
}

TEST_P(MoverContract, WhatIsNotWithinBothIsRefused) {
  const TestMemory slab = calls_.Slab(2 * kMiB);
  const TestMemory arena = calls_.Arena(4 * kMiB);
  const auto refused = [&](uint64_t slab_offset, uint64_t arena_offset, uint64_t bytes) {
    GpuCopy copy = MoverCalls::Between(slab, arena, kToHost);
    copy.slab_offset = slab_offset;
    copy.arena_offset = arena_offset;
    copy.bytes = bytes;
    return absl::IsOutOfRange(calls_.Copy(copy, 0));
  };
  constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();
  EXPECT_TRUE(refused(0, 0, slab.bytes + 1));
  EXPECT_TRUE(refused(1, 0, slab.bytes));
  EXPECT_TRUE(refused(0, arena.bytes - slab.bytes + 1, slab.bytes));
  EXPECT_TRUE(refused(0, 0, 0));
  EXPECT_TRUE(refused(kAll, 0, 2));
  EXPECT_TRUE(refused(0, kAll - 1, 4));
  EXPECT_TRUE(refused(0, 0, kAll));
  EXPECT_EQ(rig_->mover().stats().refused, 7u);
  EXPECT_TRUE(calls_.CopyNow(MoverCalls::Between(slab, arena, kToHost)).ok());
  EXPECT_EQ(calls_.ended.count(), 1u);
}

TEST_P(MoverContract, WhatItDoesNotKnowOrHasForgottenIsRefused) {
  const TestMemory slab = calls_.Slab(2 * kMiB), gone = calls_.Slab(2 * kMiB);
  const TestMemory arena = calls_.Arena(2 * kMiB), left = calls_.Arena(2 * kMiB);
  ASSERT_TRUE(calls_.CopyNow(MoverCalls::Between(gone, left, kToGpu)).ok());
  ASSERT_TRUE(calls_.End(calls_.ForgetSlab(gone, 1), 1).ok());
  ASSERT_TRUE(calls_.End(calls_.ForgetArena(left, 2), 2).ok());
  EXPECT_TRUE(absl::IsNotFound(calls_.Copy(MoverCalls::Between(gone, arena, kToGpu), 3)));
  EXPECT_TRUE(absl::IsNotFound(calls_.Copy(MoverCalls::Between(slab, left, kToHost), 3)));
  EXPECT_TRUE(absl::IsNotFound(calls_.Scrub(gone, 3)));
  EXPECT_TRUE(absl::IsNotFound(calls_.ForgetSlab(gone, 3)));
  EXPECT_TRUE(absl::IsNotFound(calls_.ForgetArena(left, 3)));
  EXPECT_TRUE(calls_.CopyNow(MoverCalls::Between(slab, arena, kToGpu)).ok());
  EXPECT_FALSE(calls_.ended.Has(3));
}

TEST_P(MoverContract, AnIdIsOfOneMemoryUntilItIsForgotten) {
  const TestMemory slab = calls_.Slab(2 * kMiB), arena = calls_.Arena(2 * kMiB);
  EXPECT_TRUE(absl::IsAlreadyExists(rig_->mover().AddSlab(SlabId(slab.id), slab.fd.get(), slab.bytes)));
  EXPECT_TRUE(absl::IsAlreadyExists(rig_->mover().AddArena(ArenaId(arena.id), arena.fd.get(), arena.bytes)));
  ASSERT_TRUE(calls_.End(calls_.ForgetSlab(slab, 1), 1).ok());
  uint64_t bytes = 2 * kMiB;
  const UniqueFd other = rig_->NewSlab(&bytes);
  ASSERT_TRUE(rig_->mover().AddSlab(SlabId(slab.id), other.get(), bytes).ok());
  Fill(arena, 5);
  ASSERT_TRUE(calls_.CopyNow(MoverCalls::Between(slab, arena, kToGpu)).ok());
  EXPECT_TRUE(rig_->Read(other, arena.bytes) == Pattern(arena.bytes, 5));
  EXPECT_FALSE(rig_->Read(slab.fd, arena.bytes) == Pattern(arena.bytes, 5));
}

TEST_P(MoverContract, AForgetWaitsForWhatIsUnderWayAndLetsInNothingNew) {
  const TestMemory slab = calls_.Slab(2 * kMiB), arena = calls_.Arena(2 * kMiB);
  Fill(arena, 6);
  const bool held = rig_->Hold();
  ASSERT_TRUE(calls_.Copy(MoverCalls::Between(slab, arena, kToGpu), 1).ok());
  ASSERT_TRUE(calls_.ForgetSlab(slab, 2).ok());
  EXPECT_TRUE(absl::IsNotFound(calls_.Copy(MoverCalls::Between(slab, arena, kToGpu), 3)));
  if (held) {
    calls_.Arrive();
    EXPECT_FALSE(calls_.ended.Has(2));
  }
  rig_->Release();
  EXPECT_TRUE(calls_.End(absl::OkStatus(), 2).ok());
  ASSERT_TRUE(calls_.ended.Has(1)) << "the copy came first";
  EXPECT_TRUE(calls_.ended.Of(1).ok());
  EXPECT_TRUE(rig_->Read(slab.fd, arena.bytes) == Pattern(arena.bytes, 6));
}

TEST_P(MoverContract, AScrubZeroesAllOfOneSlab) {
  const TestMemory slab = calls_.Slab(10 * kMiB), other = calls_.Slab(2 * kMiB);
  rig_->Write(slab.fd, Pattern(slab.bytes, 7));
  rig_->Write(other.fd, Pattern(other.bytes, 8));
  ASSERT_TRUE(calls_.End(calls_.Scrub(slab, 1), 1).ok());
  EXPECT_TRUE(rig_->Read(slab.fd, slab.bytes) == std::vector<uint8_t>(slab.bytes));
  EXPECT_TRUE(rig_->Read(other.fd, other.bytes) == Pattern(other.bytes, 8));
  EXPECT_EQ(rig_->mover().stats().bytes_scrubbed, slab.bytes);
}

TEST_P(MoverContract, AFullQueueIsARefusalAndTheRefusedNeverEnd) {
  const TestMemory slab = calls_.Slab(2 * kMiB), arena = calls_.Arena(2 * kMiB);
  constexpr int kMax = kMoverOperationsMax;
  GpuCopy copy = MoverCalls::Between(slab, arena, kToGpu);
  copy.bytes = 1;
  for (int i = 0; i < kMax; ++i) {
    copy.slab_offset = copy.arena_offset = static_cast<uint64_t>(i) * 3;
    ASSERT_TRUE(calls_.Copy(copy, i).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(calls_.Copy(copy, kMax)));
  EXPECT_TRUE(absl::IsResourceExhausted(calls_.Scrub(slab, kMax)));
  EXPECT_TRUE(absl::IsResourceExhausted(calls_.ForgetSlab(slab, kMax)));
  calls_.RunUntilEnded(kMoverOperationsMax);
  EXPECT_TRUE(calls_.CopyNow(copy).ok()) << "there is room again";
  EXPECT_FALSE(calls_.ended.Has(kMax));
  EXPECT_EQ(calls_.ended.CountOk(), kMoverOperationsMax + 1);
}

TEST_P(MoverContract, TheEndOfTheMoverEndsWhatIsUnderWayOnce) {
  const TestMemory slab = calls_.Slab(2 * kMiB), arena = calls_.Arena(2 * kMiB);
  rig_->Hold();
  ASSERT_TRUE(calls_.Copy(MoverCalls::Between(slab, arena, kToGpu), 1).ok());
  ASSERT_TRUE(calls_.Scrub(slab, 2).ok());
  ASSERT_TRUE(calls_.ForgetSlab(slab, 3).ok());
  ASSERT_TRUE(calls_.ended
                  .Call([&] {
                    rig_->EndMover();
                    return absl::OkStatus();
                  })
                  .ok());
  calls_.RunUntilEnded(3);
  for (const int name : {1, 2}) EXPECT_TRUE(absl::IsCancelled(calls_.ended.Of(name))) << calls_.ended.Of(name);
  EXPECT_TRUE(calls_.ended.Of(3).ok()) << "nothing holds it any more";
}

INSTANTIATE_TEST_SUITE_P(Kinds, MoverContract,
                         ::testing::Values(Kind{"Fake", [] { return std::make_unique<FakeRig>(); }},
                                           Kind{"Process",
                                                [] {
                                                  auto rig = std::make_unique<ProcessRig>();
                                                  rig->StartReadyMover();
                                                  return rig;
                                                }}),
                         [](const ::testing::TestParamInfo<Kind>& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace kvartal::device
