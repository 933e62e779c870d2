// One pool, three nodes, two namespaces, and policies that claim dram of the pool.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crds/quantity.h"
#include "operator/reconcile/compile_cluster.h"

namespace kvartal::reconcile {

inline crds::Quantity Size(const std::string& text) { return crds::ParseQuantity(text).value(); }

inline PoolObject Pool(const std::string& name, const std::string& dram,
                       const std::string& created = "2026-01-01T00:00:00Z") {
  PoolObject object;
  object.created = created;
  object.pool.name = name;
  object.pool.source = "KVNodePool " + name + ":1";
  object.pool.node_labels = {{"pool", name}};
  object.pool.has_dram = true;
  object.pool.dram = Size(dram);
  return object;
}

// Claims dram of pool "p"; "" leaves a part out.
inline PolicyObject Policy(const std::string& ns, const std::string& name, const std::string& guarantee,
                           const std::string& limit, const std::string& created) {
  PolicyObject object;
  object.ns = ns;
  object.name = name;
  object.uid = "uid-" + name;
  object.created = created;
  crds::TenantPolicy policy;
  policy.ns = ns;
  policy.name = name;
  policy.uid = object.uid;
  policy.subjects = {{name, std::nullopt, ""}};
  crds::PoolClaim claim;
  claim.pool_ref = "p";
  if (!guarantee.empty()) claim.dram.guarantee = Size(guarantee);
  if (!limit.empty()) claim.dram.limit = Size(limit);
  policy.pools = {claim};
  object.wanted = policy;
  return object;
}

inline constexpr const char* kOld = "2026-01-01T00:00:00Z";
inline constexpr const char* kNew = "2026-01-02T00:00:00Z";

class CompileClusterTest : public ::testing::Test {
 protected:
  CompileClusterTest() {
    state_.pools = {Pool("p", "100Gi")};
    state_.nodes = {{"n1", {{"pool", "p"}}}, {"n2", {{"pool", "p"}}}, {"n3", {{"pool", "other"}}}};
    state_.namespaces = {{"red", "ns-red", {{"team", "red"}}}, {"blue", "ns-blue", {}}};
  }
  const PolicyVerdict& VerdictOf(const std::string& ns, const std::string& name) {
    compiled_ = CompileCluster(state_);
    return compiled_.policies.at({ns, name});
  }
  // "True/Accepted" or "False/NoCapacity"; "" when it has no such condition.
  static std::string Of(const PolicyVerdict& verdict, const std::string& type) {
    for (const Condition& condition : verdict.conditions) {
      if (condition.type == type) return absl::StrCat(condition.status ? "True/" : "False/", condition.reason);
    }
    return "";
  }
  static std::string MessageOf(const PolicyVerdict& verdict, const std::string& type) {
    for (const Condition& condition : verdict.conditions) {
      if (condition.type == type) return condition.message;
    }
    return "";
  }
  std::vector<std::string> TenantsOn(const std::string& node) {
    compiled_ = CompileCluster(state_);
    std::vector<std::string> names;
    for (const auto& [key, object] : compiled_.nodes.at(node)->set.objects()) {
      if (key.starts_with("TenantKVPolicy/")) names.push_back(key.substr(key.rfind('/') + 1));
    }
    return names;
  }
  // As if what is wanted had been accepted in an earlier run.
  void AcceptAll() {
    const CompiledCluster compiled = CompileCluster(state_);
    for (PolicyObject& object : state_.policies)
      object.accepted = compiled.policies.at({object.ns, object.name}).accepted;
  }

  ClusterState state_;
  CompiledCluster compiled_;
};

}  // namespace kvartal::reconcile
