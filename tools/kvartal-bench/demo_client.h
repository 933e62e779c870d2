// One tenant of the demo, a process of its own: drops to its uid, attaches, serves its share of the trace.
// Tells its parent on stdout: "progress N" now and then, "result name=value ..." at the end.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/base/status.h"
#include "tools/kvartal-bench/trace.h"

namespace kvartal::bench {

inline constexpr uint32_t kDemoShares = 10;

struct DemoClientOptions {
  std::string trace;
  uint64_t requests = 0;  // of the whole trace; 0: all
  uint64_t block_kib = 64;
  int64_t uid = -1;         // to drop to; -1: stay
  uint32_t share_from = 0;  // tenths of the conversations: [share_from, share_to)
  uint32_t share_to = kDemoShares;
};
absl::Status RunDemoClient(const std::string& socket, const DemoClientOptions& options);

// Which tenth of the conversations a request belongs to: by the first block that conversations do not share. Pure.
uint32_t DemoShareOf(const TraceRequest& request);

}  // namespace kvartal::bench
