#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/units.h"
#include "tools/kvartal-bench/bench_client.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/progress.h"

namespace kvartal::bench {
namespace {

constexpr const char* kDigestName = "quota";
constexpr const char* kDoor = "bench";
constexpr size_t kBatch = 64;         // blocks a Reserve
constexpr size_t kUnfinishedMax = 6;  // batches a client leaves unfinished: they can be neither evicted nor written out
constexpr uint64_t kDramBytes = 512 * kMiB;
constexpr uint64_t kNvmeBytes = 768 * kMiB;
// In turns, so that limits go up and down while all clients store.
constexpr std::array<uint64_t, 4> kDramLimits = {64 * kMiB, 24 * kMiB, 96 * kMiB, 40 * kMiB};
constexpr std::array<uint64_t, 4> kNvmeLimits = {96 * kMiB, 160 * kMiB, 48 * kMiB, 128 * kMiB};

DaemonSetup SetupWith(size_t turn) {
  DaemonSetup setup;
  setup.dram_bytes = kDramBytes;
  setup.nvme_bytes = kNvmeBytes;
  TenantSetup tenant;
  tenant.door = kDoor;
  tenant.dram_limit_bytes = kDramLimits[turn % kDramLimits.size()];
  tenant.nvme_limit_bytes = kNvmeLimits[turn % kNvmeLimits.size()];
  setup.tenants = {tenant};
  return setup;
}

// One client that stores as fast as it can, half of it without ever finishing.
class Flood {
 public:
  Flood(std::unique_ptr<BenchClient> client, uint64_t number) : client_(std::move(client)), number_(number) {}

  void Run(const std::atomic<bool>* stop) {
    while (status_.ok() && !stop->load(std::memory_order_relaxed)) status_ = Once();
    for (const std::vector<kv_slot>& batch : unfinished_) (void)client_->client().Abort(batch, kDeadlineMs);
  }

  const absl::Status& status() const { return status_; }
  uint64_t asked() const { return asked_; }
  uint64_t refused() const { return refused_; }
  uint64_t stored() const { return stored_; }

 private:
  absl::Status Once() {
    std::vector<BlockKey> keys;
    keys.reserve(kBatch);
    for (size_t i = 0; i < kBatch; ++i) keys.push_back(MakeKey(absl::StrCat(kDigestName, "/", number_), next_key_++));
    std::vector<kv_slot> slots(keys.size());
    const client::Client::ReserveArgs args{.ns = client_->ns(), .keys = ClientKeys(keys)};
    const kv_status reserved = client_->client().Reserve(args, slots, kDeadlineMs);
    if (reserved != KV_REFUSED) KV_RETURN_IF_ERROR(client_->StatusOf(reserved, "reserve"));
    asked_ += slots.size();
    for (size_t i = 0; i < slots.size(); ++i) {
      refused_ += slots[i].outcome == KV_SLOT_REFUSED;
      if (slots[i].data != nullptr) FillBlock(keys[i], {static_cast<std::byte*>(slots[i].data), 4096});
    }
    if (++turn_ % 2 == 0) {
      const client::Client::Committed committed = client_->client().Commit(slots, 0, kDeadlineMs);
      stored_ += committed.count;
      return client_->StatusOf(committed.status, "commit");
    }
    unfinished_.push_back(std::move(slots));
    if (unfinished_.size() <= kUnfinishedMax) return absl::OkStatus();
    const kv_status aborted = client_->client().Abort(unfinished_.front(), kDeadlineMs);
    unfinished_.pop_front();
    return client_->StatusOf(aborted, "abort");
  }

  const std::unique_ptr<BenchClient> client_;
  const uint64_t number_;
  uint64_t next_key_ = 0, turn_ = 0;
  uint64_t asked_ = 0, refused_ = 0, stored_ = 0;
  std::deque<std::vector<kv_slot>> unfinished_;
  absl::Status status_;
};

// The daemon of the tests that asks no limit before it charges.
std::string DaemonWithoutLimits() {
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return (here.parent_path() / "tests" / "kvartald-without-limits").string();
}

absl::Status ChangeLimits(BenchDaemon* daemon, int changes, uint32_t change_ms) {
  Progress progress("quota", static_cast<uint64_t>(changes));
  for (int i = 1; i <= changes; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(change_ms));
    KV_RETURN_IF_ERROR(daemon->ChangePolicy(SetupWith(static_cast<size_t>(i))));
    progress.Update(static_cast<uint64_t>(i));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> RunQuota(const Common& common, const QuotaOptions& options) {
  if (!common.socket.empty()) {
    return absl::InvalidArgumentError("quota changes the policy of its daemon: it cannot use --socket");
  }
  Common own = common;
  if (options.inject) own.kvartald = DaemonWithoutLimits();
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDaemon> daemon, BenchDaemon::Start(own, SetupWith(0)));
  std::vector<std::unique_ptr<Flood>> floods;
  std::string tenant_name;
  for (uint32_t i = 0; i < options.clients; ++i) {
    KV_ASSIGN_OR_RETURN(std::unique_ptr<BenchClient> client,
                        BenchClient::Attach(daemon->door_socket(kDoor), kDigestName,
                                            {16, 1, static_cast<uint32_t>(options.block_kib * kKiB)}));
    tenant_name = client->tenant();
    floods.push_back(std::make_unique<Flood>(std::move(client), i));
  }
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  threads.reserve(floods.size());
  for (const std::unique_ptr<Flood>& flood : floods) threads.emplace_back([&flood, &stop] { flood->Run(&stop); });
  const absl::Status changed = ChangeLimits(daemon.get(), options.changes, options.change_ms);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  KV_RETURN_IF_ERROR(changed);

  uint64_t asked = 0, refused = 0, stored = 0;
  for (const std::unique_ptr<Flood>& flood : floods) {
    KV_RETURN_IF_ERROR(flood->status());
    asked += flood->asked();
    refused += flood->refused();
    stored += flood->stored();
  }
  KV_ASSIGN_OR_RETURN(const admin::v1::Tenant tenant, daemon->admin().GetTenant(tenant_name));
  KV_ASSIGN_OR_RETURN(const admin::v1::StatusReply status, daemon->admin().GetStatus());
  const admin::v1::TenantTier& dram = admin::TierOf(tenant, "dram");
  const admin::v1::TenantTier& nvme = admin::TierOf(tenant, "nvme");
  const uint64_t counted = admin::RefusalsOf(dram);
  Report report("quota");
  const uint64_t overshoot = std::max(dram.overshoot_bytes(), nvme.overshoot_bytes());
  report.Add("overshoot_bytes", overshoot);
  report.Add("charges", status.charges());
  report.Add("refusal_p99_ms", static_cast<double>(status.refusal_p99_us()) / 1e3);
  report.Add("refusal_answer_p99_ms", static_cast<double>(status.refusal_answer_p99_us()) / 1e3);
  report.Add("refusals", refused);
  report.Add("refusals_uncounted", refused - std::min(refused, counted));
  report.Add("nvme_refusals", admin::RefusalsOf(nvme));
  report.Add("blocks_asked", asked);
  report.Add("blocks_stored", stored);
  report.Add("limit_changes", static_cast<uint64_t>(options.changes));
  report.Add("dram_peak_bytes", dram.peak_bytes());
  report.Add("nvme_peak_bytes", nvme.peak_bytes());
  report.Note(absl::StrCat(
      options.clients,
      " clients; the ledger compares with the limit in force at every charge; "
      "a refusal's time is what deciding took, its answer may have waited for a write; upper bounds of buckets"));
  if (options.inject) report.Note("a daemon built to ask no limit: overshoot_bytes must not be 0");
  report.Require((overshoot == 0) != options.inject, "overshoot_bytes");
  report.Require(refused <= counted, "refusals_uncounted");
  return report;
}

}  // namespace kvartal::bench
