// The process that `reclaim` kills: it reserves, touches, tells its group and reservations on stdout, and waits for its
// end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/libkvartal/kvartal.hpp"
#include "daemon/base/status.h"
#include "tools/kvartal-bench/child_process.h"

namespace kvartal::bench {

struct ReclaimVictimOptions {
  std::string socket;
  uint64_t blocks = 0;
  uint64_t block_kib = 0;
  uint64_t run = 0;
};
// Returns only when something went wrong.
absl::Status RunReclaimVictim(const ReclaimVictimOptions& options);

struct VictimState {
  client::Group group{};
  std::vector<uint64_t> reservations;
};
absl::StatusOr<VictimState> ReadVictim(ChildProcess* victim);

}  // namespace kvartal::bench
