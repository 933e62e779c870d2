// Request traces: JSON lines, plain or gzip, each with `input_length` and the ids of its 512-token blocks.
// Stateless; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/block/block_key.h"

namespace kvartal::bench {

inline constexpr uint32_t kTraceBlockTokens = 512;

struct TraceRequest {
  double arrival_s = 0;
  uint64_t input_tokens = 0;
  std::vector<uint64_t> blocks;  // an id stands for the block and all blocks before it
};

struct Trace {
  std::string name;
  std::vector<TraceRequest> requests;

  uint64_t BlockAccesses() const;
  uint64_t UniqueBlocks() const;
  // The keys of a request's chain, in order.
  std::vector<BlockKey> Chain(const TraceRequest& request) const;
};

// `name_or_path`: `conversation`, `synthetic` (shipped in tests/data/traces, found from the executable), or a path. At
// most `requests_max` requests (0: all). Every error names file and line.
absl::StatusOr<Trace> LoadTrace(const std::string& name_or_path, uint64_t requests_max);
// One line of a trace. InvalidArgument says what is missing.
absl::StatusOr<TraceRequest> ParseTraceLine(const std::string& line);

// The folder `relative` of the source tree this executable was built in, or of the folder it was installed beside.
absl::StatusOr<std::string> FindShipped(const std::string& relative);
// Where the running executable lies.
std::string OwnFolder();

}  // namespace kvartal::bench
