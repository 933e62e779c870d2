// A trace served by the tenants of a policy on a virtual node, and what each of them got out of it.
// Confined to one thread. Deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/engine/engine_stats.h"
#include "daemon/policy/policy_table.h"
#include "tools/kvartal-bench/trace.h"
#include "tools/trace_engine/trace_client.h"

namespace kvartal::trace_engine {

struct SimulationInput {
  std::shared_ptr<const policy::PolicyTable> policy;
  std::string eviction = "lru";
  uint64_t block_kib = 0;
  const bench::Trace* trace = nullptr;
  std::vector<size_t> owners;                // of each request: a position in the policy's tenants
  size_t keep_max = 0;                       // blocks of a chain that are stored at most; 0: all
  uint64_t nvme_write_bytes_per_second = 0;  // 0: any amount
  // Told after each request; may be empty.
  std::function<void(const VirtualNode& node, uint64_t requests_done)> after_request;
};

struct TenantOutcome {
  Served served;
  engine::TenantStats stats;  // at the end; its name is the tenant's
};

// In the order of the policy's tenants. InvalidArgument: an unknown eviction order, or a block no tier can hold.
absl::StatusOr<std::vector<TenantOutcome>> Simulate(const SimulationInput& input);

}  // namespace kvartal::trace_engine
