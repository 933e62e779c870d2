#include "kernels/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvartal::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Fp8Test, TheFormatsHaveTheNumbersOfTheSpecification) {
  EXPECT_EQ(DecodeFp8(Fp8Format::kE4M3, 0x7e), 448.f);
  EXPECT_EQ(DecodeFp8(Fp8Format::kE4M3, 0x08), std::ldexp(1.f, -6)) << "smallest normal";
  EXPECT_EQ(DecodeFp8(Fp8Format::kE4M3, 0x01), std::ldexp(1.f, -9)) << "smallest subnormal";
  EXPECT_TRUE(std::isnan(DecodeFp8(Fp8Format::kE4M3, 0xff)));
  EXPECT_EQ(DecodeFp8(Fp8Format::kE5M2, 0x7b), 57344.f);
  EXPECT_EQ(DecodeFp8(Fp8Format::kE5M2, 0x04), std::ldexp(1.f, -14));
  EXPECT_EQ(DecodeFp8(Fp8Format::kE5M2, 0x01), std::ldexp(1.f, -16));
  EXPECT_EQ(DecodeFp8(Fp8Format::kE5M2, 0xfc), -kInfinity);
  EXPECT_TRUE(std::isnan(DecodeFp8(Fp8Format::kE5M2, 0x7d)));
}

TEST(Fp8Test, EveryCodeOfANumberSurvivesTheWayThereAndBack) {
  for (const Fp8Format format : {Fp8Format::kE5M2, Fp8Format::kE4M3}) {
    for (uint32_t code = 0; code < 256; ++code) {
      const float value = DecodeFp8(format, static_cast<uint8_t>(code));
      if (!std::isfinite(value)) continue;
      EXPECT_EQ(EncodeFp8(format, value), code);
      EXPECT_EQ(FloatOfBf16(Bf16Of(value)), value) << "bf16 holds all of them";
    }
  }
}

TEST(Fp8Test, TiesGoToTheEvenCode) {
  EXPECT_EQ(EncodeFp8(Fp8Format::kE4M3, 17.f), EncodeFp8(Fp8Format::kE4M3, 16.f));
  EXPECT_EQ(EncodeFp8(Fp8Format::kE4M3, 19.f), EncodeFp8(Fp8Format::kE4M3, 20.f));
  EXPECT_EQ(EncodeFp8(Fp8Format::kE5M2, std::ldexp(1.f, -17)), 0) << "half of the smallest";
  EXPECT_EQ(EncodeFp8(Fp8Format::kE5M2, std::ldexp(3.f, -17)), 2);
}

TEST(Fp8Test, WhatIsTooLargeBecomesTheLargestAndIsCounted) {
  EXPECT_EQ(EncodeFp8(Fp8Format::kE4M3, kInfinity), 0x7e);
  EXPECT_EQ(EncodeFp8(Fp8Format::kE4M3, -1e9f), 0xfe);
  EXPECT_EQ(EncodeFp8(Fp8Format::kE5M2, -kInfinity), 0xfb);
  EXPECT_TRUE(Saturates(Fp8Format::kE4M3, 449.f));
  EXPECT_FALSE(Saturates(Fp8Format::kE4M3, -448.f));
  EXPECT_TRUE(Saturates(Fp8Format::kE5M2, -kInfinity));
  EXPECT_FALSE(Saturates(Fp8Format::kE5M2, std::nanf("")));
}

TEST(Fp8Test, ANumberThatIsNoneStaysSo) {
  EXPECT_EQ(EncodeFp8(Fp8Format::kE4M3, -std::nanf("")), kNanCode);
  EXPECT_EQ(EncodeFp8(Fp8Format::kE5M2, std::nanf("")), kNanCode);
  EXPECT_TRUE(std::isnan(FloatOfBf16(Bf16Of(FloatOf(0x7f800001)))));
}

}  // namespace
}  // namespace kvartal::kernels
