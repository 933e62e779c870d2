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
  Simulation::Counts counts;
};

// A failed KV_CHECK ends the process; it prints the same report first.
RunResult RunSeed(uint64_t seed, uint64_t events, Planted planted = Planted::kNothing, bool print_log = false);

// The same in a process of its own, so that one that ends by a failed KV_CHECK counts as found. Its report is lost.
RunResult RunSeedApart(uint64_t seed, uint64_t events, Planted planted);

}  // namespace kvartal::sim
