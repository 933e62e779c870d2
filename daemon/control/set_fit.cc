#include "daemon/control/set_fit.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crds/manifest.h"
#include "daemon/control/stream_limits.h"
#include "daemon/policy/compiled_rules.h"
#include "daemon/policy/policy_fit.h"

namespace kvartal::control {
namespace {

using crds::PolicySet;
using Object = std::pair<const std::string, PolicySet::Object>;

// The pool of a set; nullptr: it states none.
struct PoolOf {
  const Object* object = nullptr;
  crds::NodePool pool;
};

absl::StatusOr<PoolOf> ReadPool(const PolicySet& set) {
  PoolOf found;
  for (const Object& object : set.objects()) {
    if (!absl::StartsWith(object.first, "KVNodePool/")) continue;
    if (found.object != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("a node belongs to one pool, and the set has ", found.object->first, " and ", object.first));
    }
    KV_ASSIGN_OR_RETURN(crds::Manifests read, crds::ParseManifests(object.second.manifest, object.first));
    if (read.pools.size() != 1 || !read.policies.empty())
      return absl::InvalidArgumentError(absl::StrCat(object.first, " is no KVNodePool"));
    found = {&object, std::move(read.pools[0])};
  }
  return found;
}

// Though the one that is offered may say nothing else that can be read: who is made anew under a name inherits nothing.
bool SameTenant(const PolicySet::Object& held, const PolicySet::Object& offered) {
  return held.namespace_uid == offered.namespace_uid && crds::UidIn(held.manifest) == crds::UidIn(offered.manifest);
}

// One policy of a set, as rules here.
struct Tenant {
  policy::TenantRules rules;
  std::vector<std::string> warnings;
};

absl::StatusOr<Tenant> ReadTenant(const Object& object, const crds::NodePool* pool,
                                  const policy::NodeCapacity& capacity) {
  KV_ASSIGN_OR_RETURN(crds::Manifests read, crds::ParseManifests(object.second.manifest, object.first));
  if (read.policies.size() != 1 || !read.pools.empty() ||
      crds::SetKey("TenantKVPolicy", read.policies[0].ns, read.policies[0].name) != object.first)
    return absl::InvalidArgumentError(absl::StrCat(object.first, " is no TenantKVPolicy of that name"));
  read.policies[0].namespace_uid = object.second.namespace_uid;
  Tenant tenant;
  if (pool != nullptr) KeepClaimsOn(*pool, &read.policies, &tenant.warnings);
  policy::CompiledRules compiled = policy::CompileRules(read.policies[0], capacity);
  if (!compiled.errors.empty()) return absl::InvalidArgumentError(absl::StrJoin(compiled.errors, "\n"));
  for (const std::string& warning : compiled.warnings)
    tenant.warnings.push_back(absl::StrCat(read.policies[0].source, ": ", compiled.rules.name, ": ", warning));
  tenant.rules = std::move(compiled.rules);
  return tenant;
}

// Confined to one FitSet.
class Fitter {
 public:
  Fitter(const PolicySet& held, const PolicySet& offered, const policy::NodeCapacity& configured)
      : held_(held), offered_(offered), configured_(configured) {}

  absl::StatusOr<SetFit> Run(const std::optional<policy::NodeCapacity>& begun);

 private:
  struct Case {
    const Object* offered = nullptr;
    const Object* held = nullptr;  // the same tenant's, in force
    std::optional<Tenant> wanted, before;
    std::string refusal;
  };

  void ReadPoolInto(const std::optional<policy::NodeCapacity>& begun);
  void Judge(const Object& object);
  void Decide();
  void Take(const Object& object, const Tenant& tenant);
  void Refuse(const Object& object, std::string reason, const std::string& held_hash);

  const PolicySet& held_;
  const PolicySet& offered_;
  const policy::NodeCapacity& configured_;
  PoolOf pool_;
  policy::NodeCapacity capacity_;
  uint32_t soft_cap_percent_ = policy::kSoftCapPercentDefault;
  std::vector<Case> cases_;
  std::vector<policy::TenantRules> rules_;
  SetFit fit_;
};

absl::StatusOr<SetFit> Fitter::Run(const std::optional<policy::NodeCapacity>& begun) {
  KV_ASSIGN_OR_RETURN(pool_, ReadPool(offered_));
  ReadPoolInto(begun);
  for (const Object& object : offered_.objects()) {
    if (&object != pool_.object) Judge(object);
  }
  Decide();
  std::sort(rules_.begin(), rules_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  fit_.loaded.table = policy::PolicyTable::FromRules(std::move(rules_), capacity_, soft_cap_percent_);
  std::vector<std::string> refused;
  refused.reserve(fit_.refused.size());
  for (const sync::v1::Refused& one : fit_.refused) refused.push_back(absl::StrCat(one.key(), ": ", one.reason()));
  fit_.loaded.refused = absl::StrJoin(refused, "\n");
  return std::move(fit_);
}

// A pool is taken whole but for its capacity, which is that of the daemon's start until the next one.
void Fitter::ReadPoolInto(const std::optional<policy::NodeCapacity>& begun) {
  policy::NodeCapacity stated = configured_;
  if (pool_.object != nullptr) {
    BoundByPool(pool_.pool, &stated, &fit_.loaded.warnings);
    soft_cap_percent_ = static_cast<uint32_t>(pool_.pool.soft_cap_percent);
    fit_.held.Put(pool_.object->first, pool_.object->second.manifest, pool_.object->second.namespace_uid);
  } else if (begun) {
    stated = *begun;
  }
  capacity_ = begun.value_or(stated);
  if (stated.bytes == capacity_.bytes) return;
  fit_.loaded.capacity_waits = true;
  Refuse(*pool_.object, CapacityWaits(stated, capacity_), pool_.object->second.hash);
}

void Fitter::Judge(const Object& object) {
  Case one;
  one.offered = &object;
  const crds::NodePool* pool = pool_.object == nullptr ? nullptr : &pool_.pool;
  absl::StatusOr<Tenant> wanted = ReadTenant(object, pool, capacity_);
  if (wanted.ok()) {
    one.wanted = *std::move(wanted);
  } else {
    one.refusal = std::string(wanted.status().message());
  }
  const auto held = held_.objects().find(object.first);
  if (held != held_.objects().end() && held->second.hash == object.second.hash) {
    one.before = one.wanted;
  } else if (held != held_.objects().end() && SameTenant(held->second, object.second)) {
    absl::StatusOr<Tenant> before = ReadTenant(*held, nullptr, capacity_);
    if (before.ok()) one.before = *std::move(before);
  }
  if (one.before) one.held = &*held;
  cases_.push_back(std::move(one));
}

void Fitter::Decide() {
  std::vector<policy::TenantChange> changes(cases_.size());
  for (size_t i = 0; i < cases_.size(); ++i) {
    if (cases_[i].wanted) changes[i].wanted = cases_[i].wanted->rules;
    if (cases_[i].before) changes[i].in_force = cases_[i].before->rules;
  }
  const std::vector<policy::TenantFit> fits = policy::FitTenants(changes, capacity_);
  for (size_t i = 0; i < cases_.size(); ++i) {
    Case& one = cases_[i];
    if (one.refusal.empty()) one.refusal = fits[i].refusal;
    if (one.refusal.empty()) {
      Take(*one.offered, *one.wanted);
    } else if (fits[i].rules) {
      Take(*one.held, *one.before);
      Refuse(*one.offered, std::move(one.refusal), one.held->second.hash);
    } else {
      Refuse(*one.offered, std::move(one.refusal), "");
    }
  }
}

void Fitter::Take(const Object& object, const Tenant& tenant) {
  fit_.held.Put(object.first, object.second.manifest, object.second.namespace_uid);
  fit_.loaded.warnings.insert(fit_.loaded.warnings.end(), tenant.warnings.begin(), tenant.warnings.end());
  rules_.push_back(tenant.rules);
}

void Fitter::Refuse(const Object& object, std::string reason, const std::string& held_hash) {
  sync::v1::Refused& refused = fit_.refused.emplace_back();
  refused.set_key(object.first);
  refused.set_hash(object.second.hash);
  refused.set_reason(CutReason(std::move(reason)));
  refused.set_held(held_hash);
}

}  // namespace

std::string CutReason(std::string reason) {
  size_t end = std::min(reason.size(), kReasonBytesMax);
  while (end < reason.size() && end > 0 && (static_cast<unsigned char>(reason[end]) & 0xc0) == 0x80) --end;
  reason.resize(end);
  return reason;
}

absl::StatusOr<SetFit> FitSet(const crds::PolicySet& held, const crds::PolicySet& offered,
                              const policy::NodeCapacity& configured,
                              const std::optional<policy::NodeCapacity>& begun) {
  return Fitter(held, offered, configured).Run(begun);
}

}  // namespace kvartal::control
