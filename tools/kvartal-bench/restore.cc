// Two-stage restore: the disk into the cache's memory, and from there into the client's own, of a chain longer than the
// tenant may hold.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/limits.h"
#include "daemon/base/mapping.h"
#include "daemon/base/units.h"
#include "daemon/device/uring.h"
#include "tools/kvartal-bench/bench_client.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/fio_run.h"
#include "tools/kvartal-bench/stats.h"
#include "tools/kvartal-bench/stream_ceiling.h"

namespace kvartal::bench {
namespace {

constexpr const char* kDigestName = "restore";
constexpr uint64_t kTenantDramBytes = 256 * kMiB;
constexpr uint64_t kPartBytes = 8 * kMiB;         // loaded, copied and released together
constexpr uint32_t kPartsAhead = 3;               // 24 MiB on their way: the disk works while one is copied
constexpr uint64_t kBacklogBytesMax = 32 * kMiB;  // stored and not durable yet: each block is to be on the disk
constexpr uint32_t kPollMs = 2;
// Chains of a round: restored through the pipeline, restored part by part, read by fio.
enum Kind : uint64_t { kPipelined, kSerial, kFio, kKinds };

class RestoreRun {
 public:
  RestoreRun(const Common& common, const NvmeOptions& options, std::string fio_engine, uint64_t block_kib)
      : common_(common),
        options_(options),
        fio_engine_(std::move(fio_engine)),
        block_bytes_(block_kib * kKiB),
        chain_blocks_(
            std::max<uint64_t>(1, options.restore_gib * kGiB / static_cast<uint64_t>(options.rounds) / block_bytes_)),
        part_blocks_(static_cast<uint32_t>(std::max<uint64_t>(1, kPartBytes / block_bytes_))),
        file_bytes_(RoundUp(
            kKinds * static_cast<uint64_t>(options.rounds) * chain_blocks_ * (block_bytes_ + kNvmeHeaderBytes) * 9 / 8 +
                512 * kMiB,
            kSegmentMaxBytes)) {}

  absl::Status Start() {
    DaemonSetup setup = OneTenant(kTenantDramBytes, file_bytes_);
    setup.nvme_threads = options_.io_threads;
    setup.nvme_io = options_.io;
    KV_ASSIGN_OR_RETURN(daemon_, BenchDaemon::Prepare(common_, setup));
    KV_RETURN_IF_ERROR(daemon_->Launch());
    KV_RETURN_IF_ERROR(Attach());
    for (uint64_t chain = 0; chain < kKinds * static_cast<uint64_t>(options_.rounds); ++chain)
      KV_RETURN_IF_ERROR(Store(ChainOf(chain)));
    // The same blocks, none of them in memory.
    client_.reset();
    KV_RETURN_IF_ERROR(daemon_->Stop());
    KV_RETURN_IF_ERROR(daemon_->Launch(setup));
    KV_RETURN_IF_ERROR(daemon_->WaitRecovered());
    KV_RETURN_IF_ERROR(Attach());
    KV_ASSIGN_OR_RETURN(target_, Mapping::Anonymous(chain_blocks_ * block_bytes_));
    std::memset(target_.data(), 1, target_.size());
    KV_ASSIGN_OR_RETURN(arena_like_, StreamCeiling::Create(kTenantDramBytes));
    return absl::OkStatus();
  }

  // Bytes a second from the Lookup until the last block is in memory of the client's own.
  absl::StatusOr<double> Restore(Kind kind, uint64_t round) {
    const std::vector<BlockKey> chain = ChainOf(round * kKinds + kind);
    const uint32_t ahead = kind == kPipelined ? kPartsAhead * part_blocks_ : 0;
    const SystemClock clock;
    KV_ASSIGN_OR_RETURN(const double cpu_before, CpuSecondsOf(::getpid()));
    const int64_t start_ns = clock.MonotonicNs();
    KV_ASSIGN_OR_RETURN(Found found, client_->Lookup(chain));
    if (found.matched != chain.size())
      return absl::InternalError(absl::StrCat(found.matched, " of ", chain.size(), " blocks found"));
    for (const kv_block& block : found.lease.blocks()) from_memory_ += block.tier != KV_TIER_NVME;
    uint32_t told = 0;  // what the daemon knows will be asked for
    for (uint32_t first = 0; first < found.matched;) {
      const uint32_t count = std::min(part_blocks_, found.matched - first);
      const uint32_t until = std::min(found.matched, first + count + ahead);
      const uint32_t from = std::max(told, first + count);
      const client::Lease::Loaded loaded = found.lease.Load(first, count, kDeadlineMs);
      KV_RETURN_IF_ERROR(client_->StatusOf(loaded.status, "load"));
      if (loaded.count == 0) return absl::InternalError("load brought nothing");
      if (until > from) KV_RETURN_IF_ERROR(client_->StatusOf(found.lease.Prefetch(from, until - from), "prefetch"));
      told = std::max(told, until);
      for (uint32_t i = first; i < first + loaded.count; ++i) {
        std::memcpy(target_.data() + uint64_t{i} * block_bytes_, found.lease.Shard(i, 0), block_bytes_);
        wrong_ += found.lease.Valid(i) ? 0 : block_bytes_;
      }
      first += loaded.count;
      found.lease.ReleaseFront(loaded.count);
    }
    const int64_t end_ns = clock.MonotonicNs();
    KV_ASSIGN_OR_RETURN(const double cpu_after, CpuSecondsOf(::getpid()));
    if (kind == kPipelined) client_cpu_s_ += cpu_after - cpu_before;
    for (size_t i = 0; i < chain.size(); ++i)
      wrong_ += WrongBytes(chain[i], {target_.data() + i * block_bytes_, block_bytes_});
    return Rate(end_ns - start_ns);
  }

  // Blocks of another chain, as old and as large as what is restored.
  absl::StatusOr<double> Disk(uint64_t round) {
    FioJob job;
    job.path = daemon_->nvme_file();
    job.io_bytes = block_bytes_ + kNvmeHeaderBytes;
    job.total_bytes = chain_blocks_ * job.io_bytes;
    job.depth = options_.io_threads;
    job.engine = fio_engine_;
    job.offset_bytes =
        kNvmeDataStartBytes + RoundUp((round * kKinds + kFio) * job.total_bytes, uint64_t{kSlotAlignBytes});
    return RunFio(job);
  }

  absl::StatusOr<double> Copy() {
    const SystemClock clock;
    const int64_t start_ns = clock.MonotonicNs();
    const std::span<const std::byte> from = arena_like_->memory();
    const uint64_t blocks_there = from.size() / block_bytes_;
    for (uint64_t i = 0; i < chain_blocks_; ++i) {
      std::memcpy(target_.data() + i * block_bytes_, from.data() + i % blocks_there * block_bytes_, block_bytes_);
    }
    return Rate(clock.MonotonicNs() - start_ns);
  }

  double gib() const { return static_cast<double>(chain_blocks_ * block_bytes_) / kGiB; }
  pid_t daemon_pid() const { return daemon_->pid(); }
  double client_cpu_s() const { return client_cpu_s_; }
  uint64_t from_memory() const { return from_memory_; }
  uint64_t wrong() const { return wrong_; }

 private:
  absl::Status Attach() {
    const kv_layout layout{16, 1, static_cast<uint32_t>(block_bytes_)};
    KV_ASSIGN_OR_RETURN(client_, BenchClient::Attach(daemon_->attach_socket(), kDigestName, layout));
    return absl::OkStatus();
  }

  std::vector<BlockKey> ChainOf(uint64_t number) const {
    std::vector<BlockKey> keys;
    keys.reserve(chain_blocks_);
    for (uint64_t i = 0; i < chain_blocks_; ++i) keys.push_back(MakeKey(kDigestName, number * chain_blocks_ + i));
    return keys;
  }

  absl::Status Store(const std::vector<BlockKey>& chain) {
    uint64_t request = 0;
    for (size_t first = 0; first < chain.size(); first += part_blocks_) {
      const size_t last = std::min(chain.size(), first + part_blocks_);
      KV_ASSIGN_OR_RETURN(const Stored part, client_->Store(chain, first, last, request, [&](const Granted& slot) {
        FillBlock(chain[slot.index], slot.bytes);
      }));
      if (part.refused != 0) return absl::ResourceExhaustedError(absl::StrCat("store refused: ", part.refusal));
      stored_ += part.stored;
      const bool end = last == chain.size();
      for (uint32_t wait_ms = 0;; wait_ms = kPollMs) {
        KV_ASSIGN_OR_RETURN(const uint64_t durable, client_->Poll(wait_ms));
        if (durable + (end ? 0 : kBacklogBytesMax / block_bytes_) >= stored_) break;
      }
    }
    return absl::OkStatus();
  }

  double Rate(int64_t ns) const {
    return static_cast<double>(chain_blocks_ * block_bytes_) * 1e9 / static_cast<double>(ns);
  }

  const Common& common_;
  const NvmeOptions& options_;
  const std::string fio_engine_;
  const uint64_t block_bytes_;
  const uint64_t chain_blocks_;
  const uint32_t part_blocks_;
  const uint64_t file_bytes_;
  std::unique_ptr<BenchDaemon> daemon_;
  std::unique_ptr<BenchClient> client_;
  std::optional<StreamCeiling> arena_like_;  // memory as the daemon's is
  Mapping target_;
  uint64_t stored_ = 0, from_memory_ = 0, wrong_ = 0;
  double client_cpu_s_ = 0;
};

struct Rounds {
  RatioRounds pipelined;
  std::vector<double> serial, disk, copy;
  double daemon_cpu_s = 0;
};

absl::StatusOr<Rounds> Measure(RestoreRun* run, int rounds) {
  Rounds out;
  for (int i = 0; i < rounds; ++i) {
    const auto round = static_cast<uint64_t>(i);
    for (int step = 0; step < 4; ++step) {
      // Who starts changes from round to round.
      switch ((step + i) % 4) {
        case 0: {
          KV_ASSIGN_OR_RETURN(const double before, CpuSecondsOf(run->daemon_pid()));
          KV_ASSIGN_OR_RETURN(const double rate, run->Restore(kPipelined, round));
          KV_ASSIGN_OR_RETURN(const double after, CpuSecondsOf(run->daemon_pid()));
          out.daemon_cpu_s += after - before;
          out.pipelined.measured.push_back(rate);
          break;
        }
        case 1: {
          KV_ASSIGN_OR_RETURN(const double rate, run->Disk(round));
          out.disk.push_back(rate);
          break;
        }
        case 2: {
          KV_ASSIGN_OR_RETURN(const double rate, run->Restore(kSerial, round));
          out.serial.push_back(rate);
          break;
        }
        default: {
          KV_ASSIGN_OR_RETURN(const double rate, run->Copy());
          out.copy.push_back(rate);
        }
      }
    }
    out.pipelined.ceiling.push_back(std::min(out.disk.back(), out.copy.back()));
  }
  return out;
}

}  // namespace

absl::StatusOr<Report> RunRestore(const Common& common, const NvmeOptions& options) {
  if (!common.socket.empty()) return absl::InvalidArgumentError("nvme restarts its daemon: it cannot use --socket");
  Report report("restore");
  double smallest = 0;
  uint64_t wrong = 0, from_memory = 0;
  const std::string fio_engine = device::ProbeUring(-1).ok() ? "io_uring" : "libaio";
  for (size_t i = 0; i < options.block_kib.size(); ++i) {
    RestoreRun run(common, options, fio_engine, options.block_kib[i]);
    KV_RETURN_IF_ERROR(run.Start());
    KV_ASSIGN_OR_RETURN(const Rounds rounds, Measure(&run, options.rounds));
    const double ratio = rounds.pipelined.MedianRatio();
    const double gib = run.gib() * options.rounds;
    const std::string suffix = absl::StrCat("_", options.block_kib[i]);
    report.Add("restore_ratio" + suffix, ratio);
    report.Add("unpipelined_ratio" + suffix, RatioRounds{rounds.serial, rounds.pipelined.ceiling}.MedianRatio());
    report.Add("restore_gb_per_s" + suffix, Median(rounds.pipelined.measured) / 1e9);
    report.Add("disk_gb_per_s" + suffix, Median(rounds.disk) / 1e9);
    report.Add("copy_gb_per_s" + suffix, Median(rounds.copy) / 1e9);
    report.Add("daemon_cpu_s_per_gib" + suffix, rounds.daemon_cpu_s / gib);
    report.Add("client_cpu_s_per_gib" + suffix, run.client_cpu_s() / gib);
    smallest = i == 0 ? ratio : std::min(smallest, ratio);
    wrong += run.wrong();
    from_memory += run.from_memory();
  }
  report.Add("restore_ratio", smallest);
  report.Add("blocks_not_from_nvme", from_memory);
  report.Add("wrong", wrong);
  report.Require(wrong == 0, "wrong");
  report.Note(
      "restore_ratio: of NVMe -> cache -> client's own memory to the slower of fio's reads of the same file (block + 4 "
      "KiB header, the daemon's depth) and memcpy of as many bytes, in turns; the smallest over the block sizes. The "
      "tenant holds 256 MiB; parts of 8 MiB, three of them prefetched. unpipelined: the same without Prefetch");
  return report;
}

}  // namespace kvartal::bench
