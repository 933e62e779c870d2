// Every metric of the daemon, its help text and its labels: dashboards and alerts are written against this file.
// Labels: tenant_namespace and tenant (the two halves of "<namespace>/<policy>"), tier (hbm, dram, nvme), reason, sla,
// disk (the path of its file, as configured: sixteen at most).
// Names ending in _total are counters since the start of the process, those ending in _duration_seconds histograms, all
// others gauges. Latencies are told by SLA tier: by tenant they would be a hundred lines each.
#pragma once

namespace kvartal::telemetry {

struct MetricName {
  const char* name;
  const char* help;
};

inline constexpr const char* kLabelNamespace = "tenant_namespace";
inline constexpr const char* kLabelTenant = "tenant";
inline constexpr const char* kLabelTier = "tier";
inline constexpr const char* kLabelReason = "reason";
inline constexpr const char* kLabelVersion = "version";
inline constexpr const char* kLabelKind = "kind";
inline constexpr const char* kLabelSla = "sla";
inline constexpr const char* kLabelDisk = "disk";
// What tenants beyond kMetricTenantsMax are summed under.
inline constexpr const char* kOtherTenants = "other";

// --- per tenant and tier
inline constexpr MetricName kChargedBytes{"kvartal_tenant_charged_bytes", "Bytes charged to the tenant"};
inline constexpr MetricName kLimitBytes{"kvartal_tenant_limit_bytes", "Bytes the tenant may never exceed"};
inline constexpr MetricName kGuaranteeBytes{"kvartal_tenant_guarantee_bytes", "Bytes nobody may push the tenant below"};
inline constexpr MetricName kGrantedEmptyBytes{"kvartal_tenant_granted_empty_bytes",
                                               "Charged bytes in extents that hold no block"};
inline constexpr MetricName kPeakBytes{"kvartal_tenant_peak_bytes", "Most bytes ever charged to the tenant at once"};
inline constexpr MetricName kBlocks{"kvartal_tenant_blocks", "Blocks of the tenant with a copy in the tier"};
inline constexpr MetricName kFairShareBytes{"kvartal_tenant_fair_share_bytes",
                                            "Bytes the rules would give the tenant now"};
inline constexpr MetricName kDemandBytes{"kvartal_tenant_demand_bytes",
                                         "Bytes the tenant could use now: what it holds and what it missed again"};
inline constexpr MetricName kByteSeconds{"kvartal_tenant_byte_seconds_total",
                                         "Charged bytes times the seconds they were charged, tick by tick"};
inline constexpr MetricName kTokensServed{"kvartal_tenant_tokens_served_total",
                                          "Tokens of the prompts found, by the tier they were found in"};
inline constexpr MetricName kDrops{"kvartal_tenant_dropped_copies_total", "Copies that left a tier, by reason"};
inline constexpr MetricName kDroppedBytes{"kvartal_tenant_dropped_bytes_total", "Bytes that left a tier, by reason"};
inline constexpr MetricName kRefusals{"kvartal_tenant_refusals_total", "Requests for space refused, by reason"};

// --- per tenant
inline constexpr MetricName kEntries{"kvartal_tenant_index_entries", "Index entries of the tenant"};
inline constexpr MetricName kLookups{"kvartal_tenant_lookups_total", "Lookups answered"};
inline constexpr MetricName kBlocksAsked{"kvartal_tenant_lookup_blocks_asked_total", "Blocks asked for by lookups"};
inline constexpr MetricName kBlocksHit{"kvartal_tenant_lookup_blocks_hit_total",
                                       "Blocks found: longest resident prefix"};
inline constexpr MetricName kTokensAsked{"kvartal_tenant_lookup_tokens_asked_total", "Tokens of the prompts looked up"};
inline constexpr MetricName kTokensHit{"kvartal_tenant_lookup_tokens_hit_total", "Tokens of the prompts found"};
inline constexpr MetricName kStored{"kvartal_tenant_blocks_stored_total", "Blocks committed"};
inline constexpr MetricName kAborted{"kvartal_tenant_blocks_aborted_total", "Reserved blocks given up before commit"};
inline constexpr MetricName kLoaded{"kvartal_tenant_blocks_loaded_total", "Blocks promoted from NVMe"};
inline constexpr MetricName kStoredBytes{"kvartal_tenant_stored_bytes_total", "Bytes of committed blocks"};
inline constexpr MetricName kNvmeReadBytes{"kvartal_tenant_nvme_read_bytes_total",
                                           "Bytes of the tenant's blocks read from NVMe: its rate is a bandwidth"};
inline constexpr MetricName kNvmeWrittenBytes{"kvartal_tenant_nvme_written_bytes_total",
                                              "Bytes of the tenant's blocks written to NVMe"};
inline constexpr MetricName kLoadFailures{"kvartal_tenant_load_failures_total",
                                          "Loads that lost a block to a device error or a mismatch"};
inline constexpr MetricName kDemotions{"kvartal_tenant_demotions_total",
                                       "Copies written to NVMe because DRAM wanted the space"};
inline constexpr MetricName kWriteThroughs{"kvartal_tenant_write_throughs_total", "Copies written to NVMe at commit"};
inline constexpr MetricName kDurable{"kvartal_tenant_blocks_durable", "Blocks that would survive kill -9 now"};
inline constexpr MetricName kPinnedBytes{"kvartal_tenant_pinned_bytes", "Bytes of blocks kept by a pin"};
inline constexpr MetricName kSessions{"kvartal_tenant_sessions", "Connected sessions of the tenant"};

// --- per tier
inline constexpr MetricName kTierCapacity{"kvartal_tier_capacity_bytes", "Configured capacity of the tier"};
inline constexpr MetricName kTierCharged{"kvartal_tier_charged_bytes", "Bytes charged to all tenants"};
inline constexpr MetricName kTierReclaiming{"kvartal_tier_reclaiming_bytes", "Bytes taken back and not yet free"};
inline constexpr MetricName kTierUp{"kvartal_tier_up", "1: the tier serves; 0: configured, but degraded or offline"};

// --- per SLA tier
inline constexpr MetricName kLoadDuration{"kvartal_load_duration_seconds",
                                          "From the arrival of a Load to its answer, reads from NVMe included"};
inline constexpr MetricName kReserveDuration{
    "kvartal_reserve_duration_seconds", "From the arrival of a Reserve to its answer: what a store waits for room"};

// --- node
inline constexpr MetricName kRefusalDuration{"kvartal_refusal_duration_seconds",
                                             "What deciding took, of Reserves with a refused block"};
inline constexpr MetricName kIndexEntries{"kvartal_index_entries", "Blocks in the prefix index"};
inline constexpr MetricName kIndexBytes{"kvartal_index_bytes", "Memory of the prefix index"};
inline constexpr MetricName kLeasedBlocks{"kvartal_leased_blocks",
                                          "Blocks under a lease or a load, each once for every one of them"};
inline constexpr MetricName kWaitingRequests{"kvartal_waiting_requests",
                                             "Reserves and Loads waiting for memory or a write"};
inline constexpr MetricName kLoadsUnderWay{"kvartal_loads_under_way", "Reads from NVMe not yet done"};
inline constexpr MetricName kWritesUnderWay{"kvartal_writes_under_way", "Writes to NVMe not yet done"};
inline constexpr MetricName kStrayBytes{"kvartal_stray_bytes_punched_total",
                                        "Bytes clients faulted into memory that was not theirs, given back"};
inline constexpr MetricName kNvmeErrors{"kvartal_nvme_errors_total",
                                        "NVMe errors by kind: read, write (the device), mismatch (wrong bytes)"};
inline constexpr MetricName kAttachDenials{"kvartal_attach_denials_total", "Attaches refused, by reason"};
inline constexpr MetricName kTokenKeys{"kvartal_token_keys", "Keys that vouch for tokens of pods now"};
inline constexpr MetricName kTokenKeysRefused{
    "kvartal_token_keys_refused", "1 while the key set that is to be had is refused; the last good vouches on"};
inline constexpr MetricName kNvmeKeysRefused{
    "kvartal_nvme_keys_refused", "1 while the file of keys for NVMe is refused; the keys from before stay in use"};
inline constexpr MetricName kTokenRenewals{"kvartal_token_renewals_total", "Sessions that went on with a newer token"};
inline constexpr MetricName kBadFrames{"kvartal_attach_bad_frames_total", "Frames of clients not understood, by kind"};
inline constexpr MetricName kSessionEnds{"kvartal_session_ends_total", "Sessions that ended, by reason"};
inline constexpr MetricName kConnections{"kvartal_connections", "Connections now, attached or not"};
inline constexpr MetricName kAccepted{"kvartal_connections_accepted_total", "Connections accepted"};
inline constexpr MetricName kFrames{"kvartal_attach_frames_total", "Frames received from clients"};
inline constexpr MetricName kErrorFrames{"kvartal_attach_errors_total", "Error frames sent to clients"};
inline constexpr MetricName kLeasesExpired{"kvartal_leases_expired_total",
                                           "Leases that ended because nobody renewed them"};
inline constexpr MetricName kReclaims{"kvartal_group_reclaims_total", "Engine groups that ended"};
inline constexpr MetricName kReclaimedBlocks{"kvartal_group_reclaimed_blocks_total",
                                             "Unfinished blocks given up because their engine group ended"};
inline constexpr MetricName kPolicyInfo{"kvartal_policy_info", "1; the label is the version in force"};
inline constexpr MetricName kPolicyAge{
    "kvartal_policy_age_seconds", "Seconds since this process put the policy in force; says nothing of its source"};
inline constexpr MetricName kOperatorAway{
    "kvartal_operator_away_seconds",
    "Seconds since this daemon had a stream of the operator, or began without one; 0 while it has one"};
inline constexpr MetricName kPolicyErrors{"kvartal_policy_reload_failures_total",
                                          "Reloads refused; the last good stays"};
inline constexpr MetricName kPolicyRefused{
    "kvartal_policy_refused", "1 while policy, or a part of it, is refused; the last good of that stays in force"};
inline constexpr MetricName kAuditEvents{"kvartal_audit_events_total", "Events written to the audit log"};
inline constexpr MetricName kAuditLost{"kvartal_audit_lost_total",
                                       "Events the audit log could not take; anything but 0 is worth a look"};
inline constexpr MetricName kRecovering{"kvartal_recovering", "1 while NVMe is being read back after a start"};
inline constexpr MetricName kDraining{"kvartal_draining", "1 while the daemon takes no more stores"};
inline constexpr MetricName kHugePages{"kvartal_huge_pages",
                                       "1: arenas get huge pages; 0: populating costs ten times more"};
inline constexpr MetricName kSwappable{"kvartal_arenas_swappable",
                                       "1: the system may write arenas to swap; 0: they are locked, or it has none"};
inline constexpr MetricName kDirectIo{"kvartal_direct_io", "1: NVMe I/O passes the page cache by"};
inline constexpr MetricName kIoUring{"kvartal_io_uring",
                                     "1: NVMe I/O goes through io_uring; 0: through a pool of threads"};
inline constexpr MetricName kNvmeState{"kvartal_nvme_device_state",
                                       "0: healthy; 1: degraded, no new blocks; 2: offline, no reads either"};
inline constexpr MetricName kNvmeQuarantined{"kvartal_nvme_quarantined_slots",
                                             "Places kept out of use because their last write failed"};
inline constexpr MetricName kDiskState{
    "kvartal_nvme_disk_state",
    "Of one disk, by its path: 0: healthy; 1: degraded; 2: offline; 3: absent since the start of the daemon"};
inline constexpr MetricName kDiskCapacity{"kvartal_nvme_disk_capacity_bytes", "What blocks may cover on the disk"};
inline constexpr MetricName kDiskUsed{"kvartal_nvme_disk_used_bytes", "Bytes of blocks and their headers on the disk"};
inline constexpr MetricName kDiskQueued{"kvartal_nvme_disk_queued_bytes",
                                        "Bytes of blocks whose transfer waits for the disk or is under way"};
inline constexpr MetricName kDiskWritten{"kvartal_nvme_disk_written_bytes_total",
                                         "Bytes of blocks and their headers written to the disk"};
inline constexpr MetricName kDiskRead{"kvartal_nvme_disk_read_bytes_total",
                                      "Bytes of blocks and their headers read from the disk"};
inline constexpr MetricName kDiskErrors{"kvartal_nvme_disk_errors_total",
                                        "Errors of the disk by kind: read, write (the device), mismatch (wrong bytes)"};
inline constexpr MetricName kNvmeWritten{"kvartal_nvme_written_bytes_total",
                                         "Bytes of blocks and their headers written to the disk"};
inline constexpr MetricName kWriteBudget{"kvartal_nvme_write_budget_bytes_per_second",
                                         "What may be written to the disk a second, for it to last; 0: any amount"};
inline constexpr MetricName kWriteBudgetSaved{
    "kvartal_nvme_write_budget_saved_bytes",
    "What may be written to the disk now, zeroing included; 0 without a budget, too"};
inline constexpr MetricName kIoOverdue{"kvartal_nvme_overdue_transfers",
                                       "Transfers the disk has had for too long, now; while there is one it is sick"};
inline constexpr MetricName kResident{"kvartal_resident_bytes",
                                      "Resident memory of the daemon itself, arenas left out"};
inline constexpr MetricName kUptime{"kvartal_uptime_seconds", "Seconds since the daemon started"};
inline constexpr MetricName kBugs{"kvartal_bugs_total",
                                  "Broken expectations survived; anything but 0 is worth a report"};
inline constexpr MetricName kBuildInfo{"kvartal_build_info", "1; the label is the version of the daemon"};
inline constexpr MetricName kTenantsFolded{"kvartal_tenants_folded",
                                           "Tenants beyond the limit, summed in the line of tenant other"};

}  // namespace kvartal::telemetry
