#include "daemon/control/admin_reply.h"

#include <unistd.h>

#include <unordered_map>

#include "daemon/base/check.h"

namespace kvartal::control {
namespace {

namespace pb = admin::v1;

void FillTier(const NodeView& view, TierKind kind, pb::Tier* out) {
  const size_t i = TierIndex(kind);
  const TierView& tier = view.tiers[i];
  out->set_name(TierName(kind));
  out->set_capacity_bytes(view.engine.capacity_bytes[i]);
  out->set_charged_bytes(view.engine.charged_bytes[i]);
  out->set_reclaiming_bytes(view.engine.reclaiming_bytes[i]);
  out->set_present(tier.configured);
  out->set_healthy(tier.configured && tier.healthy);
  out->set_note(tier.note);
}

void FillDisk(const tier::ConfiguredDisk& disk, pb::Disk* out) {
  out->set_path(disk.path);
  out->set_state(disk.state_name());
  out->set_io_engine(disk.io_engine);
  out->set_capacity_bytes(disk.stats.capacity_bytes);
  out->set_used_bytes(disk.stats.granted_bytes);
  out->set_queued_bytes(disk.stats.queued_bytes);
  out->set_written_bytes(disk.stats.counters.bytes_written);
  out->set_read_errors(disk.stats.counters.read_errors);
  out->set_write_errors(disk.stats.counters.write_errors);
  out->set_mismatches(disk.stats.counters.mismatches());
  out->set_quarantined_slots(disk.stats.counters.quarantined_slots);
  out->set_note(disk.note);
}

void FillTenantTier(const engine::TenantTierStats& stats, TierKind kind, pb::TenantTier* out) {
  out->set_name(TierName(kind));
  out->set_charged_bytes(stats.charged_bytes);
  out->set_limit_bytes(stats.limit_bytes);
  out->set_guarantee_bytes(stats.guarantee_bytes);
  out->set_granted_empty_bytes(stats.granted_empty_bytes);
  out->set_peak_bytes(stats.peak_bytes);
  out->set_blocks(stats.blocks);
  out->set_overshoot_bytes(stats.overshoot_bytes);
  out->set_evictions(stats.evictions());
  out->set_expirations(stats.expirations());
  out->set_fair_share_bytes(stats.fair_share_bytes);
  out->set_demand_bytes(stats.demand_bytes);
  out->set_tokens_served(stats.tokens_served);
  for (size_t reason = 0; reason < policy::kDropReasonCount; ++reason) {
    if (stats.drops[reason].count == 0) continue;
    (*out->mutable_drops())[policy::DropReasonName(static_cast<policy::DropReason>(reason))] =
        stats.drops[reason].count;
  }
  for (size_t reason = 1; reason < policy::kRefusalCount; ++reason) {
    if (stats.refusals[reason].count == 0) continue;
    (*out->mutable_refusals())[policy::RefusalName(static_cast<policy::Refusal>(reason))] =
        stats.refusals[reason].count;
  }
}

}  // namespace

void FillStatus(const NodeView& view, pb::StatusReply* reply) {
  const engine::EngineStats& engine = view.engine;
  reply->set_version(view.version);
  reply->set_pid(static_cast<uint64_t>(::getpid()));
  reply->set_uptime_ms(view.uptime_ms);
  reply->set_policy_version(engine.policy_version);
  reply->set_policy_age_ms(view.policy_age_ms);
  reply->set_policy_error(view.policy_error);
  reply->set_policy_note(view.policy_note);
  reply->set_tenants(view.policy_tenants);
  reply->set_sessions(static_cast<uint32_t>(view.sessions.size()));
  reply->set_entries(engine.entries);
  reply->set_index_bytes(engine.index_bytes);
  reply->set_leased_blocks(engine.leased_blocks);
  reply->set_waiting_requests(engine.waiting_requests);
  reply->set_loads_under_way(engine.loads_under_way);
  reply->set_writes_under_way(engine.writes_under_way);
  reply->set_recovering(engine.recovering);
  reply->set_draining(engine.draining);
  for (TierKind kind : kAllTiers) FillTier(view, kind, reply->add_tiers());
  for (const tier::ConfiguredDisk& disk : view.disks) FillDisk(disk, reply->add_disks());
  reply->set_huge_pages(view.huge_pages);
  reply->set_direct_io(view.direct_io);
  reply->set_io_engine(view.io_engine);
  reply->set_nvme_key_id(view.nvme_key_id);
  reply->set_nvme_keys(view.nvme_keys);
  reply->set_nvme_keys_error(view.nvme_keys_error);
  reply->set_attach_socket(view.attach_socket);
  reply->set_metrics_address(view.metrics_address);
  reply->set_metrics_error(view.metrics_error);
  reply->set_policy_reload_failures(view.policy_reload_failures);
  reply->set_audit_log(view.audit_log);
  reply->set_audit_lost(view.audit_lost);
  reply->set_bugs(BugCount());
  reply->set_rss_bytes(view.rss_bytes);
  for (const auto& [reason, count] : view.attach_denials) (*reply->mutable_attach_denials())[reason] = count;
  reply->set_reclaims(view.reclaims);
  reply->set_charges(engine.charges);
  reply->set_refusals_decided(engine.refusals_decided.count());
  reply->set_refusal_p99_us(engine.refusals_decided.PercentileUs(99));
  reply->set_refusal_answer_p99_us(engine.refusals_answered.PercentileUs(99));
  reply->mutable_recent_reclaim_us()->Add(view.recent_reclaim_us.begin(), view.recent_reclaim_us.end());
}

void FillTenants(const NodeView& view, pb::ListTenantsReply* reply) {
  std::unordered_map<std::string, uint32_t> sessions;
  for (const SessionView& session : view.sessions) ++sessions[session.tenant];
  for (const engine::TenantStats& stats : view.engine.tenants) {
    pb::Tenant* out = reply->add_tenants();
    out->set_name(stats.name);
    out->set_removed(view.removed_tenants.count(stats.name) > 0);
    out->set_sessions(sessions[stats.name]);
    out->set_entries(stats.entries);
    out->set_lookups(stats.lookups);
    out->set_blocks_asked(stats.blocks_asked);
    out->set_blocks_hit(stats.blocks_hit);
    out->set_tokens_asked(stats.tokens_asked);
    out->set_tokens_hit(stats.tokens_hit);
    out->set_blocks_stored(stats.blocks_stored);
    out->set_blocks_aborted(stats.blocks_aborted);
    out->set_blocks_loaded(stats.blocks_loaded);
    out->set_load_failures(stats.load_failures);
    out->set_demotions(stats.demotions);
    out->set_write_throughs(stats.write_throughs);
    out->set_durable_blocks(stats.durable_blocks);
    out->set_nvme_encrypted(stats.encrypts_nvme);
    if (stats.encrypts_nvme) out->set_nvme_key_id(view.nvme_key_id);
    for (TierKind kind : kAllTiers) FillTenantTier(stats.tiers[TierIndex(kind)], kind, out->add_tiers());
  }
}

void FillSessions(const NodeView& view, pb::ListSessionsReply* reply) {
  for (const SessionView& session : view.sessions) {
    pb::Session* out = reply->add_sessions();
    out->set_id(session.id);
    out->set_tenant(session.tenant);
    out->set_attestor(session.attestor);
    out->set_pid(session.pid);
    out->set_uid(session.uid);
    out->set_client(session.client);
    out->set_group(session.group);
    out->set_age_ms(session.age_ms);
    out->set_leases(session.leases);
    out->set_leased_blocks(session.leased_blocks);
    out->set_filling_blocks(session.filling_blocks);
  }
}

}  // namespace kvartal::control
