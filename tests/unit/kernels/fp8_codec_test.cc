// What the vectors give is what the scalar bodies give, byte by byte, on every set of instructions this CPU has.
#include "kernels/fp8_codec.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <random>

namespace kvartal::kernels {
namespace {

constexpr size_t kChannels = 128, kRows = 64;

std::vector<uint16_t> EveryBf16() {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  return all;
}

// Keys as models have them: a few channels are far larger than the others.
std::vector<uint16_t> Keys() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> rows;
  for (size_t i = 0; i < kRows * kChannels; ++i) {
    rows.push_back(Bf16Of(normal(random) * (i % kChannels % 37 == 5 ? 40.f : 1.f) + .25f));
  }
  return rows;
}

// A test for each format and set of instructions.
class Fp8CodecTest : public ::testing::TestWithParam<std::tuple<Fp8Format, int64_t>> {
 protected:
  Fp8CodecTest() { hwy::SetSupportedTargetsForTest(std::get<1>(GetParam())); }
  ~Fp8CodecTest() override { hwy::SetSupportedTargetsForTest(0); }
  static Fp8Format Format() { return std::get<0>(GetParam()); }
};

TEST_P(Fp8CodecTest, PlainEncodesEveryBf16AsTheScalarBody) {
  std::vector<uint16_t> all = EveryBf16();
  all.resize(all.size() - 3);  // no whole number of vectors
  std::vector<uint8_t> codes(all.size());
  const size_t saturated = EncodePlain(Format(), all.data(), all.size(), codes.data());
  size_t expected = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(codes[i], EncodeFp8(Format(), FloatOfBf16(all[i]))) << i;
    expected += Saturates(Format(), FloatOfBf16(all[i])) ? 1 : 0;
  }
  EXPECT_GT(expected, 0u);
  EXPECT_EQ(saturated, expected);
}

TEST_P(Fp8CodecTest, PlainDecodesEveryCodeAsTheScalarBody) {
  std::vector<uint8_t> codes(256 + 5);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  std::vector<uint16_t> decoded(codes.size());
  DecodePlain(Format(), codes.data(), codes.size(), decoded.data());
  for (size_t i = 0; i < codes.size(); ++i) ASSERT_EQ(decoded[i], Bf16Of(DecodeFp8(Format(), codes[i]))) << i;
}

TEST_P(Fp8CodecTest, RowsAreTheSameBytesOnEveryCpu) {
  const std::vector<uint16_t> rows = Keys();
  const ChannelScales channels = MeasureScales(Format(), rows.data(), kRows, kChannels);
  std::vector<uint8_t> codes(rows.size());
  std::vector<uint16_t> means(kRows), decoded(rows.size());
  EncodeRows(Format(), rows.data(), kRows, channels, codes.data(), means.data());
  DecodeRows(Format(), codes.data(), means.data(), kRows, channels, decoded.data());
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t channel = i % kChannels;
    const float mean = FloatOfBf16(means[i / kChannels]);
    ASSERT_EQ(codes[i], EncodeFp8(Format(), (FloatOfBf16(rows[i]) - mean) * channels.inverse[channel])) << i;
    ASSERT_EQ(decoded[i], Bf16Of(DecodeFp8(Format(), codes[i]) * channels.scales[channel] + mean)) << i;
  }
}

TEST_P(Fp8CodecTest, TheMeanOfARowDoesNotDependOnTheVectors) {
  const std::vector<uint16_t> rows = Keys();
  float sums[kFp8Lanes] = {};
  for (size_t at = 0; at < kChannels; ++at) sums[at % kFp8Lanes] += FloatOfBf16(rows[at]);
  for (size_t half = kFp8Lanes / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  EXPECT_EQ(RowMean(rows.data(), kChannels), Bf16Of(sums[0] / static_cast<float>(kChannels)));
}

TEST_P(Fp8CodecTest, MeasuredScalesSaturateNothingTheyWereMeasuredOn) {
  const std::vector<uint16_t> rows = Keys();
  const ChannelScales channels = MeasureScales(Format(), rows.data(), kRows, kChannels);
  std::vector<uint8_t> codes(rows.size());
  std::vector<uint16_t> means(kRows);
  const size_t saturated = EncodeRows(Format(), rows.data(), kRows, channels, codes.data(), means.data());
  EXPECT_LE(saturated, kChannels) << "one a channel at most, by rounding of the scale";
}

TEST_P(Fp8CodecTest, AnOutlierChannelDoesNotCostTheOthersTheirBits) {
  const std::vector<uint16_t> rows = Keys();
  const ChannelScales channels = MeasureScales(Format(), rows.data(), kRows, kChannels);
  std::vector<uint8_t> codes(rows.size());
  std::vector<uint16_t> means(kRows), decoded(rows.size());
  EncodeRows(Format(), rows.data(), kRows, channels, codes.data(), means.data());
  DecodeRows(Format(), codes.data(), means.data(), kRows, channels, decoded.data());
  double error = 0, size = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % kChannels % 37 == 5) continue;
    error += std::pow(FloatOfBf16(rows[i]) - FloatOfBf16(decoded[i]), 2);
    size += std::pow(FloatOfBf16(rows[i]), 2);
  }
  // Half a place of the mantissa, relative: 2^-4 with three bits, 2^-3 with two, and less on average.
  EXPECT_LT(std::sqrt(error / size), Format() == Fp8Format::kE4M3 ? 1. / 16 : 1. / 8);
}

INSTANTIATE_TEST_SUITE_P(Targets, Fp8CodecTest,
                         ::testing::Combine(::testing::Values(Fp8Format::kE5M2, Fp8Format::kE4M3),
                                            ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets())),
                         [](const auto& instance) {
                           const bool e5m2 = std::get<0>(instance.param) == Fp8Format::kE5M2;
                           return std::string(e5m2 ? "E5M2_" : "E4M3_") + hwy::TargetName(std::get<1>(instance.param));
                         });

}  // namespace
}  // namespace kvartal::kernels
