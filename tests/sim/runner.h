// Runs of the simulator by seed, and what is printed when one finds something.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/plan.h"
#include "tests/sim/simulation.h"

namespace kvartal::sim {

struct RunResult {
  bool found = false;
  uint64_t event = 0;
  uint64_t log_hash = 0;
  std::string report;  // what was found, the last events in words, and the command that does it again
  Coverage coverage;
};

// A failed KV_CHECK ends the process; it prints the same report first.
RunResult RunSeed(uint64_t seed, uint64_t events, Planted planted = Planted::kNothing, bool print_log = false);

// `count` seeds from `first` on, shared by `jobs` processes at once. Whoever finds something prints it and stops.
struct SeedsResult {
  bool found = false;
  Coverage coverage;
};
SeedsResult RunSeeds(uint64_t first, uint64_t count, uint64_t events, uint64_t jobs);

// The same in a process of its own, so that one that ends by a failed KV_CHECK counts as found. Its report is lost.
RunResult RunSeedApart(uint64_t seed, uint64_t events, Planted planted);

}  // namespace kvartal::sim
