#include "daemon/tier/bounce_buffers.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "daemon/base/limits.h"
#include "daemon/base/units.h"

namespace kvartal::tier {
namespace {

constexpr uint64_t kBytes = 448 * kKiB;

TEST(BounceBuffersTest, WhatWasGivenBackIsTakenAgainAndHasOneOwner) {
  BounceBuffers buffers;
  Mapping first = buffers.Take(kBytes);
  Mapping second = buffers.Take(kBytes);
  ASSERT_NE(first.data(), second.data());
  std::byte* const place = first.data();
  buffers.Give(std::move(first));
  const Mapping third = buffers.Take(kBytes / 2);
  EXPECT_EQ(third.data(), place) << "a read would fault in memory of its own each time";
  EXPECT_NE(buffers.Take(kBytes / 2).data(), place);
}

TEST(BounceBuffersTest, WhatIsTooShortIsNotTaken) {
  BounceBuffers buffers;
  buffers.Give(buffers.Take(kSlotAlignBytes));
  EXPECT_GE(buffers.Take(kBytes).size(), kBytes);
}

TEST(BounceBuffersTest, NoMoreIsKeptThanTheLimit) {
  BounceBuffers buffers;
  std::vector<Mapping> taken;
  const uint64_t count = kBounceSpareBytes / kMiB + 1;
  for (uint64_t i = 0; i < count; ++i) taken.push_back(buffers.Take(kMiB));
  for (Mapping& one : taken) {
    one.data()[0] = std::byte{1};
    buffers.Give(std::move(one));
  }
  uint64_t kept = 0;
  std::vector<Mapping> again;
  for (uint64_t i = 0; i < count; ++i) {
    again.push_back(buffers.Take(kMiB));
    kept += again.back().data()[0] == std::byte{1};
  }
  EXPECT_EQ(kept, count - 1) << "new memory is zeros";
}

}  // namespace
}  // namespace kvartal::tier
