// The floor under a lookup: another process that answers packets of the same sizes over the same kind of socket and
// does nothing else.
// Confined to one thread. The other process ends with the object.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::bench {

struct EchoSizes {
  size_t request_bytes = 0;
  size_t reply_bytes = 0;
};
// Of a Lookup of `chain` resident blocks that carries the Release of the one before.
EchoSizes SizesOfLookup(size_t chain);

class EchoFloor {
 public:
  static absl::StatusOr<std::unique_ptr<EchoFloor>> Start(const EchoSizes& sizes);
  ~EchoFloor();

  pid_t pid() const { return pid_; }
  // Microseconds of each of `count` exchanges.
  absl::StatusOr<std::vector<double>> Run(size_t count);

 private:
  EchoFloor(const EchoSizes& sizes, UniqueFd fd, pid_t pid);
  const EchoSizes sizes_;
  const UniqueFd fd_;
  const pid_t pid_;
  std::vector<std::byte> buffer_;
};

}  // namespace kvartal::bench
