#include "daemon/policy/policy_table.h"

#include <xxhash.h>

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "crds/field_reader.h"
#include "crds/tenant_policy.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::policy {
namespace {

// As people wrote it: "512Mi" where that is exact.
std::string ShownBytes(uint64_t bytes) {
  constexpr std::pair<uint64_t, const char*> kUnits[] = {{kTiB, "Ti"}, {kGiB, "Gi"}, {kMiB, "Mi"}, {kKiB, "Ki"}};
  for (const auto& [factor, name] : kUnits) {
    if (bytes >= factor && bytes % factor == 0) return absl::StrCat(bytes / factor, name);
  }
  return absl::StrCat(bytes, " bytes");
}

// The smallest limit under which anything at all can be stored: one extent, slab or slot.
uint64_t SmallestUsefulLimit(TierKind tier) {
  return tier == TierKind::kNvme ? kNvmeHeaderBytes + kSlotAlignBytes : kExtentAlignBytes;
}

// Turns manifests into rules and collects what is wrong or odd about them.
// Confined to one Build.
// Invariant: `rules()` are worth something only while `errors()` is empty.
class RulesCompiler {
 public:
  explicit RulesCompiler(const NodeCapacity& capacity) : capacity_(capacity) {}

  void Compile(const crds::TenantPolicy& policy);
  void CheckGuarantees();

  std::vector<TenantRules> TakeRules() { return std::move(rules_); }
  const std::vector<std::string>& errors() const { return errors_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void Error(const std::string& reason) { errors_.push_back(absl::StrCat(where_, ": ", reason)); }
  void Warn(const std::string& reason) { warnings_.push_back(absl::StrCat(where_, ": ", reason)); }

  void CompileSubjects(const crds::TenantPolicy& policy, TenantRules* rules);
  void CompilePool(const crds::TenantPolicy& policy, TenantRules* rules);
  TierQuota CompileTier(TierKind tier, const crds::TierClaim& claim);
  void WarnOfUselessLimit(TierKind tier, const crds::TierClaim& claim, uint64_t limit_bytes);
  void CompileTimes(const crds::TenantPolicy& policy, TenantRules* rules);
  void CheckPromises(const crds::TenantPolicy& policy, const TenantRules& rules);
  template <typename Key>
  void Claim(std::map<Key, std::string>* owners, const Key& key, const std::string& what);

  const NodeCapacity& capacity_;
  std::string where_;  // "file:line: namespace/name" of the policy at hand
  std::vector<TenantRules> rules_;
  std::vector<std::string> errors_, warnings_;
  std::map<std::string, std::string> names_, stable_ids_, sockets_, service_accounts_;  // -> where it was claimed
  std::map<uint32_t, std::string> uids_;
};

template <typename Key>
void RulesCompiler::Claim(std::map<Key, std::string>* owners, const Key& key, const std::string& what) {
  const auto [owner, fresh] = owners->try_emplace(key, where_);
  if (!fresh) Error(absl::StrCat(what, " is already claimed by ", owner->second, "; it can have one owner only"));
}

void RulesCompiler::Compile(const crds::TenantPolicy& policy) {
  TenantRules rules;
  rules.name = absl::StrCat(policy.ns, "/", policy.name);
  where_ = absl::StrCat(policy.source, ": ", rules.name);
  // Half an identity would outlive the namespace it stood in.
  const bool has_uids = !policy.uid.empty() && !policy.namespace_uid.empty();
  rules.uid = has_uids ? absl::StrCat(policy.namespace_uid, "/", policy.uid) : rules.name;
  const size_t errors_before = errors_.size();
  Claim(&names_, rules.name, absl::StrCat("the name '", rules.name, "'"));
  if (errors_.size() == errors_before) Claim(&stable_ids_, rules.uid, absl::StrCat("the identity '", rules.uid, "'"));

  rules.sla = policy.sla_tier == "Premium" ? SlaTier::kPremium
              : policy.sla_tier == "Basic" ? SlaTier::kBasic
                                           : SlaTier::kStandard;
  const int64_t default_weight = rules.sla == SlaTier::kPremium ? 400 : rules.sla == SlaTier::kStandard ? 200 : 100;
  rules.weight = static_cast<uint32_t>(policy.weight.value_or(default_weight));
  rules.max_sessions = static_cast<uint32_t>(policy.sessions_max);
  CompileSubjects(policy, &rules);
  CompilePool(policy, &rules);
  CompileTimes(policy, &rules);
  rules.encrypt_nvme = policy.encrypt_nvme;
  CheckPromises(policy, rules);
  rules_.push_back(std::move(rules));
}

void RulesCompiler::CompileSubjects(const crds::TenantPolicy& policy, TenantRules* rules) {
  for (const crds::Subject& subject : policy.subjects) {
    if (subject.uid) {
      Claim(&uids_, *subject.uid, absl::StrCat("uid ", *subject.uid));
      rules->uids.push_back(*subject.uid);
    } else if (!subject.socket.empty()) {
      Claim(&sockets_, subject.socket, absl::StrCat("socket '", subject.socket, "'"));
      rules->sockets.push_back(subject.socket);
    } else {
      // Of the policy's own namespace: whoever may write policies there vouches for nobody else's pods.
      const std::string account = absl::StrCat(policy.ns, "/", subject.service_account_name);
      Claim(&service_accounts_, account, absl::StrCat("service account '", account, "'"));
      rules->service_accounts.push_back(account);
    }
  }
  if (policy.subjects.empty()) Warn("spec.subjects is empty: nobody may attach as this tenant");
}

void RulesCompiler::CompilePool(const crds::TenantPolicy& policy, TenantRules* rules) {
  if (policy.pools.size() > 1) {
    Error(absl::StrCat(
        "spec.pools has ", policy.pools.size(),
        " claims and it is not known which one holds on this node; keep one, or state the node's KVNodePool"));
    return;
  }
  if (policy.pools.empty()) {
    Warn("spec.pools claims nothing on this node: the tenant may store nothing");
    return;
  }
  const crds::PoolClaim& claim = policy.pools[0];
  rules->tier(TierKind::kHbm) = CompileTier(TierKind::kHbm, claim.hbm);
  rules->tier(TierKind::kDram) = CompileTier(TierKind::kDram, claim.dram);
  rules->tier(TierKind::kNvme) = CompileTier(TierKind::kNvme, claim.nvme);
  if (!claim.dram.limit && !claim.dram.guarantee) {
    Warn("claims no dram: nothing can be stored, since blocks enter through dram");
  }
}

TierQuota RulesCompiler::CompileTier(TierKind tier, const crds::TierClaim& claim) {
  TierQuota quota;
  if (!claim.guarantee && !claim.limit) return quota;
  const uint64_t capacity = capacity_.bytes[TierIndex(tier)];
  const std::string name = TierName(tier);
  if (claim.guarantee) quota.guarantee_bytes = claim.guarantee->Resolve(capacity);
  quota.limit_bytes = claim.limit ? claim.limit->Resolve(capacity) : capacity;
  if (quota.guarantee_bytes > capacity) {
    Error(absl::StrCat(name, " guarantee ", ShownBytes(quota.guarantee_bytes), " does not fit into the capacity ",
                       ShownBytes(capacity), "; lower it or give the node more ", name));
    return {};
  }
  if (quota.guarantee_bytes > quota.limit_bytes) {
    Error(absl::StrCat(name, " guarantee ", ShownBytes(quota.guarantee_bytes), " is above the limit ",
                       ShownBytes(quota.limit_bytes), " at this node's capacity ", ShownBytes(capacity), "; lower it"));
    return {};
  }
  WarnOfUselessLimit(tier, claim, quota.limit_bytes);
  quota.limit_bytes = std::min(quota.limit_bytes, capacity);
  return quota;
}

void RulesCompiler::WarnOfUselessLimit(TierKind tier, const crds::TierClaim& claim, uint64_t limit_bytes) {
  const uint64_t capacity = capacity_.bytes[TierIndex(tier)];
  const std::string name = TierName(tier);
  const uint64_t smallest = SmallestUsefulLimit(tier);
  if (claim.limit && limit_bytes == 0 && (capacity > 0 || !claim.limit->is_percent)) {
    Warn(absl::StrCat(name, " limit is 0: nothing can be stored there"));
  } else if (capacity == 0) {
    Warn(absl::StrCat(name, " is claimed and this node has none: nothing can be stored there"));
  } else if (limit_bytes < smallest) {
    Warn(absl::StrCat(name, " limit ", ShownBytes(limit_bytes), " is below ", ShownBytes(smallest),
                      ", the least that holds one block: nothing can be stored there"));
  } else if (limit_bytes > capacity) {
    Warn(absl::StrCat(name, " limit ", ShownBytes(limit_bytes), " is above the capacity; it is taken as ",
                      ShownBytes(capacity)));
  }
}

void RulesCompiler::CompileTimes(const crds::TenantPolicy& policy, TenantRules* rules) {
  rules->ttl_ms[TierIndex(TierKind::kHbm)] = static_cast<uint64_t>(policy.ttl.hbm_seconds) * 1000;
  rules->ttl_ms[TierIndex(TierKind::kDram)] = static_cast<uint64_t>(policy.ttl.dram_seconds) * 1000;
  rules->ttl_ms[TierIndex(TierKind::kNvme)] = static_cast<uint64_t>(policy.ttl.nvme_seconds) * 1000;
  rules->on_expiry = policy.ttl.demote_on_expiry ? OnExpiry::kDemote : OnExpiry::kDelete;
  rules->max_age_ms = static_cast<uint64_t>(policy.max_age_seconds) * 1000;
  if (policy.max_entries) rules->max_entries = static_cast<uint64_t>(*policy.max_entries);
  if (rules->max_entries == 0) Warn("spec.index.maxEntries is 0: nothing can be stored");
}

// What this daemon cannot keep is refused where it guards data and stated where it only helps.
void RulesCompiler::CheckPromises(const crds::TenantPolicy& policy, const TenantRules& rules) {
  if (policy.encrypt_nvme && rules.tier(TierKind::kNvme).limit_bytes > 0 && !capacity_.encrypts_nvme) {
    Error(
        "spec.encryption.nvme is Required and this node has no keys; give it some (nvmeKeyFile in its configuration), "
        "remove the nvme claim, or set it to None");
  }
  std::vector<std::string> idle;
  if (!policy.gpu_group.empty()) idle.push_back("isolation.gpuGroup");
  if (policy.dedicated_mover) idle.push_back("isolation.dedicatedMover");
  if (!policy.share_group.empty()) idle.push_back("isolation.shareGroup");
  if (!policy.codecs.empty()) idle.push_back("codecs");
  if (!idle.empty()) Warn(absl::StrCat("without effect on this node: spec.", absl::StrJoin(idle, ", spec.")));
}

void RulesCompiler::CheckGuarantees() {
  constexpr size_t kNamedMax = 8;
  for (const TierKind tier : kAllTiers) {
    unsigned __int128 sum = 0;
    std::vector<const TenantRules*> guaranteed;
    for (const TenantRules& rules : rules_) {
      if (rules.tier(tier).guarantee_bytes == 0) continue;
      sum += rules.tier(tier).guarantee_bytes;
      guaranteed.push_back(&rules);
    }
    const uint64_t capacity = capacity_.bytes[TierIndex(tier)];
    if (sum <= capacity) continue;
    const size_t left_out = guaranteed.size() > kNamedMax ? guaranteed.size() - kNamedMax : 0;
    guaranteed.resize(guaranteed.size() - left_out);
    const std::string named = absl::StrJoin(guaranteed, ", ", [&](std::string* out, const TenantRules* rules) {
      const std::string& where = names_.at(rules->name);
      absl::StrAppend(out, ShownBytes(rules->tier(tier).guarantee_bytes), " (", where, ")");
    });
    const uint64_t shown_sum = sum > UINT64_MAX ? UINT64_MAX : static_cast<uint64_t>(sum);
    errors_.push_back(absl::StrCat("the guarantees in ", TierName(tier), " add up to ", ShownBytes(shown_sum),
                                   " and the capacity is ", ShownBytes(capacity), ": ", named,
                                   left_out > 0 ? absl::StrCat(" and ", left_out, " more") : "",
                                   "; lower them or give the node more ", TierName(tier)));
  }
}

// One line a tenant, the same for the same rules whatever file or order they came from.
std::string CanonicalText(const TenantRules& rules) {
  std::vector<uint32_t> uids = rules.uids;
  std::vector<std::string> sockets = rules.sockets;
  std::sort(uids.begin(), uids.end());
  std::vector<std::string> accounts = rules.service_accounts;
  std::sort(sockets.begin(), sockets.end());
  std::sort(accounts.begin(), accounts.end());
  for (std::string& socket : sockets) socket = absl::CEscape(socket);
  std::string text = absl::StrCat("name=\"", absl::CEscape(rules.name), "\" uid=\"", absl::CEscape(rules.uid), "\"");
  absl::StrAppend(&text, " sla=", static_cast<int>(rules.sla), " weight=", rules.weight);
  for (const TierKind tier : kAllTiers) {
    absl::StrAppend(&text, " ", TierName(tier), "=", rules.tier(tier).guarantee_bytes, "/",
                    rules.tier(tier).limit_bytes, "/", rules.ttl_ms[TierIndex(tier)]);
  }
  absl::StrAppend(&text, " on_expiry=", static_cast<int>(rules.on_expiry), " max_age=", rules.max_age_ms);
  absl::StrAppend(&text, " max_entries=", rules.max_entries, " max_sessions=", rules.max_sessions);
  absl::StrAppend(&text, " uids=", absl::StrJoin(uids, ","), " sockets=\"", absl::StrJoin(sockets, "\",\""), "\"");
  if (rules.encrypt_nvme) absl::StrAppend(&text, " encrypt_nvme");
  absl::StrAppend(&text, " accounts=", absl::StrJoin(accounts, ","), "\n");
  return text;
}

std::string VersionOf(const std::vector<TenantRules>& tenants, uint32_t soft_cap_percent) {
  std::vector<std::string> lines;
  lines.reserve(tenants.size());
  for (const TenantRules& rules : tenants) lines.push_back(CanonicalText(rules));
  std::sort(lines.begin(), lines.end());
  const std::string text = absl::StrCat(absl::StrJoin(lines, ""), "soft_cap=", soft_cap_percent, "\n");
  return absl::StrFormat("%016x", XXH3_64bits(text.data(), text.size()));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const PolicyTable>> PolicyTable::Build(const std::vector<crds::TenantPolicy>& policies,
                                                                      const NodeCapacity& capacity,
                                                                      std::vector<std::string>* warnings,
                                                                      uint32_t soft_cap_percent) {
  if (policies.size() > kTenantsMax) {
    return absl::InvalidArgumentError(absl::StrCat(policies.size(), " policies; a node takes at most ", kTenantsMax,
                                                   ", each is a tenant with its metrics"));
  }
  RulesCompiler compiler(capacity);
  for (const crds::TenantPolicy& policy : policies) compiler.Compile(policy);
  // Sums over rules that are partly wrong would only add noise.
  if (compiler.errors().empty()) compiler.CheckGuarantees();
  if (!compiler.errors().empty()) return absl::InvalidArgumentError(crds::JoinFindings(compiler.errors()));
  if (warnings != nullptr) warnings->insert(warnings->end(), compiler.warnings().begin(), compiler.warnings().end());
  std::vector<TenantRules> rules = compiler.TakeRules();
  std::sort(rules.begin(), rules.end(), [](const TenantRules& a, const TenantRules& b) { return a.name < b.name; });
  return FromRules(std::move(rules), capacity, soft_cap_percent);
}

std::shared_ptr<const PolicyTable> PolicyTable::FromRules(std::vector<TenantRules> rules, const NodeCapacity& capacity,
                                                          uint32_t soft_cap_percent) {
  std::shared_ptr<PolicyTable> table(new PolicyTable());
  table->tenants_ = std::move(rules);
  table->capacity_ = capacity;
  table->soft_cap_percent_ = soft_cap_percent;
  table->version_ = VersionOf(table->tenants_, soft_cap_percent);
  for (size_t i = 0; i < table->tenants_.size(); ++i) {
    const TenantRules& tenant = table->tenants_[i];
    KV_CHECK(table->by_name_.emplace(tenant.name, i).second);
    for (const uint32_t uid : tenant.uids) KV_CHECK(table->by_uid_.emplace(uid, i).second);
    for (const std::string& socket : tenant.sockets) KV_CHECK(table->by_socket_.emplace(socket, i).second);
    for (const std::string& account : tenant.service_accounts)
      KV_CHECK(table->by_service_account_.emplace(account, i).second);
  }
  return table;
}

const TenantRules* PolicyTable::FindByName(std::string_view name) const {
  const auto found = by_name_.find(absl::string_view(name.data(), name.size()));
  return found == by_name_.end() ? nullptr : &tenants_[found->second];
}

const TenantRules* PolicyTable::FindByUid(uint32_t uid) const {
  const auto found = by_uid_.find(uid);
  return found == by_uid_.end() ? nullptr : &tenants_[found->second];
}

const TenantRules* PolicyTable::FindBySocket(std::string_view socket) const {
  const auto found = by_socket_.find(absl::string_view(socket.data(), socket.size()));
  return found == by_socket_.end() ? nullptr : &tenants_[found->second];
}

const TenantRules* PolicyTable::FindByServiceAccount(std::string_view ns, std::string_view name) const {
  const auto found = by_service_account_.find(
      absl::StrCat(absl::string_view(ns.data(), ns.size()), "/", absl::string_view(name.data(), name.size())));
  return found == by_service_account_.end() ? nullptr : &tenants_[found->second];
}

}  // namespace kvartal::policy
