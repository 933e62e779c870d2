// What a simulation did, in words: the last lines to read after a failure, and a hash over all of them to compare runs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvartal::sim {

class EventLog {
 public:
  static constexpr size_t kLinesKept = 24;

  // With `print` every line goes to stdout as it comes.
  explicit EventLog(bool print) : print_(print) {}

  void StartEvent(uint64_t number) { event_ = number; }
  // The first line of an event names it; further ones say what came of it.
  void Say(std::string_view text);

  uint64_t hash() const { return hash_; }
  // Oldest first, one a line.
  std::string LastLines() const;

 private:
  const bool print_;
  uint64_t event_ = 0;
  uint64_t lines_ = 0;
  uint64_t hash_ = 0;
  std::array<std::string, kLinesKept> ring_;
};

}  // namespace kvartal::sim
