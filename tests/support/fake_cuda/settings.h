// What KVARTAL_FAKE_CUDA says: see README.md. A value, read once a process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvartal::fake_cuda {

struct Settings {
  std::string dir;
  int gpus = 1;
  uint64_t memory_bytes = uint64_t{1} << 30;
  uint64_t context_bytes = 0;
  std::vector<int> visible;  // node's numbers, by this process's ordinal
  std::string gate;          // a file; "": none
  std::vector<std::string> faults;
};

// nullopt: a part that is not understood, or no folder.
std::optional<Settings> ParseSettings(std::string_view text);

}  // namespace kvartal::fake_cuda
