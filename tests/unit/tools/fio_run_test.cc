#include "tools/kvartal-bench/fio_run.h"

#include <gtest/gtest.h>

#include "tools/kvartal-bench/shmem_huge_pages.h"

namespace kvartal::bench {
namespace {

constexpr const char* kFioOutput =
    "note: something before\n{\"jobs\": [{\"read\": {\"bw_bytes\": 2500}, \"write\": {\"bw_bytes\": 0}}]}";

TEST(FioRun, TakesTheRateOfTheAskedDirection) {
  const auto rate = RateFromFioJson(kFioOutput, false);
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_EQ(*rate, 2500);
}

TEST(FioRun, ARunThatMovedNothingIsNoCeiling) { EXPECT_FALSE(RateFromFioJson(kFioOutput, true).ok()); }

TEST(FioRun, RubbishIsAnErrorNotARate) {
  for (const char* const text :
       {"", "fio: failed", "{", "{\"jobs\": []}", "{\"jobs\": [{\"read\": {\"bw_bytes\": \"x\"}}]}"}) {
    EXPECT_FALSE(RateFromFioJson(text, false).ok()) << text;
  }
}

TEST(ShmemHugePages, FindsTheChosenWord) {
  EXPECT_EQ(ChosenOf("always within_size advise [never] deny force"), "never");
  EXPECT_EQ(ChosenOf("[always] madvise never"), "always");
  EXPECT_EQ(ChosenOf(""), "");
  EXPECT_EQ(ChosenOf("] odd ["), "");
}

}  // namespace
}  // namespace kvartal::bench
