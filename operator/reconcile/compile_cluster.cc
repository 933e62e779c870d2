#include "operator/reconcile/compile_cluster.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_join.h"
#include "crds/manifest_writer.h"
#include "operator/reconcile/admission.h"

namespace kvartal::reconcile {
namespace {

using Key = std::pair<std::string, std::string>;

// The older first; who was made within one second, by name.
template <typename Object, typename Name>
std::vector<const Object*> ByAge(const std::vector<Object>& objects, Name name) {
  std::vector<const Object*> sorted;
  sorted.reserve(objects.size());
  for (const Object& object : objects) sorted.push_back(&object);
  std::sort(sorted.begin(), sorted.end(), [&](const Object* a, const Object* b) {
    return std::tuple(a->created, name(*a)) < std::tuple(b->created, name(*b));
  });
  return sorted;
}

Key KeyOf(const PolicyObject& object) { return {object.ns, object.name}; }

std::string TenantKey(const crds::TenantPolicy& tenant) {
  return crds::SetKey("TenantKVPolicy", tenant.ns, tenant.name);
}

bool Selects(const crds::NodePool& pool, const Labels& labels) {
  return std::all_of(pool.node_labels.begin(), pool.node_labels.end(), [&](const auto& wanted) {
    const auto found = labels.find(wanted.first);
    return found != labels.end() && found->second == wanted.second;
  });
}

Condition ConditionOf(const char* type, const Verdict& verdict, const char* good) {
  const bool status = verdict.reason.empty();
  return {type, status, status ? good : verdict.reason, absl::StrJoin(verdict.findings, "\n")};
}

// What an older policy wants may be freed by a younger one's edit that asks for something else instead. Longer chains
// of that end in the next run.
constexpr int kPassesMax = 16;

bool WithinBytes(const TierBytes& asked, const TierBytes& has) {
  return asked.hbm <= has.hbm && asked.dram <= has.dram && asked.nvme <= has.nvme;
}

// One policy on its way to its verdict.
struct Case {
  const PolicyObject* object;
  Verdict judged;           // what is wanted
  bool wanted_now = false;  // it is what is accepted
  SharedPolicy accepted;
  Verdict fits;  // what is accepted, in the pools as they are now
  SharedPolicy in_force;
};

// Whether a grant that admits the one admits the other, but for its claims.
bool SameStanding(const crds::TenantPolicy& a, const crds::TenantPolicy& b) {
  return a.sla_tier == b.sla_tier && a.gpu_group == b.gpu_group && a.share_group == b.share_group;
}

// Decides over all policies of one cluster.
// Confined to one CompileCluster.
// Invariants: what a case has accepted is what `admission_` has, also of guarantees that do not fit at present: they
// are owed to it, and nobody else is given them.
class Compiler {
 public:
  Compiler(const ClusterState& state, const CompiledCluster& before) : state_(state), admission_(state) {
    for (const auto& [name, node] : before.nodes) before_.emplace(node->pool, node);
    for (const PoolObject& object : state_.pools)
      cluster_.pools[object.pool.name].why_unreadable = object.why_unreadable;
    for (const PolicyObject* object : ByAge(state_.policies, KeyOf)) cases_.push_back({object, {}, false, {}, {}, {}});
  }

  CompiledCluster Compile() {
    for (Case& each : cases_) KeepAccepted(&each);
    // What is given up has to be there before the first who waits is judged, or the next in age would get it.
    for (Case& each : cases_) {
      if (AsksForNoMore(each)) (void)Judge(&each);
    }
    for (int pass = 0; pass < kPassesMax && JudgeAll(); ++pass) {
    }
    PutInForce();
    for (Case& each : cases_) cluster_.policies[KeyOf(*each.object)] = Tell(each);
    CompileNodes();
    for (auto& [key, verdict] : cluster_.policies) DescribeEffect(&verdict);
    return std::move(cluster_);
  }

 private:
  void KeepAccepted(Case* one);
  bool AsksForNoMore(const Case& one) const;
  bool Judge(Case* one);
  bool JudgeAll();
  SharedPolicy WithoutUnjudged(const Case& one) const;
  void PutInForce();
  void WithholdGuarantees(const Admission& fitting, Case* one);
  PolicyVerdict Tell(const Case& one) const;
  std::map<std::string, std::vector<SharedPolicy>> TenantsByPool() const;
  void CompileNodes();
  void DescribeEffect(PolicyVerdict* verdict);
  std::shared_ptr<const CompiledNode> CompileNode(const crds::NodePool& pool, std::vector<SharedPolicy> tenants);

  const ClusterState& state_;
  Admission admission_;
  std::vector<Case> cases_;
  std::map<std::string, std::shared_ptr<const CompiledNode>> before_;  // by pool
  CompiledCluster cluster_;
};

// Accepted stays what was accepted: of this very object, and for this very namespace, by whose labels it was granted. A
// status does not say which that was: then the object, which goes with its namespace, says enough.
void Compiler::KeepAccepted(Case* one) {
  const PolicyObject& object = *one->object;
  const ClusterNamespace* ns = admission_.FindNamespace(object.ns);
  if (!object.accepted || object.uid != object.accepted->uid || ns == nullptr) return;
  SharedPolicy kept = object.accepted;
  if (!kept->namespace_uid.empty() && kept->namespace_uid != ns->uid) return;
  if (!admission_.JudgeSubjects(*kept).reason.empty()) return;
  if (kept->namespace_uid.empty()) kept.Edit()->namespace_uid = ns->uid;
  admission_.PutInForce(kept);
  one->accepted = std::move(kept);
}

// What is accepted is in force. Where a pool was made smaller by its administrator the youngest lose their guarantees
// there until they fit again, and say so: half a guarantee is none.
void Compiler::PutInForce() {
  Admission fitting(state_);
  for (Case& each : cases_) {
    if (!each.accepted) continue;
    each.in_force = each.accepted;
    each.fits = fitting.JudgeCapacity(*each.accepted);
    if (!each.fits.reason.empty()) WithholdGuarantees(fitting, &each);
    fitting.PutInForce(each.in_force);
  }
}

void Compiler::WithholdGuarantees(const Admission& fitting, Case* one) {
  for (crds::PoolClaim& claim : one->in_force.Edit()->pools) {
    crds::TenantPolicy alone = *one->accepted;
    alone.pools = {claim};
    if (fitting.JudgeCapacity(alone).reason.empty()) continue;
    ++cluster_.pools[claim.pool_ref].unmet_policies;
    for (crds::TierClaim* tier : {&claim.hbm, &claim.dram, &claim.nvme}) {
      // A guarantee alone stood for a limit of the whole capacity.
      if (tier->guarantee && !tier->limit) tier->limit = crds::Quantity{0, 100, true};
      tier->guarantee.reset();
    }
  }
}

// Of what only one can have: accounts, and guarantees in each pool.
bool Compiler::AsksForNoMore(const Case& one) const {
  if (!one.accepted || !one.object->wanted) return false;
  const std::vector<crds::Subject>& subjects = one.accepted->subjects;
  const std::vector<crds::PoolClaim>& claims = one.accepted->pools;
  const auto has_account = [&](const crds::Subject& asked) {
    const std::string& account = asked.service_account_name;
    return account.empty() || std::any_of(subjects.begin(), subjects.end(), [&](const crds::Subject& has) {
             return has.service_account_name == account;
           });
  };
  const auto has_guarantee = [&](const crds::PoolClaim& asked) {
    const crds::NodePool* pool = admission_.FindPool(asked.pool_ref);
    if (pool == nullptr) return true;
    const auto has = std::find_if(claims.begin(), claims.end(),
                                  [&](const crds::PoolClaim& claim) { return claim.pool_ref == asked.pool_ref; });
    return WithinBytes(PromisesOf(asked, *pool), has == claims.end() ? TierBytes{} : PromisesOf(*has, *pool));
  };
  const crds::TenantPolicy& wanted = *one.object->wanted;
  return std::all_of(wanted.subjects.begin(), wanted.subjects.end(), has_account) &&
         std::all_of(wanted.pools.begin(), wanted.pools.end(), has_guarantee);
}

// True when it was accepted now.
bool Compiler::Judge(Case* one) {
  if (one->wanted_now || !one->object->wanted) return false;
  const crds::TenantPolicy& wanted = *one->object->wanted;
  // Without its namespace there is nobody to be a tenant. A pool that is missing concerns its own claim alone.
  one->judged = admission_.FindNamespace(wanted.ns) == nullptr ? Verdict{"NotFound", admission_.Unresolved(wanted)}
                                                               : admission_.Judge(wanted);
  if (!one->judged.reason.empty()) return false;
  one->accepted = WithoutUnjudged(*one);
  admission_.PutInForce(one->accepted);
  one->wanted_now = true;
  return true;
}

// What is wanted, but for claims that no grant was asked about since their pool is not there: it may come with grants
// that refuse them. One that was accepted when its pool was there stays, exactly as it was.
SharedPolicy Compiler::WithoutUnjudged(const Case& one) const {
  crds::TenantPolicy judged = *one.object->wanted;
  judged.namespace_uid = admission_.FindNamespace(judged.ns)->uid;
  const bool same_standing = one.accepted && SameStanding(*one.accepted, judged);
  std::erase_if(judged.pools, [&](const crds::PoolClaim& claim) {
    if (admission_.FindPool(claim.pool_ref) != nullptr) return false;
    return !same_standing ||
           std::find(one.accepted->pools.begin(), one.accepted->pools.end(), claim) == one.accepted->pools.end();
  });
  // Nearly always what was accepted before: whoever compares the two has nothing to compare.
  if (one.accepted && *one.accepted == judged) return one.accepted;
  return judged;
}

// True when one more was accepted.
bool Compiler::JudgeAll() {
  bool progress = false;
  for (Case& each : cases_) progress = Judge(&each) || progress;
  return progress;
}

PolicyVerdict Compiler::Tell(const Case& one) const {
  PolicyVerdict verdict;
  verdict.accepted = one.accepted;
  verdict.in_force = one.in_force;
  if (one.object->wanted) {
    const std::vector<std::string> missing = admission_.Unresolved(*one.object->wanted);
    verdict.conditions.push_back(ConditionOf("ResolvedRefs", {missing.empty() ? "" : "NotFound", missing}, "AllFound"));
    verdict.conditions.push_back(ConditionOf("Accepted", one.wanted_now ? one.fits : one.judged, "Accepted"));
  } else {
    verdict.conditions.push_back({"Accepted", false, "Invalid", one.object->why_unreadable});
  }
  if (!one.fits.reason.empty()) verdict.conditions.push_back(ConditionOf("GuaranteeMet", one.fits, "Fits"));
  return verdict;
}

// Each with the one claim that is on that pool.
std::map<std::string, std::vector<SharedPolicy>> Compiler::TenantsByPool() const {
  // A pod chooses its own uid, and the doors of a node are not the namespace's to claim.
  const auto is_foreign = [](const crds::Subject& subject) { return subject.service_account_name.empty(); };
  std::map<std::string, std::vector<SharedPolicy>> tenants;
  for (const auto& [key, verdict] : cluster_.policies) {
    if (!verdict.in_force) continue;
    const bool as_it_is =
        verdict.in_force->pools.size() == 1 &&
        std::none_of(verdict.in_force->subjects.begin(), verdict.in_force->subjects.end(), is_foreign);
    for (const crds::PoolClaim& claim : verdict.in_force->pools) {
      SharedPolicy& tenant = tenants[claim.pool_ref].emplace_back(verdict.in_force);
      if (as_it_is) continue;
      crds::TenantPolicy* const own = tenant.Edit();
      own->pools = {claim};
      std::erase_if(own->subjects, is_foreign);
    }
  }
  return tenants;
}

void Compiler::CompileNodes() {
  const auto pools = ByAge(state_.pools, [](const PoolObject& object) { return object.pool.name; });
  std::map<std::string, std::vector<SharedPolicy>> tenants = TenantsByPool();
  std::map<std::string, std::shared_ptr<const CompiledNode>> by_pool;
  for (const PoolObject* object : pools) {
    const std::string& name = object->pool.name;
    if (object->why_unreadable.empty()) by_pool[name] = CompileNode(object->pool, std::move(tenants[name]));
  }
  for (const ClusterNode& node : state_.nodes) {
    const auto pool = std::find_if(pools.begin(), pools.end(),
                                   [&](const PoolObject* candidate) { return Selects(candidate->pool, node.labels); });
    if (pool == pools.end()) continue;
    const std::string& name = (*pool)->pool.name;
    ++cluster_.pools[name].nodes_matched;
    // What cannot be read keeps its nodes: no other pool gets them, and nothing is known of what they are to enforce.
    if ((*pool)->why_unreadable.empty()) cluster_.nodes.emplace(node.name, by_pool[name]);
  }
}

// All nodes of a pool enforce the same.
std::shared_ptr<const CompiledNode> Compiler::CompileNode(const crds::NodePool& pool,
                                                          std::vector<SharedPolicy> tenants) {
  const std::string pool_key = crds::SetKey("KVNodePool", "", pool.name);
  std::string manifest = crds::WriteNodeOfPool(pool);
  const auto known = before_.find(pool.name);
  const CompiledNode* const before = known == before_.end() ? nullptr : known->second.get();
  if (before != nullptr && before->tenants == tenants && before->set.objects().at(pool_key).manifest == manifest)
    return known->second;
  auto node = std::make_shared<CompiledNode>();
  node->pool = pool.name;
  node->set.Put(pool_key, std::move(manifest), "");
  std::map<std::string, const SharedPolicy*> written;
  if (before != nullptr) {
    for (const SharedPolicy& tenant : before->tenants) written[TenantKey(*tenant)] = &tenant;
  }
  for (const SharedPolicy& tenant : tenants) {
    const std::string key = TenantKey(*tenant);
    if (const auto same = written.find(key); same != written.end() && *same->second == tenant) {
      node->set.Put(key, before->set.objects().at(key));
    } else {
      node->set.Put(key, crds::WriteTenantPolicy(*tenant), tenant->namespace_uid);
    }
  }
  node->Seal();
  node->tenants = std::move(tenants);
  return node;
}

// On the policy, and on the pools it is in.
void Compiler::DescribeEffect(PolicyVerdict* verdict) {
  if (!verdict->in_force) return;
  for (const crds::PoolClaim& claim : verdict->in_force->pools) {
    const crds::NodePool* pool = admission_.FindPool(claim.pool_ref);
    if (pool == nullptr) continue;
    PoolVerdict& told = cluster_.pools[pool->name];
    verdict->nodes_matched += told.nodes_matched;
    const TierBytes capacity = CapacityOf(*pool), guaranteed = GuaranteesOf(claim, *pool);
    told.guaranteed.hbm += guaranteed.hbm;
    told.guaranteed.dram += guaranteed.dram;
    told.guaranteed.nvme += guaranteed.nvme;
    const auto tier = [](const crds::TierClaim& asked, uint64_t guarantee, uint64_t of) {
      EffectiveQuota::Tier quota{guarantee, 0};
      if (asked.limit) quota.limit_bytes = asked.limit->Resolve(of);
      if (!asked.limit && asked.guarantee) quota.limit_bytes = of;
      return quota;
    };
    verdict->effective.push_back({claim.pool_ref, tier(claim.hbm, guaranteed.hbm, capacity.hbm),
                                  tier(claim.dram, guaranteed.dram, capacity.dram),
                                  tier(claim.nvme, guaranteed.nvme, capacity.nvme)});
  }
}

}  // namespace

CompiledCluster CompileCluster(const ClusterState& state, const CompiledCluster& before) {
  return Compiler(state, before).Compile();
}

}  // namespace kvartal::reconcile
