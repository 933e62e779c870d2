// Cuts a stream of bytes that arrives in any pieces into its lines: one JSON value each in a watch.
// A plain value, confined to whoever reads the stream.
// Invariants: lines come out whole and in order, however the bytes were split; at most kWatchLineBytesMax are held.
#pragma once

#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"

namespace kvartal::kube {

class LineFramer {
 public:
  // Calls `on_line` for each line that is now whole, without its end and unless it is empty. False: a line is too long,
  // and nothing more can be read from this stream. `on_line` returns false to stop reading.
  bool Feed(std::string_view bytes, absl::FunctionRef<bool(std::string_view)> on_line);
  // What came after the last whole line. At the end of a stream that is a broken line.
  size_t held() const { return held_.size(); }

 private:
  std::string held_;
};

}  // namespace kvartal::kube
