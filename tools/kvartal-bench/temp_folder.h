// A folder of its own that is gone, with all in it, when its owner is: also on Ctrl-C.
// Confined to the thread that made it.
#pragma once

#include <memory>
#include <string>

#include "daemon/base/status.h"
#include "tools/kvartal-bench/interrupt.h"

namespace kvartal::bench {

class TempFolder {
 public:
  // Under `parent`, or $TMPDIR, or /tmp. Anyone may pass through it: clients of other uids reach the sockets inside.
  static absl::StatusOr<std::unique_ptr<TempFolder>> Make(const std::string& parent);
  ~TempFolder();

  const std::string& path() const { return path_; }

 private:
  explicit TempFolder(std::string path);
  const std::string path_;
  const UndoOnInterrupt undo_;
};

}  // namespace kvartal::bench
