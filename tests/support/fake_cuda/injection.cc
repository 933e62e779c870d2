#include "tests/support/fake_cuda/injection.h"

#include <charconv>

namespace kvartal::fake_cuda {

bool Injection::Add(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (text.empty()) {
    failures_.clear();
    return true;
  }
  const size_t is = text.find('=');
  if (is == std::string_view::npos) return false;
  int result = 0;
  const auto [end, error] = std::from_chars(text.data() + is + 1, text.data() + text.size(), result);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  failures_[std::string(text.substr(0, is))] = static_cast<CUresult>(result);
  return true;
}

CUresult Injection::Before(std::string_view call) const {
  const std::lock_guard lock(mutex_);
  const auto found = failures_.find(call);
  return found == failures_.end() ? CUDA_SUCCESS : found->second;
}

}  // namespace kvartal::fake_cuda
