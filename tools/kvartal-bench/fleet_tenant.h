// One real daemon among the simulated nodes, and a client of its one tenant that stores more than the tenant may hold,
// for as long as it is asked to: what its policy says has to hold whoever is there to tell it.
// Confined to the thread that made it.
// Invariant: every look at the daemon compares what the tenant holds with its limit, and is counted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "client/libkvartal/kvartal.hpp"
#include "daemon/base/status.h"
#include "tests/support/daemon_process.h"
#include "tools/kvartal-bench/fleet_cluster.h"

namespace kvartal::bench {

class FleetTenant {
 public:
  explicit FleetTenant(FleetCluster* cluster) : cluster_(cluster) {}

  // The node, its pool, its policy and the pod, in the cluster.
  absl::Status Make();
  // The daemon, which follows the operator at `address`, and the client, once it may attach.
  absl::Status Start(const std::string& address);
  // Stores a few new blocks, finds them again, and looks at what the tenant holds. Not OK: the limit does not hold, or
  // nobody is served.
  absl::Status Use();

  uint64_t stored() const { return stored_; }
  uint64_t looks() const { return looks_; }
  uint64_t most_bytes() const { return most_bytes_; }
  static constexpr uint64_t kLimitBytes = uint64_t{8} << 20;

 private:
  absl::Status TakeToken();
  absl::Status Look();

  FleetCluster* const cluster_;
  std::unique_ptr<testing::DaemonProcess> daemon_;
  client::Client client_;
  kv_namespace ns_ = KV_NAMESPACE_NONE;
  uint64_t next_key_ = 1, stored_ = 0, looks_ = 0, most_bytes_ = 0;
};

}  // namespace kvartal::bench
