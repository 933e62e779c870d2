#include "daemon/policy/policy_table.h"

#include <xxhash.h>

#include <algorithm>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "crds/tenant_policy.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/policy/compiled_rules.h"

namespace kvartal::policy {
namespace {

using crds::ShownBytes;

// Turns manifests into rules that hold together, all of them or none, and collects what is wrong or odd about them.
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
  CompiledRules compiled = CompileRules(policy, capacity_);
  const TenantRules& rules = compiled.rules;
  where_ = absl::StrCat(policy.source, ": ", rules.name);
  const size_t errors_before = errors_.size();
  Claim(&names_, rules.name, absl::StrCat("the name '", rules.name, "'"));
  if (errors_.size() == errors_before) Claim(&stable_ids_, rules.uid, absl::StrCat("the identity '", rules.uid, "'"));
  for (const uint32_t uid : rules.uids) Claim(&uids_, uid, absl::StrCat("uid ", uid));
  for (const std::string& socket : rules.sockets) Claim(&sockets_, socket, absl::StrCat("socket '", socket, "'"));
  for (const std::string& account : rules.service_accounts)
    Claim(&service_accounts_, account, absl::StrCat("service account '", account, "'"));
  for (const std::string& error : compiled.errors) Error(error);
  for (const std::string& warning : compiled.warnings) warnings_.push_back(absl::StrCat(where_, ": ", warning));
  rules_.push_back(std::move(compiled.rules));
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
    // What a percentage comes to is of that capacity, too.
    const bool unknown = capacity == crds::kUnknownCapacityBytes;
    const std::string named = absl::StrJoin(guaranteed, ", ", [&](std::string* out, const TenantRules* rules) {
      const std::string& where = names_.at(rules->name);
      absl::StrAppend(out,
                      unknown ? where : absl::StrCat(ShownBytes(rules->tier(tier).guarantee_bytes), " (", where, ")"));
    });
    const std::string all = absl::StrCat(named, left_out > 0 ? absl::StrCat(" and ", left_out, " more") : "");
    const uint64_t shown_sum = sum > UINT64_MAX ? UINT64_MAX : static_cast<uint64_t>(sum);
    errors_.push_back(unknown ? absl::StrCat("the guarantees in ", TierName(tier),
                                             " add up to more than any node has: ", all, "; lower them")
                              : absl::StrCat("the guarantees in ", TierName(tier), " add up to ", ShownBytes(shown_sum),
                                             " and the capacity is ", ShownBytes(capacity), ": ", all,
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
  if (!compiler.errors().empty()) return absl::InvalidArgumentError(absl::StrJoin(compiler.errors(), "\n"));
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
