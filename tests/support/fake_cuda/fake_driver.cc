#include "tests/support/fake_cuda/fake_driver.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

namespace kvartal::fake_cuda {
namespace {

std::atomic<FakeDriver*>& Started() {
  static std::atomic<FakeDriver*> driver = nullptr;
  return driver;
}

}  // namespace

FakeDriver::FakeDriver(Settings settings)
    : settings_(std::move(settings)), node_(settings_.dir, settings_.memory_bytes) {}

int FakeDriver::GpuOf(int ordinal) const {
  const bool there = ordinal >= 0 && static_cast<size_t>(ordinal) < settings_.visible.size();
  return there ? settings_.visible[static_cast<size_t>(ordinal)] : -1;
}

bool FakeDriver::Sees(int gpu) const {
  return std::find(settings_.visible.begin(), settings_.visible.end(), gpu) != settings_.visible.end();
}

uint64_t FakeDriver::Keep(Allocation allocation) {
  const std::lock_guard lock(mutex_);
  allocations_[++last_handle_] = std::make_shared<const Allocation>(std::move(allocation));
  return last_handle_;
}

std::shared_ptr<const Allocation> FakeDriver::Find(uint64_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(handle);
  return found == allocations_.end() ? nullptr : found->second;
}

bool FakeDriver::Release(uint64_t handle) {
  const std::lock_guard lock(mutex_);
  return allocations_.erase(handle) != 0;
}

CUresult FakeDriver::RetainContext(int gpu, Context** context) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Context>& kept = contexts_[gpu];
  if (kept != nullptr) {
    ++kept->holders;
  } else {
    Allocation charge;
    const CUresult result = node_.Allocate(gpu, settings_.context_bytes, false, &charge);
    if (result != CUDA_SUCCESS) return result;
    kept = std::make_unique<Context>(gpu, std::move(charge));
  }
  *context = kept.get();
  return CUDA_SUCCESS;
}

CUresult FakeDriver::ReleaseContext(int gpu) {
  const std::lock_guard lock(mutex_);
  const auto kept = contexts_.find(gpu);
  if (kept == contexts_.end() || kept->second == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (--kept->second->holders == 0) kept->second = nullptr;
  return CUDA_SUCCESS;
}

bool FakeDriver::Knows(const Context* context) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(contexts_.begin(), contexts_.end(),
                     [&](const auto& entry) { return entry.second.get() == context; });
}

Injection& Injected() {
  static Injection injection;
  return injection;
}

FakeDriver* Driver() { return Started().load(); }

CUresult StartDriver() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (Driver() != nullptr) return CUDA_SUCCESS;
  const char* const text = std::getenv("KVARTAL_FAKE_CUDA");
  std::optional<Settings> settings = ParseSettings(text == nullptr ? "" : text);
  if (!settings.has_value() || settings->visible.empty()) return CUDA_ERROR_NO_DEVICE;
  for (const std::string& fault : settings->faults) {
    if (!Injected().Add(fault)) return CUDA_ERROR_INVALID_VALUE;
  }
  Injected().SetGate(settings->gate);
  Started().store(new FakeDriver(*std::move(settings)));  // never deleted: streams may run to the end
  return CUDA_SUCCESS;
}

}  // namespace kvartal::fake_cuda
