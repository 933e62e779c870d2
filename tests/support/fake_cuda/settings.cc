#include "tests/support/fake_cuda/settings.h"

#include <charconv>

#include "absl/strings/str_split.h"

namespace kvartal::fake_cuda {
namespace {

constexpr int kMaxGpus = 64;
constexpr uint64_t kMiB = uint64_t{1} << 20;

template <typename Number>
bool Parse(const std::string& text, Number* to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *to);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseMiB(const std::string& text, uint64_t* bytes) {
  if (!Parse(text, bytes)) return false;
  *bytes *= kMiB;
  return true;
}

bool ParseVisible(const std::string& text, std::vector<int>* visible) {
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    int gpu = 0;
    if (!Parse(part, &gpu)) return false;
    visible->push_back(gpu);
  }
  return true;
}

bool Set(const std::string& name, const std::string& value, Settings* settings) {
  if (name == "dir") {
    settings->dir = value;
    return true;
  }
  if (name == "gpus") return Parse(value, &settings->gpus) && settings->gpus >= 0 && settings->gpus <= kMaxGpus;
  if (name == "memory_mib") return ParseMiB(value, &settings->memory_bytes);
  if (name == "context_mib") return ParseMiB(value, &settings->context_bytes);
  if (name == "gate") {
    settings->gate = value;
    return true;
  }
  if (name == "fault") {
    settings->faults.push_back(value);
    return true;
  }
  if (name == "visible") return ParseVisible(value, &settings->visible);
  return false;
}

}  // namespace

std::optional<Settings> ParseSettings(std::string_view text) {
  Settings settings;
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ';', absl::SkipEmpty());
  for (const std::string& part : parts) {
    const std::pair<std::string, std::string> named = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (!Set(named.first, named.second, &settings)) return std::nullopt;
  }
  if (settings.dir.empty()) return std::nullopt;
  if (settings.visible.empty()) {
    for (int gpu = 0; gpu < settings.gpus; ++gpu) settings.visible.push_back(gpu);
  }
  for (const int gpu : settings.visible) {
    if (gpu < 0 || gpu >= settings.gpus) return std::nullopt;
  }
  return settings;
}

}  // namespace kvartal::fake_cuda
