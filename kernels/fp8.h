// One number between float and the two 8-bit formats of the OCP specification "8-bit Floating Point" (rev. 1.0), as
// NVIDIA's cuda_fp8.h converts with __NV_SATFINITE: nearest, ties to even; beyond the largest finite number, that
// number; NaN stays NaN and loses its sign. The oracle of fp8_codec and the body of its kernels.
// Pure functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"

namespace kvartal::kernels {

enum class Fp8Format : uint8_t {
  kE5M2,  // range of fp16, two bits of mantissa
  kE4M3,  // to 448, three bits of mantissa; no infinity
};

// What the conversions need to know of a format. Bits are those of an IEEE float without its sign.
struct Fp8Shape {
  int mantissa_bits;
  uint32_t largest_bits;       // of the largest finite number
  uint32_t normal_from_bits;   // of the smallest number that is not subnormal
  uint32_t subnormal_magic;    // of a power of two whose last place is the smallest subnormal number
  uint32_t exponent_rebias;    // difference of the exponents' biases, where the code's exponent stands
  uint32_t decode_scale_bits;  // of two to that difference
  uint8_t infinity_code;       // kNanCode where there is none
};
inline constexpr uint8_t kNanCode = 0x7f;
inline constexpr uint32_t kFloatInfinityBits = 0x7f800000;

KV_HOST_DEVICE constexpr Fp8Shape ShapeOf(Fp8Format format) {
  // mantissa, largest, 2^-14 or 2^-6, 2^(-16+23) or 2^(-9+23), (127 - 15) << 2 or (127 - 7) << 3, 2^112 or 2^120
  return format == Fp8Format::kE5M2 ? Fp8Shape{2, 0x47600000, 0x38800000, 0x43000000, 112u << 2, 0x77800000, 0x7c}
                                    : Fp8Shape{3, 0x43e00000, 0x3c800000, 0x46800000, 120u << 3, 0x7b800000, kNanCode};
}

KV_HOST_DEVICE inline uint32_t BitsOf(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

KV_HOST_DEVICE inline float FloatOf(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Whether encoding makes it smaller than rounding would: it is beyond the largest finite number.
KV_HOST_DEVICE inline bool Saturates(Fp8Format format, float value) {
  const uint32_t size = BitsOf(value) & 0x7fffffff;
  return size > ShapeOf(format).largest_bits && size <= kFloatInfinityBits;
}

KV_HOST_DEVICE inline uint8_t EncodeFp8(Fp8Format format, float value) {
  const Fp8Shape shape = ShapeOf(format);
  const uint32_t bits = BitsOf(value);
  uint32_t size = bits & 0x7fffffff;
  if (size > kFloatInfinityBits) return kNanCode;
  if (size > shape.largest_bits) size = shape.largest_bits;
  const int dropped = 23 - shape.mantissa_bits;
  uint32_t code = 0;
  if (size >= shape.normal_from_bits) {
    const uint32_t odd = (size >> dropped) & 1;
    code = ((size + (1u << (dropped - 1)) - 1 + odd) >> dropped) - shape.exponent_rebias;
  } else {
    // The sum is rounded to multiples of the smallest subnormal number, and its low bits count them.
    code = BitsOf(FloatOf(size) + FloatOf(shape.subnormal_magic)) - shape.subnormal_magic;
  }
  return static_cast<uint8_t>(code | bits >> 31 << 7);
}

KV_HOST_DEVICE inline float DecodeFp8(Fp8Format format, uint8_t code) {
  const Fp8Shape shape = ShapeOf(format);
  const uint32_t size = code & 0x7f;
  const uint32_t sign = static_cast<uint32_t>(code >> 7) << 31;
  if (size > shape.infinity_code || size == kNanCode) return FloatOf(kFloatInfinityBits | 0x400000);
  if (size == shape.infinity_code) return FloatOf(sign | kFloatInfinityBits);
  // Read as a float it is too small by the difference of the biases; a subnormal one as well.
  const float value = FloatOf(size << (23 - shape.mantissa_bits)) * FloatOf(shape.decode_scale_bits);
  return FloatOf(BitsOf(value) | sign);
}

KV_HOST_DEVICE inline float FloatOfBf16(uint16_t bf16) { return FloatOf(static_cast<uint32_t>(bf16) << 16); }

// Nearest, ties to even; NaN stays NaN.
KV_HOST_DEVICE inline uint16_t Bf16Of(float value) {
  const uint32_t bits = BitsOf(value);
  if ((bits & 0x7fffffff) > kFloatInfinityBits) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace kvartal::kernels
