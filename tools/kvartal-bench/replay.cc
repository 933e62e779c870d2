#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/units.h"
#include "daemon/policy/policy_table.h"
#include "tools/kvartal-bench/bench_client.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/trace.h"
#include "tools/trace_engine/simulation.h"

namespace kvartal::bench {
namespace {

constexpr uint64_t kDramSlackBytes = 256 * kMiB;  // partly filled extents
constexpr uint64_t kNvmeSlackBytes = 1 * kGiB;    // segments in use by halves

struct Replayed {
  uint64_t blocks_asked = 0;
  uint64_t loaded_bytes = 0;
  uint64_t wrong_bytes = 0;
  Stored sum;
};

// The block whose second use comes soonest after its first: it is read again whatever the capacity is.
std::optional<uint64_t> SoonestReused(const Trace& trace) {
  absl::flat_hash_map<uint64_t, size_t> first_use;
  std::optional<uint64_t> soonest;
  size_t shortest = SIZE_MAX;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    for (const uint64_t block : trace.requests[i].blocks) {
      const auto [known, fresh] = first_use.try_emplace(block, i);
      if (fresh || i - known->second >= shortest || i == known->second) continue;
      shortest = i - known->second;
      soonest = block;
      if (shortest == 1) return soonest;
    }
  }
  return soonest;
}

class TraceReplay {
 public:
  TraceReplay(BenchClient* client, const Trace* trace, const ReplayOptions& options)
      : client_(client), trace_(trace), options_(options) {
    if (options.inject_flip) flip_block_ = SoonestReused(*trace);
  }

  absl::Status Run() {
    Progress progress(absl::StrCat("replay ", trace_->name), trace_->requests.size());
    uint64_t done = 0;
    for (const TraceRequest& request : trace_->requests) {
      KV_RETURN_IF_ERROR(Serve(request));
      progress.Update(++done);
    }
    return absl::OkStatus();
  }
  const Replayed& result() const { return result_; }

 private:
  // What a serving engine does for one prompt: look up the chain, read what is there, compute and store the rest.
  absl::Status Serve(const TraceRequest& request) {
    const std::vector<BlockKey> chain = trace_->Chain(request);
    if (chain.empty()) return absl::OkStatus();
    result_.blocks_asked += chain.size();
    KV_ASSIGN_OR_RETURN(Found found, client_->Lookup(chain, request.input_tokens));
    KV_RETURN_IF_ERROR(Verify(chain, found));
    const size_t keep =
        options_.capacity_blocks == 0 ? chain.size() : std::min<size_t>(chain.size(), options_.capacity_blocks);
    std::byte* to_flip = nullptr;
    KV_ASSIGN_OR_RETURN(const Stored stored,
                        client_->Store(chain, found.matched, keep, found.request, [&](const Granted& slot) {
                          FillBlock(chain[slot.index], slot.bytes);
                          if (flip_block_ == request.blocks[slot.index]) to_flip = slot.bytes.data();
                        }));
    result_.sum.stored += stored.stored;
    result_.sum.existed += stored.existed;
    result_.sum.refused += stored.refused;
    if (stored.refused != 0) result_.sum.refusal = stored.refusal;
    if (to_flip != nullptr) {
      *to_flip ^= std::byte{0x10};
      flip_block_.reset();
    }
    return absl::OkStatus();
  }

  absl::Status Verify(const std::vector<BlockKey>& chain, const Found& found) {
    for (uint32_t i = 0; i < found.matched; ++i) {
      const void* const data = found.lease.blocks()[i].data;
      if (data == nullptr) return absl::InternalError(absl::StrCat("block ", i, " of a lookup is not in memory"));
      result_.loaded_bytes += client_->block_bytes();
      result_.wrong_bytes += WrongBytes(chain[i], {static_cast<const std::byte*>(data), client_->block_bytes()});
    }
    return absl::OkStatus();
  }

  BenchClient* const client_;
  const Trace* const trace_;
  const ReplayOptions& options_;
  Replayed result_;
  std::optional<uint64_t> flip_block_;  // of the trace: to be damaged after its first commit
};

// DRAM enough for what the tenant may hold: its entries are the limit, never its bytes.
uint64_t DramBytesFor(const Trace& trace, const ReplayOptions& options) {
  const uint64_t unique = trace.UniqueBlocks();
  const uint64_t blocks = options.capacity_blocks == 0 ? unique : std::min(unique, options.capacity_blocks);
  const uint64_t slot_bytes = RoundUp(options.block_kib * kKiB, kSlotAlignBytes);
  return RoundUp(blocks * slot_bytes * 11 / 10 + kDramSlackBytes, kExtentAlignBytes);
}

DaemonSetup SetupFor(const Trace& trace, const ReplayOptions& options) {
  DaemonSetup setup = OneTenant(DramBytesFor(trace, options));
  setup.eviction = options.eviction;
  if (options.capacity_blocks != 0) setup.tenants[0].entries_max = options.capacity_blocks;
  return setup;
}

double RatioOf(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

void AddSetting(const Trace& trace, const ReplayOptions& options, const char* clock, const std::string& eviction,
                Report* report) {
  report->Add("trace", trace.name);
  report->Add("clock", clock);
  report->Add("eviction", eviction);
  if (options.capacity_blocks == 0)
    report->Add("capacity_blocks", "inf");
  else
    report->Add("capacity_blocks", options.capacity_blocks);
  report->Add("requests", trace.requests.size());
}

// One tenant with the same room as the daemon's. With NVMe its bytes are the limit, not its entries: those count a
// block once, wherever it lies.
policy::TenantRules RulesFor(const Trace& trace, const ReplayOptions& options) {
  policy::TenantRules rules;
  rules.name = rules.uid = "bench";
  rules.tier(TierKind::kDram).limit_bytes = DramBytesFor(trace, options);
  if (options.nvme_blocks == 0) {
    if (options.capacity_blocks != 0) rules.max_entries = options.capacity_blocks;
    return rules;
  }
  const uint64_t slot_bytes = RoundUp(options.block_kib * kKiB, kSlotAlignBytes);
  if (options.capacity_blocks != 0)
    rules.tier(TierKind::kDram).limit_bytes = RoundUp(options.capacity_blocks * slot_bytes, kExtentAlignBytes);
  rules.tier(TierKind::kNvme).limit_bytes = options.nvme_blocks * (slot_bytes + kNvmeHeaderBytes);
  return rules;
}

policy::NodeCapacity CapacityFor(const Trace& trace, const ReplayOptions& options, const policy::TenantRules& rules) {
  policy::NodeCapacity capacity;
  capacity.bytes[TierIndex(TierKind::kDram)] = DramBytesFor(trace, options);
  // Up to half of a segment may be too little for one more slot.
  const uint64_t nvme_bytes = rules.tier(TierKind::kNvme).limit_bytes;
  if (nvme_bytes > 0) {
    capacity.bytes[TierIndex(TierKind::kNvme)] = RoundUp(2 * nvme_bytes + kNvmeSlackBytes, kExtentAlignBytes);
  }
  return capacity;
}

void AddNvme(const ReplayOptions& options, const trace_engine::TenantOutcome& outcome, Report* report) {
  const auto& [served, stats] = outcome;
  report->Add("nvme_blocks", options.nvme_blocks);
  report->Add("write_budget_per_second", options.write_budget_per_second);
  report->Add("nvme_token_hit", RatioOf(served.tokens_from_nvme, served.tokens_asked));
  report->Add("unloaded_blocks", served.blocks_unloaded);
  report->Add("written_blocks", stats.write_throughs + stats.demotions);
  report->Add("demoted_blocks", stats.demotions);
  report->Add("written_bytes", stats.nvme_written_bytes);
}

absl::Status CheckOnTraceClock(const ReplayOptions& options, const policy::NodeCapacity& capacity) {
  if (options.inject_flip) {
    return absl::InvalidArgumentError("--inject-flip flips a stored bit, and nothing is stored on the trace clock");
  }
  if (options.clock == "wall") return absl::InvalidArgumentError("--nvme-blocks goes by the clock of the trace alone");
  if (capacity.bytes[TierIndex(TierKind::kNvme)] > kNvmeBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("--nvme-blocks ", options.nvme_blocks, " of ", options.block_kib,
                                                   " KiB take more than a node may have"));
  }
  return absl::OkStatus();
}

// On a virtual node.
absl::StatusOr<Report> RunOnTraceClock(const Trace& trace, const ReplayOptions& options) {
  const policy::TenantRules rules = RulesFor(trace, options);
  const policy::NodeCapacity capacity = CapacityFor(trace, options, rules);
  KV_RETURN_IF_ERROR(CheckOnTraceClock(options, capacity));
  Progress progress(absl::StrCat("replay ", trace.name), trace.requests.size());
  trace_engine::SimulationInput input;
  input.policy = policy::PolicyTable::FromRules({rules}, capacity);
  input.eviction = options.eviction;
  input.nvme_write_bytes_per_second = options.write_budget_per_second;
  input.block_kib = options.block_kib;
  input.trace = &trace;
  input.owners.assign(trace.requests.size(), 0);
  input.keep_max = options.capacity_blocks;
  input.after_request = [&progress](const trace_engine::VirtualNode&, uint64_t done) { progress.Update(done); };
  const SystemClock clock;
  const int64_t start_ns = clock.MonotonicNs();
  KV_ASSIGN_OR_RETURN(const std::vector<trace_engine::TenantOutcome> outcomes, trace_engine::Simulate(input));
  const auto& [served, stats] = outcomes[0];

  Report report("replay");
  AddSetting(trace, options, "trace", options.eviction, &report);
  report.Add("block_hit", RatioOf(stats.blocks_hit, stats.blocks_asked));
  report.Add("token_hit", RatioOf(stats.tokens_hit, stats.tokens_asked));
  report.Add("stored_blocks", stats.blocks_stored);
  report.Add("evictions", stats.tiers[TierIndex(TierKind::kDram)].evictions());
  report.Add("refusals", served.blocks_refused);
  if (options.nvme_blocks > 0) AddNvme(options, outcomes[0], &report);
  report.Add("seconds", static_cast<double>(clock.MonotonicNs() - start_ns) / 1e9);
  report.Note(absl::StrCat(served.blocks_asked,
                           " block accesses through the real engine at the times of the trace, on a virtual clock and "
                           "without bytes: nothing was loaded, so nothing was verified"));
  return report;
}

bool OnTraceClock(const ReplayOptions& options) {
  if (options.nvme_blocks > 0) return true;
  return options.clock.empty() ? options.eviction != "lru" : options.clock == "trace";
}

}  // namespace

absl::StatusOr<Report> RunReplay(const Common& common, const ReplayOptions& options) {
  KV_ASSIGN_OR_RETURN(const Trace trace, LoadTrace(options.trace, options.requests));
  if (OnTraceClock(options)) return RunOnTraceClock(trace, options);
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDaemon> daemon, BenchDaemon::Start(common, SetupFor(trace, options)));
  const kv_layout layout{kTraceBlockTokens, 1, static_cast<uint32_t>(options.block_kib * kKiB)};
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchClient> client,
                      BenchClient::Attach(daemon->attach_socket(), "replay/" + trace.name, layout));
  KV_ASSIGN_OR_RETURN(const admin::v1::Tenant before, daemon->admin().GetTenant(client->tenant()));
  TraceReplay replay(client.get(), &trace, options);
  const SystemClock clock;
  const int64_t start_ns = clock.MonotonicNs();
  KV_RETURN_IF_ERROR(replay.Run());
  const double seconds = static_cast<double>(clock.MonotonicNs() - start_ns) / 1e9;
  KV_ASSIGN_OR_RETURN(const admin::v1::Tenant after, daemon->admin().GetTenant(client->tenant()));

  Report report("replay");
  // Of a daemon that runs already the order is its own.
  AddSetting(trace, options, "wall", daemon->owned() ? options.eviction : "as the daemon is configured", &report);
  report.Add("block_hit",
             RatioOf(after.blocks_hit() - before.blocks_hit(), after.blocks_asked() - before.blocks_asked()));
  report.Add("token_hit",
             RatioOf(after.tokens_hit() - before.tokens_hit(), after.tokens_asked() - before.tokens_asked()));
  report.Add("loaded_bytes", replay.result().loaded_bytes);
  report.Add("wrong_bytes", replay.result().wrong_bytes);
  report.Require((replay.result().wrong_bytes == 0) != options.inject_flip, "wrong_bytes");
  report.Add("stored_blocks", after.blocks_stored() - before.blocks_stored());
  report.Add("evictions", admin::TierOf(after, "dram").evictions() - admin::TierOf(before, "dram").evictions());
  report.Add("refusals", replay.result().sum.refused);
  report.Add("seconds", seconds);
  if (replay.result().sum.refused != 0) report.Note("last refusal: " + replay.result().sum.refusal);
  report.Note(absl::StrCat(replay.result().blocks_asked, " block accesses; hit rates are the daemon's own counters"));
  return report;
}

}  // namespace kvartal::bench
