// Calls that are told to fail or to hang, and GPUs that stand still: README.md has the words.
// Any thread.
#pragma once

#include <cuda.h>

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "daemon/base/unique_fd.h"

namespace kvartal::fake_cuda {

class Injection {
 public:
  // Adds what `text` says; "" forgets all. False: not understood, and nothing is changed.
  bool Add(std::string_view text);
  // What `call` is to return at once; does not return where it is to hang.
  CUresult Before(std::string_view call) const;

  void SetGate(const std::string& path);
  // Waits while another process holds the gate; nobody gets it while the result lives.
  UniqueFd PassGate() const;

 private:
  mutable std::mutex mutex_;
  std::string gate_;
  std::set<std::string, std::less<>> hanging_;
  std::map<std::string, CUresult, std::less<>> failures_;
};

}  // namespace kvartal::fake_cuda
