#include "daemon/policy/policy_fit.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "crds/quantity.h"
#include "daemon/base/limits.h"

namespace kvartal::policy {
namespace {

// What only one tenant can have, each as words for its owner.
std::vector<std::string> ClaimsOf(const TenantRules& rules) {
  std::vector<std::string> claims = {absl::StrCat("the name '", rules.name, "'"),
                                     absl::StrCat("the identity '", rules.uid, "'")};
  for (const uint32_t uid : rules.uids) claims.push_back(absl::StrCat("uid ", uid));
  for (const std::string& socket : rules.sockets) claims.push_back(absl::StrCat("socket '", socket, "'"));
  for (const std::string& account : rules.service_accounts)
    claims.push_back(absl::StrCat("service account '", account, "'"));
  return claims;
}

uint64_t GuaranteeOf(const std::optional<TenantRules>& rules, TierKind tier) {
  return rules ? rules->tier(tier).guarantee_bytes : 0;
}

// Begins with what everybody wants and refuses, until it holds together. Ends, since each refusal takes a tenant back
// to what is in force, or out, and what is in force holds together.
// Confined to one FitTenants.
class Fitting {
 public:
  Fitting(const std::vector<TenantChange>& changes, const NodeCapacity& capacity)
      : changes_(changes), capacity_(capacity), fits_(changes.size()), wanted_(changes.size()) {
    for (size_t i = 0; i < changes.size(); ++i) {
      wanted_[i] = changes[i].wanted.has_value();
      fits_[i].rules = wanted_[i] ? changes[i].wanted : changes[i].in_force;
    }
  }

  std::vector<TenantFit> Run() {
    do {
      refused_ = false;
      RefuseTooMany();
      RefuseClaimed();
      for (const TierKind tier : kAllTiers) RefuseGuarantees(tier);
    } while (refused_);
    return std::move(fits_);
  }

 private:
  void Refuse(size_t i, const std::string& why) {
    if (fits_[i].refusal.empty()) fits_[i].refusal = why;
    fits_[i].rules = wanted_[i] ? changes_[i].in_force : std::nullopt;
    wanted_[i] = false;
    refused_ = true;
  }
  void RefuseTooMany();
  void RefuseClaimed();
  void RefuseGuarantees(TierKind tier);

  const std::vector<TenantChange>& changes_;
  const NodeCapacity& capacity_;
  std::vector<TenantFit> fits_;
  std::vector<bool> wanted_;  // fits_[i].rules is what is wanted
  bool refused_ = false;
};

void Fitting::RefuseTooMany() {
  size_t count = 0;
  for (const TenantFit& fit : fits_) count += fit.rules.has_value();
  for (size_t i = fits_.size(); i-- > 0 && count > kTenantsMax;) {
    if (!fits_[i].rules || changes_[i].in_force) continue;
    Refuse(i, absl::StrCat("a node takes at most ", kTenantsMax, " tenants, each with its metrics, and has them"));
    --count;
  }
}

// What is in force comes before what is new.
void Fitting::RefuseClaimed() {
  std::map<std::string, size_t> owners;
  std::vector<std::vector<std::string>> fresh(fits_.size());
  for (size_t i = 0; i < fits_.size(); ++i) {
    if (!fits_[i].rules) continue;
    const std::vector<std::string> had =
        changes_[i].in_force ? ClaimsOf(*changes_[i].in_force) : std::vector<std::string>();
    for (std::string& claim : ClaimsOf(*fits_[i].rules)) {
      const bool new_here = std::find(had.begin(), had.end(), claim) == had.end();
      if (new_here || !owners.emplace(claim, i).second) fresh[i].push_back(std::move(claim));
    }
  }
  for (size_t i = 0; i < fits_.size(); ++i) {
    std::sort(fresh[i].begin(), fresh[i].end());
    const auto twice = std::adjacent_find(fresh[i].begin(), fresh[i].end());
    const auto taken = std::find_if(fresh[i].begin(), fresh[i].end(),
                                    [&](const std::string& claim) { return owners.contains(claim); });
    if (twice != fresh[i].end()) {
      Refuse(i, absl::StrCat(*twice, " is named twice"));
    } else if (taken != fresh[i].end()) {
      Refuse(i, absl::StrCat(*taken, owners.at(*taken) == i ? " is named twice" : " has another owner on this node"));
    } else {
      for (const std::string& claim : fresh[i]) owners.emplace(claim, i);
    }
  }
}

void Fitting::RefuseGuarantees(TierKind tier) {
  const uint64_t capacity = capacity_.bytes[TierIndex(tier)];
  unsigned __int128 sum = 0;
  std::vector<std::pair<uint64_t, size_t>> growth;  // by how much, and who
  for (size_t i = 0; i < fits_.size(); ++i) {
    const uint64_t now = GuaranteeOf(fits_[i].rules, tier), before = GuaranteeOf(changes_[i].in_force, tier);
    sum += now;
    if (now > before) growth.emplace_back(now - before, i);
  }
  std::sort(growth.rbegin(), growth.rend());
  for (const auto& [bytes, i] : growth) {
    if (sum <= capacity) return;
    const uint64_t asked = GuaranteeOf(fits_[i].rules, tier);
    Refuse(i, absl::StrCat(TierName(tier), " guarantee ", crds::ShownBytes(asked),
                           " does not fit beside what this node guarantees to others; its capacity is ",
                           crds::ShownBytes(capacity)));
    sum -= asked - GuaranteeOf(fits_[i].rules, tier);
  }
}

}  // namespace

std::vector<TenantFit> FitTenants(const std::vector<TenantChange>& changes, const NodeCapacity& capacity) {
  return Fitting(changes, capacity).Run();
}

}  // namespace kvartal::policy
