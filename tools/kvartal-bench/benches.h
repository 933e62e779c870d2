// The benchmarks, one file each: what they can be told and what they return. The keys of their reports are a contract;
// docs/CLAIMS.md quotes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/report.h"

namespace kvartal::bench {

// Replays a trace through one client of one tenant and verifies every byte it loads; on the clock of the trace, through
// the engine alone and without bytes.
struct ReplayOptions {
  std::string trace = "conversation";
  uint64_t capacity_blocks = 0;  // 0: no limit
  std::string eviction = "lru";
  std::string clock;  // wall | trace; empty: trace when the eviction order knows time (all but lru), or with NVMe
  uint64_t block_kib = 4;
  uint64_t nvme_blocks = 0;              // 0: no NVMe; else capacity_blocks is what fits into memory
  uint64_t write_budget_per_second = 0;  // bytes written to NVMe; 0: any amount
  uint64_t requests = 0;                 // 0: all
  bool inject_flip = false;              // flips one bit of a stored block: the positive control of `wrong_bytes`
};
absl::StatusOr<Report> RunReplay(const Common& common, const ReplayOptions& options);

// Lookup + Release of resident chains, against a bare echo of frames of the same sizes.
struct LookupOptions {
  uint32_t chain = 64;
  uint32_t clients = 1;
  uint64_t blocks = 1'000'000;
  uint64_t block_kib = 4;
  int rounds = 15;
  uint32_t lookups_a_round = 2000;
};
absl::StatusOr<Report> RunLookup(const Common& common, const LookupOptions& options);

// What the vLLM connector adds to a scheduler's step with no hit, and what the SGLang backend adds to a copy; in Python
// from scripts/python_env.
struct ConnectorOptions {
  int rounds = 9;
  uint32_t requests = 400;  // a round and length of prompt
};
absl::StatusOr<Report> RunConnector(const Common& common, const ConnectorOptions& options);

// The prefix index alone, in this process.
struct IndexOptions {
  uint64_t entries = 10'000'000;
  uint32_t chain = 64;
  int rounds = 9;
};
absl::StatusOr<Report> RunIndex(const IndexOptions& options);

// The core alone, in this process: the verbs of the engine over tenants, without bytes, sockets or disks.
struct EngineBenchOptions {
  uint32_t tenants = 1000;
  uint32_t chain = 32;            // blocks a prompt
  uint32_t resident_chains = 32;  // of a tenant fit its limit
  uint32_t known_chains = 64;     // of a tenant are asked for
  uint32_t batches_a_round = 20'000;
  int rounds = 9;
  std::string eviction = "lru";
};
absl::StatusOr<Report> RunEngineBench(const EngineBenchOptions& options);

// The FP8 codec on one core, in this process, against memcpy; and what it costs in accuracy.
struct Fp8Options {
  size_t channels = 128;     // of a head
  uint64_t buffer_mib = 64;  // of bf16: more than the caches hold
  int rounds = 15;
};
absl::StatusOr<Report> RunFp8(const Fp8Options& options);

// Four tenants share a node with a scanner that never asks twice; or with two of themselves gone idle.
struct NeighbourOptions {
  std::string trace = "conversation";
  uint64_t capacity_blocks = 0;  // 0: 20,000, and 10,000 with `idle`
  uint64_t block_kib = 64;
  uint32_t scans = 3;  // prompts of the scanner a request
  std::string eviction = "lru";
  uint64_t requests = 0;  // of the trace; 0: all
  bool idle = false;
};
absl::StatusOr<Report> RunNeighbour(const NeighbourOptions& options);

// Stores and loads of mapped memory, against memcpy and reads of private memory.
struct DramOptions {
  uint64_t block_kib = 448;
  uint32_t slots = 64;  // a Reserve and a Commit
  uint64_t dram_mib = 2048;
  int rounds = 15;
  std::string huge_pages = "both";  // both | as-is: `both` sets shmem_enabled for a second run (root), and puts it back
};
absl::StatusOr<Report> RunDram(const Common& common, const DramOptions& options);

// Write-through and loads of the NVMe tier, against fio on files of the same size.
struct NvmeOptions {
  std::vector<uint64_t> block_kib = {448, 1024, 2560};
  uint64_t round_mib = 512;  // stored or loaded a round
  int rounds = 5;
  int io_threads = 8;
  std::string io = "auto";   // auto | uring | pool: how the daemon does its I/O
  uint64_t restore_gib = 0;  // instead: restored through both stages, all rounds together
  bool encrypted = false;    // instead: blocks that are encrypted beside blocks that are not
};
absl::StatusOr<Report> RunNvme(const Common& common, const NvmeOptions& options);
// A daemon whose tenant has its blocks encrypted beside one whose tenant has not.
absl::StatusOr<Report> RunNvmeEncrypted(const Common& common, const NvmeOptions& options);
// From NVMe through the cache into memory of the client's own, against the slower of both stages.
absl::StatusOr<Report> RunRestore(const Common& common, const NvmeOptions& options);

// A client with touched reservations is SIGKILLed.
struct ReclaimOptions {
  int runs = 50;
  uint64_t reserve_mib = 1024;
  uint64_t block_kib = 1024;
  bool inject_commit = false;  // one block is committed before the kill: the positive control of `visible_unfinished`
};
absl::StatusOr<Report> RunReclaim(const Common& common, const ReclaimOptions& options);

// A Basic tenant floods the disk with loads beside a Premium one that loads as much.
struct BandwidthOptions {
  uint32_t depth = 4;  // closed loops a tenant, alone and contended
  uint32_t chain = 16;
  uint64_t chains_a_client = 16;
  uint64_t block_kib = 448;
  uint32_t round_ms = 2000;
  int rounds = 5;
};
absl::StatusOr<Report> RunBandwidth(const Common& common, const BandwidthOptions& options);

// Clients store past the limits of both tiers at once while the limits change.
struct QuotaOptions {
  uint32_t clients = 8;
  uint64_t block_kib = 64;
  int changes = 60;
  uint32_t change_ms = 100;
  bool inject = false;  // a daemon that asks no limit: the positive control of `overshoot_bytes`
};
absl::StatusOr<Report> RunQuota(const Common& common, const QuotaOptions& options);

// The daemon is ended under load and started again.
struct RestartOptions {
  bool kill = false;  // SIGKILL; else SIGTERM
  int loops = 20;
  uint64_t seed = 0;  // 0: from the clock; printed either way
  uint64_t block_kib = 64;
  bool inject_loss = false;  // the disk is emptied before the last start: the positive control of `lost_durable`
  uint64_t entries = 0;      // not 0: starts on a catalog of so many records instead
};
absl::StatusOr<Report> RunRestart(const Common& common, const RestartOptions& options);
absl::StatusOr<Report> RunRestartEntries(const Common& common, const RestartOptions& options);

// Tenants of every kind at work for a long time on a disk that fails: nothing grows, no byte is wrong.
struct SoakOptions {
  double minutes = 10;
  uint64_t seed = 1;
  uint64_t block_kib = 64;
};
absl::StatusOr<Report> RunSoak(const Common& common, const SoakOptions& options);

// Idle TTLs of a few seconds: nothing is served after its time, every byte comes back, nobody else notices.
struct TtlOptions {
  uint64_t blocks = 100'000;
  bool inject = false;  // the daemon's TTLs are longer than told: the positive control of `served_after_expiry`
};
absl::StatusOr<Report> RunTtl(const Common& common, const TtlOptions& options);

// Memory of an idle daemon beyond the cache.
struct FootprintOptions {
  uint64_t dram_mib = 4096;
  uint64_t nvme_mib = 4096;
};
absl::StatusOr<Report> RunFootprint(const Common& common, const FootprintOptions& options);

// One operator on a real API server, and simulated nodes: from an edit to the answer of every node.
struct FleetOptions {
  uint32_t nodes = 5000, policies = 10000, pools = 25, edits = 50;
  uint32_t api_qps = 200;  // that the operator may ask of the API server: ten times what it does by default
  bool outage = false;     // operator and API server are killed and come back
};
absl::StatusOr<Report> RunFleet(const FleetOptions& options);

// Three tenants, three processes, three uids, one real trace. Prints a table and what it shows.
struct DemoOptions {
  std::string trace = "conversation";
  uint64_t requests = 0;  // 0: all
  uint64_t block_kib = 64;
};
absl::StatusOr<Report> RunDemo(const Common& common, const DemoOptions& options);

}  // namespace kvartal::bench
