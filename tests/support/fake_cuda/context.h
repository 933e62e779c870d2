// What runs on a simulated GPU: contexts, streams and events.
// A Stream's work is done by its own thread, in order; the rest may be called from any thread.
// Invariant: once a context has failed, it fails for ever.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/support/fake_cuda/gpu_node.h"

namespace kvartal::fake_cuda {

// Of one process on one GPU: its primary context.
class Context {
 public:
  Context(int gpu, Allocation charge) : gpu_(gpu), charge_(std::move(charge)) {}
  int gpu() const { return gpu_; }
  CUresult state() const { return state_.load(); }
  // The first failure stays.
  void Fail(CUresult result) {
    CUresult none = CUDA_SUCCESS;
    state_.compare_exchange_strong(none, result);
  }
  int holders = 1;  // guarded by the driver

 private:
  const int gpu_;
  const Allocation charge_;  // what the context itself takes of the GPU's memory
  std::atomic<CUresult> state_ = CUDA_SUCCESS;
};

class Stream {
 public:
  using Work = std::function<CUresult()>;
  // `context` outlives it.
  explicit Stream(Context* context) : context_(context), thread_([this] { Run(); }) {}
  ~Stream();

  Context& context() const { return *context_; }
  // The number of this work; Passed(number) tells when it is done.
  uint64_t Add(Work work);
  uint64_t Last() const;
  bool Passed(uint64_t number) const;
  void WaitFor(uint64_t number) const;

 private:
  void Run();

  Context* const context_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Work> queue_;
  uint64_t added_ = 0;
  uint64_t done_ = 0;
  bool ending_ = false;
  std::thread thread_;  // the last member: it uses the others
};

// Passed where it was recorded; one that never was is.
struct Event {
  const Stream* stream = nullptr;
  uint64_t number = 0;
};

}  // namespace kvartal::fake_cuda
