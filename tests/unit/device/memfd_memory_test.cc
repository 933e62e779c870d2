#include "daemon/device/memfd_memory.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace kvartal::device
