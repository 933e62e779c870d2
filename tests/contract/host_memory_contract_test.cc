// What host_memory.h promises, of the fake and of the real one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/mapping.h"
#include "daemon/base/unique_fd.h"
#include "daemon/base/units.h"
#include "daemon/device/host_memory.h"
#include "tests/support/fake_memory.h"
#include "tests/support/manual_executor.h"

namespace kvartal::device {
namespace {

using ::kvartal::testing::FakeMemory;
using ::kvartal::testing::ManualExecutor;

struct Kind {
  const char* name;
  std::function<std::unique_ptr<HostMemory>(Executor*)> make;
};

class HostMemoryContract : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override { memory_ = GetParam().make(&executor_); }

  std::unique_ptr<Arena> Make(uint64_t bytes) {
    auto arena = memory_->CreateArena("contract", bytes);
    KV_CHECK(arena.ok());
    return *std::move(arena);
  }

  absl::Status Wait(const std::function<absl::Status(Arena::Done)>& start) {
    std::optional<absl::Status> result;
    const absl::Status accepted = start([&](absl::Status status) {
      EXPECT_FALSE(result.has_value()) << "done ran twice";
      EXPECT_EQ(std::this_thread::get_id(), loop_thread_);
      result = std::move(status);
    });
    if (!accepted.ok()) return accepted;
    EXPECT_FALSE(result.has_value()) << "done ran before the loop did";
    executor_.RunUntil([&] { return result.has_value(); });
    return *result;
  }
  absl::Status Populate(Arena* arena, uint64_t offset, uint64_t bytes) {
    return Wait([&](Arena::Done done) { return arena->Populate(offset, bytes, std::move(done)); });
  }
  absl::Status Punch(Arena* arena, uint64_t offset, uint64_t bytes) {
    return Wait([&](Arena::Done done) { return arena->Punch(offset, bytes, std::move(done)); });
  }

  absl::Status Zero(Arena* arena, uint64_t offset, uint64_t bytes) {
    return Wait([&](Arena::Done done) { return arena->Zero(offset, bytes, std::move(done)); });
  }

  const std::thread::id loop_thread_ = std::this_thread::get_id();
  ManualExecutor executor_;
  std::unique_ptr<HostMemory> memory_;
};

TEST_P(HostMemoryContract, AnArenaIsSparseUntilPopulated) {
  const auto arena = Make(64 * kGiB);
  EXPECT_EQ(arena->size_bytes(), 64 * kGiB);
  EXPECT_EQ(arena->AllocatedBytes(), 0u);
  ASSERT_TRUE(Populate(arena.get(), 32 * kGiB, 2 * kMiB).ok());
  EXPECT_EQ(arena->AllocatedBytes(), 2 * kMiB);
}

TEST_P(HostMemoryContract, ARangeOfManyPartsIsPopulatedInFullAndNothingBeside) {
  const auto arena = Make(256 * kMiB);
  const uint64_t bytes = 2 * kMemoryPartBytes + 2 * kMiB;
  ASSERT_TRUE(Populate(arena.get(), 2 * kMiB, bytes).ok());
  EXPECT_EQ(arena->AllocatedBytes(), bytes);
  ASSERT_TRUE(Punch(arena.get(), 2 * kMiB, bytes).ok());
  EXPECT_EQ(arena->AllocatedBytes(), 0u);
}

TEST_P(HostMemoryContract, AnotherMappingSeesWhatTheDaemonWrites) {
  const auto arena = Make(8 * kMiB);
  ASSERT_TRUE(Populate(arena.get(), 2 * kMiB, 2 * kMiB).ok());
  auto client = Mapping::Shared(arena->fd(), arena->size_bytes(), PROT_READ | PROT_WRITE);
  ASSERT_TRUE(client.ok());
  arena->data()[3 * kMiB] = std::byte{1};
  EXPECT_EQ(client->data()[3 * kMiB], std::byte{1});
  client->data()[3 * kMiB + 1] = std::byte{2};
  EXPECT_EQ(arena->data()[3 * kMiB + 1], std::byte{2});
}

TEST_P(HostMemoryContract, APunchedRangeReadsAsZerosInEveryMappingAndItsNeighboursStay) {
  const auto arena = Make(8 * kMiB);
  ASSERT_TRUE(Populate(arena.get(), 0, 8 * kMiB).ok());
  auto client = Mapping::Shared(arena->fd(), arena->size_bytes(), PROT_READ | PROT_WRITE);
  ASSERT_TRUE(client.ok());
  for (uint64_t at = 0; at < 8 * kMiB; at += 4 * kKiB) client->data()[at] = std::byte{9};
  ASSERT_TRUE(Punch(arena.get(), 2 * kMiB, 4 * kMiB).ok());
  EXPECT_EQ(arena->AllocatedBytes(), 4 * kMiB);
  for (uint64_t at = 0; at < 8 * kMiB; at += 4 * kKiB) {
    const bool punched = at >= 2 * kMiB && at < 6 * kMiB;
    ASSERT_EQ(client->data()[at], punched ? std::byte{0} : std::byte{9}) << at;
    ASSERT_EQ(arena->data()[at], client->data()[at]) << at;
  }
}

TEST_P(HostMemoryContract, AZeroedSlotReadsAsZerosInEveryMappingAndStaysPresent) {
  const auto arena = Make(8 * kMiB);
  ASSERT_TRUE(Populate(arena.get(), 0, 8 * kMiB).ok());
  auto client = Mapping::Shared(arena->fd(), arena->size_bytes(), PROT_READ | PROT_WRITE);
  ASSERT_TRUE(client.ok());
  std::memset(client->data(), 9, 8 * kMiB);
  ASSERT_TRUE(Zero(arena.get(), 2 * kMiB + 4 * kKiB, 12 * kKiB).ok());
  EXPECT_EQ(arena->AllocatedBytes(), 8 * kMiB);
  for (uint64_t at = 0; at < 8 * kMiB; ++at) {
    const bool zeroed = at >= 2 * kMiB + 4 * kKiB && at < 2 * kMiB + 16 * kKiB;
    ASSERT_EQ(client->data()[at], zeroed ? std::byte{0} : std::byte{9}) << at;
  }
}

TEST_P(HostMemoryContract, PunchingAHoleAndPopulatingWhatIsPresentAreFine) {
  const auto arena = Make(8 * kMiB);
  EXPECT_TRUE(Punch(arena.get(), 0, 8 * kMiB).ok());
  ASSERT_TRUE(Populate(arena.get(), 0, 2 * kMiB).ok());
  arena->data()[17] = std::byte{3};
  EXPECT_TRUE(Populate(arena.get(), 0, 4 * kMiB).ok());
  EXPECT_EQ(arena->data()[17], std::byte{3});
  EXPECT_EQ(arena->AllocatedBytes(), 4 * kMiB);
}

TEST_P(HostMemoryContract, AnArenaCannotBeResizedOrSealedByWhoHoldsItsFd) {
  const auto arena = Make(8 * kMiB);
  EXPECT_NE(::ftruncate(arena->fd(), 2 * kMiB), 0);
  EXPECT_NE(::ftruncate(arena->fd(), 16 * kMiB), 0);
  // With this seal nobody could punch any more.
  EXPECT_NE(::fcntl(arena->fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  ASSERT_TRUE(Populate(arena.get(), 0, 2 * kMiB).ok());
  EXPECT_TRUE(Punch(arena.get(), 0, 2 * kMiB).ok());
}

TEST_P(HostMemoryContract, TheGenerationTableCanOnlyBeRead) {
  const auto arena = Make(8 * kMiB);
  const uint64_t bytes = 8 * kMiB / kSlotAlignBytes * sizeof(uint32_t);
  const int fd = arena->generation_fd();
  arena->generations()[5].store(77);
  auto client = Mapping::Shared(fd, bytes, PROT_READ);
  ASSERT_TRUE(client.ok());
  EXPECT_EQ(reinterpret_cast<const uint32_t*>(client->data())[5], 77u);
  arena->generations()[5].fetch_add(1);
  EXPECT_EQ(reinterpret_cast<const uint32_t*>(client->data())[5], 78u);

  EXPECT_FALSE(Mapping::Shared(fd, bytes, PROT_READ | PROT_WRITE).ok());
  EXPECT_NE(::mprotect(client->data(), client->size(), PROT_READ | PROT_WRITE), 0);
  const uint32_t lie = 1;
  EXPECT_NE(::pwrite(fd, &lie, sizeof(lie), 0), static_cast<ssize_t>(sizeof(lie)));
  EXPECT_NE(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_NE(::ftruncate(fd, 0), 0);
  // Opened anew it is the same sealed memory.
  const UniqueFd reopened(::open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDWR | O_CLOEXEC));
  if (reopened.valid()) {
    EXPECT_FALSE(Mapping::Shared(reopened.get(), bytes, PROT_READ | PROT_WRITE).ok());
  }
  EXPECT_EQ(arena->generations()[5].load(), 78u);
}

TEST_P(HostMemoryContract, GenerationsSurviveAPunch) {
  const auto arena = Make(8 * kMiB);
  ASSERT_TRUE(Populate(arena.get(), 0, 8 * kMiB).ok());
  const uint64_t last = 8 * kMiB / kSlotAlignBytes - 1;
  for (const uint64_t slot : {uint64_t{0}, uint64_t{511}, uint64_t{512}, last}) arena->generations()[slot].store(41);
  ASSERT_TRUE(Punch(arena.get(), 0, 8 * kMiB).ok());
  for (const uint64_t slot : {uint64_t{0}, uint64_t{511}, uint64_t{512}, last}) {
    EXPECT_EQ(arena->generations()[slot].load(), 41u);
  }
}

TEST_P(HostMemoryContract, TooManyRequestsAreRefusedAndTheRefusedNeverRun) {
  const auto arena = Make((kMemoryQueueMax + 2) * kExtentAlignBytes);
  size_t ended = 0;
  for (size_t i = 0; i < kMemoryQueueMax; ++i) {
    ASSERT_TRUE(arena
                    ->Punch(i * kExtentAlignBytes, kExtentAlignBytes,
                            [&](const absl::Status& status) { ended += status.ok() ? 1 : 0; })
                    .ok());
  }
  bool refused_ran = false;
  const absl::Status refused = arena->Populate(kMemoryQueueMax * kExtentAlignBytes, kExtentAlignBytes,
                                               [&](const absl::Status&) { refused_ran = true; });
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  executor_.RunUntil([&] { return ended == kMemoryQueueMax; });
  EXPECT_EQ(executor_.RunAll(), 0u);
  EXPECT_FALSE(refused_ran);
  EXPECT_EQ(arena->AllocatedBytes(), 0u);
  EXPECT_TRUE(Populate(arena.get(), 0, kExtentAlignBytes).ok()) << "there is room again";
}

TEST_P(HostMemoryContract, RequestsOutliveTheirArenaAndTheMemory) {
  auto arena = Make(64 * kMiB);
  int ended = 0;
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(arena
                    ->Populate(i * 20 * kMiB, 20 * kMiB,
                               [&](const absl::Status& status) {
                                 EXPECT_TRUE(status.ok()) << status;
                                 ++ended;
                               })
                    .ok());
  }
  arena.reset();
  memory_.reset();
  executor_.RunUntil([&] { return ended == 3; });
}

TEST_P(HostMemoryContract, ArenasAreApart) {
  const auto first = Make(4 * kMiB);
  const auto second = Make(4 * kMiB);
  ASSERT_TRUE(Populate(first.get(), 0, 4 * kMiB).ok());
  ASSERT_TRUE(Populate(second.get(), 0, 4 * kMiB).ok());
  first->data()[0] = std::byte{1};
  EXPECT_EQ(second->data()[0], std::byte{0});
  ASSERT_TRUE(Punch(second.get(), 0, 4 * kMiB).ok());
  EXPECT_EQ(first->data()[0], std::byte{1});
  EXPECT_EQ(first->AllocatedBytes(), 4 * kMiB);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, HostMemoryContract,
    ::testing::Values(Kind{"Fake", [](Executor* executor) { return std::make_unique<FakeMemory>(executor); }},
                      Kind{"Memfd", [](Executor* executor) { return NewMemfdMemory(executor); }}),
    [](const ::testing::TestParamInfo<Kind>& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace kvartal::device
