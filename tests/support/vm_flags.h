// What the kernel says of a mapping of this process.
// Pure but for /proc; any thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace kvartal::testing {

// The flags of the mapping that `address` lies in, two letters each between blanks: " dd " is left out of core files,
// " lo " is locked, " wf " is zeros in a forked process. "" when there is none.
inline std::string VmFlagsOf(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t first = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &end) == 2) {
      inside = first <= reinterpret_cast<uintptr_t>(address) && reinterpret_cast<uintptr_t>(address) < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}

}  // namespace kvartal::testing
