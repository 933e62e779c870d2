// Simulation::Say, for the files that Simulation is written in.
#pragma once

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace kvartal::sim {

template <typename... Args>
void Simulation::Say(const Args&... args) {
  log_.Say(absl::StrCat(args...));
}

}  // namespace kvartal::sim
