#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/units.h"
#include "kernels/fp8_codec.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/stats.h"

namespace kvartal::bench {
namespace {

using kernels::Fp8Format;

constexpr size_t kTokens = 1024, kQueries = 64;  // of the attention that is compared
constexpr size_t kOutlierEvery = 37;
constexpr float kOutlier = 20;

// Rows [rows][channels]. Keys: some channels are larger in every token; values: some tokens are.
std::vector<uint16_t> MakeRows(size_t rows, size_t channels, bool keys) {
  std::mt19937 random(keys ? 1 : 2);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> made(rows * channels);
  for (size_t i = 0; i < made.size(); ++i) {
    const size_t which = keys ? i % channels : i / channels;
    made[i] = kernels::Bf16Of(normal(random) * (which % kOutlierEvery == 5 ? kOutlier : 1) + .3f);
  }
  return made;
}

std::vector<float> AsFloats(const std::vector<uint16_t>& bf16) {
  std::vector<float> floats(bf16.size());
  std::transform(bf16.begin(), bf16.end(), floats.begin(), kernels::FloatOfBf16);
  return floats;
}

// How far `got` is from `wanted`, relative.
double RelativeError(const std::vector<float>& got, const std::vector<float>& wanted) {
  double error = 0, size = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    error += std::pow(got[i] - wanted[i], 2);
    size += std::pow(wanted[i], 2);
  }
  return std::sqrt(error / size);
}

// softmax(Q K^T / sqrt(channels)) V of one head.
std::vector<float> Attention(const std::vector<float>& queries, const std::vector<float>& keys,
                             const std::vector<float>& values, size_t channels) {
  std::vector<float> outputs(queries.size(), 0);
  std::vector<double> weights(kTokens);
  for (size_t query = 0; query < kQueries; ++query) {
    for (size_t token = 0; token < kTokens; ++token) {
      weights[token] = std::inner_product(&queries[query * channels], &queries[query * channels] + channels,
                                          &keys[token * channels], 0.) /
                       std::sqrt(static_cast<double>(channels));
    }
    const double most = *std::max_element(weights.begin(), weights.end());
    for (double& weight : weights) weight = std::exp(weight - most);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.);
    for (size_t i = 0; i < kTokens * channels; ++i) {
      outputs[query * channels + i % channels] += static_cast<float>(weights[i / channels] / sum * values[i]);
    }
  }
  return outputs;
}

// One format over one head size. Confined to the thread of the benchmark.
class Codec {
 public:
  Codec(Fp8Format format, const Fp8Options& options)
      : format_(format),
        options_(options),
        rows_(options.buffer_mib * kMiB / sizeof(uint16_t) / options.channels),
        bf16_(MakeRows(rows_, options.channels, true)),
        copy_(bf16_.size()),
        codes_(bf16_.size()),
        means_(rows_),
        scales_(kernels::MeasureScales(format, bf16_.data(), rows_, options.channels)) {}

  absl::Status Measure(const std::string& suffix, Report* report) {
    const auto encode = [this] {
      kernels::EncodeRows(format_, bf16_.data(), rows_, scales_, codes_.data(), means_.data());
    };
    const auto decode = [this] {
      kernels::DecodeRows(format_, codes_.data(), means_.data(), rows_, scales_, copy_.data());
    };
    const auto plain_encode = [this] { kernels::EncodePlain(format_, bf16_.data(), bf16_.size(), codes_.data()); };
    const auto plain_decode = [this] { kernels::DecodePlain(format_, codes_.data(), codes_.size(), copy_.data()); };
    KV_RETURN_IF_ERROR(AddRatio("encode_ratio" + suffix, encode, report));
    KV_RETURN_IF_ERROR(AddRatio("decode_ratio" + suffix, decode, report));
    KV_RETURN_IF_ERROR(AddRatio("plain_encode_ratio" + suffix, plain_encode, report));
    return AddRatio("plain_decode_ratio" + suffix, plain_decode, report);
  }

  // What the format costs: a row's numbers, and what attention makes of them.
  void AddErrors(const std::string& suffix, Report* report) const {
    const size_t channels = options_.channels;
    const std::vector<uint16_t> keys = MakeRows(kTokens, channels, true), values = MakeRows(kTokens, channels, false);
    std::vector<float> queries = AsFloats(MakeRows(kQueries, channels, false));
    for (float& query : queries) query /= kOutlier;  // attention that is neither flat nor at one token
    const std::vector<float> exact = Attention(queries, AsFloats(keys), AsFloats(values), channels);
    const std::vector<float> lossy_keys = AsFloats(ThereAndBack(keys)), lossy_values = AsFloats(ThereAndBack(values));
    report->Add("key_error" + suffix, RelativeError(lossy_keys, AsFloats(keys)));
    report->Add("value_error" + suffix, RelativeError(lossy_values, AsFloats(values)));
    report->Add("attention_error" + suffix,
                RelativeError(Attention(queries, lossy_keys, lossy_values, channels), exact));
  }

  // Vectors against the scalar bodies, over every bf16 number and every code.
  bool BitExact() const {
    std::vector<uint16_t> all(65536), decoded(256);
    std::iota(all.begin(), all.end(), uint16_t{0});
    std::vector<uint8_t> codes(all.size()), every_code(256);
    std::iota(every_code.begin(), every_code.end(), uint8_t{0});
    kernels::EncodePlain(format_, all.data(), all.size(), codes.data());
    kernels::DecodePlain(format_, every_code.data(), every_code.size(), decoded.data());
    for (size_t i = 0; i < all.size(); ++i) {
      if (codes[i] != kernels::EncodeFp8(format_, kernels::FloatOfBf16(all[i]))) return false;
    }
    for (size_t i = 0; i < every_code.size(); ++i) {
      if (decoded[i] != kernels::Bf16Of(kernels::DecodeFp8(format_, every_code[i]))) return false;
    }
    return true;
  }

 private:
  std::vector<uint16_t> ThereAndBack(const std::vector<uint16_t>& rows) const {
    const size_t channels = options_.channels, count = rows.size() / channels;
    const kernels::ChannelScales scales = kernels::MeasureScales(format_, rows.data(), count, channels);
    std::vector<uint8_t> codes(rows.size());
    std::vector<uint16_t> means(count), back(rows.size());
    kernels::EncodeRows(format_, rows.data(), count, scales, codes.data(), means.data());
    kernels::DecodeRows(format_, codes.data(), means.data(), count, scales, back.data());
    return back;
  }

  template <typename Step>
  double BytesPerSecond(Step step) const {
    const SystemClock clock;
    const int64_t start_ns = clock.MonotonicNs();
    step();
    return static_cast<double>(bf16_.size() * sizeof(uint16_t)) * 1e9 /
           static_cast<double>(clock.MonotonicNs() - start_ns);
  }

  template <typename Step>
  absl::Status AddRatio(const std::string& key, Step step, Report* report) {
    const auto measured = [&]() -> absl::StatusOr<double> { return BytesPerSecond(step); };
    const auto ceiling = [&]() -> absl::StatusOr<double> {
      return BytesPerSecond([this] { std::memcpy(copy_.data(), bf16_.data(), bf16_.size() * sizeof(uint16_t)); });
    };
    KV_ASSIGN_OR_RETURN(const RatioRounds rounds, Interleave(options_.rounds, measured, ceiling));
    report->Add(key, rounds.MedianRatio());
    report->Add(key + "_gb_per_s", Median(rounds.measured) / 1e9);
    return absl::OkStatus();
  }

  const Fp8Format format_;
  const Fp8Options& options_;
  const size_t rows_;
  const std::vector<uint16_t> bf16_;
  std::vector<uint16_t> copy_;
  std::vector<uint8_t> codes_;
  std::vector<uint16_t> means_;
  const kernels::ChannelScales scales_;
};

}  // namespace

absl::StatusOr<Report> RunFp8(const Fp8Options& options) {
  Report report("fp8");
  report.Add("instructions", kernels::Fp8CodecTarget());
  bool bit_exact = true;
  for (const auto& [format, suffix] : {std::pair(Fp8Format::kE5M2, "_e5m2"), std::pair(Fp8Format::kE4M3, "_e4m3")}) {
    Codec codec(format, options);
    bit_exact = bit_exact && codec.BitExact();
    KV_RETURN_IF_ERROR(codec.Measure(suffix, &report));
    codec.AddErrors(suffix, &report);
  }
  report.Add("bit_exact", bit_exact);
  report.Note(absl::StrCat("one core; ratios: bytes of bf16 a second to memcpy of the same bytes (", options.buffer_mib,
                           " MiB), median of ", options.rounds, " rounds in turns"));
  report.Note(
      "bit_exact: vectors against the scalar bodies, all 65,536 numbers; cuda_fp8_test holds those against "
      "cuda_fp8.h");
  report.Note(absl::StrCat("errors: relative, one head of ", options.channels, " channels, ", kTokens,
                           " made-up tokens with outlier channels in keys and outlier tokens in values"));
  return report;
}

}  // namespace kvartal::bench
