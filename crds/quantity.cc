#include "crds/quantity.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"

namespace kvartal::crds {
namespace {

constexpr const char* kAllowed =
    "an integer with an optional suffix (k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei), such as \"10Gi\" or 4096; no "
    "fractions";

struct Suffix {
  std::string_view text;
  uint64_t factor;
};
constexpr Suffix kSuffixes[] = {
    {"", 1},
    {"k", 1'000},
    {"M", 1'000'000},
    {"G", 1'000'000'000},
    {"T", 1'000'000'000'000},
    {"P", 1'000'000'000'000'000},
    {"E", 1'000'000'000'000'000'000},
    {"Ki", uint64_t{1} << 10},
    {"Mi", uint64_t{1} << 20},
    {"Gi", uint64_t{1} << 30},
    {"Ti", uint64_t{1} << 40},
    {"Pi", uint64_t{1} << 50},
    {"Ei", uint64_t{1} << 60},
};

absl::Status Refuse(std::string_view text, const std::string& why) {
  const std::string shown = absl::Utf8SafeCEscape(std::string(text.substr(0, 40)));
  return absl::InvalidArgumentError(absl::StrCat("'", shown, "' ", why));
}

// Decimal digits only; false when they do not fit.
bool ToNumber(std::string_view digits, uint64_t* out) {
  uint64_t value = 0;
  for (const char c : digits) {
    if (__builtin_mul_overflow(value, uint64_t{10}, &value)) return false;
    if (__builtin_add_overflow(value, static_cast<uint64_t>(c - '0'), &value)) return false;
  }
  *out = value;
  return true;
}

}  // namespace

uint64_t Quantity::Resolve(uint64_t capacity_bytes) const {
  if (!is_percent) return bytes;
  return static_cast<uint64_t>(static_cast<unsigned __int128>(capacity_bytes) * percent / 100);
}

absl::StatusOr<Quantity> ParseQuantity(std::string_view text) {
  const size_t digit_count = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view digits = text.substr(0, digit_count);
  const std::string_view suffix = text.substr(digit_count);
  if (digits.empty()) return Refuse(text, absl::StrCat("is not a size; allowed: ", kAllowed));
  // "010" is 8 to some YAML readers and 10 to others.
  if (digits.size() > 1 && digits[0] == '0') return Refuse(text, "has a leading zero; write the size without it");

  uint64_t number = 0;
  const bool fits = ToNumber(digits, &number);
  Quantity quantity;
  if (suffix == "%") {
    if (!fits || number < 1 || number > 100)
      return Refuse(text, "is not a percentage; allowed: 1% to 100%, integers only");
    quantity.is_percent = true;
    quantity.percent = static_cast<uint32_t>(number);
    return quantity;
  }
  for (const Suffix& known : kSuffixes) {
    if (suffix != known.text) continue;
    if (!fits || __builtin_mul_overflow(number, known.factor, &quantity.bytes) || quantity.bytes > kSizeBytesMax) {
      return Refuse(text, "is too large; the largest size is 9223372036854775807 bytes (just under 8Ei)");
    }
    return quantity;
  }
  return Refuse(text, absl::StrCat("is not a size; allowed: ", kAllowed));
}

std::string ShownBytes(uint64_t bytes) {
  constexpr std::pair<uint64_t, const char*> kUnits[] = {{kTiB, "Ti"}, {kGiB, "Gi"}, {kMiB, "Mi"}, {kKiB, "Ki"}};
  for (const auto& [factor, name] : kUnits) {
    if (bytes >= factor && bytes % factor == 0) return absl::StrCat(bytes / factor, name);
  }
  return absl::StrCat(bytes, " bytes");
}

std::string ShownOf(const Quantity& size, uint64_t capacity_bytes) {
  const bool as_it_is = size.is_percent && capacity_bytes == kUnknownCapacityBytes;
  return as_it_is ? absl::StrCat(size.percent, "%") : ShownBytes(size.Resolve(capacity_bytes));
}

}  // namespace kvartal::crds
