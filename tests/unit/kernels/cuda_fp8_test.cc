// The conversions are those of NVIDIA's cuda_fp8.h, whose host code runs anywhere.
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/fp8.h"

namespace kvartal::kernels {
namespace {

__nv_fp8_interpretation_t Theirs(Fp8Format format) { return format == Fp8Format::kE5M2 ? __NV_E5M2 : __NV_E4M3; }

class CudaFp8Test : public ::testing::TestWithParam<Fp8Format> {};

TEST_P(CudaFp8Test, EveryBf16NumberEncodesAsThere) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = FloatOfBf16(static_cast<uint16_t>(bits));
    ASSERT_EQ(EncodeFp8(GetParam(), value), __nv_cvt_float_to_fp8(value, __NV_SATFINITE, Theirs(GetParam())))
        << "bf16 " << bits << " is " << value;
  }
}

TEST_P(CudaFp8Test, AMillionFloatsEncodeAsThere) {
  std::mt19937 random(1);
  for (int i = 0; i < 1'000'000; ++i) {
    const float value = FloatOf(static_cast<uint32_t>(random()));
    ASSERT_EQ(EncodeFp8(GetParam(), value), __nv_cvt_float_to_fp8(value, __NV_SATFINITE, Theirs(GetParam()))) << value;
  }
}

TEST_P(CudaFp8Test, EveryCodeDecodesAsThere) {
  for (uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    const float theirs = __half2float(__half(__nv_cvt_fp8_to_halfraw(byte, Theirs(GetParam()))));
    const float ours = DecodeFp8(GetParam(), byte);
    ASSERT_TRUE(std::isnan(theirs) ? std::isnan(ours) : BitsOf(ours) == BitsOf(theirs)) << code << ": " << ours;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaFp8Test, ::testing::Values(Fp8Format::kE5M2, Fp8Format::kE4M3),
                         [](const auto& format) { return format.param == Fp8Format::kE5M2 ? "E5M2" : "E4M3"; });

}  // namespace
}  // namespace kvartal::kernels
