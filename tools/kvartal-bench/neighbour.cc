#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"
#include "daemon/policy/policy_table.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/trace.h"
#include "tools/trace_engine/simulation.h"
#include "tools/trace_engine/trace_split.h"

namespace kvartal::bench {
namespace {

// Four tenants by the share of the conversations they have, and the scanner. Each is guaranteed a fifth.
const std::vector<double> kShares = {40, 30, 20, 10};
constexpr size_t kScanner = 4;
constexpr size_t kTenants = 5;
constexpr size_t kIdleVictims = 2;  // the first ones, with --idle
constexpr uint64_t kCapacityBlocks = 20'000, kIdleCapacityBlocks = 10'000;
constexpr uint32_t kScanBlocksMin = 10, kScanBlocksSpread = 30;  // length of a scanner's prompt

struct Workload {
  Trace trace;  // of all tenants, in the order of time
  std::vector<size_t> owners;
  uint64_t scans = 0;
};

// The length of the scanner's next prompt: a linear congruential generator, so that anyone can replay it.
class ScanLengths {
 public:
  uint32_t Next() {
    state_ = state_ * 1664525u + 1013904223u;
    return kScanBlocksMin + state_ % kScanBlocksSpread;
  }

 private:
  uint32_t state_ = 1;
};

Workload MakeWorkload(const Trace& trace, const NeighbourOptions& options) {
  uint64_t next_block = 0;
  for (const TraceRequest& request : trace.requests) {
    for (const uint64_t block : request.blocks) next_block = std::max(next_block, block + 1);
  }
  Workload work;
  work.trace.name = trace.name;
  ScanLengths lengths;
  for (const TraceRequest& request : trace.requests) {
    const size_t owner = trace_engine::OwnerOf(request, kShares);
    if (options.idle && owner < kIdleVictims) continue;
    work.trace.requests.push_back(request);
    work.owners.push_back(owner);
    for (uint32_t i = 0; !options.idle && i < options.scans; ++i) {
      TraceRequest scan;
      scan.arrival_s = request.arrival_s;
      scan.blocks.resize(lengths.Next());
      for (uint64_t& block : scan.blocks) block = next_block++;
      scan.input_tokens = scan.blocks.size() * kTraceBlockTokens;
      work.trace.requests.push_back(std::move(scan));
      work.owners.push_back(kScanner);
      ++work.scans;
    }
  }
  return work;
}

uint64_t CapacityBlocks(const NeighbourOptions& options) {
  if (options.capacity_blocks != 0) return options.capacity_blocks;
  return options.idle ? kIdleCapacityBlocks : kCapacityBlocks;
}

// Everybody is guaranteed a fifth of the memory; `borrowing`: and may have all of it while nobody else wants it.
std::shared_ptr<const policy::PolicyTable> Policy(const NeighbourOptions& options, bool borrowing) {
  policy::NodeCapacity capacity;
  uint64_t& bytes = capacity.bytes[TierIndex(TierKind::kDram)];
  bytes = RoundUp(CapacityBlocks(options) * RoundUp(options.block_kib * kKiB, kSlotAlignBytes), kExtentAlignBytes);
  const uint64_t fifth = RoundDown(bytes / kTenants, kExtentAlignBytes);
  std::vector<policy::TenantRules> tenants(kTenants);
  for (size_t i = 0; i < kTenants; ++i) {
    tenants[i].name = i == kScanner ? "scanner" : absl::StrCat("victim-", kShares[i]);
    tenants[i].uid = tenants[i].name;
    tenants[i].tier(TierKind::kDram) = {fifth, borrowing ? bytes : fifth};
  }
  return policy::PolicyTable::FromRules(std::move(tenants), capacity);
}

// How full the node is while somebody is turned away: after as many blocks were asked to be stored as it holds, at
// every request that made the engine evict or refuse.
class UseWhileWanted {
 public:
  explicit UseWhileWanted(uint64_t capacity_blocks) : capacity_blocks_(capacity_blocks) {}

  void Look(const trace_engine::VirtualNode& node) {
    const engine::EngineStats stats = node.engine().stats();
    uint64_t turned_away = 0, wanted = 0;
    for (const engine::TenantStats& tenant : stats.tenants) {
      const engine::TenantTierStats& dram = tenant.tiers[TierIndex(TierKind::kDram)];
      uint64_t refused = 0;
      for (const policy::Tally& tally : dram.refusals) refused += tally.count;
      turned_away += dram.evictions() + refused;
      wanted += tenant.blocks_stored + refused;
    }
    const bool unmet = turned_away > turned_away_;
    turned_away_ = turned_away;
    if (!unmet || wanted < capacity_blocks_) return;
    const double used = static_cast<double>(node.used_bytes(TierKind::kDram)) /
                        static_cast<double>(stats.capacity_bytes[TierIndex(TierKind::kDram)]);
    sum_ += used;
    least_ = std::min(least_, used);
    ++looks_;
  }
  uint64_t looks() const { return looks_; }
  double least() const { return looks_ == 0 ? 0 : least_; }
  double mean() const { return looks_ == 0 ? 0 : sum_ / static_cast<double>(looks_); }

 private:
  const uint64_t capacity_blocks_;
  uint64_t turned_away_ = 0, looks_ = 0;
  double sum_ = 0, least_ = 1;
};

using Outcomes = std::vector<trace_engine::TenantOutcome>;

absl::StatusOr<Outcomes> Run(const NeighbourOptions& options, const Workload& work, bool borrowing,
                             UseWhileWanted* use) {
  Progress progress(borrowing ? "neighbour: shared" : "neighbour: static", work.trace.requests.size());
  trace_engine::SimulationInput input;
  input.policy = Policy(options, borrowing);
  input.eviction = options.eviction;
  input.block_kib = options.block_kib;
  input.trace = &work.trace;
  input.owners = work.owners;
  input.after_request = [&](const trace_engine::VirtualNode& node, uint64_t done) {
    if (use != nullptr) use->Look(node);
    progress.Update(done);
  };
  return trace_engine::Simulate(input);
}

double HitOf(const trace_engine::Served& served) {
  return served.tokens_asked == 0 ? 0
                                  : static_cast<double>(served.tokens_hit()) / static_cast<double>(served.tokens_asked);
}

double VictimsHit(const Outcomes& outcomes) {
  trace_engine::Served victims;
  for (size_t i = 0; i < kScanner; ++i) victims.Add(outcomes[i].served);
  return HitOf(victims);
}

// One line a tenant, for people.
void NoteTenants(const char* run, const Outcomes& outcomes, Report* report) {
  for (const auto& [served, stats] : outcomes) {
    const engine::TenantTierStats& dram = stats.tiers[TierIndex(TierKind::kDram)];
    const uint64_t taken = dram.drop(policy::DropReason::kTakenByOther).count;
    report->Note(absl::StrFormat(
        "%s: %s: token hit %.4f of %d requests; stored %d, evicted %d (%d for others), refused %d; holds %.1f MiB", run,
        stats.name, HitOf(served), served.requests, served.blocks_stored, dram.evictions(), taken,
        served.blocks_refused, static_cast<double>(dram.charged_bytes) / kMiB));
  }
}

}  // namespace

absl::StatusOr<Report> RunNeighbour(const NeighbourOptions& options) {
  KV_ASSIGN_OR_RETURN(const Trace trace, LoadTrace(options.trace, options.requests));
  const Workload work = MakeWorkload(trace, options);
  UseWhileWanted use(CapacityBlocks(options));
  KV_ASSIGN_OR_RETURN(const Outcomes shared, Run(options, work, true, options.idle ? &use : nullptr));
  KV_ASSIGN_OR_RETURN(const Outcomes fixed, Run(options, work, false, nullptr));
  const double shared_hit = VictimsHit(shared), static_hit = VictimsHit(fixed);

  Report report("neighbour");
  report.Add("trace", trace.name);
  report.Add("capacity_blocks", CapacityBlocks(options));
  report.Add("block_kib", options.block_kib);
  report.Add("eviction", options.eviction);
  report.Add("idle", options.idle);
  report.Add("requests", work.trace.requests.size() - work.scans);
  report.Add("scanner_requests", work.scans);
  report.Add(options.idle ? "borrowed_hit" : "victims_hit", shared_hit);
  report.Add(options.idle ? "static_hit" : "victims_hit_static", static_hit);
  report.Add("ratio", static_hit == 0 ? 0.0 : shared_hit / static_hit);
  if (options.idle) {
    report.Add("idle_capacity_used", use.mean());
    report.Note(
        absl::StrFormat("capacity in use at %d requests that evicted or were refused, after warm-up: mean %.4f, "
                        "least %.4f",
                        use.looks(), use.mean(), use.least()));
  }
  NoteTenants("shared", shared, &report);
  NoteTenants("static", fixed, &report);
  report.Note("simulated: the real engine over real extents on the clock of the trace, without bytes");
  return report;
}

}  // namespace kvartal::bench
