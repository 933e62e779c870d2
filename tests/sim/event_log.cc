#include "tests/sim/event_log.h"

#include <xxhash.h>

#include <cstdio>

namespace kvartal::sim {

void EventLog::Say(std::string_view text) {
  std::string& line = ring_[lines_++ % kLinesKept];
  line = std::to_string(event_);
  line += ' ';
  line += text;
  hash_ = XXH3_64bits_withSeed(line.data(), line.size(), hash_);
  if (print_) std::printf("%s\n", line.c_str());
}

std::string EventLog::LastLines() const {
  std::string out;
  for (uint64_t at = lines_ > kLinesKept ? lines_ - kLinesKept : 0; at < lines_; ++at) {
    out += "  " + ring_[at % kLinesKept] + "\n";
  }
  return out;
}

}  // namespace kvartal::sim
