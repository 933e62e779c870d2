#include "daemon/control/explain.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/control/decision_words.h"

namespace kvartal::control {
namespace {

namespace pb = admin::v1;

const char* SlaName(policy::SlaTier sla) {
  return sla == policy::SlaTier::kPremium ? "Premium" : sla == policy::SlaTier::kBasic ? "Basic" : "Standard";
}

void FillTier(const NodeView& view, const engine::TenantStats& stats, const policy::TenantRules* rules, TierKind kind,
              pb::ExplainTier* out) {
  const size_t i = TierIndex(kind);
  const engine::TenantTierStats& tier = stats.tiers[i];
  out->set_name(TierName(kind));
  out->set_present(view.tiers[i].configured);
  out->set_note(view.tiers[i].note);
  out->set_capacity_bytes(view.engine.capacity_bytes[i]);
  out->set_free_bytes(
      view.engine.capacity_bytes[i] -
      std::min(view.engine.capacity_bytes[i], view.engine.charged_bytes[i] + view.engine.reclaiming_bytes[i]));
  out->set_charged_bytes(tier.charged_bytes);
  out->set_peak_bytes(tier.peak_bytes);
  out->set_granted_empty_bytes(tier.granted_empty_bytes);
  out->set_blocks(tier.blocks);
  out->set_tokens_served(tier.tokens_served);
  // Who is removed gives back what it holds: what the engine counts as its limit and share is no right.
  if (rules == nullptr) return;
  out->set_limit_bytes(tier.limit_bytes);
  out->set_guarantee_bytes(tier.guarantee_bytes);
  out->set_fair_share_bytes(tier.fair_share_bytes);
  out->set_demand_bytes(tier.demand_bytes);
  out->set_ttl_ms(rules->ttl_ms[i]);
}

pb::Decision DecisionOf(const NodeView& view, const char* kind, TierKind tier, const char* reason,
                        const policy::Tally& tally, const DecisionWords& words) {
  pb::Decision out;
  out.set_kind(kind);
  out.set_tier(TierName(tier));
  out.set_reason(reason);
  out.set_count(tally.count);
  out.set_bytes(tally.bytes);
  out.set_last_wall_ms(static_cast<uint64_t>(std::max<int64_t>(tally.last_wall_ms, 0)));
  // A wall clock may have been set back since.
  out.set_last_ms_ago(static_cast<uint64_t>(std::max<int64_t>(view.wall_ms - tally.last_wall_ms, 0)));
  const auto taker = view.tenant_names.find(tally.last_taker);
  if (taker != view.tenant_names.end()) out.set_taker(taker->second);
  out.set_meaning(words.meaning);
  out.set_remedy(words.remedy);
  return out;
}

// The latest first.
void FillDecisions(const NodeView& view, const engine::TenantStats& stats, pb::ExplainReply* reply) {
  std::vector<pb::Decision> decisions;
  for (const TierKind tier : kAllTiers) {
    const engine::TenantTierStats& of = stats.tiers[TierIndex(tier)];
    for (size_t i = 1; i < policy::kRefusalCount; ++i) {
      const auto reason = static_cast<policy::Refusal>(i);
      if (of.refusals[i].count == 0) continue;
      decisions.push_back(
          DecisionOf(view, "refused", tier, policy::RefusalName(reason), of.refusals[i], WordsOf(reason)));
    }
    for (size_t i = 0; i < policy::kDropReasonCount; ++i) {
      const auto reason = static_cast<policy::DropReason>(i);
      if (of.drops[i].count == 0) continue;
      decisions.push_back(
          DecisionOf(view, "dropped", tier, policy::DropReasonName(reason), of.drops[i], WordsOf(reason)));
    }
  }
  std::stable_sort(decisions.begin(), decisions.end(),
                   [](const pb::Decision& a, const pb::Decision& b) { return a.last_wall_ms() > b.last_wall_ms(); });
  for (pb::Decision& decision : decisions) *reply->add_decisions() = std::move(decision);
}

}  // namespace

absl::Status FillExplain(const NodeView& view, const std::string& tenant, pb::ExplainReply* reply) {
  const std::vector<engine::TenantStats>& tenants = view.engine.tenants;
  const auto stats = std::find_if(tenants.begin(), tenants.end(),
                                  [&](const engine::TenantStats& candidate) { return candidate.name == tenant; });
  if (stats == tenants.end()) {
    return absl::NotFoundError(absl::StrCat(
        "no tenant ", tenant, "; there are: ", absl::StrJoin(tenants, ", ", [](std::string* out, const auto& known) {
          out->append(known.name);
        })));
  }
  const policy::TenantRules* rules = view.policy == nullptr ? nullptr : view.policy->FindByName(tenant);
  reply->set_tenant(tenant);
  reply->set_removed(rules == nullptr);
  if (rules == nullptr) reply->set_removed_grace_ms(static_cast<uint64_t>(view.removed_grace_ms));
  reply->set_sessions(
      static_cast<uint32_t>(std::count_if(view.sessions.begin(), view.sessions.end(),
                                          [&](const SessionView& session) { return session.tenant == tenant; })));
  reply->set_entries(stats->entries);
  reply->set_pinned_blocks(stats->pinned_blocks);
  reply->set_pinned_bytes(stats->pinned_bytes);
  reply->set_tokens_asked(stats->tokens_asked);
  reply->set_tokens_hit(stats->tokens_hit);
  if (rules != nullptr) {
    reply->set_sla_tier(SlaName(rules->sla));
    reply->set_weight(rules->weight);
    reply->set_demotes_on_expiry(rules->on_expiry == policy::OnExpiry::kDemote);
    reply->set_max_age_ms(rules->max_age_ms);
    reply->set_max_entries(rules->max_entries);
    reply->set_max_sessions(rules->max_sessions);
    for (const uint32_t uid : rules->uids) reply->add_subjects(absl::StrCat("uid ", uid));
    for (const std::string& socket : rules->sockets) reply->add_subjects(absl::StrCat("socket ", socket));
    for (const std::string& account : rules->service_accounts)
      reply->add_subjects(absl::StrCat("service account ", account));
  }
  for (const TierKind tier : kAllTiers) FillTier(view, *stats, rules, tier, reply->add_tiers());
  FillDecisions(view, *stats, reply);
  return absl::OkStatus();
}

}  // namespace kvartal::control
