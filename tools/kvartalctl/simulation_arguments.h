// What `kvartalctl simulate` is told in words of its own: capacities, sweeps, splits.
// Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/control/policy_source.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::ctl {

// "dram=64Gi,nvme=1Ti". A tier that is not named has none (0). InvalidArgument names what is wrong and what is allowed.
absl::StatusOr<policy::NodeCapacity> ParseCapacity(const std::string& text);

struct Sweep {
  TierKind tier = TierKind::kDram;
  std::vector<uint64_t> bytes;  // rising, each once
};
// "dram=1Gi,2Gi,4Gi".
absl::StatusOr<Sweep> ParseSweep(const std::string& text);

struct Capacities {
  std::vector<policy::NodeCapacity> runs;
  std::optional<TierKind> swept;
};
// One run at `capacity`; with a sweep one run a size, of a node that has in its other tier what `capacity` says. One of
// the two may be "". A tier that both name is InvalidArgument, and so is dram that neither does.
absl::StatusOr<Capacities> CapacitiesOf(const std::string& capacity, const std::string& sweep);

// A capacity that the set's KVNodePool bounds to less would be simulated as that. InvalidArgument names both.
absl::Status CheckPoolHas(const control::LoadedPolicy& policy, const policy::NodeCapacity& asked);

// The part of the trace each tenant of the policy gets: what `text` says ("40,30,20,10", in the order of their names),
// their weights when it is empty.
absl::StatusOr<std::vector<double>> SharesOf(const policy::PolicyTable& policy, const std::string& text);

}  // namespace kvartal::ctl
