// KVNodePool as a C++ value: exactly what crds/kvnodepool.yaml allows. The admin's side: capacity and grants.
// A plain value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "crds/quantity.h"

namespace kvartal::crds {

class Findings;
struct YamlNode;

struct GrantBound {
  std::optional<Quantity> hbm, dram, nvme;
};

struct Grant {
  std::map<std::string, std::string> match_labels;  // namespaceSelector.matchLabels; empty = every namespace
  std::string max_sla_tier = "Premium";
  GrantBound max_guarantee, max_limit;
  std::vector<std::string> gpu_groups, share_groups;
};

struct NodePool {
  std::string name;
  std::map<std::string, std::string> node_labels;  // nodeSelector
  Quantity hbm_per_gpu, dram, nvme;
  bool has_hbm = false, has_dram = false, has_nvme = false;
  int64_t soft_cap_percent = 50;
  std::string unknown_tenants = "Reject";  // Reject | PerNamespace
  std::vector<Grant> grants;
  struct GpuGroup {
    std::string name;
    bool exclusive = false;
    std::vector<std::string> gpus;
  };
  std::vector<GpuGroup> gpu_groups;
  std::vector<std::string> share_groups;
  std::optional<Quantity> nvme_write_budget;  // bytes a second
  std::string source;                         // "file:line"
};

// Reads one object whose kind is KVNodePool. What is wrong goes to `findings`; the value is meaningless then.
NodePool ReadNodePool(const YamlNode& object, Findings* findings);

}  // namespace kvartal::crds
