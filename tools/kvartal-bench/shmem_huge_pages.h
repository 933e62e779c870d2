// The system's setting for huge pages in shared memory, changed for one run and put back: also on Ctrl-C.
// Confined to one thread.
#pragma once

#include <memory>
#include <string>

#include "daemon/base/status.h"
#include "tools/kvartal-bench/interrupt.h"

namespace kvartal::bench {

class ShmemHugePages {
 public:
  // Sets `value` ("advise", "never", ...). PermissionDenied without root.
  static absl::StatusOr<std::unique_ptr<ShmemHugePages>> Set(const std::string& value);
  ~ShmemHugePages();

 private:
  explicit ShmemHugePages(const std::string& before);
  const std::string before_;
  const UndoOnInterrupt undo_;
};

// The word in brackets of a line like "always [madvise] never", empty when there is none. Pure.
std::string ChosenOf(const std::string& line);

}  // namespace kvartal::bench
