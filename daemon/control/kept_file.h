// A small file that is replaced whole: what came by the operator's stream, for a start without an operator.
// Confined to one thread at a time.
// Invariant: what is read was written whole, by this Write or the one before it.
#pragma once

#include <string>

#include "daemon/base/status.h"

namespace kvartal::control {

class KeptFile {
 public:
  KeptFile(std::string folder, const std::string& name) : folder_(std::move(folder)), path_(folder_ + "/" + name) {}

  // Written, synced, and put in the place of what was there.
  absl::Status Write(const std::string& bytes) const;
  // NotFound: there is none.
  absl::StatusOr<std::string> Read() const;

  const std::string& path() const { return path_; }

 private:
  const std::string folder_, path_;
};

}  // namespace kvartal::control
