#include "tests/support/fake_cuda/injection.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

namespace kvartal::fake_cuda {

bool Injection::Add(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (text.empty()) {
    failures_.clear();
    hanging_.clear();
    return true;
  }
  const size_t is = text.find('=');
  if (is == std::string_view::npos) return false;
  if (text.substr(is + 1) == "hang") {
    hanging_.insert(std::string(text.substr(0, is)));
    return true;
  }
  int result = 0;
  const auto [end, error] = std::from_chars(text.data() + is + 1, text.data() + text.size(), result);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  failures_[std::string(text.substr(0, is))] = static_cast<CUresult>(result);
  return true;
}

CUresult Injection::Before(std::string_view call) const {
  std::unique_lock lock(mutex_);
  if (hanging_.contains(call)) {
    lock.unlock();
    while (true) ::pause();
  }
  const auto found = failures_.find(call);
  return found == failures_.end() ? CUDA_SUCCESS : found->second;
}

void Injection::SetGate(const std::string& path) {
  const std::lock_guard lock(mutex_);
  gate_ = path;
}

UniqueFd Injection::PassGate() const {
  std::unique_lock lock(mutex_);
  const std::string gate = gate_;
  lock.unlock();
  if (gate.empty()) return UniqueFd();
  UniqueFd passed(::open(gate.c_str(), O_RDONLY | O_CLOEXEC));
  while (::flock(passed.get(), LOCK_SH) != 0 && errno == EINTR) {
  }
  return passed;
}

}  // namespace kvartal::fake_cuda
