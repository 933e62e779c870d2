#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/units.h"
#include "daemon/config/node_config.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/child_process.h"
#include "tools/kvartal-bench/demo_client.h"
#include "tools/kvartal-bench/demo_story.h"
#include "tools/kvartal-bench/demo_tenants.h"
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/trace.h"

namespace kvartal::bench {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);

// One client process and what it told.
struct Player {
  DemoTenant tenant;
  std::unique_ptr<ChildProcess> process;
  std::atomic<uint64_t> done = 0;
  ClientFigures result;  // complete once `ended`
  std::atomic<bool> ended = false;

  // On a thread of its own, until the process says no more.
  void Listen() {
    for (absl::StatusOr<std::string> line = process->ReadLine(); line.ok(); line = process->ReadLine()) {
      std::istringstream words(*line);
      std::string verb;
      words >> verb;
      if (verb == "progress") {
        uint64_t count = 0;
        words >> count;
        done = count;
      }
      if (verb != "result") continue;
      for (std::string pair; words >> pair;) {
        const size_t equals = pair.find('=');
        double value = 0;
        if (absl::SimpleAtod(pair.substr(equals + 1), &value)) result[pair.substr(0, equals)] = value;
      }
    }
    ended = true;
  }
};

using Players = std::vector<std::unique_ptr<Player>>;

// The shipped configuration with its folders moved to where the benchmark's daemon lives, and without the metrics port.
absl::StatusOr<DaemonSetup> SetupOf(const config::NodeConfig& shipped, const DemoCast& cast, bool by_uid) {
  DaemonSetup setup;
  setup.dram_bytes = shipped.dram_bytes;
  if (!shipped.nvme.empty()) {
    setup.nvme_bytes = shipped.nvme.front().size_bytes;
    setup.nvme_threads = shipped.nvme.front().io_threads;
    setup.nvme_io = shipped.nvme.front().io;
  }
  setup.eviction = shipped.eviction;
  setup.lease_ms = shipped.lease_ms;
  setup.manifests = cast.manifests;
  for (const DemoTenant& tenant : cast.tenants) {
    if (by_uid ? !tenant.uid.has_value() : tenant.door.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(shipped.policy_dir, ": ", tenant.name, " has no subject {",
                                                        by_uid ? "uid" : "socket",
                                                        ": ...}, which the demo needs here"));
    }
    TenantSetup door;
    door.door = tenant.door;
    if (!by_uid) setup.tenants.push_back(door);
  }
  return setup;
}

absl::StatusOr<Players> StartPlayers(const BenchDaemon& daemon, const DemoCast& cast, bool by_uid,
                                     const DemoOptions& options) {
  Players players;
  for (const DemoTenant& tenant : cast.tenants) {
    auto player = std::make_unique<Player>();
    player->tenant = tenant;
    std::vector<std::string> arguments = {"demo-client",
                                          "--socket",
                                          by_uid ? daemon.attach_socket() : daemon.door_socket(tenant.door),
                                          "--trace",
                                          options.trace,
                                          "--requests",
                                          absl::StrCat(options.requests),
                                          "--block-kib",
                                          absl::StrCat(options.block_kib),
                                          "--share-from",
                                          absl::StrCat(tenant.share_from),
                                          "--share-to",
                                          absl::StrCat(tenant.share_to)};
    if (by_uid) arguments.insert(arguments.end(), {"--uid", absl::StrCat(*tenant.uid)});
    KV_ASSIGN_OR_RETURN(player->process, ChildProcess::Start(arguments));
    players.push_back(std::move(player));
  }
  return players;
}

absl::Status WatchPlayers(const Players& players, uint64_t requests) {
  std::vector<std::thread> listeners;
  for (const auto& player : players) listeners.emplace_back([&player] { player->Listen(); });
  Progress progress("serving", requests);
  for (bool all_ended = false; !all_ended;) {
    std::this_thread::sleep_for(kRedraw);
    all_ended = true;
    uint64_t done = 0;
    std::string note;
    for (const auto& player : players) {
      all_ended = all_ended && player->ended;
      done += player->done;
      absl::StrAppend(&note, note.empty() ? "" : ", ", player->tenant.name, " ", player->done.load());
    }
    progress.Update(done, note);
  }
  for (std::thread& listener : listeners) listener.join();
  for (const auto& player : players) {
    if (absl::Status ended = player->process->Wait(); !ended.ok()) {
      return absl::AbortedError(absl::StrCat("tenant ", player->tenant.name, ": ", ended.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> RunDemo(const Common& common, const DemoOptions& options) {
  if (!common.socket.empty())
    return absl::InvalidArgumentError("demo starts a daemon of its own: it cannot use --socket");
  KV_ASSIGN_OR_RETURN(const Trace trace, LoadTrace(options.trace, options.requests));
  KV_ASSIGN_OR_RETURN(const std::string example, FindShipped("daemon/config/example.yaml"));
  KV_ASSIGN_OR_RETURN(const config::NodeConfig shipped, config::LoadNodeConfig(example));
  KV_ASSIGN_OR_RETURN(const DemoCast cast, ReadCast(shipped.policy_dir));
  const bool by_uid = ::geteuid() == 0;
  KV_ASSIGN_OR_RETURN(const DaemonSetup setup, SetupOf(shipped, cast, by_uid));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDaemon> daemon, BenchDaemon::Start(common, setup));
  std::fprintf(stderr,
               "kvartald is up (pid %d): %llu MiB DRAM, %llu MiB NVMe in a file; three tenants, three processes, %s\n",
               daemon->pid(), static_cast<unsigned long long>(setup.dram_bytes / kMiB),
               static_cast<unsigned long long>(setup.nvme_bytes / kMiB),
               by_uid ? "three uids" : "one socket each (not root: all under your uid)");
  KV_ASSIGN_OR_RETURN(const Players players, StartPlayers(*daemon, cast, by_uid, options));
  KV_RETURN_IF_ERROR(WatchPlayers(players, trace.requests.size()));
  DemoStory story;
  for (const auto& player : players) {
    KV_ASSIGN_OR_RETURN(const admin::v1::Tenant tenant, daemon->admin().GetTenant(player->tenant.name));
    story.Add(tenant, IdealOf(trace, player->tenant), player->result);
  }
  KV_RETURN_IF_ERROR(daemon->Stop());
  Report report("demo");
  report.Add("requests", trace.requests.size());
  story.AddTo(&report);
  report.SetText(story.Text(trace.name, trace.requests.size()));
  return report;
}

}  // namespace kvartal::bench
