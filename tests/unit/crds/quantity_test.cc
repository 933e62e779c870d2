#include "crds/quantity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/limits.h"

namespace kvartal::crds {
namespace {

using ::testing::HasSubstr;

TEST(QuantityTest, ReadsEverySuffix) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"0", 0},
      {"1", 1},
      {"4096", 4096},
      {"3k", 3000},
      {"2M", 2000000},
      {"1G", 1000000000},
      {"5Ki", 5120},
      {"7Mi", 7 * kMiB},
      {"10Gi", 10 * kGiB},
      {"2Ti", 2 * kTiB},
      {"1Pi", 1024 * kTiB},
      {"1T", 1000000000000},
      {"0Gi", 0},
      {"1P", 1000000000000000},
      {"9E", 9000000000000000000},
      {"7Ei", 7 * 1024 * 1024 * kTiB},
  };
  for (const auto& [text, bytes] : cases) {
    const auto quantity = ParseQuantity(text);
    ASSERT_TRUE(quantity.ok()) << text << ": " << quantity.status();
    EXPECT_EQ(quantity->bytes, bytes) << text;
    EXPECT_FALSE(quantity->is_percent) << text;
    EXPECT_EQ(quantity->Resolve(1), bytes) << text << " does not depend on the capacity";
  }
}

TEST(QuantityTest, TheLargestSizeFitsAndOneMoreDoesNot) {
  ASSERT_TRUE(ParseQuantity("9223372036854775807").ok());
  EXPECT_EQ(ParseQuantity("9223372036854775807")->bytes, kSizeBytesMax);
  for (const char* text :
       {"9223372036854775808", "8Ei", "16Ei", "10E", "18446744073709551616", "99999999999999999999999Ki"}) {
    EXPECT_THAT(ParseQuantity(text).status().message(), HasSubstr("is too large")) << text;
  }
}

TEST(QuantityTest, ReadsPercent) {
  for (const auto& [text, percent] : {std::pair("1%", 1u), std::pair("25%", 25u), std::pair("100%", 100u)}) {
    const auto quantity = ParseQuantity(text);
    ASSERT_TRUE(quantity.ok()) << text;
    EXPECT_TRUE(quantity->is_percent);
    EXPECT_EQ(quantity->percent, percent);
  }
}

TEST(QuantityTest, PercentOfAnyCapacityNeitherOverflowsNorRoundsUp) {
  EXPECT_EQ(ParseQuantity("25%")->Resolve(kGiB), kGiB / 4);
  EXPECT_EQ(ParseQuantity("33%")->Resolve(100), 33u);
  EXPECT_EQ(ParseQuantity("99%")->Resolve(1), 0u);
  EXPECT_EQ(ParseQuantity("50%")->Resolve(0), 0u);
  EXPECT_EQ(ParseQuantity("100%")->Resolve(UINT64_MAX), UINT64_MAX);
  EXPECT_EQ(ParseQuantity("50%")->Resolve(UINT64_MAX), UINT64_MAX / 2);
}

TEST(QuantityTest, RefusesWhatIsNotAnIntegerSize) {
  for (const char* text : {"",      " ",     "Gi",   "%",   "-1",   "-1Gi", "+1",   "1.5Gi",   "1.0",  ".5",
                           "1e3",   "1E3",   "100m", "5u",  "10GB", "10gi", "1 Gi", " 1Gi",    "1Gi ", "0x10",
                           "1_000", "1,000", "1K",   "ten", "1%%",  "1.5%", "-5%",  "\xc2\xb2"}) {
    const auto quantity = ParseQuantity(text);
    ASSERT_FALSE(quantity.ok()) << "'" << text << "'";
    EXPECT_EQ(quantity.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(quantity.status().message(), HasSubstr("allowed: ")) << "'" << text << "'";
  }
}

TEST(QuantityTest, RefusesPercentOutOfRangeAndLeadingZeros) {
  for (const char* text : {"0%", "101%", "1000%", "99999999999999999999999%"}) {
    EXPECT_THAT(ParseQuantity(text).status().message(), HasSubstr("allowed: 1% to 100%")) << text;
  }
  for (const char* text : {"010", "00", "010Gi", "05%"}) {
    EXPECT_THAT(ParseQuantity(text).status().message(), HasSubstr("leading zero")) << text;
  }
}

TEST(QuantityTest, ALongTextIsCutInTheMessage) {
  EXPECT_LT(ParseQuantity(std::string(100000, 'x')).status().message().size(), 300u);
}

}  // namespace
}  // namespace kvartal::crds
