#include "tools/kvartal-bench/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvartal::bench {
namespace {

// Enough digits for any figure here, few enough to read.
double Rounded(double value) {
  const double scale = std::fabs(value) < 10 ? 1e6 : 1e3;
  return std::round(value * scale) / scale;
}

struct TextOf {
  std::string operator()(uint64_t value) const { return absl::StrCat(value); }
  std::string operator()(double value) const {
    return value >= 1000 ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.4f", value);
  }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return value; }
};

}  // namespace

std::string Report::Json() const {
  nlohmann::ordered_json object;
  object["bench"] = name_;
  for (const auto& [key, value] : values_) {
    if (const double* number = std::get_if<double>(&value)) {
      object[key] = Rounded(*number);
    } else {
      std::visit([&object, &name = key](const auto& any) { object[name] = any; }, value);
    }
  }
  if (!unmet_.empty()) object["unmet"] = unmet_;
  return object.dump();
}

std::string Report::Table() const {
  if (!text_.empty()) return text_;
  size_t width = 0;
  for (const auto& [key, value] : values_) width = std::max(width, key.size());
  std::string out = absl::StrCat(name_, "\n");
  for (const auto& [key, value] : values_) {
    absl::StrAppend(&out, "  ", key, std::string(width - key.size() + 2, ' '), std::visit(TextOf{}, value), "\n");
  }
  for (const std::string& note : notes_) absl::StrAppend(&out, "  note: ", note, "\n");
  return out;
}

}  // namespace kvartal::bench
