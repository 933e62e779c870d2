// Calls that are told to fail: README.md has the words.
// Any thread.
#pragma once

#include <cuda.h>

#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace kvartal::fake_cuda {

class Injection {
 public:
  // Adds what `text` says; "" forgets all. False: not understood, and nothing is changed.
  bool Add(std::string_view text);
  // What `call` is to return at once.
  CUresult Before(std::string_view call) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, CUresult, std::less<>> failures_;
};

}  // namespace kvartal::fake_cuda
