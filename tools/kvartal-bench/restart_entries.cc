#include <algorithm>
#include <cstddef>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"
#include "daemon/tier/nvme_format.h"
#include "daemon/tier/nvme_segment.h"
#include "daemon/tier/nvme_superblock.h"
#include "daemon/tier/rocks_store.h"
#include "tools/kvartal-bench/bench_client.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/stats.h"
#include "tools/kvartal-bench/verified_load.h"

namespace kvartal::bench {
namespace {

constexpr const char* kDoor = "entries";
constexpr const char* kDigestName = "restart-entries";
constexpr uint32_t kPayloadBytes = 4 * kKiB;
constexpr kv_layout kLayout = {16, 1, kPayloadBytes};
constexpr uint32_t kChainBlocks = 64;
constexpr uint64_t kDramBytes = 256 * kMiB;
constexpr uint64_t kRealChains = 16;  // whose blocks are on the disk
constexpr int kRounds = 3;
constexpr int64_t kStatusEveryMs = 5;
constexpr int64_t kTimeoutMs = 120'000;
constexpr size_t kSampledChains = 2000;

// Chain `number` of all: the real ones come first.
std::vector<BlockKey> ChainOf(uint64_t number) {
  std::vector<BlockKey> keys;
  keys.reserve(kChainBlocks);
  for (uint32_t i = 0; i < kChainBlocks; ++i) keys.push_back(MakeKey(kDigestName, number * kChainBlocks + i));
  return keys;
}

double MsSince(int64_t start_ns) { return static_cast<double>(SystemClock().MonotonicNs() - start_ns) / 1e6; }

// Writes the catalog of a full device, starts the daemon on it, and asks for blocks while it reads.
// Confined to one thread.
class EntriesRun {
 public:
  EntriesRun(BenchDaemon* daemon, uint64_t entries, bool kill)
      : daemon_(daemon), chains_((entries + kChainBlocks - 1) / kChainBlocks), kill_(kill) {}

  absl::Status Prepare() {
    KV_RETURN_IF_ERROR(daemon_->Launch());
    KV_RETURN_IF_ERROR(StoreRealChains());
    KV_RETURN_IF_ERROR(daemon_->Stop());
    return WriteRecords();
  }

  absl::Status Round() {
    const SystemClock clock;
    const int64_t start_ns = clock.MonotonicNs();
    KV_RETURN_IF_ERROR(daemon_->Launch());
    KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchClient> client,
                        BenchClient::Attach(daemon_->door_socket(kDoor), kDigestName, kLayout));
    KV_RETURN_IF_ERROR(AskUntilRecovered(client.get(), start_ns));
    KV_RETURN_IF_ERROR(Check(client.get()));
    if (!kill_) return daemon_->Stop();
    daemon_->Kill();
    return absl::OkStatus();
  }

  void AddTo(Report* report) const {
    report->Add("entries", (chains_ + kRealChains) * kChainBlocks);
    report->Add("real_blocks", kRealChains * kChainBlocks);
    report->Add("first_hit_ms", Percentile(first_hit_ms_, 100));
    report->Add("full_index_ms", Percentile(full_index_ms_, 100));
    report->Add("first_hit_median_ms", Median(first_hit_ms_));
    report->Add("full_index_median_ms", Median(full_index_ms_));
    report->Add("lookup_p99_ms", Percentile(lookup_ms_, 99));
    report->Add("lookups_meanwhile", static_cast<uint64_t>(lookup_ms_.size()));
    report->Add("missing", missing_);
    report->Add("compared_bytes", compared_bytes_);
    report->Add("wrong_bytes", wrong_bytes_);
    report->Add("ledger_equal", ledger_equal_);
    report->Add("catalog_write_s", write_s_);
    report->Require(missing_ == 0, "missing");
    report->Require(wrong_bytes_ == 0, "wrong_bytes");
    report->Require(ledger_equal_, "ledger_equal");
  }

 private:
  absl::Status StoreRealChains() {
    KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchClient> client,
                        BenchClient::Attach(daemon_->door_socket(kDoor), kDigestName, kLayout));
    uint64_t stored = 0;
    for (uint64_t number = 0; number < kRealChains; ++number) {
      const std::vector<BlockKey> chain = ChainOf(number);
      KV_ASSIGN_OR_RETURN(const Stored done, client->Store(chain, 0, chain.size(), 0, [&](const Granted& slot) {
        FillBlock(chain[slot.index], slot.bytes);
      }));
      stored += done.stored;
    }
    const int64_t start_ns = SystemClock().MonotonicNs();
    for (uint64_t durable = 0; durable < stored;) {
      if (MsSince(start_ns) > kTimeoutMs) return absl::DeadlineExceededError("the real blocks did not become durable");
      KV_ASSIGN_OR_RETURN(durable, client->Poll(100));
    }
    return absl::OkStatus();
  }

  // Records as the daemon writes them, for every place that no real block is in; nothing is written to the places.
  absl::Status WriteRecords() {
    std::vector<char> page(kNvmeHeaderBytes);
    std::ifstream(daemon_->nvme_file(), std::ios::binary).read(page.data(), static_cast<std::streamsize>(page.size()));
    KV_ASSIGN_OR_RETURN(const tier::Superblock superblock,
                        tier::DecodeSuperblock(std::as_bytes(std::span<const char>(page))));
    KV_ASSIGN_OR_RETURN(
        const std::unique_ptr<tier::RocksStore> store,
        tier::RocksStore::Open({.path = daemon_->nvme_file() + ".catalog", .device_id = DeviceIdOf(superblock)}));
    std::optional<tier::CatalogRecord> model;
    KV_RETURN_IF_ERROR(store->Load([&](const std::vector<tier::CatalogRecord>& records) {
      if (!records.empty()) model = records.front();
      return true;
    }));
    if (!model.has_value()) return absl::InternalError("the catalog has no record of the blocks that were stored");
    const tier::SegmentTable segments(kNvmeDataStartBytes, superblock.file_bytes, superblock.segment_bytes);
    const SystemClock clock;
    const int64_t start_ns = clock.MonotonicNs();
    Progress progress("restart: writing the catalog", chains_);
    uint64_t place = 0;
    for (uint64_t chain = 0; chain < chains_; ++chain) {
      const std::vector<BlockKey> keys = ChainOf(kRealChains + chain);
      for (uint32_t depth = 0; depth < kChainBlocks; ++depth, ++place) {
        // The first segment has the real ones.
        const auto segment = static_cast<uint32_t>(1 + place / segments.SlotsOf(0, kPayloadBytes));
        if (segment >= segments.segment_count()) return absl::InternalError("the file is too small for the entries");
        tier::CatalogRecord record = *model;
        record.slot = segments.SlotAt(segment, kPayloadBytes, place % segments.SlotsOf(0, kPayloadBytes));
        record.header.identity.key = keys[depth];
        record.header.identity.parent = depth == 0 ? BlockKey{} : keys[depth - 1];
        record.header.identity.depth = depth;
        store->Put(record);
      }
      if (store->collected() >= kCatalogBatchOpsMax) KV_RETURN_IF_ERROR(store->Commit(false));
      progress.Update(chain + 1);
    }
    KV_RETURN_IF_ERROR(store->Commit(true));
    write_s_ = MsSince(start_ns) / 1e3;
    return absl::OkStatus();
  }

  absl::Status AskUntilRecovered(BenchClient* client, int64_t start_ns) {
    bool hit = false;
    double asked_ms = 0;
    while (MsSince(start_ns) < kTimeoutMs) {
      const std::vector<BlockKey> chain = ChainOf(random_() % (kRealChains + chains_));
      const int64_t lookup_ns = SystemClock().MonotonicNs();
      KV_ASSIGN_OR_RETURN(const Found found, client->Lookup(chain));
      lookup_ms_.push_back(MsSince(lookup_ns));
      if (found.matched > 0 && !std::exchange(hit, true)) first_hit_ms_.push_back(MsSince(start_ns));
      if (MsSince(start_ns) - asked_ms < kStatusEveryMs) continue;
      KV_ASSIGN_OR_RETURN(const admin::v1::StatusReply status, daemon_->admin().GetStatus());
      asked_ms = MsSince(start_ns);
      if (status.recovering()) continue;
      full_index_ms_.push_back(asked_ms);
      if (!hit) first_hit_ms_.push_back(asked_ms);
      return absl::OkStatus();
    }
    return absl::DeadlineExceededError("still recovering");
  }

  absl::Status Check(BenchClient* client) {
    for (size_t i = 0; i < kSampledChains; ++i) {
      KV_ASSIGN_OR_RETURN(const Found found, client->Lookup(ChainOf(random_() % (kRealChains + chains_))));
      missing_ += kChainBlocks - found.matched;
    }
    for (uint64_t number = 0; number < kRealChains; ++number) {
      const std::vector<BlockKey> chain = ChainOf(number);
      KV_ASSIGN_OR_RETURN(Found found, client->Lookup(chain));
      KV_ASSIGN_OR_RETURN(const Compared compared, LoadAndCompare(client, chain, std::move(found)));
      compared_bytes_ += compared.bytes;
      wrong_bytes_ += compared.wrong_bytes;
      missing_ += kChainBlocks - compared.blocks;
    }
    KV_ASSIGN_OR_RETURN(const admin::v1::Tenant tenant, daemon_->admin().GetTenant(client->tenant()));
    const admin::v1::TenantTier& nvme = admin::TierOf(tenant, "nvme");
    const uint64_t blocks = (chains_ + kRealChains) * kChainBlocks;
    const absl::Status books = daemon_->admin().CheckInvariants().status();
    ledger_equal_ = ledger_equal_ && books.ok() && nvme.blocks() == blocks &&
                    nvme.charged_bytes() == blocks * (kPayloadBytes + kNvmeHeaderBytes);
    return absl::OkStatus();
  }

  BenchDaemon* const daemon_;
  const uint64_t chains_;
  const bool kill_;
  std::mt19937_64 random_{1};
  std::vector<double> first_hit_ms_, full_index_ms_, lookup_ms_;
  uint64_t missing_ = 0, compared_bytes_ = 0, wrong_bytes_ = 0;
  bool ledger_equal_ = true;
  double write_s_ = 0;
};

}  // namespace

absl::StatusOr<Report> RunRestartEntries(const Common& common, const RestartOptions& options) {
  if (!common.socket.empty()) return absl::InvalidArgumentError("restart ends its daemon: it cannot use --socket");
  const uint64_t slots_a_segment = (kSegmentMaxBytes - kNvmeHeaderBytes) / (kPayloadBytes + kNvmeHeaderBytes);
  DaemonSetup setup;
  setup.dram_bytes = kDramBytes;
  // At least as large as makes segments of the largest size, which is what the sum reckons with.
  setup.nvme_bytes =
      std::max<uint64_t>(options.entries / slots_a_segment + 3, 64) * kSegmentMaxBytes + kSegmentMaxBytes;
  TenantSetup tenant;
  tenant.name = tenant.door = kDoor;
  setup.tenants.push_back(tenant);
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDaemon> daemon, BenchDaemon::Prepare(common, setup));
  EntriesRun run(daemon.get(), options.entries, options.kill);
  KV_RETURN_IF_ERROR(run.Prepare());
  Progress progress("restart", kRounds);
  for (int i = 0; i < kRounds; ++i) {
    KV_RETURN_IF_ERROR(run.Round());
    progress.Update(static_cast<uint64_t>(i) + 1);
  }
  Report report("restart_entries");
  report.Add("kill", options.kill);
  report.Add("starts", static_cast<uint64_t>(kRounds));
  run.AddTo(&report);
  report.Note(absl::StrCat(
      "the entries are records in the daemon's catalog (RocksDB), written by this benchmark in chains of ",
      kChainBlocks, " blocks of ", kPayloadBytes,
      " bytes, one tenant, one namespace; their places on the preallocated file hold no "
      "bytes, but for the real blocks, which a client stored and which are loaded and compared after every start; the "
      "catalog's files are in the page cache"));
  report.Note(
      "first_hit_ms, full_index_ms: from the start of the process, the slowest start; a hit is any block of chains "
      "asked "
      "for at random; the index is full when the daemon says that it is no longer recovering; lookup_p99_ms: of those "
      "chains meanwhile");
  return report;
}

}  // namespace kvartal::bench
