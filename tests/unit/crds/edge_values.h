// Values around the bounds of each field of a policy. Reader, schema and a real API server judge them alike.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace kvartal::crds {

// By field of spec.
inline std::map<std::string, std::vector<std::string>> EdgeValues() {
  return {
      {"weight", {"1", "0", "10000", "10001", "-1", "1.5", "many", "\"5\""}},
      {"slaTier", {"Premium", "premium", "\"\"", "7"}},
      {"ttl", {"{dramSeconds: 0}", "{dramSeconds: 315360000}", "{dramSeconds: 315360001}", "{onExpiry: Drop}", "[]"}},
      {"retention", {"{maxAgeSeconds: 0}", "{maxAgeSeconds: -1}", "{maxAge: 5}"}},
      {"sessions", {"{max: 1}", "{max: 0}", "{max: 4096}", "{max: 4097}"}},
      {"index", {"{maxEntries: 0}", "{maxEntries: 4294967294}", "{maxEntries: 4294967295}"}},
      {"encryption", {"{nvme: None}", "{nvme: Maybe}"}},
      {"isolation", {"{gpuGroup: a-b}", "{gpuGroup: \"\"}", "{gpuGroup: A}", "{dedicatedMover: 1}"}},
      {"codecs", {"[{models: [\"*\"], dram: FP8E4M3}]", "[{models: [\"*\"], dram: FP4}]", "[{dram: None}]"}},
      {"subjects", {"[{uid: 0}]", "[{uid: 4294967295}]", "[{socket: a}]", "[{socket: a, uid: 1}]", "[{}]", "{uid: 1}"}},
      {"pools",
       {"[{poolRef: a}]", "[{poolRef: a}, {poolRef: a}]", "[{perNode: {}}]", "[{poolRef: a, perNode: {dram: {}}}]",
        "[{poolRef: a, perNode: {dram: {limit: 8Ei}}}]", "[{poolRef: a, perNode: {dram: {limit: 7Ei}}}]",
        "[{poolRef: a, perNode: {dram: {limit: 100%}}}]", "[{poolRef: a, perNode: {dram: {limit: 0%}}}]",
        "[{poolRef: a, perNode: {dram: {limit: 1.5Gi}}}]", "[{poolRef: a, perNode: {dram: {limit: -1}}}]",
        "[{poolRef: a, perNode: {dram: {guarantee: 2Gi, limit: 2047Mi}}}]",
        "[{poolRef: a, perNode: {dram: {guarantee: 2Gi, limit: 2048Mi}}}]",
        "[{poolRef: a, perNode: {dram: {guarantee: 2Gi, limit: 1%}}}]"}},
  };
}

// The policy b/a with this field alone.
inline std::string EdgePolicy(const std::string& field, const std::string& value) {
  return "apiVersion: kvartal.dev/v1alpha1\nkind: TenantKVPolicy\nmetadata: {name: a, namespace: b}\nspec: {" + field +
         ": " + value + "}\n";
}

}  // namespace kvartal::crds
