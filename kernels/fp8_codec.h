// bf16 keys and values as 8-bit floats: half the bytes, and lossy, so that only a policy that asks for it gets it.
// Two codecs. Plain: each number by itself; what E5M2 is for. Scaled: a row (one token of one head) less its mean, each
// channel divided by a scale that was measured for it beforehand: keys have channels that are larger than all others in
// every token (KIVI, Liu et al., ICML 2024), values have large tokens.
// Pure functions over memory, any thread; SIMD chosen at run time (Highway). Each gives the same bytes on every CPU,
// those of the scalar bodies in fp8.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/fp8.h"

namespace kvartal::kernels {

// Channels of a row are a multiple of this, as head sizes are.
inline constexpr size_t kFp8Lanes = 16;

// `count` numbers. Returns how many were beyond the format's largest finite number, and are that now.
size_t EncodePlain(Fp8Format format, const uint16_t* bf16, size_t count, uint8_t* codes);
void DecodePlain(Fp8Format format, const uint8_t* codes, size_t count, uint16_t* bf16);

// What a scaled row is encoded by. Scales are positive and finite.
struct ChannelScales {
  explicit ChannelScales(std::vector<float> by_channel);
  std::vector<float> scales, inverse;
};
// So that the largest of each channel in `rows` [rows][channels] becomes the format's largest number.
ChannelScales MeasureScales(Fp8Format format, const uint16_t* rows, size_t row_count, size_t channels);

// [rows][channels] bf16 to as many codes and one bf16 mean a row. Returns as EncodePlain.
size_t EncodeRows(Fp8Format format, const uint16_t* bf16, size_t row_count, const ChannelScales& channels,
                  uint8_t* codes, uint16_t* means);
void DecodeRows(Fp8Format format, const uint8_t* codes, const uint16_t* means, size_t row_count,
                const ChannelScales& channels, uint16_t* bf16);

// The mean of one row as EncodeRows takes it: sixteen sums over every sixteenth channel, added up in halves, so that
// it does not depend on how wide a CPU's vectors are.
uint16_t RowMean(const uint16_t* row, size_t channels);

// The vector instructions in use: "AVX3_ZEN4".
const char* Fp8CodecTarget();

}  // namespace kvartal::kernels
