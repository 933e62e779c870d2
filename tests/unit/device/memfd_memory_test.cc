#include "daemon/device/memfd_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "daemon/base/limits.h"
#include "daemon/base/mapping.h"
#include "daemon/device/host_memory.h"
#include "tests/support/manual_executor.h"
#include "tests/support/vm_flags.h"

namespace kvartal::device {
namespace {

TEST(ShmemHugePagesTest, TheChosenWordDecides) {
  EXPECT_TRUE(ShmemHugePagesEnabled("always within_size [advise] never deny force\n"));
  EXPECT_TRUE(ShmemHugePagesEnabled("[always] within_size advise never deny force\n"));
  EXPECT_TRUE(ShmemHugePagesEnabled("always [within_size] advise never deny force\n"));
  EXPECT_TRUE(ShmemHugePagesEnabled("always within_size advise never deny [force]\n"));
  EXPECT_FALSE(ShmemHugePagesEnabled("always within_size advise [never] deny force\n"));
  EXPECT_FALSE(ShmemHugePagesEnabled("always within_size advise never [deny] force\n"));
}

TEST(ShmemHugePagesTest, AnUnreadableStateMeansNone) {
  EXPECT_FALSE(ShmemHugePagesEnabled(""));
  EXPECT_FALSE(ShmemHugePagesEnabled("advise"));
  EXPECT_FALSE(ShmemHugePagesEnabled("]advise["));
  EXPECT_FALSE(ShmemHugePagesEnabled("[advise"));
}

TEST(SystemSwapsTest, WithSwapThatThisProcessMayUse) {
  const std::string_view none = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
  const std::string one = std::string(none) + "/dev/vdb                                partition\t8388604\t0\t-2\n";
  EXPECT_TRUE(SystemSwaps(one, ""));
  EXPECT_TRUE(SystemSwaps(one, "max\n"));
  EXPECT_FALSE(SystemSwaps(one, "0\n"));
  EXPECT_FALSE(SystemSwaps(none, ""));
  EXPECT_FALSE(SystemSwaps("", ""));
}

TEST(MemfdMemoryTest, ArenasStayOutOfCoreFilesAndWhereTheLimitAllowsOutOfSwap) {
  testing::ManualExecutor executor;
  const std::unique_ptr<HostMemory> memory = NewMemfdMemory(&executor);
  const auto arena = memory->CreateArena("flags", kExtentAlignBytes);
  ASSERT_TRUE(arena.ok()) << arena.status();
  const std::string flags = testing::VmFlagsOf((*arena)->data());
  EXPECT_NE(flags.find(" dd "), std::string::npos) << flags;
  EXPECT_NE(flags.find(" dc "), std::string::npos) << flags;
  const absl::StatusOr<Mapping> probe = Mapping::Anonymous(kExtentAlignBytes);
  ASSERT_TRUE(probe.ok());
  const bool may_lock = probe->KeepFromSwap();
  EXPECT_EQ(flags.find(" lo ") != std::string::npos, may_lock) << flags;
  EXPECT_FALSE(may_lock && memory->Swappable());
}

TEST(MappingTest, AnonymousMemoryStaysOutOfCoreFiles) {
  const absl::StatusOr<Mapping> mapping = Mapping::Anonymous(kSlotAlignBytes);
  ASSERT_TRUE(mapping.ok());
  EXPECT_NE(testing::VmFlagsOf(mapping->data()).find(" dd "), std::string::npos);
}

}  // namespace
}  // namespace kvartal::device
