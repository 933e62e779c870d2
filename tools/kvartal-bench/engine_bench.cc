#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/clock.h"
#include "daemon/base/limits.h"
#include "daemon/policy/policy_table.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/stats.h"
#include "tools/trace_engine/trace_client.h"
#include "tools/trace_engine/virtual_node.h"

namespace kvartal::bench {
namespace {

constexpr uint32_t kTokens = 16;  // a block
constexpr uint64_t kBatchesPerTick = 100;

// Block operations by verb: a block of a chain is one.
struct Operations {
  uint64_t looked_up = 0, reserved = 0, committed = 0, released = 0, evicted = 0;
  uint64_t Sum() const { return looked_up + reserved + committed + released + evicted; }
};

// Tenants with more known prompts than fit their limit, asked for at random: a prompt that is there is looked up,
// touched and released; one that is not pushes another out.
// Confined to the thread of the benchmark.
class Core {
 public:
  static absl::StatusOr<std::unique_ptr<Core>> Make(const EngineBenchOptions& options) {
    std::unique_ptr<Core> core(new Core(options));
    KV_RETURN_IF_ERROR(core->Start());
    return core;
  }

  // Every tenant holds what it may afterwards.
  void Fill() {
    Progress progress("engine: filling", clients_.size());
    for (size_t tenant = 0; tenant < clients_.size(); ++tenant) {
      for (uint32_t chain = 0; chain < options_.resident_chains; ++chain) Serve(tenant, chain);
      progress.Update(tenant + 1);
    }
  }

  // Returns operations a second; appends each batch's microseconds.
  double Round(std::vector<double>* batch_us) {
    std::vector<std::pair<uint32_t, uint32_t>> draws(options_.batches_a_round);
    for (auto& [tenant, chain] : draws) {
      tenant = static_cast<uint32_t>(random_() % clients_.size());
      chain = static_cast<uint32_t>(random_() % options_.known_chains);
    }
    const Operations before = Count();
    const SystemClock clock;
    const int64_t start_ns = clock.MonotonicNs();
    int64_t last_ns = start_ns;
    for (const auto& [tenant, chain] : draws) {
      Serve(tenant, chain);
      if (++batches_ % kBatchesPerTick == 0) node_->AdvanceToMs(node_->now_ms() + kTickMs);
      const int64_t now_ns = clock.MonotonicNs();
      batch_us->push_back(static_cast<double>(now_ns - last_ns) / 1e3);
      last_ns = now_ns;
    }
    const Operations after = Count();
    return static_cast<double>(after.Sum() - before.Sum()) * 1e9 / static_cast<double>(last_ns - start_ns);
  }

  Operations Count() const {
    Operations operations;
    for (const engine::TenantStats& tenant : node_->engine().stats().tenants) {
      operations.looked_up += tenant.blocks_hit;
      operations.released += tenant.blocks_hit;
      operations.reserved += tenant.blocks_stored;
      operations.committed += tenant.blocks_stored;
      operations.evicted += tenant.tiers[TierIndex(TierKind::kDram)].evictions();
    }
    return operations;
  }
  uint64_t entries() const { return node_->engine().stats().entries; }
  uint64_t refused() const {
    uint64_t sum = 0;
    for (const trace_engine::TraceClient& client : clients_) sum += client.served().blocks_refused;
    return sum;
  }

 private:
  explicit Core(const EngineBenchOptions& options) : options_(options) {}

  absl::Status Start() {
    // A slot of the smallest size: the count of blocks is what matters, and there are no bytes.
    const uint64_t limit =
        RoundUp(uint64_t{options_.resident_chains} * options_.chain * kSlotAlignBytes, kExtentAlignBytes);
    policy::NodeCapacity capacity;
    capacity.bytes[TierIndex(TierKind::kDram)] = limit * options_.tenants;
    std::vector<policy::TenantRules> tenants(options_.tenants);
    for (uint32_t i = 0; i < options_.tenants; ++i) {
      tenants[i].name = tenants[i].uid = absl::StrFormat("tenant-%04d", i);
      tenants[i].tier(TierKind::kDram) = {limit, limit};
    }
    KV_ASSIGN_OR_RETURN(node_,
                        trace_engine::VirtualNode::Start(policy::PolicyTable::FromRules(std::move(tenants), capacity),
                                                         {.eviction = options_.eviction}));
    for (uint32_t i = 0; i < options_.tenants; ++i) {
      KV_ASSIGN_OR_RETURN(
          trace_engine::TraceClient client,
          trace_engine::TraceClient::Attach(node_.get(), absl::StrFormat("tenant-%04d", i),
                                            {.tokens_per_block = kTokens, .shard_count = 1, .shard_bytes = 4096}));
      clients_.push_back(std::move(client));
    }
    keys_.resize(size_t{options_.tenants} * options_.known_chains * options_.chain);
    for (size_t i = 0; i < keys_.size(); ++i) keys_[i] = MakeKey("engine", i);
    return absl::OkStatus();
  }

  void Serve(size_t tenant, uint32_t chain) {
    const size_t first = (tenant * options_.known_chains + chain) * options_.chain;
    clients_[tenant].Serve({&keys_[first], options_.chain}, uint64_t{options_.chain} * kTokens);
  }

  const EngineBenchOptions options_;
  std::unique_ptr<trace_engine::VirtualNode> node_;
  std::vector<trace_engine::TraceClient> clients_;
  std::vector<BlockKey> keys_;  // by tenant, chain and position
  std::mt19937_64 random_{1};
  uint64_t batches_ = 0;
};

}  // namespace

absl::StatusOr<Report> RunEngineBench(const EngineBenchOptions& options) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<Core> core, Core::Make(options));
  core->Fill();
  std::vector<double> rates, batch_us;
  batch_us.reserve(size_t{options.batches_a_round} * static_cast<size_t>(options.rounds));
  std::vector<double> warm_up;
  core->Round(&warm_up);
  const Operations before = core->Count();
  Progress progress("engine", static_cast<uint64_t>(options.rounds));
  for (int round = 0; round < options.rounds; ++round) {
    rates.push_back(core->Round(&batch_us));
    progress.Update(static_cast<uint64_t>(round) + 1);
  }
  const Operations after = core->Count();

  Report report("engine");
  report.Add("tenants", options.tenants);
  report.Add("entries", core->entries());
  report.Add("operations_per_second", Median(rates));
  report.Add("operations", after.Sum() - before.Sum());
  report.Add("looked_up_blocks", after.looked_up - before.looked_up);
  report.Add("reserved_blocks", after.reserved - before.reserved);
  report.Add("committed_blocks", after.committed - before.committed);
  report.Add("released_blocks", after.released - before.released);
  report.Add("evicted_blocks", after.evicted - before.evicted);
  report.Add("refused_blocks", core->refused());
  report.Add("eviction", options.eviction);
  report.Note(absl::StrFormat("a batch is one prompt of %d blocks: p50 %.1f us, p99 %.1f us; a tick every %d batches",
                              options.chain, Percentile(batch_us, 50), Percentile(batch_us, 99), kBatchesPerTick));
  report.Note(absl::StrCat("one thread; median of ", options.rounds, " rounds of ", options.batches_a_round,
                           " batches; keys are made before, misses of a lookup are not counted"));
  return report;
}

}  // namespace kvartal::bench
