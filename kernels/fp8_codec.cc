#include "kernels/fp8_codec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "daemon/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fp8_codec.cc"
#include "hwy/foreach_target.h"  // includes this file once for each target
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvartal::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
// At most kFp8Lanes at once, so that the sums of a row's mean are the same everywhere.
using Floats = hn::CappedTag<float, kFp8Lanes>;
using Words = hn::RebindToUnsigned<Floats>;
using Halves = hn::Rebind<uint16_t, Floats>;
using Bytes = hn::Rebind<uint8_t, Floats>;
using FloatVec = hn::Vec<Floats>;
using WordVec = hn::Vec<Words>;

HWY_INLINE FloatVec LoadBf16(const uint16_t* from) {
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), hn::LoadU(Halves(), from))));
}

HWY_INLINE void StoreBf16(FloatVec value, uint16_t* to) {
  const Words words;
  const WordVec bits = hn::BitCast(words, value);
  const WordVec odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const WordVec rounded = hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fff)));
  const WordVec quiet = hn::Or(bits, hn::Set(words, 0x400000));
  const auto is_nan = hn::Gt(hn::And(bits, hn::Set(words, 0x7fffffff)), hn::Set(words, kFloatInfinityBits));
  const WordVec result = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(hn::TruncateTo(Halves(), result), Halves(), to);
}

// As EncodeFp8. Adds to `saturated`, by lane.
template <Fp8Format kFormat>
HWY_INLINE void Encode(FloatVec value, uint8_t* to, WordVec* saturated) {
  constexpr Fp8Shape kShape = ShapeOf(kFormat);
  constexpr int kDropped = 23 - kShape.mantissa_bits;
  const Words words;
  const Floats floats;
  const WordVec bits = hn::BitCast(words, value);
  const WordVec size = hn::And(bits, hn::Set(words, 0x7fffffff));
  const auto is_nan = hn::Gt(size, hn::Set(words, kFloatInfinityBits));
  const auto too_large = hn::AndNot(is_nan, hn::Gt(size, hn::Set(words, kShape.largest_bits)));
  *saturated = hn::Sub(*saturated, hn::VecFromMask(words, too_large));
  const WordVec within = hn::Min(size, hn::Set(words, kShape.largest_bits));
  const WordVec odd = hn::And(hn::ShiftRight<kDropped>(within), hn::Set(words, 1));
  // The half place to round by, and the difference of the exponents' biases.
  constexpr uint32_t kOffset = (1u << (kDropped - 1)) - 1 - (kShape.exponent_rebias << kDropped);
  const WordVec normal = hn::ShiftRight<kDropped>(hn::Add(within, hn::Add(odd, hn::Set(words, kOffset))));
  const WordVec magic = hn::Set(words, kShape.subnormal_magic);
  const FloatVec sum = hn::Add(hn::BitCast(floats, within), hn::BitCast(floats, magic));
  const WordVec subnormal = hn::Sub(hn::BitCast(words, sum), magic);
  const auto is_small = hn::Lt(within, hn::Set(words, kShape.normal_from_bits));
  const WordVec sign = hn::ShiftLeft<7>(hn::ShiftRight<31>(bits));
  const WordVec code = hn::Or(hn::IfThenElse(is_small, subnormal, normal), sign);
  hn::StoreU(hn::TruncateTo(Bytes(), hn::IfThenElse(is_nan, hn::Set(words, kNanCode), code)), Bytes(), to);
}

// As DecodeFp8.
template <Fp8Format kFormat>
HWY_INLINE FloatVec Decode(const uint8_t* from) {
  constexpr Fp8Shape kShape = ShapeOf(kFormat);
  const Words words;
  const Floats floats;
  const WordVec code = hn::PromoteTo(words, hn::LoadU(Bytes(), from));
  const WordVec size = hn::And(code, hn::Set(words, 0x7f));
  const WordVec sign = hn::ShiftLeft<31>(hn::ShiftRight<7>(code));
  const FloatVec tiny = hn::BitCast(floats, hn::ShiftLeft<23 - kShape.mantissa_bits>(size));
  const FloatVec scale = hn::BitCast(floats, hn::Set(words, kShape.decode_scale_bits));
  WordVec value = hn::Or(hn::BitCast(words, hn::Mul(tiny, scale)), sign);
  if constexpr (kShape.infinity_code != kNanCode) {
    const auto is_infinite = hn::Eq(size, hn::Set(words, kShape.infinity_code));
    value = hn::IfThenElse(is_infinite, hn::Or(sign, hn::Set(words, kFloatInfinityBits)), value);
  }
  const auto is_nan = hn::Gt(size, hn::Set(words, std::min<uint32_t>(kShape.infinity_code, kNanCode - 1)));
  return hn::BitCast(floats, hn::IfThenElse(is_nan, hn::Set(words, kFloatInfinityBits | 0x400000), value));
}

size_t SumOf(WordVec counts) { return static_cast<size_t>(hn::GetLane(hn::SumOfLanes(Words(), counts))); }

template <Fp8Format kFormat>
size_t EncodePlainAs(const uint16_t* bf16, size_t count, uint8_t* codes) {
  WordVec saturated = hn::Zero(Words());
  size_t at = 0;
  for (; at + hn::Lanes(Floats()) <= count; at += hn::Lanes(Floats())) {
    Encode<kFormat>(LoadBf16(bf16 + at), codes + at, &saturated);
  }
  size_t rest = 0;
  for (; at < count; ++at) {
    const float value = FloatOfBf16(bf16[at]);
    rest += Saturates(kFormat, value) ? 1 : 0;
    codes[at] = EncodeFp8(kFormat, value);
  }
  return SumOf(saturated) + rest;
}

template <Fp8Format kFormat>
void DecodePlainAs(const uint8_t* codes, size_t count, uint16_t* bf16) {
  size_t at = 0;
  for (; at + hn::Lanes(Floats()) <= count; at += hn::Lanes(Floats()))
    StoreBf16(Decode<kFormat>(codes + at), bf16 + at);
  for (; at < count; ++at) bf16[at] = Bf16Of(DecodeFp8(kFormat, codes[at]));
}

// Adds each lane of the upper half to its counterpart in the lower one, until one is left.
template <class Tag>
HWY_INLINE float Fold([[maybe_unused]] Tag tag, hn::Vec<Tag> sums) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(tag) > 1) {
    const hn::Half<Tag> half;
    return Fold(half, hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums)));
  }
#endif
  return hn::GetLane(sums);
}

// Of kCount channels from `first` on, each summed up with every sixteenth after it: folded to one vector.
template <size_t kCount>
HWY_INLINE FloatVec LaneSums(const uint16_t* row, size_t channels, size_t first) {
  if constexpr (kCount > hn::MaxLanes(Floats())) {
    constexpr size_t kHalf = kCount / 2;
    return hn::Add(LaneSums<kHalf>(row, channels, first), LaneSums<kHalf>(row, channels, first + kHalf));
  } else {
    FloatVec sum = hn::Zero(Floats());
    for (size_t at = first; at < channels; at += kFp8Lanes) sum = hn::Add(sum, LoadBf16(row + at));
    return sum;
  }
}

HWY_INLINE uint16_t MeanOf(const uint16_t* row, size_t channels) {
  const float sum = Fold(Floats(), LaneSums<kFp8Lanes>(row, channels, 0));
  return Bf16Of(sum / static_cast<float>(channels));
}

template <Fp8Format kFormat>
size_t EncodeRowsAs(const uint16_t* bf16, size_t row_count, const float* inverse, size_t channels, uint8_t* codes,
                    uint16_t* means) {
  // A mean is one long chain of additions: those of several rows overlap.
  constexpr size_t kRowsAtOnce = 8;
  const Floats floats;
  WordVec saturated = hn::Zero(Words());
  for (size_t first = 0; first < row_count; first += kRowsAtOnce) {
    const size_t end = std::min(first + kRowsAtOnce, row_count);
    for (size_t row = first; row < end; ++row) means[row] = MeanOf(bf16 + row * channels, channels);
    for (size_t row = first; row < end; ++row) {
      const FloatVec mean = hn::Set(floats, FloatOfBf16(means[row]));
      for (size_t at = 0; at < channels; at += hn::Lanes(floats)) {
        const FloatVec shifted = hn::Sub(LoadBf16(bf16 + row * channels + at), mean);
        Encode<kFormat>(hn::Mul(shifted, hn::LoadU(floats, inverse + at)), codes + row * channels + at, &saturated);
      }
    }
  }
  return SumOf(saturated);
}

template <Fp8Format kFormat>
void DecodeRowsAs(const uint8_t* codes, const uint16_t* means, size_t row_count, const float* scales, size_t channels,
                  uint16_t* bf16) {
  const Floats floats;
  for (size_t row = 0; row < row_count; ++row, bf16 += channels, codes += channels) {
    const FloatVec mean = hn::Set(floats, FloatOfBf16(means[row]));
    for (size_t at = 0; at < channels; at += hn::Lanes(floats)) {
      const FloatVec scaled = hn::Mul(Decode<kFormat>(codes + at), hn::LoadU(floats, scales + at));
      StoreBf16(hn::Add(scaled, mean), bf16 + at);
    }
  }
}

size_t EncodePlainHere(Fp8Format format, const uint16_t* bf16, size_t count, uint8_t* codes) {
  return format == Fp8Format::kE5M2 ? EncodePlainAs<Fp8Format::kE5M2>(bf16, count, codes)
                                    : EncodePlainAs<Fp8Format::kE4M3>(bf16, count, codes);
}

void DecodePlainHere(Fp8Format format, const uint8_t* codes, size_t count, uint16_t* bf16) {
  format == Fp8Format::kE5M2 ? DecodePlainAs<Fp8Format::kE5M2>(codes, count, bf16)
                             : DecodePlainAs<Fp8Format::kE4M3>(codes, count, bf16);
}

size_t EncodeRowsHere(Fp8Format format, const uint16_t* bf16, size_t row_count, const ChannelScales& channels,
                      uint8_t* codes, uint16_t* means) {
  const auto encode = format == Fp8Format::kE5M2 ? &EncodeRowsAs<Fp8Format::kE5M2> : &EncodeRowsAs<Fp8Format::kE4M3>;
  return encode(bf16, row_count, channels.inverse.data(), channels.inverse.size(), codes, means);
}

void DecodeRowsHere(Fp8Format format, const uint8_t* codes, const uint16_t* means, size_t row_count,
                    const ChannelScales& channels, uint16_t* bf16) {
  const auto decode = format == Fp8Format::kE5M2 ? &DecodeRowsAs<Fp8Format::kE5M2> : &DecodeRowsAs<Fp8Format::kE4M3>;
  decode(codes, means, row_count, channels.scales.data(), channels.scales.size(), bf16);
}

const char* TargetHere() { return hwy::TargetName(HWY_TARGET); }

uint16_t RowMeanHere(const uint16_t* row, size_t channels) { return MeanOf(row, channels); }

}  // namespace
}  // namespace kvartal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartal::kernels {
namespace {

HWY_EXPORT(EncodePlainHere);
HWY_EXPORT(DecodePlainHere);
HWY_EXPORT(EncodeRowsHere);
HWY_EXPORT(DecodeRowsHere);
HWY_EXPORT(RowMeanHere);
HWY_EXPORT(TargetHere);

}  // namespace

size_t EncodePlain(Fp8Format format, const uint16_t* bf16, size_t count, uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(EncodePlainHere)(format, bf16, count, codes);
}

void DecodePlain(Fp8Format format, const uint8_t* codes, size_t count, uint16_t* bf16) {
  HWY_DYNAMIC_DISPATCH(DecodePlainHere)(format, codes, count, bf16);
}

ChannelScales::ChannelScales(std::vector<float> by_channel) : scales(std::move(by_channel)) {
  KV_CHECK(!scales.empty() && scales.size() % kFp8Lanes == 0);
  inverse.reserve(scales.size());
  for (const float scale : scales) {
    KV_CHECK(std::isnormal(scale) && scale > 0 && std::isnormal(1 / scale));
    inverse.push_back(1 / scale);
  }
}

ChannelScales MeasureScales(Fp8Format format, const uint16_t* rows, size_t row_count, size_t channels) {
  std::vector<float> largest(channels, 0);
  for (size_t row = 0; row < row_count; ++row, rows += channels) {
    const float mean = FloatOfBf16(RowMean(rows, channels));
    for (size_t at = 0; at < channels; ++at) {
      largest[at] = std::max(largest[at], std::abs(FloatOfBf16(rows[at]) - mean));
    }
  }
  const float most = FloatOf(ShapeOf(format).largest_bits);
  // A channel that never differs from the mean needs no scale.
  for (float& scale : largest) scale = std::isnormal(scale / most) ? scale / most : 1;
  return ChannelScales(std::move(largest));
}

size_t EncodeRows(Fp8Format format, const uint16_t* bf16, size_t row_count, const ChannelScales& channels,
                  uint8_t* codes, uint16_t* means) {
  return HWY_DYNAMIC_DISPATCH(EncodeRowsHere)(format, bf16, row_count, channels, codes, means);
}

void DecodeRows(Fp8Format format, const uint8_t* codes, const uint16_t* means, size_t row_count,
                const ChannelScales& channels, uint16_t* bf16) {
  HWY_DYNAMIC_DISPATCH(DecodeRowsHere)(format, codes, means, row_count, channels, bf16);
}

uint16_t RowMean(const uint16_t* row, size_t channels) { return HWY_DYNAMIC_DISPATCH(RowMeanHere)(row, channels); }

const char* Fp8CodecTarget() { return HWY_DYNAMIC_DISPATCH(TargetHere)(); }

}  // namespace kvartal::kernels
#endif  // HWY_ONCE
