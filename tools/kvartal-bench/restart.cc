#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
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
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/restart_load.h"
#include "tools/kvartal-bench/stats.h"
#include "tools/kvartal-bench/verified_load.h"

namespace kvartal::bench {
namespace {

constexpr uint64_t kLoads = 2;               // clients under load
constexpr uint64_t kBlocksALoop = 2048;      // stored at most between two kills: verification stays short
constexpr uint64_t kDramBytes = 256 * kMiB;  // smaller than what is stored: reads come from NVMe too
constexpr int64_t kKillAfterMsMin = 20;
constexpr int64_t kKillAfterMsMax = 500;
constexpr uint64_t kStillChains = 32;  // of the tenant that stores once and never again
// Each comes through a door of its name: a uid can speak for one tenant only.
constexpr const char* kLoadTenant = "load";
constexpr const char* kStillTenant = "still";
constexpr int64_t kFirstHitTimeoutMs = 60'000;
// Old chains whose bytes are compared after a start, others each time: one in so many, and so many at most. All are
// looked up, new ones compared.
constexpr uint64_t kCompareOneIn = 4;
constexpr uint64_t kComparedChainsMax = 512;

class RestartRun {
 public:
  RestartRun(BenchDaemon* daemon, const RestartOptions& options, uint64_t seed)
      : daemon_(daemon),
        options_(options),
        layout_{16, 1, static_cast<uint32_t>(options.block_kib * kKiB)},
        random_(seed) {}

  // A tenant that is at rest at every kill: what it holds after a restart is known to the block.
  absl::Status StoreStill() {
    KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchClient> client,
                        BenchClient::Attach(daemon_->door_socket(kStillTenant), kRestartDigest, layout_));
    for (uint64_t number = 0; number < kStillChains; ++number) {
      const std::vector<BlockKey> chain = RestartChain(number);
      KV_ASSIGN_OR_RETURN(const Stored stored, client->Store(chain, 0, chain.size(), 0, [&](const Granted& slot) {
        FillBlock(chain[slot.index], slot.bytes);
      }));
      still_stored_ += stored.stored;
    }
    still_tenant_ = client->tenant();
    const SystemClock clock;
    const int64_t start_ns = clock.MonotonicNs();
    for (uint64_t durable = 0; durable < still_stored_;) {
      if (clock.MonotonicNs() - start_ns > kFirstHitTimeoutMs * 1'000'000) {
        return absl::DeadlineExceededError(
            absl::StrCat("only ", durable, " of ", still_stored_, " blocks of the tenant at rest became durable"));
      }
      KV_ASSIGN_OR_RETURN(durable, client->Poll(100));
    }
    return absl::OkStatus();
  }

  absl::Status Loop(bool empty_the_disk) {
    KV_RETURN_IF_ERROR(UnderLoad());
    if (empty_the_disk) EmptyTheDisk();
    const SystemClock clock;
    const int64_t start_ns = clock.MonotonicNs();
    KV_RETURN_IF_ERROR(daemon_->Launch());
    KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchClient> client,
                        BenchClient::Attach(daemon_->door_socket(kLoadTenant), kRestartDigest, layout_));
    if (!empty_the_disk) KV_RETURN_IF_ERROR(FirstHit(client.get(), start_ns));
    KV_RETURN_IF_ERROR(daemon_->WaitRecovered());
    uint64_t told_durable = 0;
    for (const auto& [chain, depths] : durable_) told_durable += depths.size();
    // More may be on the disk than its clients had been told of, never less.
    KV_RETURN_IF_ERROR(CheckLedger(client->tenant(), told_durable, UINT64_MAX));
    KV_RETURN_IF_ERROR(CheckLedger(still_tenant_, still_stored_, still_stored_));
    return CheckDurable(client.get());
  }

  void AddTo(Report* report) const {
    uint64_t durable = 0;
    for (const auto& [chain, depths] : durable_) durable += depths.size();
    report->Add("durable_blocks", durable);
    report->Add("stored_blocks", stored_);
    report->Add("checks", checks_);
    report->Add("lost_durable", lost_);
    report->Add("compared_bytes", compared_bytes_);
    report->Add("wrong_bytes", wrong_bytes_);
    report->Add("ledger_checks", ledger_checks_);
    report->Add("at_rest_blocks", still_stored_);
    report->Add("ledger_equal", ledger_equal_);
    report->Add("first_hit_ms", Median(first_hit_ms_));
    report->Add("first_hit_max_ms", Percentile(first_hit_ms_, 100));
    if (!ledger_note_.empty()) report->Note(ledger_note_);
    report->Require((lost_ == 0) != options_.inject_loss, "lost_durable");
    report->Require(wrong_bytes_ == 0, "wrong_bytes");
    report->Require(ledger_equal_ != options_.inject_loss, "ledger_equal");
  }

 private:
  void EmptyTheDisk() {
    std::error_code error;
    std::filesystem::remove(daemon_->nvme_file(), error);
    std::filesystem::remove_all(daemon_->nvme_file() + ".catalog", error);
  }

  absl::Status UnderLoad() {
    std::atomic<bool> stop = false;
    std::vector<std::unique_ptr<RestartLoad>> loads;
    std::vector<absl::Status> results(kLoads);
    std::vector<std::thread> threads;
    const uint64_t chains = kBlocksALoop / kRestartChainBlocks / kLoads;
    new_chains_from_ = next_chain_;
    for (uint64_t i = 0; i < kLoads; ++i) {
      loads.push_back(
          std::make_unique<RestartLoad>(daemon_->door_socket(kLoadTenant), layout_, next_chain_, chains, random_()));
      next_chain_ += chains;
      threads.emplace_back([&stop, &result = results[i], load = loads.back().get()] { result = load->Run(stop); });
    }
    const int64_t wait_ms = kKillAfterMsMin + static_cast<int64_t>(random_() % (kKillAfterMsMax - kKillAfterMsMin));
    std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
    absl::Status stopped;
    if (options_.kill) {
      daemon_->Kill();
    } else {
      stopped = daemon_->Stop();
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
    for (uint64_t i = 0; i < kLoads; ++i) {
      KV_RETURN_IF_ERROR(results[i]);
      for (const DurableBlock& block : loads[i]->durable()) durable_[block.chain].insert(block.depth);
      stored_ += loads[i]->stored();
      compared_bytes_ += loads[i]->read_bytes();
      wrong_bytes_ += loads[i]->wrong_bytes();
    }
    return stopped;
  }

  absl::Status FirstHit(BenchClient* client, int64_t start_ns) {
    if (durable_.empty()) return absl::OkStatus();
    const auto& [chain, depths] = *durable_.begin();
    const BlockKey key = RestartChain(chain)[*depths.begin()];
    const SystemClock clock;
    while (clock.MonotonicNs() - start_ns < kFirstHitTimeoutMs * 1'000'000) {
      KV_ASSIGN_OR_RETURN(const Found found, client->Lookup({&key, 1}));
      if (found.matched == 0) continue;
      first_hit_ms_.push_back(static_cast<double>(clock.MonotonicNs() - start_ns) / 1e6);
      return absl::OkStatus();
    }
    return absl::DeadlineExceededError("no hit after the restart");
  }

  // Every charged byte is a block's, as many blocks as there were, and what is recomputed from scratch agrees.
  absl::Status CheckLedger(const std::string& tenant_name, uint64_t blocks_min, uint64_t blocks_max) {
    KV_ASSIGN_OR_RETURN(const admin::v1::Tenant tenant, daemon_->admin().GetTenant(tenant_name));
    const admin::v1::TenantTier& nvme = admin::TierOf(tenant, "nvme");
    const uint64_t expected = nvme.blocks() * (layout_.shard_bytes + kNvmeHeaderBytes);
    const absl::Status invariants = daemon_->admin().CheckInvariants().status();
    ++ledger_checks_;
    const bool count_right = nvme.blocks() >= blocks_min && nvme.blocks() <= blocks_max;
    if (nvme.charged_bytes() == expected && count_right && invariants.ok()) return absl::OkStatus();
    ledger_equal_ = false;
    ledger_note_ =
        absl::StrCat(tenant_name, ": charged ", nvme.charged_bytes(), " bytes for ", nvme.blocks(), " blocks (",
                     expected, "), of ", blocks_min, " that were durable; invariants: ", invariants.ToString());
    return absl::OkStatus();
  }

  absl::Status CheckDurable(BenchClient* client) {
    ++starts_;
    const uint64_t one_in = std::max(kCompareOneIn, new_chains_from_ / kComparedChainsMax);
    for (const auto& [chain, depths] : durable_) {
      const std::vector<BlockKey> keys = RestartChain(chain);
      if (chain >= new_chains_from_ || (chain + starts_) % one_in == 0) {
        KV_ASSIGN_OR_RETURN(Found all, client->Lookup(keys));
        KV_ASSIGN_OR_RETURN(const Compared compared, LoadAndCompare(client, keys, std::move(all)));
        compared_bytes_ += compared.bytes;
        wrong_bytes_ += compared.wrong_bytes;
      }
      KV_ASSIGN_OR_RETURN(const Found found, client->Lookup(keys));
      for (const uint32_t depth : depths) {
        ++checks_;
        if (depth < found.matched) continue;
        // Behind a gap: the promise was for this block, whatever became of its parents.
        KV_ASSIGN_OR_RETURN(const Found alone, client->Lookup({&keys[depth], 1}));
        lost_ += alone.matched == 0;
      }
    }
    return absl::OkStatus();
  }

  BenchDaemon* const daemon_;
  const RestartOptions& options_;
  const kv_layout layout_;
  std::mt19937_64 random_;
  uint64_t next_chain_ = 0;
  uint64_t new_chains_from_ = 0;
  uint64_t starts_ = 0;
  std::map<uint64_t, std::set<uint32_t>> durable_;  // chain -> depths
  uint64_t stored_ = 0, checks_ = 0, lost_ = 0, compared_bytes_ = 0, wrong_bytes_ = 0;
  std::string still_tenant_;
  uint64_t still_stored_ = 0, ledger_checks_ = 0;
  bool ledger_equal_ = true;
  std::string ledger_note_;
  std::vector<double> first_hit_ms_;
};

}  // namespace

absl::StatusOr<Report> RunRestart(const Common& common, const RestartOptions& options) {
  if (!common.socket.empty()) return absl::InvalidArgumentError("restart ends its daemon: it cannot use --socket");
  const uint64_t seed = options.seed != 0 ? options.seed : static_cast<uint64_t>(SystemClock().WallMs());
  const uint64_t blocks_max = kBlocksALoop * static_cast<uint64_t>(options.loops);
  // Nothing may be evicted: then every durable block must be there.
  const uint64_t nvme_bytes = RoundUp(
      (blocks_max + kStillChains * kRestartChainBlocks) * (options.block_kib * kKiB + kNvmeHeaderBytes) * 5 / 4 +
          512 * kMiB,
      kSegmentMaxBytes);
  DaemonSetup setup;
  setup.dram_bytes = kDramBytes;
  setup.nvme_bytes = nvme_bytes;
  for (const char* const name : {kLoadTenant, kStillTenant}) {
    TenantSetup tenant;
    tenant.name = name;
    tenant.door = name;
    setup.tenants.push_back(tenant);
  }
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDaemon> daemon, BenchDaemon::Start(common, setup));
  RestartRun run(daemon.get(), options, seed);
  KV_RETURN_IF_ERROR(run.StoreStill());
  Progress progress(absl::StrCat("restart (seed ", seed, ")"), static_cast<uint64_t>(options.loops));
  for (int i = 0; i < options.loops; ++i) {
    KV_RETURN_IF_ERROR(run.Loop(options.inject_loss && i + 1 == options.loops));
    progress.Update(static_cast<uint64_t>(i) + 1);
  }
  Report report("restart");
  report.Add("loops", static_cast<uint64_t>(options.loops));
  report.Add("kill", options.kill);
  report.Add("seed", seed);
  run.AddTo(&report);
  report.Note(
      "first_hit_ms: median from the start of the process to the first hit; all durable blocks of all loops are looked "
      "up after every restart; ledger_equal: bytes charged are those of the blocks, the tenant under load has at least "
      "the blocks it was told are durable, the tenant at rest exactly those it had");
  return report;
}

}  // namespace kvartal::bench
