#include "tools/kvartal-bench/progress.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "daemon/base/clock.h"

namespace kvartal::bench {
namespace {

constexpr int kBarWidth = 40;
constexpr int64_t kRedrawMs = 100;

}  // namespace

std::string BarText(uint64_t done, uint64_t total, int width) {
  const uint64_t cells = total == 0 ? 0 : std::min(done, total) * static_cast<uint64_t>(width) / total;
  std::string text(static_cast<size_t>(width) + 2, '.');
  std::fill_n(text.begin() + 1, cells, '#');
  text.front() = '[';
  text.back() = ']';
  return text;
}

Progress::Progress(std::string label, uint64_t total, std::FILE* out)
    : label_(std::move(label)),
      total_(std::max<uint64_t>(total, 1)),
      out_(out),
      is_terminal_(::isatty(::fileno(out)) == 1) {}

Progress::~Progress() {
  if (line_open_) std::fputc('\n', out_);
}

void Progress::Update(uint64_t done, const std::string& note) {
  if (!is_terminal_) {
    const uint64_t tenths = std::min(done, total_) * 10 / total_;
    if (tenths <= tenths_told_) return;
    tenths_told_ = tenths;
    std::fprintf(out_, "%s %llu%% %s\n", label_.c_str(), static_cast<unsigned long long>(tenths) * 10, note.c_str());
    return;
  }
  const int64_t now_ms = SystemClock().MonotonicNs() / kNsPerMs;
  if (done < total_ && now_ms - drawn_ms_ < kRedrawMs) return;
  drawn_ms_ = now_ms;
  Draw(done, note);
}

void Progress::Draw(uint64_t done, const std::string& note) {
  const uint64_t percent = std::min(done, total_) * 100 / total_;
  std::fprintf(out_, "\r%s %s %3llu%% %s\x1b[K", label_.c_str(), BarText(done, total_, kBarWidth).c_str(),
               static_cast<unsigned long long>(percent), note.c_str());
  std::fflush(out_);
  line_open_ = true;
}

}  // namespace kvartal::bench
