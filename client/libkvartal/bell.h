// Wakes the keeper.
// Thread-safe.
#pragma once

#include "daemon/base/unique_fd.h"

namespace kvartal::client {

class Bell {
 public:
  Bell();
  void Ring();
  void Silence();
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

}  // namespace kvartal::client
