#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
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
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/stats.h"

namespace kvartal::bench {
namespace {

constexpr uint32_t kChain = 50;
constexpr uint32_t kSteadyChain = 64;
constexpr uint32_t kBlockBytes = 4 * kKiB;
constexpr uint32_t kShortestTtl = 2, kLongestTtl = 5;  // seconds, a tenant each
constexpr uint32_t kTenants = kLongestTtl - kShortestTtl + 1;
constexpr const char* kSteady = "steady";
constexpr uint32_t kHotEvery = 10;             // one chain of so many is used again and again
constexpr int64_t kHotForNs = 6'000'000'000;   // and so long
constexpr int64_t kGiveUpNs = 60'000'000'000;  // after the last use
constexpr int64_t kRefundPollNs = 50'000'000;
constexpr auto kPause = std::chrono::microseconds(200);  // between look-ups: the daemon is to be watched, not loaded
constexpr kv_layout kLayout = {16, 1, kBlockBytes};

std::string DoorOf(uint32_t ttl_s) { return absl::StrCat("ttl", ttl_s); }

std::string Manifest(const std::string& name, uint64_t dram_bytes, uint64_t ttl_s) {
  return absl::StrCat("---\napiVersion: kvartal.dev/v1alpha1\nkind: TenantKVPolicy\nmetadata: {name: ", name,
                      ", namespace: bench}\nspec:\n  subjects: [{socket: ", name,
                      "}]\n  slaTier: Standard\n  pools:\n  - poolRef: node\n    perNode: {dram: {limit: ", dram_bytes,
                      "}}\n  ttl: {dramSeconds: ", ttl_s, ", onExpiry: Delete}\n");
}

DaemonSetup Setup(const TtlOptions& options) {
  const uint64_t share = RoundUp(options.blocks / kTenants * kBlockBytes, kExtentAlignBytes) + 16 * kMiB;
  DaemonSetup setup;
  setup.dram_bytes = (kTenants + 1) * share;
  TenantSetup tenant;
  for (uint32_t ttl_s = kShortestTtl; ttl_s <= kLongestTtl; ++ttl_s) {
    tenant.door = DoorOf(ttl_s);
    setup.tenants.push_back(tenant);
    setup.manifests += Manifest(tenant.door, share, options.inject ? ttl_s + 2 : ttl_s);
  }
  tenant.door = kSteady;
  setup.tenants.push_back(tenant);
  setup.manifests += Manifest(kSteady, share, 0);
  return setup;
}

// Look-ups of one resident chain of another tenant, one after the other.
class SteadyReader {
 public:
  explicit SteadyReader(std::unique_ptr<BenchClient> client) : client_(std::move(client)) {}

  absl::Status Start() {
    for (uint32_t i = 0; i < kSteadyChain; ++i) keys_.push_back(MakeKey(kSteady, i));
    KV_RETURN_IF_ERROR(client_->Store(keys_, 0, keys_.size(), 0, [](const Granted&) {}).status());
    thread_ = std::thread([this] { status_ = Run(); });
    return absl::OkStatus();
  }
  // From now on what is measured counts for the wave.
  void BeginWave() { in_wave_ = true; }
  absl::Status Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  ~SteadyReader() { (void)Stop(); }

  const std::vector<double>& quiet_ms() const { return quiet_ms_; }
  const std::vector<double>& wave_ms() const { return wave_ms_; }

 private:
  absl::Status Run() {
    const SystemClock clock;
    while (!stop_) {
      const int64_t start_ns = clock.MonotonicNs();
      KV_ASSIGN_OR_RETURN(const Found found, client_->Lookup(keys_));
      const double ms = static_cast<double>(clock.MonotonicNs() - start_ns) / 1e6;
      if (found.matched != keys_.size()) return absl::InternalError("a chain without a TTL was not found");
      (in_wave_ ? wave_ms_ : quiet_ms_).push_back(ms);
      std::this_thread::sleep_for(kPause);
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<BenchClient> client_;
  std::vector<BlockKey> keys_;
  std::vector<double> quiet_ms_, wave_ms_;
  std::atomic<bool> in_wave_ = false, stop_ = false;
  absl::Status status_;
  std::thread thread_;
};

struct ChainState {
  std::vector<BlockKey> keys;
  BenchClient* client = nullptr;
  int64_t ttl_ns = 0;
  int64_t last_use_ns = 0;  // when the daemon had surely touched it, as seen from here
  bool hot = false;
  bool caught = false;  // served after its time: left alone from then on, so that the run ends
};

class TtlRun {
 public:
  TtlRun(BenchDaemon* daemon, const TtlOptions& options) : daemon_(daemon), options_(options) {}

  absl::Status Store() {
    const uint64_t chains = options_.blocks / kChain;
    for (uint32_t ttl_s = kShortestTtl; ttl_s <= kLongestTtl; ++ttl_s) {
      KV_ASSIGN_OR_RETURN(std::unique_ptr<BenchClient> client,
                          BenchClient::Attach(daemon_->door_socket(DoorOf(ttl_s)), "ttl", kLayout));
      clients_.push_back(std::move(client));
    }
    chains_.resize(chains);
    Progress progress("ttl: storing chains", chains);
    for (uint64_t i = 0; i < chains; ++i) {
      ChainState& chain = chains_[i];
      chain.client = clients_[i % kTenants].get();
      chain.ttl_ns = static_cast<int64_t>(kShortestTtl + i % kTenants) * 1'000'000'000;
      chain.hot = i / kTenants % kHotEvery == 0;
      for (uint32_t block = 0; block < kChain; ++block) chain.keys.push_back(MakeKey("ttl", i * kChain + block));
      KV_ASSIGN_OR_RETURN(const Stored stored, chain.client->Store(chain.keys, 0, kChain, 0, [](const Granted&) {}));
      if (stored.stored != kChain) return absl::ResourceExhaustedError("a chain was refused: " + stored.refusal);
      chain.last_use_ns = clock_.MonotonicNs();
      progress.Update(i + 1);
    }
    return absl::OkStatus();
  }

  // Uses the hot chains, and looks for those whose time is up, until the daemon holds nothing any more.
  absl::Status LookAround(SteadyReader* steady) {
    const int64_t start_ns = clock_.MonotonicNs();
    int64_t polled_ns = start_ns;
    steady->BeginWave();
    while (!all_refunded_ && clock_.MonotonicNs() - start_ns < kHotForNs + kGiveUpNs) {
      const int64_t now_ns = clock_.MonotonicNs();
      ChainState& chain = chains_[random_() % chains_.size()];
      const bool over = !chain.caught && now_ns > chain.last_use_ns + chain.ttl_ns + kTickNs;
      const bool use = !chain.caught && chain.hot && now_ns - start_ns < kHotForNs;
      if (over || use) KV_RETURN_IF_ERROR(Look(&chain, over));
      if (now_ns - polled_ns >= kRefundPollNs) {
        polled_ns = now_ns;
        KV_RETURN_IF_ERROR(PollRefund());
      }
      std::this_thread::sleep_for(kPause);
    }
    return absl::OkStatus();
  }

  void Tell(Report* report) const {
    report->Add("blocks", chains_.size() * kChain);
    report->Add("lookups", lookups_);
    report->Add("hits_in_time", hits_in_time_);
    report->Add("attempts_after_expiry", attempts_);
    report->Add("served_after_expiry", served_);
    report->Add("expirations", expirations_);
    report->Add("all_refunded", all_refunded_);
    report->Add("refunded_after_ms", refunded_after_ms_);
    report->Require((served_ == 0) != options_.inject, "served_after_expiry");
    report->Require(all_refunded_, "all_refunded");
  }

 private:
  static constexpr int64_t kTickNs = int64_t{kTickMs} * kNsPerMs;

  absl::Status Look(ChainState* chain, bool over) {
    ++lookups_;
    attempts_ += over;
    uint32_t matched = 0;
    {
      KV_ASSIGN_OR_RETURN(const Found found, chain->client->Lookup(chain->keys));
      matched = found.matched;
    }
    if (matched == 0) return absl::OkStatus();
    (over ? served_ : hits_in_time_) += 1;
    chain->caught = over;
    chain->last_use_ns = clock_.MonotonicNs();
    return absl::OkStatus();
  }

  absl::Status PollRefund() {
    uint64_t charged_bytes = 0;
    expirations_ = 0;
    for (const auto& client : clients_) {
      KV_ASSIGN_OR_RETURN(const admin::v1::Tenant tenant, daemon_->admin().GetTenant(client->tenant()));
      charged_bytes += admin::TierOf(tenant, "dram").charged_bytes();
      expirations_ += admin::TierOf(tenant, "dram").expirations();
    }
    all_refunded_ = charged_bytes == 0;
    int64_t last_due_ns = 0;
    for (const ChainState& chain : chains_) last_due_ns = std::max(last_due_ns, chain.last_use_ns + chain.ttl_ns);
    refunded_after_ms_ = static_cast<double>(clock_.MonotonicNs() - last_due_ns) / 1e6;
    return absl::OkStatus();
  }

  BenchDaemon* const daemon_;
  const TtlOptions& options_;
  const SystemClock clock_;
  std::mt19937_64 random_{1};
  std::vector<std::unique_ptr<BenchClient>> clients_;
  std::vector<ChainState> chains_;
  uint64_t lookups_ = 0, hits_in_time_ = 0, attempts_ = 0, served_ = 0, expirations_ = 0;
  bool all_refunded_ = false;
  double refunded_after_ms_ = 0;
};

}  // namespace

absl::StatusOr<Report> RunTtl(const Common& common, const TtlOptions& options) {
  if (!common.socket.empty()) return absl::InvalidArgumentError("ttl needs a daemon of its own: leave --socket out");
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDaemon> daemon, BenchDaemon::Start(common, Setup(options)));
  KV_ASSIGN_OR_RETURN(std::unique_ptr<BenchClient> reader,
                      BenchClient::Attach(daemon->door_socket(kSteady), "steady", kLayout));
  SteadyReader steady(std::move(reader));
  KV_RETURN_IF_ERROR(steady.Start());
  std::this_thread::sleep_for(std::chrono::seconds(1));  // what it sees of an idle daemon
  TtlRun run(daemon.get(), options);
  KV_RETURN_IF_ERROR(run.Store());
  KV_RETURN_IF_ERROR(run.LookAround(&steady));
  KV_RETURN_IF_ERROR(steady.Stop());
  KV_RETURN_IF_ERROR(daemon->admin().CheckInvariants().status());
  Report report("ttl");
  report.Add("ttl_seconds", absl::StrCat(kShortestTtl, "-", kLongestTtl));
  run.Tell(&report);
  report.Add("stall_p50_ms", Percentile(steady.wave_ms(), 50));
  report.Add("stall_p99_ms", Percentile(steady.wave_ms(), 99));
  report.Add("stall_max_ms", Percentile(steady.wave_ms(), 100));
  report.Add("stall_samples", uint64_t{steady.wave_ms().size()});
  report.Add("stall_before_p99_ms", Percentile(steady.quiet_ms(), 99));
  report.Note(
      absl::StrCat("served_after_expiry: look-ups that found a block later than its last use + TTL + one tick (",
                   kTickMs, " ms), of attempts_after_expiry such look-ups; one chain of ", kHotEvery, " was used for ",
                   kHotForNs / 1'000'000'000, " s, the others never again"));
  report.Note(
      "stall: what look-ups of a resident chain of another tenant took, from when all blocks were stored until the "
      "last byte was refunded; stall_before: the same until then, a second of an idle daemon and the stores");
  report.Note(
      "refunded_after_ms: from the last block's time to the moment the daemon charged nothing, as polled; up to a "
      "tick less than 0, for a tick is as early as its beginning");
  return report;
}

}  // namespace kvartal::bench
