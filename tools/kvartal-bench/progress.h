// A progress bar on a terminal, a plain line now and then elsewhere. Writes to stderr, so that stdout stays the
// result's.
// Confined to the thread that made it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace kvartal::bench {

class Progress {
 public:
  Progress(std::string label, uint64_t total, std::FILE* out = stderr);
  // Ends the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `note` stands behind the bar. Draws at most ten times a second on a terminal; elsewhere a line for every tenth
  // done.
  void Update(uint64_t done, const std::string& note = "");

 private:
  void Draw(uint64_t done, const std::string& note);

  const std::string label_;
  const uint64_t total_;
  std::FILE* const out_;
  const bool is_terminal_;
  int64_t drawn_ms_ = 0;
  uint64_t tenths_told_ = 0;
  bool line_open_ = false;
};

// [#####.....] of `width` cells. Pure.
std::string BarText(uint64_t done, uint64_t total, int width);

}  // namespace kvartal::bench
