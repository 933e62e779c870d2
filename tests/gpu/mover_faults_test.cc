// What becomes of a mover's work when its process dies, hangs, or loses its context: nothing is lost but what was under
// way, and that is told. On simulated GPUs.
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill

#include <algorithm>
#include <random>

#include "tests/gpu/mover_rig.h"

namespace kvartal::device {
namespace {

constexpr auto kToGpu = GpuCopyDirection::kToGpu;
constexpr auto kToHost = GpuCopyDirection::kToHost;

class MoverFaults : public ::testing::Test {
 protected:
  void TearDown() override { rig_.EndMover(); }

  MoverProcess& mover() { return rig_.mover(); }
  void RunUntilReadyAgain(uint64_t restarts) {
    rig_.RunUntil([&] { return mover().ready() && mover().stats().restarts >= restarts; });
  }
  // The mover, told of them again, has the bytes they had.
  void ExpectWhole(const TestMemory& slab, uint32_t seed) {
    const TestMemory arena = calls_.Arena(slab.bytes);
    ASSERT_TRUE(calls_.CopyNow(MoverCalls::Between(slab, arena, kToHost)).ok());
    const std::vector<uint8_t> expected = Pattern(slab.bytes, seed);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), arena.data()));
  }

  ProcessRig rig_;
  MoverCalls calls_{&rig_};
};

TEST_F(MoverFaults, AMoverThatIsKilledAmongCopiesEndsThemAndComesBackWithAllMemory) {
  rig_.StartReadyMover();
  const TestMemory slab = calls_.Slab(4 * kMiB), busy = calls_.Slab(4 * kMiB), arena = calls_.Arena(4 * kMiB);
  rig_.Write(slab.fd, Pattern(slab.bytes, 1));
  rig_.Hold();
  constexpr int kCopies = 8;
  for (int i = 0; i < kCopies; ++i) {
    GpuCopy copy = MoverCalls::Between(busy, arena, i % 2 == 0 ? kToGpu : kToHost);
    copy.bytes = 4096;
    copy.arena_offset = copy.slab_offset = static_cast<uint64_t>(i) * 8192;
    ASSERT_TRUE(calls_.Copy(copy, i).ok());
  }
  calls_.Arrive();
  ASSERT_EQ(::kill(mover().pid(), SIGKILL), 0);
  rig_.RunUntil([&] { return calls_.ended.Has(kCopies - 1); });
  for (int i = 0; i < kCopies; ++i) EXPECT_TRUE(absl::IsUnavailable(calls_.ended.Of(i))) << calls_.ended.Of(i);
  EXPECT_FALSE(mover().ready());
  EXPECT_TRUE(absl::IsUnavailable(calls_.Copy(MoverCalls::Between(slab, arena, kToGpu), 100)));
  rig_.Release();
  RunUntilReadyAgain(1);
  ExpectWhole(slab, 1);
  EXPECT_EQ(mover().stats().operations_failed, static_cast<uint64_t>(kCopies));
  EXPECT_EQ(mover().stats().hangs, 0u);
}

TEST_F(MoverFaults, KilledAtAnyMomentItLosesNothing) {
  rig_.StartReadyMover();
  const TestMemory slab = calls_.Slab(2 * kMiB), arena = calls_.Arena(2 * kMiB);
  const TestMemory kept = calls_.Slab(2 * kMiB);
  rig_.Write(kept.fd, Pattern(kept.bytes, 2));
  constexpr uint64_t kRounds = 12;
  constexpr int kCopies = 40;
  std::mt19937 random(7);
  size_t failed = 0;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    const int first = static_cast<int>(round) * kCopies;
    for (int i = 0; i < kCopies; ++i) {
      GpuCopy copy = MoverCalls::Between(slab, arena, kToGpu);
      copy.bytes = 16 * kKiB;
      copy.arena_offset = copy.slab_offset = static_cast<uint64_t>(i) * 32 * kKiB;
      ASSERT_TRUE(calls_.Copy(copy, first + i).ok());
    }
    const size_t so_far = calls_.ended.count();
    calls_.RunUntilEnded(so_far + random() % kCopies);
    ASSERT_EQ(::kill(mover().pid(), SIGKILL), 0);
    rig_.RunUntil([&] { return mover().stats().restarts >= round; });
    ASSERT_EQ(calls_.ended.count(), static_cast<size_t>(round) * kCopies) << "each has ended, once";
    for (int i = 0; i < kCopies; ++i) {
      const absl::Status& status = calls_.ended.Of(first + i);
      ASSERT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
      if (!status.ok()) ++failed;
    }
    RunUntilReadyAgain(round);
  }
  EXPECT_GT(failed, 0u) << "no kill came in time";
  ExpectWhole(kept, 2);
}

TEST_F(MoverFaults, AGpuThatHangsIsFoundOutAtTheDeadlineOfACopy) {
  rig_.StartReadyMover();
  const TestMemory slab = calls_.Slab(2 * kMiB), other = calls_.Slab(2 * kMiB);
  const TestMemory arena = calls_.Arena(2 * kMiB);
  rig_.Write(slab.fd, Pattern(slab.bytes, 3));
  rig_.Hold();
  GpuCopy copy = MoverCalls::Between(slab, arena, kToHost);
  ASSERT_TRUE(calls_.Copy(copy, 1).ok());
  copy.deadline_ms = 30;
  ASSERT_TRUE(calls_.Copy(copy, 2).ok());
  ASSERT_TRUE(calls_.ForgetSlab(other, 3).ok());
  calls_.RunUntilEnded(3);
  EXPECT_TRUE(absl::IsUnavailable(calls_.ended.Of(1))) << calls_.ended.Of(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(calls_.ended.Of(2))) << calls_.ended.Of(2);
  EXPECT_NE(calls_.ended.Of(2).message().find("hangs"), absl::string_view::npos) << calls_.ended.Of(2);
  EXPECT_TRUE(calls_.ended.Of(3).ok());
  EXPECT_EQ(mover().stats().hangs, 1u);
  rig_.Release();
  RunUntilReadyAgain(1);
  ExpectWhole(slab, 3);
}

TEST_F(MoverFaults, AForgetInADriverThatHangsEndsWithTheProcess) {
  rig_.options.call_ms = 1500;
  rig_.SetFaults({"cuMemUnmap=hang"});
  rig_.StartReadyMover();
  const TestMemory slab = calls_.Slab(2 * kMiB), kept = calls_.Slab(2 * kMiB);
  rig_.Write(kept.fd, Pattern(kept.bytes, 4));
  calls_.Arrive();
  rig_.SetFaults({});
  EXPECT_TRUE(calls_.End(calls_.ForgetSlab(slab, 1), 1).ok()) << "nothing holds it any more";
  EXPECT_EQ(mover().stats().hangs, 1u);
  RunUntilReadyAgain(1);
  EXPECT_TRUE(absl::IsNotFound(calls_.Copy(MoverCalls::Between(slab, kept, kToGpu), 2)));
  ExpectWhole(kept, 4);
}

TEST_F(MoverFaults, AContextThatIsLostIsToldAndAnotherProcessGoesOn) {
  constexpr char kIllegalAddress[] = "cuEventQuery=700";
  rig_.SetFaults({kIllegalAddress});
  rig_.StartReadyMover();
  const TestMemory slab = calls_.Slab(2 * kMiB), arena = calls_.Arena(2 * kMiB);
  rig_.Write(slab.fd, Pattern(slab.bytes, 5));
  rig_.SetFaults({});
  const absl::Status lost = calls_.CopyNow(MoverCalls::Between(slab, arena, kToHost));
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_NE(lost.message().find("its CUDA context was lost"), absl::string_view::npos) << lost;
  EXPECT_NE(lost.message().find("CUDA_ERROR_ILLEGAL_ADDRESS"), absl::string_view::npos) << lost;
  RunUntilReadyAgain(1);
  ExpectWhole(slab, 5);
}

TEST_F(MoverFaults, AnExecutableThatIsNotThereIsNamed) {
  rig_.options.executable = "no-such-folder/kvartal-mover";
  const absl::Status started = rig_.StartMover();
  EXPECT_TRUE(absl::IsNotFound(started)) << started;
  EXPECT_NE(started.message().find("no-such-folder/kvartal-mover"), absl::string_view::npos) << started;
}

TEST_F(MoverFaults, WhyItCannotBeginIsToldAndItIsTriedAgain) {
  rig_.options.library = "libno-such-driver.so.1";
  ASSERT_TRUE(rig_.StartMover().ok());
  rig_.RunUntil([&] { return mover().stats().restarts >= 2; });
  EXPECT_NE(mover().last_end().find("it could not begin: no GPU driver"), std::string::npos) << mover().last_end();

  rig_.EndMover();
  rig_.options.library = GpuLibrary();
  rig_.options.gpu_uuid = "GPU-of-another-node";
  ASSERT_TRUE(rig_.StartMover().ok());
  const TestMemory slab = calls_.Slab(2 * kMiB);
  rig_.RunUntil([&] { return mover().stats().restarts >= 1; });
  const absl::Status unavailable = calls_.Scrub(slab, 1);
  EXPECT_TRUE(absl::IsUnavailable(unavailable)) << unavailable;
  EXPECT_NE(unavailable.message().find("no GPU GPU-of-another-node is visible here"), absl::string_view::npos)
      << unavailable;
  EXPECT_TRUE(calls_.End(calls_.ForgetSlab(slab, 2), 2).ok()) << "no process is needed for that";
}

TEST_F(MoverFaults, MemoryThatIsForgottenGoesBackToTheGpu) {
  rig_.StartReadyMover();
  constexpr uint64_t kMost = (kSimulatedMemoryMiB - 3 * kSimulatedContextMiB) * kMiB;
  TestMemory slab = calls_.Slab(kMost);
  slab.fd.reset();
  calls_.Arrive();
  EXPECT_FALSE(rig_.driver().Allocate(0, kMost).ok()) << "the mover holds it";
  EXPECT_TRUE(calls_.End(calls_.ForgetSlab(slab, 1), 1).ok());
  EXPECT_TRUE(rig_.driver().Allocate(0, kMost).ok());
}

TEST_F(MoverFaults, ManySlabsAreToldAndToldAgainInTurn) {
  rig_.StartReadyMover();
  constexpr uint32_t kSlabs = 16;
  std::vector<TestMemory> slabs;
  for (uint32_t i = 0; i < kSlabs; ++i) {
    slabs.push_back(calls_.Slab(2 * kMiB));
    rig_.Write(slabs.back().fd, Pattern(slabs.back().bytes, i));
  }
  ExpectWhole(slabs.back(), kSlabs - 1);
  ASSERT_EQ(::kill(mover().pid(), SIGKILL), 0);
  RunUntilReadyAgain(1);
  for (uint32_t i = 0; i < kSlabs; ++i) ExpectWhole(slabs[i], i);
}

TEST_F(MoverFaults, MemoryThatCannotBeMappedIsToldByItsOperationsAloneAndCanBeForgotten) {
  rig_.StartReadyMover();
  TestMemory slab = calls_.Slab(2 * kMiB), arena = calls_.Arena(2 * kMiB);
  rig_.Write(slab.fd, Pattern(slab.bytes, 6));
  constexpr uint64_t kStrange = 100, kSoft = 101, kShort = 102;
  const UniqueFd no_slab = NewArenaFd(2 * kMiB), soft = NewArenaFd(2 * kMiB, 0), too_short = NewArenaFd(kMiB);
  ASSERT_TRUE(mover().AddSlab(SlabId(kStrange), no_slab.get(), 2 * kMiB).ok());
  ASSERT_TRUE(mover().AddArena(ArenaId(kSoft), soft.get(), 2 * kMiB).ok());
  ASSERT_TRUE(mover().AddArena(ArenaId(kShort), too_short.get(), 2 * kMiB).ok());
  GpuCopy copy = MoverCalls::Between(slab, arena, kToGpu);
  copy.slab = SlabId(kStrange);
  EXPECT_TRUE(absl::IsInvalidArgument(calls_.CopyNow(copy)));
  copy.slab = SlabId(slab.id);
  copy.arena = ArenaId(kSoft);
  EXPECT_TRUE(absl::IsFailedPrecondition(calls_.CopyNow(copy)));
  copy.arena = ArenaId(kShort);
  EXPECT_TRUE(absl::IsInvalidArgument(calls_.CopyNow(copy)));
  slab.id = kStrange;
  EXPECT_TRUE(calls_.End(calls_.ForgetSlab(slab, 1), 1).ok());
  EXPECT_EQ(mover().stats().restarts, 0u);
}

}  // namespace
}  // namespace kvartal::device
