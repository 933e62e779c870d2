#include <atomic>
#include <barrier>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/units.h"
#include "tools/kvartal-bench/bench_client.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/echo_floor.h"
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/stats.h"

namespace kvartal::bench {
namespace {

constexpr uint64_t kDramSlackBytes = 256 * kMiB;
constexpr const char* kDigestName = "lookup";
constexpr uint32_t kTokensPerBlock = 16;

// All keys, chain after chain.
struct Resident {
  std::vector<BlockKey> keys;
  uint32_t chain = 0;

  uint64_t chains() const { return keys.size() / chain; }
  std::span<const BlockKey> Chain(uint64_t i) const { return {keys.data() + i * chain, chain}; }
};

absl::StatusOr<Resident> StoreAll(BenchClient* client, const LookupOptions& options) {
  Resident resident;
  resident.chain = options.chain;
  const uint64_t chains = std::max<uint64_t>(1, options.blocks / options.chain);
  resident.keys.resize(chains * options.chain);
  for (uint64_t i = 0; i < resident.keys.size(); ++i) resident.keys[i] = MakeKey(kDigestName, i);
  Progress progress("lookup: storing blocks", chains);
  for (uint64_t i = 0; i < chains; ++i) {
    const std::span<const BlockKey> chain = resident.Chain(i);
    KV_ASSIGN_OR_RETURN(const Stored stored, client->Store(chain, 0, chain.size(), 0, [&](const Granted& slot) {
      FillBlock(chain[slot.index], slot.bytes);
    }));
    if (stored.refused != 0) {
      return absl::ResourceExhaustedError(absl::StrCat("chain ", i, " was refused (", stored.refusal,
                                                       "): the tenant needs ", resident.keys.size(), " blocks of ",
                                                       options.block_kib, " KiB in dram"));
    }
    progress.Update(i + 1);
  }
  return resident;
}

struct Timed {
  std::vector<double> us;  // Lookup and Release together
  uint64_t wrong = 0;
};

// `count` lookups of random chains. One block of each is compared whole, outside what is timed.
absl::StatusOr<Timed> TimeLookups(BenchClient* client, const Resident& resident, uint32_t count,
                                  std::mt19937_64* random) {
  Timed timed;
  timed.us.reserve(count);
  const SystemClock clock;
  for (uint32_t i = 0; i < count; ++i) {
    const std::span<const BlockKey> chain = resident.Chain((*random)() % resident.chains());
    const uint32_t looked_at = static_cast<uint32_t>((*random)() % chain.size());
    const int64_t t0 = clock.MonotonicNs();
    KV_ASSIGN_OR_RETURN(Found found, client->Lookup(chain));
    const int64_t t1 = clock.MonotonicNs();
    if (found.matched == chain.size()) {
      const std::byte* const data = static_cast<const std::byte*>(found.lease.blocks()[looked_at].data);
      timed.wrong += data == nullptr || WrongBytes(chain[looked_at], {data, client->block_bytes()}) != 0;
    } else {
      ++timed.wrong;
    }
    const int64_t t2 = clock.MonotonicNs();
    found.lease.Release();
    timed.us.push_back(static_cast<double>((t1 - t0) + (clock.MonotonicNs() - t2)) / 1e3);
  }
  return timed;
}

struct RoundFigures {
  std::vector<double> p50, p99, floor_p50, ratio;
  uint64_t wrong = 0;
};

// Rounds of the daemon and of the echo in turns, all of them placed alike.
absl::StatusOr<RoundFigures> InTurns(BenchClient* client, EchoFloor* floor, const Resident& resident,
                                     const LookupOptions& options) {
  RoundFigures figures;
  std::mt19937_64 random(7);
  for (int round = 0; round < options.rounds; ++round) {
    double p50[2] = {};
    for (int turn = 0; turn < 2; ++turn) {
      if ((round + turn) % 2 == 0) {
        KV_ASSIGN_OR_RETURN(const Timed timed, TimeLookups(client, resident, options.lookups_a_round, &random));
        figures.wrong += timed.wrong;
        p50[0] = Percentile(timed.us, 50);
        figures.p99.push_back(Percentile(timed.us, 99));
      } else {
        KV_ASSIGN_OR_RETURN(const std::vector<double> us, floor->Run(options.lookups_a_round));
        p50[1] = Percentile(us, 50);
      }
    }
    figures.p50.push_back(p50[0]);
    figures.floor_p50.push_back(p50[1]);
    figures.ratio.push_back(p50[0] / p50[1]);
  }
  return figures;
}

absl::Status OneClient(BenchDaemon* daemon, BenchClient* client, const Resident& resident, const LookupOptions& options,
                       Report* report) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<EchoFloor> floor, EchoFloor::Start(SizesOfLookup(options.chain)));
  const std::vector<int> cpus = UsableCpus();
  const auto place = [&](int client_cpu, int server_cpu) -> absl::Status {
    KV_RETURN_IF_ERROR(PinProcess(::getpid(), {client_cpu}));
    KV_RETURN_IF_ERROR(PinProcess(floor->pid(), {server_cpu}));
    return PinProcess(daemon->pid(), {server_cpu});
  };
  KV_RETURN_IF_ERROR(place(cpus.front(), cpus.back()));
  KV_ASSIGN_OR_RETURN(const RoundFigures apart, InTurns(client, floor.get(), resident, options));
  KV_RETURN_IF_ERROR(place(cpus.front(), cpus.front()));
  KV_ASSIGN_OR_RETURN(const RoundFigures together, InTurns(client, floor.get(), resident, options));
  KV_RETURN_IF_ERROR(PinProcess(::getpid(), cpus));
  KV_RETURN_IF_ERROR(PinProcess(daemon->pid(), cpus));
  report->Add("p50_us", Median(apart.p50));
  report->Add("p99_us", Median(apart.p99));
  report->Add("floor_p50_us", Median(apart.floor_p50));
  report->Add("floor_ratio", Median(apart.ratio));
  report->Add("pinned_p50_us", Median(together.p50));
  report->Add("pinned_p99_us", Median(together.p99));
  report->Add("pinned_floor_p50_us", Median(together.floor_p50));
  report->Add("pinned_floor_ratio", Median(together.ratio));
  report->Add("blocks_per_second", options.chain * 1e6 / Median(apart.p50));
  report->Add("wrong", apart.wrong + together.wrong);
  report->Require(apart.wrong + together.wrong == 0, "wrong");
  report->Note(
      "p50, p99, floor: client on one CPU, daemon or echo on another; pinned: both on one CPU; Release included, "
      "which travels with the next lookup");
  return absl::OkStatus();
}

struct Crowd {
  std::vector<double> us;
  uint64_t wrong = 0;
  double seconds = 0;
};

// Every client at once, each on a thread and a session of its own.
absl::StatusOr<Crowd> AllAtOnce(const std::vector<std::unique_ptr<BenchClient>>& clients, const Resident& resident,
                                uint32_t lookups, uint64_t seed) {
  std::vector<absl::StatusOr<Timed>> results(clients.size(), absl::UnknownError("not run"));
  std::barrier start(static_cast<std::ptrdiff_t>(clients.size()) + 1);
  std::vector<std::thread> threads;
  threads.reserve(clients.size());
  for (size_t i = 0; i < clients.size(); ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(seed + i);
      start.arrive_and_wait();
      results[i] = TimeLookups(clients[i].get(), resident, lookups, &random);
    });
  }
  const SystemClock clock;
  start.arrive_and_wait();
  const int64_t start_ns = clock.MonotonicNs();
  for (std::thread& thread : threads) thread.join();
  Crowd crowd;
  crowd.seconds = static_cast<double>(clock.MonotonicNs() - start_ns) / 1e9;
  for (absl::StatusOr<Timed>& result : results) {
    KV_RETURN_IF_ERROR(result.status());
    crowd.us.insert(crowd.us.end(), result->us.begin(), result->us.end());
    crowd.wrong += result->wrong;
  }
  return crowd;
}

absl::Status ManyClients(const std::string& socket, const kv_layout& layout, const Resident& resident,
                         const LookupOptions& options, Report* report) {
  std::vector<std::unique_ptr<BenchClient>> clients;
  for (uint32_t i = 0; i < options.clients; ++i) {
    KV_ASSIGN_OR_RETURN(std::unique_ptr<BenchClient> client, BenchClient::Attach(socket, kDigestName, layout));
    clients.push_back(std::move(client));
  }
  std::vector<double> p50, p99, blocks_per_second;
  uint64_t wrong = 0;
  for (int round = 0; round < options.rounds; ++round) {
    KV_ASSIGN_OR_RETURN(const Crowd crowd,
                        AllAtOnce(clients, resident, options.lookups_a_round, 100 + round * options.clients));
    p50.push_back(Percentile(crowd.us, 50));
    p99.push_back(Percentile(crowd.us, 99));
    blocks_per_second.push_back(static_cast<double>(crowd.us.size()) * options.chain / crowd.seconds);
    wrong += crowd.wrong;
  }
  report->Add("p50_us", Median(p50));
  report->Add("p99_us", Median(p99));
  report->Add("blocks_per_second", Median(blocks_per_second));
  report->Add("wrong", wrong);
  report->Require(wrong == 0, "wrong");
  report->Note(absl::StrCat(options.clients, " sessions on a thread each, placed by the system; Release included"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> RunLookup(const Common& common, const LookupOptions& options) {
  if (options.chain == 0 || options.clients == 0)
    return absl::InvalidArgumentError("--chain and --clients must be at least 1");
  const uint64_t dram_bytes =
      RoundUp(options.blocks * options.block_kib * kKiB * 21 / 20 + kDramSlackBytes, kExtentAlignBytes);
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDaemon> daemon, BenchDaemon::Start(common, OneTenant(dram_bytes)));
  const kv_layout layout{kTokensPerBlock, 1, static_cast<uint32_t>(options.block_kib * kKiB)};
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchClient> client,
                      BenchClient::Attach(daemon->attach_socket(), kDigestName, layout));
  KV_ASSIGN_OR_RETURN(const Resident resident, StoreAll(client.get(), options));
  Report report("lookup");
  report.Add("chain", options.chain);
  report.Add("clients", options.clients);
  report.Add("blocks", resident.keys.size());
  KV_RETURN_IF_ERROR(options.clients == 1 ? OneClient(daemon.get(), client.get(), resident, options, &report)
                                          : ManyClients(daemon->attach_socket(), layout, resident, options, &report));
  return report;
}

}  // namespace kvartal::bench
