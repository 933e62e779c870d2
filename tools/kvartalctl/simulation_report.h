// What a simulation found, for people and for programs.
// Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "daemon/policy/policy_table.h"
#include "tools/trace_engine/simulation.h"

namespace kvartal::ctl {

// One capacity.
struct SimulatedPoint {
  policy::NodeCapacity capacity;  // as asked for
  std::vector<trace_engine::TenantOutcome> tenants;

  trace_engine::Served All() const;
};

struct SimulatedRun {
  std::string trace;
  uint64_t requests = 0;
  double trace_seconds = 0;
  uint64_t block_bytes = 0;
  std::string eviction;
  std::vector<SimulatedPoint> points;
};

// A part of a whole; 0 of nothing.
double HitRate(uint64_t part, uint64_t whole);

// One capacity: a line a tenant and why copies went and stores were refused. Several: a line a capacity.
std::string SimulationTable(const SimulatedRun& run);
nlohmann::ordered_json SimulationJson(const SimulatedRun& run);
// A header line, then one line a capacity and tenant.
std::string SimulationCsv(const SimulatedRun& run);

}  // namespace kvartal::ctl
