#include "daemon/telemetry/metric_families.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/base/limits.h"
#include "daemon/telemetry/metric_names.h"

namespace kvartal::telemetry {
namespace {

using engine::TenantStats;
using engine::TenantTierStats;
using Labels = std::vector<prometheus::ClientMetric::Label>;

constexpr double kMsPerSecond = 1000.0;
constexpr double kUsPerSecond = 1e6;
// Bounds of the buckets shown: 16 us to 17 s by fours. Each is what a bucket of LatencyHistogram ends at.
constexpr uint32_t kFirstBoundBits = 4, kLastBoundBits = 24;

bool IsCounter(const MetricName& name) {
  constexpr const char kSuffix[] = "_total";
  const size_t length = std::strlen(name.name), suffix = sizeof(kSuffix) - 1;
  return length > suffix && std::strcmp(name.name + length - suffix, kSuffix) == 0;
}

class FamilyBuilder {
 public:
  explicit FamilyBuilder(const MetricName& name) : counter_(IsCounter(name)) {
    family_.name = name.name;
    family_.help = name.help;
    family_.type = counter_ ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
  }
  void Add(Labels labels, double value) {
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    if (counter_)
      metric.counter.value = value;
    else
      metric.gauge.value = value;
    family_.metric.push_back(std::move(metric));
  }
  prometheus::MetricFamily Take() { return std::move(family_); }

 private:
  const bool counter_;
  prometheus::MetricFamily family_;
};

prometheus::ClientMetric ToMetric(const LatencyHistogram& histogram, Labels labels) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  metric.histogram.sample_count = histogram.count();
  metric.histogram.sample_sum = static_cast<double>(histogram.sum_us()) / kUsPerSecond;
  uint64_t count = 0;
  size_t next = 0;
  for (uint32_t bits = kFirstBoundBits; bits <= kLastBoundBits; bits += 2) {
    const uint64_t bound_us = (uint64_t{1} << bits) - 1;
    for (; LatencyHistogram::UpperUs(next) <= bound_us; ++next) count += histogram.CountIn(next);
    metric.histogram.bucket.push_back({count, static_cast<double>(bound_us) / kUsPerSecond});
  }
  return metric;
}

prometheus::MetricFamily HistogramFamily(const MetricName& name) {
  return {name.name, name.help, prometheus::MetricType::Histogram, {}};
}

// A tenant as it is shown: its labels, its numbers, its sessions.
struct Line {
  Labels labels;
  TenantStats stats;
  uint64_t sessions = 0;
};

Labels TenantLabels(const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == std::string::npos) return {{kLabelNamespace, ""}, {kLabelTenant, name}};
  return {{kLabelNamespace, name.substr(0, slash)}, {kLabelTenant, name.substr(slash + 1)}};
}

void Accumulate(const policy::Tally& from, policy::Tally* to) {
  to->count += from.count;
  to->bytes += from.bytes;
}

void Accumulate(const TenantTierStats& from, TenantTierStats* to) {
  to->charged_bytes += from.charged_bytes;
  to->limit_bytes += from.limit_bytes;
  to->guarantee_bytes += from.guarantee_bytes;
  to->granted_empty_bytes += from.granted_empty_bytes;
  to->peak_bytes += from.peak_bytes;
  to->blocks += from.blocks;
  to->fair_share_bytes += from.fair_share_bytes;
  to->demand_bytes += from.demand_bytes;
  to->tokens_served += from.tokens_served;
  to->byte_seconds += from.byte_seconds;
  for (size_t i = 0; i < policy::kDropReasonCount; ++i) Accumulate(from.drops[i], &to->drops[i]);
  for (size_t i = 0; i < policy::kRefusalCount; ++i) Accumulate(from.refusals[i], &to->refusals[i]);
}

void Accumulate(const TenantStats& from, TenantStats* to) {
  for (size_t i = 0; i < kTierCount; ++i) Accumulate(from.tiers[i], &to->tiers[i]);
  to->entries += from.entries;
  to->lookups += from.lookups;
  to->blocks_asked += from.blocks_asked;
  to->blocks_hit += from.blocks_hit;
  to->tokens_asked += from.tokens_asked;
  to->tokens_hit += from.tokens_hit;
  to->blocks_stored += from.blocks_stored;
  to->blocks_aborted += from.blocks_aborted;
  to->blocks_loaded += from.blocks_loaded;
  to->load_failures += from.load_failures;
  to->demotions += from.demotions;
  to->write_throughs += from.write_throughs;
  to->durable_blocks += from.durable_blocks;
  to->pinned_blocks += from.pinned_blocks;
  to->pinned_bytes += from.pinned_bytes;
  to->stored_bytes += from.stored_bytes;
  to->nvme_read_bytes += from.nvme_read_bytes;
  to->nvme_written_bytes += from.nvme_written_bytes;
}

std::vector<Line> ShownTenants(const NodeMetrics& metrics) {
  std::vector<Line> lines;
  Line other;
  other.labels = TenantLabels(kOtherTenants);
  std::unordered_map<std::string_view, uint64_t> sessions_by_tenant;
  for (const attach::SessionInfo& session : metrics.attach.session_list) ++sessions_by_tenant[session.tenant];
  // Those that are on their way out fold first.
  std::vector<const TenantStats*> tenants;
  tenants.reserve(metrics.engine.tenants.size());
  for (const TenantStats& tenant : metrics.engine.tenants) tenants.push_back(&tenant);
  std::stable_partition(tenants.begin(), tenants.end(), [](const TenantStats* tenant) { return !tenant->removed; });
  for (const TenantStats* each : tenants) {
    const TenantStats& tenant = *each;
    const auto it = sessions_by_tenant.find(tenant.name);
    const uint64_t sessions = it == sessions_by_tenant.end() ? 0 : it->second;
    if (lines.size() < kMetricTenantsMax) {
      lines.push_back({TenantLabels(tenant.name), tenant, sessions});
    } else {
      Accumulate(tenant, &other.stats);
      other.sessions += sessions;
    }
  }
  if (metrics.engine.tenants.size() > kMetricTenantsMax) lines.push_back(std::move(other));
  return lines;
}

struct TierColumn {
  MetricName name;
  uint64_t TenantTierStats::* value;
};
constexpr TierColumn kTierColumns[] = {
    {kChargedBytes, &TenantTierStats::charged_bytes},
    {kLimitBytes, &TenantTierStats::limit_bytes},
    {kGuaranteeBytes, &TenantTierStats::guarantee_bytes},
    {kGrantedEmptyBytes, &TenantTierStats::granted_empty_bytes},
    {kPeakBytes, &TenantTierStats::peak_bytes},
    {kBlocks, &TenantTierStats::blocks},
    {kFairShareBytes, &TenantTierStats::fair_share_bytes},
    {kDemandBytes, &TenantTierStats::demand_bytes},
    {kTokensServed, &TenantTierStats::tokens_served},
};

struct TenantColumn {
  MetricName name;
  uint64_t TenantStats::* value;
};
constexpr TenantColumn kTenantColumns[] = {
    {kEntries, &TenantStats::entries},
    {kLookups, &TenantStats::lookups},
    {kBlocksAsked, &TenantStats::blocks_asked},
    {kBlocksHit, &TenantStats::blocks_hit},
    {kTokensAsked, &TenantStats::tokens_asked},
    {kTokensHit, &TenantStats::tokens_hit},
    {kStored, &TenantStats::blocks_stored},
    {kAborted, &TenantStats::blocks_aborted},
    {kLoaded, &TenantStats::blocks_loaded},
    {kLoadFailures, &TenantStats::load_failures},
    {kDemotions, &TenantStats::demotions},
    {kWriteThroughs, &TenantStats::write_throughs},
    {kDurable, &TenantStats::durable_blocks},
    {kPinnedBytes, &TenantStats::pinned_bytes},
    {kStoredBytes, &TenantStats::stored_bytes},
    {kNvmeReadBytes, &TenantStats::nvme_read_bytes},
    {kNvmeWrittenBytes, &TenantStats::nvme_written_bytes},
};

Labels WithTier(Labels labels, TierKind tier) {
  labels.push_back({kLabelTier, TierName(tier)});
  return labels;
}

// Reasons that never happened are left out: a line for each, tenant and tier would be mostly zeros.
template <typename Tallies, typename NameOf>
void AddReasonFamily(const MetricName& name, const std::vector<Line>& lines, Tallies TenantTierStats::* tallies,
                     NameOf name_of, uint64_t policy::Tally::* value, std::vector<prometheus::MetricFamily>* out) {
  FamilyBuilder family(name);
  for (const Line& line : lines) {
    for (TierKind tier : kAllTiers) {
      const Tallies& counted = line.stats.tiers[TierIndex(tier)].*tallies;
      for (size_t reason = 0; reason < counted.size(); ++reason) {
        if (counted[reason].*value == 0) continue;
        Labels labels = WithTier(line.labels, tier);
        labels.push_back({kLabelReason, name_of(reason)});
        family.Add(std::move(labels), static_cast<double>(counted[reason].*value));
      }
    }
  }
  out->push_back(family.Take());
}

template <typename Value>
void AddTierFamily(const MetricName& name, const NodeMetrics& metrics, const std::vector<Line>& lines,
                   Value TenantTierStats::* value, std::vector<prometheus::MetricFamily>* out) {
  FamilyBuilder family(name);
  for (const Line& line : lines) {
    for (TierKind tier : kAllTiers) {
      if (!metrics.tier_configured[TierIndex(tier)]) continue;
      family.Add(WithTier(line.labels, tier), static_cast<double>(line.stats.tiers[TierIndex(tier)].*value));
    }
  }
  out->push_back(family.Take());
}

void AddTenantFamilies(const NodeMetrics& metrics, std::vector<prometheus::MetricFamily>* out) {
  const std::vector<Line> lines = ShownTenants(metrics);
  for (const TierColumn& column : kTierColumns) AddTierFamily(column.name, metrics, lines, column.value, out);
  AddTierFamily(kByteSeconds, metrics, lines, &TenantTierStats::byte_seconds, out);
  AddReasonFamily(
      kRefusals, lines, &TenantTierStats::refusals,
      [](size_t reason) { return policy::RefusalName(static_cast<policy::Refusal>(reason)); }, &policy::Tally::count,
      out);
  const auto drop_name = [](size_t reason) { return policy::DropReasonName(static_cast<policy::DropReason>(reason)); };
  AddReasonFamily(kDrops, lines, &TenantTierStats::drops, drop_name, &policy::Tally::count, out);
  AddReasonFamily(kDroppedBytes, lines, &TenantTierStats::drops, drop_name, &policy::Tally::bytes, out);
  for (const TenantColumn& column : kTenantColumns) {
    FamilyBuilder family(column.name);
    for (const Line& line : lines) family.Add(line.labels, static_cast<double>(line.stats.*column.value));
    out->push_back(family.Take());
  }
  FamilyBuilder sessions(kSessions);
  for (const Line& line : lines) sessions.Add(line.labels, static_cast<double>(line.sessions));
  out->push_back(sessions.Take());
}

void AddTierFamilies(const NodeMetrics& metrics, std::vector<prometheus::MetricFamily>* out) {
  FamilyBuilder capacity(kTierCapacity), charged(kTierCharged), reclaiming(kTierReclaiming), up(kTierUp);
  for (TierKind tier : kAllTiers) {
    const size_t i = TierIndex(tier);
    if (!metrics.tier_configured[i]) continue;
    capacity.Add(WithTier({}, tier), static_cast<double>(metrics.engine.capacity_bytes[i]));
    charged.Add(WithTier({}, tier), static_cast<double>(metrics.engine.charged_bytes[i]));
    reclaiming.Add(WithTier({}, tier), static_cast<double>(metrics.engine.reclaiming_bytes[i]));
    up.Add(WithTier({}, tier), metrics.tier_healthy[i] ? 1 : 0);
  }
  for (FamilyBuilder* family : {&capacity, &charged, &reclaiming, &up}) out->push_back(family->Take());
}

void AddSingle(const MetricName& name, double value, std::vector<prometheus::MetricFamily>* out, Labels labels = {}) {
  FamilyBuilder family(name);
  family.Add(std::move(labels), value);
  out->push_back(family.Take());
}

// One line a reason that ever happened; the first of each list is "none".
template <size_t kCount, typename Reason>
void AddByReason(const MetricName& name, const char* label, const std::array<uint64_t, kCount>& counts,
                 const char* (*reason_name)(Reason), std::vector<prometheus::MetricFamily>* out) {
  FamilyBuilder family(name);
  for (size_t i = 1; i < kCount; ++i) {
    if (counts[i] == 0) continue;
    family.Add({{label, reason_name(static_cast<Reason>(i))}}, static_cast<double>(counts[i]));
  }
  out->push_back(family.Take());
}

void AddAttachFamilies(const attach::AttachStats& attach, std::vector<prometheus::MetricFamily>* out) {
  AddByReason(kAttachDenials, kLabelReason, attach.denials, &attach::DenialReasonName, out);
  AddSingle(kTokenKeys, static_cast<double>(attach.token_keys), out);
  AddSingle(kTokenRenewals, static_cast<double>(attach.token_renewals), out);
  AddByReason(kBadFrames, kLabelKind, attach.bad_frames, &attach::BadFrameName, out);
  AddByReason(kSessionEnds, kLabelReason, attach.cuts, &attach::CutReasonName, out);
  AddSingle(kConnections, static_cast<double>(attach.sessions), out);
  AddSingle(kAccepted, static_cast<double>(attach.accepted), out);
  AddSingle(kFrames, static_cast<double>(attach.frames), out);
  AddSingle(kErrorFrames, static_cast<double>(attach.errors), out);
  AddSingle(kLeasesExpired, static_cast<double>(attach.leases_expired), out);
  AddSingle(kReclaims, static_cast<double>(attach.reclaims), out);
  AddSingle(kReclaimedBlocks, static_cast<double>(attach.reclaimed_blocks), out);
}

void AddLatencyFamilies(const engine::EngineStats& engine, std::vector<prometheus::MetricFamily>* out) {
  prometheus::MetricFamily load = HistogramFamily(kLoadDuration), reserve = HistogramFamily(kReserveDuration);
  for (size_t i = 0; i < policy::kSlaTierCount; ++i) {
    const Labels labels = {{kLabelSla, policy::SlaTierName(static_cast<policy::SlaTier>(i))}};
    load.metric.push_back(ToMetric(engine.latency[i].load, labels));
    reserve.metric.push_back(ToMetric(engine.latency[i].reserve, labels));
  }
  prometheus::MetricFamily refusal = HistogramFamily(kRefusalDuration);
  refusal.metric.push_back(ToMetric(engine.refusals_decided, {}));
  for (prometheus::MetricFamily* family : {&load, &reserve, &refusal}) out->push_back(std::move(*family));
}

void AddDiskFamilies(const std::vector<tier::ConfiguredDisk>& disks, std::vector<prometheus::MetricFamily>* out) {
  constexpr double kAbsent = 3;  // beyond the states of one that is there
  FamilyBuilder state(kDiskState), errors(kDiskErrors);
  FamilyBuilder capacity(kDiskCapacity), used(kDiskUsed), queued(kDiskQueued), written(kDiskWritten), read(kDiskRead);
  for (const tier::ConfiguredDisk& disk : disks) {
    const Labels labels = {{kLabelDisk, disk.path}};
    state.Add(labels, disk.present ? static_cast<double>(disk.stats.state) : kAbsent);
    if (!disk.present) continue;
    const tier::NvmeCounters& counters = disk.stats.counters;
    capacity.Add(labels, static_cast<double>(disk.stats.capacity_bytes));
    used.Add(labels, static_cast<double>(disk.stats.granted_bytes));
    queued.Add(labels, static_cast<double>(disk.stats.queued_bytes));
    written.Add(labels, static_cast<double>(counters.bytes_written));
    read.Add(labels, static_cast<double>(counters.bytes_read));
    errors.Add({{kLabelDisk, disk.path}, {kLabelKind, "read"}}, static_cast<double>(counters.read_errors));
    errors.Add({{kLabelDisk, disk.path}, {kLabelKind, "write"}}, static_cast<double>(counters.write_errors));
    errors.Add({{kLabelDisk, disk.path}, {kLabelKind, "mismatch"}}, static_cast<double>(counters.mismatches()));
  }
  for (FamilyBuilder* family : {&state, &capacity, &used, &queued, &written, &read, &errors}) {
    out->push_back(family->Take());
  }
}

void AddNodeFamilies(const NodeMetrics& metrics, std::vector<prometheus::MetricFamily>* out) {
  const engine::EngineStats& engine = metrics.engine;
  AddSingle(kIndexEntries, static_cast<double>(engine.entries), out);
  AddSingle(kIndexBytes, static_cast<double>(engine.index_bytes), out);
  AddSingle(kLeasedBlocks, static_cast<double>(engine.leased_blocks), out);
  AddSingle(kWaitingRequests, static_cast<double>(engine.waiting_requests), out);
  AddSingle(kLoadsUnderWay, static_cast<double>(engine.loads_under_way), out);
  AddSingle(kWritesUnderWay, static_cast<double>(engine.writes_under_way), out);
  AddSingle(kStrayBytes, static_cast<double>(engine.stray_bytes_punched), out);
  FamilyBuilder nvme_errors(kNvmeErrors);
  nvme_errors.Add({{kLabelKind, "read"}}, static_cast<double>(engine.nvme_read_errors));
  nvme_errors.Add({{kLabelKind, "write"}}, static_cast<double>(engine.nvme_write_errors));
  nvme_errors.Add({{kLabelKind, "mismatch"}}, static_cast<double>(engine.nvme_mismatches));
  out->push_back(nvme_errors.Take());
  AddSingle(kPolicyInfo, 1, out, {{kLabelVersion, engine.policy_version}});
  AddSingle(kPolicyAge, static_cast<double>(metrics.policy_age_ms) / kMsPerSecond, out);
  if (metrics.operator_away_ms)
    AddSingle(kOperatorAway, static_cast<double>(*metrics.operator_away_ms) / kMsPerSecond, out);
  AddSingle(kPolicyErrors, static_cast<double>(metrics.policy_reload_failures), out);
  AddSingle(kTokenKeysRefused, metrics.token_keys_refused ? 1 : 0, out);
  AddSingle(kNvmeKeysRefused, metrics.nvme_keys_refused ? 1 : 0, out);
  AddSingle(kPolicyRefused, metrics.policy_refused ? 1 : 0, out);
  AddSingle(kAuditEvents, static_cast<double>(metrics.audit_written), out);
  AddSingle(kAuditLost, static_cast<double>(metrics.audit_lost), out);
  AddSingle(kRecovering, engine.recovering ? 1 : 0, out);
  AddSingle(kDraining, engine.draining ? 1 : 0, out);
  AddSingle(kHugePages, metrics.huge_pages ? 1 : 0, out);
  AddSingle(kSwappable, metrics.swappable ? 1 : 0, out);
  AddSingle(kDirectIo, metrics.direct_io ? 1 : 0, out);
  AddSingle(kIoUring, metrics.io_uring ? 1 : 0, out);
  if (engine.nvme_present) {
    AddSingle(kNvmeState, static_cast<double>(engine.nvme_state), out);
    AddSingle(kNvmeQuarantined, static_cast<double>(engine.nvme_quarantined_slots), out);
  }
  AddSingle(kNvmeWritten, static_cast<double>(engine.nvme_written_bytes), out);
  AddSingle(kWriteBudget, static_cast<double>(engine.write_budget_bytes_per_second), out);
  AddSingle(kWriteBudgetSaved, static_cast<double>(engine.write_budget_saved_bytes), out);
  AddSingle(kIoOverdue, static_cast<double>(metrics.io_overdue), out);
  AddSingle(kResident, static_cast<double>(metrics.rss_bytes), out);
  AddSingle(kUptime, static_cast<double>(metrics.uptime_ms) / kMsPerSecond, out);
  AddSingle(kBugs, static_cast<double>(metrics.bugs), out);
  AddSingle(kBuildInfo, 1, out, {{kLabelVersion, metrics.version}});
  const size_t tenants = engine.tenants.size();
  AddSingle(kTenantsFolded, static_cast<double>(tenants - std::min(tenants, kMetricTenantsMax)), out);
}

}  // namespace

std::vector<prometheus::MetricFamily> ToFamilies(const NodeMetrics& metrics) {
  std::vector<prometheus::MetricFamily> families;
  AddTenantFamilies(metrics, &families);
  AddTierFamilies(metrics, &families);
  AddLatencyFamilies(metrics.engine, &families);
  AddAttachFamilies(metrics.attach, &families);
  AddDiskFamilies(metrics.disks, &families);
  AddNodeFamilies(metrics, &families);
  return families;
}

}  // namespace kvartal::telemetry
