// Wakes the keeper.
// Thread-safe.
// Invariant: it has its descriptor, so a ring is never lost.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "daemon/base/unique_fd.h"

namespace kvartal::client {

class Bell {
 public:
  // nullptr when the process may have no more open files; `error` then says what to do.
  static std::shared_ptr<Bell> Make(std::string* error);
  void Ring();
  void Silence();
  int fd() const { return fd_.get(); }

 private:
  explicit Bell(UniqueFd fd) : fd_(std::move(fd)) {}

  const UniqueFd fd_;
};

}  // namespace kvartal::client
