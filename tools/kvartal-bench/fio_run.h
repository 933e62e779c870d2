// The ceiling of the disk: the real `fio` with O_DIRECT on a file.
// Stateless; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/base/status.h"

namespace kvartal::bench {

struct FioJob {
  std::string path;
  bool write = false;
  uint64_t io_bytes = 0;      // of one transfer
  uint64_t total_bytes = 0;   // of the run
  uint64_t offset_bytes = 0;  // where in the file it starts
  int depth = 1;              // transfers under way
  std::string engine = "io_uring";
};

// Bytes a second. NotFound when there is no fio; the message names the package.
absl::StatusOr<double> RunFio(const FioJob& job);
// Bytes a second from fio's JSON output. Pure.
absl::StatusOr<double> RateFromFioJson(const std::string& text, bool write);

// Writes `bytes` zeros with O_DIRECT, so that later writes find allocated, written extents.
absl::Status Prewrite(const std::string& path, uint64_t bytes);

}  // namespace kvartal::bench
