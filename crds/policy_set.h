// What one node has to enforce, as it travels and as it lies on a disk: manifests by their keys, and the delta from one
// set to the next. A plain value.
// Invariant: equal content, equal version, on every replica and every node; what a delta made has the version it was
// said to have, or it is refused.
#pragma once

#include <map>
#include <string>

#include "crds/policy_sync.pb.h"
#include "daemon/base/status.h"

namespace kvartal::crds {

class PolicySet {
 public:
  struct Object {
    std::string manifest;
    std::string namespace_uid;
    std::string hash;  // of both
  };
  using Hashes = std::map<std::string, std::string>;  // by key

  void Put(const std::string& key, std::string manifest, std::string namespace_uid);
  // As another set has it under this key.
  void Put(const std::string& key, const Object& object) { objects_[key] = object; }

  const std::map<std::string, Object>& objects() const { return objects_; }
  Hashes hashes() const;
  // Hex of a hash of all keys and hashes; never empty.
  std::string Version() const;

  // What makes this set of one that has these hashes.
  sync::v1::Update DeltaFrom(const Hashes& base) const;
  // This set with the changes. InvalidArgument: they are of another set than this, or do not give what they say.
  absl::StatusOr<PolicySet> With(const sync::v1::Update& update) const;

 private:
  std::map<std::string, Object> objects_;
};

std::string VersionOf(const PolicySet::Hashes& hashes);
// Of nothing at all: what a node that belongs to no pool has to enforce.
std::string EmptyVersion();

// "TenantKVPolicy/<namespace>/<name>", "KVNodePool//<name>".
std::string SetKey(const std::string& kind, const std::string& ns, const std::string& name);

}  // namespace kvartal::crds
