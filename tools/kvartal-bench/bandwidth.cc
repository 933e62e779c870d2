#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"
#include "tools/kvartal-bench/bench_client.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/stats.h"

namespace kvartal::bench {
namespace {

constexpr const char* kDigestName = "bandwidth";
constexpr uint64_t kDramPerClientBlocks = 4;  // chains in memory at once, for each client: the one it loads and slack
constexpr uint32_t kStoreBatch = 16;

// One closed loop: a session on a thread of its own that loads one chain after the other from NVMe.
struct Loader {
  std::unique_ptr<BenchClient> client;
  uint64_t first_chain = 0;
  uint64_t turn = 0;
  std::vector<double> ms;  // of each load
  uint64_t bytes = 0, from_memory = 0, wrong = 0;
  absl::Status status;
};

class BandwidthRun {
 public:
  BandwidthRun(const Common& common, const BandwidthOptions& options)
      : common_(common), options_(options), block_bytes_(static_cast<uint32_t>(options.block_kib * kKiB)) {}

  absl::Status Start() {
    const uint64_t chain_bytes = uint64_t{options_.chain} * block_bytes_;
    const uint64_t dram = RoundUp(options_.depth * kDramPerClientBlocks * chain_bytes, kExtentAlignBytes);
    const uint64_t stored = options_.depth * options_.chains_a_client * chain_bytes;
    DaemonSetup setup;
    setup.dram_bytes = 2 * dram;
    setup.nvme_bytes = RoundUp(2 * stored * 5 / 4 + 512 * kMiB, kSegmentMaxBytes);
    for (const auto& [name, sla_tier] : {std::pair("premium", "Premium"), std::pair("basic", "Basic")}) {
      TenantSetup tenant;
      tenant.name = tenant.door = name;
      tenant.dram_limit_bytes = dram;
      tenant.sla_tier = sla_tier;
      setup.tenants.push_back(std::move(tenant));
    }
    KV_ASSIGN_OR_RETURN(daemon_, BenchDaemon::Start(common_, setup));
    KV_RETURN_IF_ERROR(Attach("premium", &premium_));
    KV_RETURN_IF_ERROR(Attach("basic", &basic_));
    for (std::vector<Loader>* loaders : {&premium_, &basic_}) {
      for (Loader& loader : *loaders) KV_RETURN_IF_ERROR(Fill(&loader));
    }
    return absl::OkStatus();
  }

  struct Round {
    double premium_p99_ms = 0, bytes_per_s = 0, premium_bytes_per_s = 0;
  };
  absl::StatusOr<Round> Alone() { return Load({&premium_}); }
  absl::StatusOr<Round> Contended() { return Load({&premium_, &basic_}); }

  uint64_t loads() const { return loads_; }
  uint64_t from_memory() const { return from_memory_; }
  uint64_t wrong() const { return wrong_; }

 private:
  absl::Status Attach(const std::string& door, std::vector<Loader>* out) {
    const kv_layout layout{16, 1, block_bytes_};
    for (uint32_t i = 0; i < options_.depth; ++i) {
      Loader loader;
      KV_ASSIGN_OR_RETURN(loader.client,
                          BenchClient::Attach(daemon_->door_socket(door), absl::StrCat(kDigestName, door), layout));
      loader.first_chain = uint64_t{i} * options_.chains_a_client;
      out->push_back(std::move(loader));
    }
    return absl::OkStatus();
  }

  std::vector<BlockKey> ChainOf(uint64_t chain) const {
    std::vector<BlockKey> keys;
    keys.reserve(options_.chain);
    for (uint32_t i = 0; i < options_.chain; ++i) keys.push_back(MakeKey(kDigestName, chain * options_.chain + i));
    return keys;
  }

  absl::Status Fill(Loader* loader) {
    uint64_t stored = 0;
    for (uint64_t i = 0; i < options_.chains_a_client; ++i) {
      const std::vector<BlockKey> chain = ChainOf(loader->first_chain + i);
      for (size_t first = 0; first < chain.size(); first += kStoreBatch) {
        const size_t last = std::min<size_t>(chain.size(), first + kStoreBatch);
        KV_ASSIGN_OR_RETURN(const Stored part, loader->client->Store(chain, first, last, 0, [&](const Granted& slot) {
          FillBlock(chain[slot.index], slot.bytes);
        }));
        if (part.refused != 0) return absl::ResourceExhaustedError(absl::StrCat("store refused: ", part.refusal));
        stored += part.stored;
      }
    }
    for (uint64_t durable = 0; durable < stored;) {
      KV_ASSIGN_OR_RETURN(durable, loader->client->Poll(10));
    }
    return absl::OkStatus();
  }

  absl::Status LoadOne(Loader* loader) {
    const SystemClock clock;
    const std::vector<BlockKey> chain = ChainOf(loader->first_chain + loader->turn++ % options_.chains_a_client);
    const int64_t start_ns = clock.MonotonicNs();
    KV_ASSIGN_OR_RETURN(Found found, loader->client->Lookup(chain));
    if (found.matched != chain.size())
      return absl::InternalError(absl::StrCat(found.matched, " of ", chain.size(), " blocks found"));
    for (uint32_t i = 0; i < found.matched; ++i) loader->from_memory += found.lease.blocks()[i].tier != KV_TIER_NVME;
    for (uint32_t first = 0; first < found.matched;) {
      const client::Lease::Loaded loaded = found.lease.Load(first, found.matched - first, kDeadlineMs);
      KV_RETURN_IF_ERROR(loader->client->StatusOf(loaded.status, "load"));
      if (loaded.count == 0) return absl::InternalError("load brought nothing");
      first += loaded.count;
    }
    loader->ms.push_back(static_cast<double>(clock.MonotonicNs() - start_ns) / 1e6);
    loader->bytes += chain.size() * uint64_t{block_bytes_};
    // The daemon verifies every byte it reads; one page of each load makes sure that it is the right block.
    const void* const last = found.lease.Shard(found.matched - 1, 0);
    loader->wrong += last == nullptr || WrongBytes(chain.back(), {static_cast<const std::byte*>(last), 4096}) != 0;
    return absl::OkStatus();
  }

  // Every loader of `tenants` loads for the length of a round.
  absl::StatusOr<Round> Load(const std::vector<std::vector<Loader>*>& tenants) {
    const SystemClock clock;
    const int64_t start_ns = clock.MonotonicNs();
    const int64_t end_ns = start_ns + int64_t{options_.round_ms} * kNsPerMs;
    std::vector<std::thread> threads;
    for (std::vector<Loader>* const loaders : tenants) {
      for (Loader& loader : *loaders) {
        loader.ms.clear();
        loader.bytes = 0;
        threads.emplace_back([this, &loader, end_ns] {
          const SystemClock own_clock;
          while (loader.status.ok() && own_clock.MonotonicNs() < end_ns) loader.status = LoadOne(&loader);
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    const double seconds = static_cast<double>(clock.MonotonicNs() - start_ns) / 1e9;
    Round round;
    std::vector<double> premium_ms;
    for (std::vector<Loader>* const loaders : tenants) {
      for (Loader& loader : *loaders) {
        KV_RETURN_IF_ERROR(loader.status);
        round.bytes_per_s += static_cast<double>(loader.bytes) / seconds;
        loads_ += loader.ms.size();
        from_memory_ += std::exchange(loader.from_memory, 0);
        wrong_ += std::exchange(loader.wrong, 0);
        if (loaders != &premium_) continue;
        premium_ms.insert(premium_ms.end(), loader.ms.begin(), loader.ms.end());
        round.premium_bytes_per_s += static_cast<double>(loader.bytes) / seconds;
      }
    }
    round.premium_p99_ms = Percentile(premium_ms, 99);
    return round;
  }

  const Common& common_;
  const BandwidthOptions& options_;
  const uint32_t block_bytes_;
  std::unique_ptr<BenchDaemon> daemon_;
  std::vector<Loader> premium_, basic_;
  uint64_t loads_ = 0, from_memory_ = 0, wrong_ = 0;
};

}  // namespace

absl::StatusOr<Report> RunBandwidth(const Common& common, const BandwidthOptions& options) {
  if (!common.socket.empty()) {
    return absl::InvalidArgumentError("neighbour --bandwidth needs two tenants of its own: it cannot use --socket");
  }
  BandwidthRun run(common, options);
  KV_RETURN_IF_ERROR(run.Start());
  KV_RETURN_IF_ERROR(run.Contended().status());  // every thread and extent once, before anything is timed
  std::vector<double> p99_ratios, aggregate_ratios, alone_ms, contended_ms, shares;
  for (int i = 0; i < options.rounds; ++i) {
    KV_ASSIGN_OR_RETURN(const BandwidthRun::Round alone, run.Alone());
    KV_ASSIGN_OR_RETURN(const BandwidthRun::Round contended, run.Contended());
    p99_ratios.push_back(contended.premium_p99_ms / alone.premium_p99_ms);
    aggregate_ratios.push_back(contended.bytes_per_s / alone.bytes_per_s);
    alone_ms.push_back(alone.premium_p99_ms);
    contended_ms.push_back(contended.premium_p99_ms);
    shares.push_back(contended.premium_bytes_per_s / contended.bytes_per_s);
  }
  Report report("neighbour --bandwidth");
  report.Add("premium_p99_ratio", Median(p99_ratios));
  report.Add("aggregate_ratio", Median(aggregate_ratios));
  report.Add("premium_share", Median(shares));
  report.Add("premium_p99_ms_alone", Median(alone_ms));
  report.Add("premium_p99_ms_contended", Median(contended_ms));
  report.Add("loads", run.loads());
  report.Add("blocks_not_from_nvme", run.from_memory());
  report.Add("wrong", run.wrong());
  report.Require(run.wrong() == 0, "wrong");
  report.Note(absl::StrCat(options.depth, " closed loops a tenant, chains of ", options.chain, " blocks of ",
                           options.block_kib,
                           " KiB; weights 400 (Premium) and 100 (Basic); alone and contended rounds "
                           "take turns, medians told"));
  return report;
}

}  // namespace kvartal::bench
