#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/units.h"
#include "tools/kvartal-bench/bench_client.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/soak_samples.h"
#include "tools/kvartal-bench/trace.h"
#include "tools/kvartal-bench/verified_load.h"

namespace kvartal::bench {
namespace {

constexpr const char* kDigestName = "soak";
constexpr uint32_t kChainBlocks = 16;
constexpr uint64_t kDramBytes = 192 * kMiB;
constexpr uint64_t kNvmeBytes = 1 * kGiB;
constexpr double kSkew = 0.8;            // of which chain is asked for: some much, most seldom
constexpr uint64_t kNvmeOverbooked = 3;  // times the disk a tenant's chains would take
constexpr int kSampleMs = 1000;
constexpr int kPauseMs = 4;               // between two requests of a client: the machine is left to others
constexpr uint64_t kReattachOneIn = 200;  // requests
constexpr int kPolicyEverySamples = 15;
constexpr int kDropEverySamples = 40;
// Of ten thousand transfers: rare enough that the disk is healthy most of the time.
constexpr const char* kFaults = "io_error=2,short=2,torn=8,flip=8,no_space=2,delayed=200";
// What each may have more in the last quarter than in the first: RocksDB fills its buffers, a log is recycled.
constexpr double kRssSlackMib = 16;
constexpr double kFdSlack = 8;
constexpr double kDiskSlackMib = 96;
constexpr double kSettledMinutes = 5;  // from here on nothing may grow: its first quarter sees a daemon that is full

struct SoakTenant {
  const char* name;
  const char* sla;
  uint32_t clients;
  uint64_t dram_mib, nvme_mib;
};
constexpr SoakTenant kTenants[] = {
    {"gold", "Premium", 2, 96, 512}, {"silver", "Standard", 2, 64, 384}, {"basic", "Basic", 1, 64, 256}};

std::string DaemonWithDiskFaults() {
  const std::filesystem::path here = OwnFolder();
  return (here.parent_path() / "tests" / "kvartald-with-disk-faults").string();
}

// `lowered`: the limits of the second policy are a quarter less.
DaemonSetup SetupOf(bool lowered) {
  DaemonSetup setup;
  setup.dram_bytes = kDramBytes;
  setup.nvme_bytes = kNvmeBytes;
  for (const SoakTenant& of : kTenants) {
    TenantSetup tenant;
    tenant.name = tenant.door = of.name;
    tenant.sla_tier = of.sla;
    tenant.dram_limit_bytes = of.dram_mib * kMiB;
    tenant.nvme_limit_bytes = of.nvme_mib * kMiB;
    if (lowered) {
      tenant.dram_limit_bytes -= tenant.dram_limit_bytes / 4;
      tenant.nvme_limit_bytes -= tenant.nvme_limit_bytes / 4;
    }
    setup.tenants.push_back(tenant);
  }
  return setup;
}

struct SoakCounts {
  uint64_t requests = 0, attaches = 0, cut_off = 0, stored = 0, refused = 0;
  uint64_t compared_bytes = 0, wrong_bytes = 0, lost = 0, from_nvme = 0;

  void Add(const SoakCounts& other) {
    requests += other.requests;
    attaches += other.attaches;
    cut_off += other.cut_off;
    stored += other.stored;
    refused += other.refused;
    compared_bytes += other.compared_bytes;
    wrong_bytes += other.wrong_bytes;
    lost += other.lost;
    from_nvme += other.from_nvme;
  }
};

// One client of a tenant: asks for chains, verifies what is there and stores the rest, attaches anew at times.
// Confined to its thread until that has ended.
class SoakClient {
 public:
  SoakClient(std::string socket, const SoakTenant& tenant, uint64_t block_kib, uint64_t seed)
      : socket_(std::move(socket)),
        layout_{16, 1, static_cast<uint32_t>(block_kib * kKiB)},
        chains_(std::max<uint64_t>(8, kNvmeOverbooked * tenant.nvme_mib * kKiB / (block_kib * kChainBlocks))),
        random_(seed) {}

  void Run(const std::atomic<bool>* stop) {
    while (!*stop && status_.ok()) {
      status_ = Step();
      // A drop of its tenant ends its session: it comes back.
      if (absl::IsUnavailable(status_) || absl::IsPermissionDenied(status_)) {
        status_ = absl::OkStatus();
        client_.reset();
        ++counts_.cut_off;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(client_ == nullptr ? 50 * kPauseMs : kPauseMs));
    }
    client_.reset();
  }

  const absl::Status& status() const { return status_; }
  const SoakCounts& counts() const { return counts_; }

 private:
  absl::Status Step() {
    if (client_ == nullptr || random_() % kReattachOneIn == 0) {
      client_.reset();
      KV_ASSIGN_OR_RETURN(client_, BenchClient::Attach(socket_, kDigestName, layout_));
      ++counts_.attaches;
    }
    // A power law: chain x of n with a density that falls with x^-kSkew.
    const double draw = std::uniform_real_distribution<double>(0, 1)(random_);
    const auto number = static_cast<uint64_t>(static_cast<double>(chains_) * std::pow(draw, 1 / (1 - kSkew)));
    std::vector<BlockKey> chain;
    chain.reserve(kChainBlocks);
    for (uint32_t i = 0; i < kChainBlocks; ++i) chain.push_back(MakeKey(kDigestName, number * kChainBlocks + i));
    ++counts_.requests;
    KV_ASSIGN_OR_RETURN(Found found, client_->Lookup(chain));
    const uint32_t matched = found.matched;
    const uint64_t request = found.request;
    KV_ASSIGN_OR_RETURN(const Compared compared, LoadAndCompare(client_.get(), chain, std::move(found)));
    counts_.compared_bytes += compared.bytes;
    counts_.wrong_bytes += compared.wrong_bytes;
    counts_.lost += compared.lost;
    counts_.from_nvme += compared.from_nvme;
    if (matched < kChainBlocks) {
      KV_ASSIGN_OR_RETURN(const Stored stored,
                          client_->Store(chain, matched, chain.size(), request,
                                         [&](const Granted& slot) { FillBlock(chain[slot.index], slot.bytes); }));
      counts_.stored += stored.stored;
      counts_.refused += stored.refused;
    }
    return client_->Poll(0).status();
  }

  const std::string socket_;
  const kv_layout layout_;
  const uint64_t chains_;
  std::mt19937_64 random_;
  std::unique_ptr<BenchClient> client_;
  absl::Status status_;
  SoakCounts counts_;
};

// Samples until the time is up; changes the policy and drops a tenant now and then.
absl::StatusOr<std::vector<SoakSample>> Watch(BenchDaemon* daemon, const SoakOptions& options, uint64_t* drops) {
  const auto samples_wanted = static_cast<uint64_t>(options.minutes * 60'000 / kSampleMs);
  Progress progress("soak", samples_wanted);
  std::vector<SoakSample> samples;
  for (uint64_t i = 1; i <= samples_wanted; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kSampleMs));
    KV_ASSIGN_OR_RETURN(const SoakSample sample, TakeSample(daemon->pid(), daemon->nvme_file()));
    samples.push_back(sample);
    if (i % kPolicyEverySamples == 0) {
      KV_RETURN_IF_ERROR(daemon->ChangePolicy(SetupOf(i / kPolicyEverySamples % 2 == 1)));
    }
    if (i % kDropEverySamples == 0) {
      // On this disk some zeros may fail, which a drop says.
      *drops += daemon->admin().Drop(absl::StrCat("bench/", kTenants[i / kDropEverySamples % 3].name)).ok() ? 1 : 0;
    }
    progress.Update(i);
  }
  return samples;
}

// What the daemon with faults says at its end: "disk faults: N of M transfers".
uint64_t FaultsIn(const std::string& log_path) {
  std::ifstream in(log_path);
  const std::string log((std::istreambuf_iterator<char>(in)), {});
  const std::string key = "disk faults: ";
  const size_t at = log.rfind(key);
  return at == std::string::npos ? 0 : std::strtoull(log.c_str() + at + key.size(), nullptr, 10);
}

void AddCounts(const SoakCounts& counts, Report* report) {
  report->Add("requests", counts.requests);
  report->Add("attaches", counts.attaches);
  report->Add("sessions_cut_by_drops", counts.cut_off);
  report->Add("blocks_stored", counts.stored);
  report->Add("blocks_refused", counts.refused);
  report->Add("blocks_from_nvme", counts.from_nvme);
  report->Add("blocks_lost", counts.lost);
  report->Add("compared_bytes", counts.compared_bytes);
  report->Add("wrong_bytes", counts.wrong_bytes);
}

// `settled`: the run was long enough that its first quarter is not the filling of an empty daemon.
void AddGrowth(const std::vector<SoakSample>& samples, const char* name, double SoakSample::* measure, double slack,
               bool settled, Report* report) {
  const Growth growth = GrowthOf(samples, measure);
  report->Add(absl::StrCat(name, "_first"), growth.first);
  report->Add(absl::StrCat(name, "_last"), growth.last);
  report->Add(absl::StrCat(name, "_max"), growth.max);
  const std::string flat = absl::StrCat(name, "_flat");
  report->Add(flat, Flat(growth, slack));
  report->Require(Flat(growth, slack) || !settled, flat);
}

}  // namespace

absl::StatusOr<Report> RunSoak(const Common& common, const SoakOptions& options) {
  if (!common.socket.empty())
    return absl::InvalidArgumentError("soak starts a daemon of its own, with a disk that fails");
  Common own = common;
  if (own.kvartald.empty()) own.kvartald = DaemonWithDiskFaults();
  ::setenv("KVARTAL_DISK_FAULTS", absl::StrCat("seed=", options.seed, ",", kFaults).c_str(), 1);
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDaemon> daemon, BenchDaemon::Start(own, SetupOf(false)));
  std::vector<std::unique_ptr<SoakClient>> clients;
  for (const SoakTenant& tenant : kTenants) {
    for (uint32_t i = 0; i < tenant.clients; ++i) {
      clients.push_back(std::make_unique<SoakClient>(daemon->door_socket(tenant.name), tenant, options.block_kib,
                                                     options.seed * 100 + clients.size()));
    }
  }
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  threads.reserve(clients.size());
  for (const auto& client : clients) threads.emplace_back([&client, &stop] { client->Run(&stop); });
  uint64_t drops = 0;
  const absl::StatusOr<std::vector<SoakSample>> samples = Watch(daemon.get(), options, &drops);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  KV_RETURN_IF_ERROR(samples.status());

  SoakCounts sum;
  for (const auto& client : clients) {
    KV_RETURN_IF_ERROR(client->status());
    sum.Add(client->counts());
  }
  const bool ledger_equal = daemon->admin().CheckInvariants().ok();
  KV_ASSIGN_OR_RETURN(const admin::v1::StatusReply status, daemon->admin().GetStatus());
  const std::string log = daemon->folder() + "/daemon.log";
  KV_RETURN_IF_ERROR(daemon->Stop());
  Report report("soak");
  report.Add("minutes", options.minutes);
  report.Add("seed", options.seed);
  report.Add("drops", drops);
  AddCounts(sum, &report);
  report.Add("disk_faults", FaultsIn(log));
  report.Add("ledger_equal", ledger_equal);
  report.Add("bugs", status.bugs());
  report.Require(sum.wrong_bytes == 0, "wrong_bytes");
  report.Require(ledger_equal, "ledger_equal");
  report.Require(status.bugs() == 0, "bugs");
  const bool settled = options.minutes >= kSettledMinutes;
  AddGrowth(*samples, "rss_mib", &SoakSample::rss_mib, kRssSlackMib, settled, &report);
  AddGrowth(*samples, "shmem_mib", &SoakSample::shmem_mib, kRssSlackMib, settled, &report);
  AddGrowth(*samples, "fds", &SoakSample::fds, kFdSlack, settled, &report);
  AddGrowth(*samples, "disk_mib", &SoakSample::disk_mib, kDiskSlackMib, settled, &report);
  report.Note(absl::StrCat(
      "a daemon built to spoil transfers of its disk (", kFaults, " of 10,000 each; seed ", options.seed,
      "); three tenants, five clients that attach anew at times, limits that change, tenants that are dropped"));
  report.Note(
      absl::StrCat("_first and _last: medians of the first and the last quarter, one sample a second; flat: at "
                   "most ",
                   kRssSlackMib, " MiB, ", kFdSlack, " descriptors, ", kDiskSlackMib,
                   " MiB of disk more; rss: arenas left out, they are shmem; disk: data file and catalog"));
  return report;
}

}  // namespace kvartal::bench
