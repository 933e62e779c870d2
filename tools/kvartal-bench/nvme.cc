#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/limits.h"
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

constexpr const char* kDigestName = "nvme";
constexpr uint32_t kStoreBatch = 32;   // blocks a Reserve: the disk starts while the next are being filled
constexpr uint64_t kBacklogMax = 512;  // blocks not durable yet: of more than a thousand the daemon skips some
constexpr int kWarmUpRounds = 3;
constexpr uint32_t kPollMs = 2;
constexpr int64_t kDurableTimeoutMs = 60'000;

// One block size: a daemon whose data file was written through before, and a sibling of the same size for fio's writes.
class NvmeRun {
 public:
  enum class Blocks : uint8_t { kPlain, kEncrypted };
  // `fio_engine` "": nothing of it is measured.
  NvmeRun(const Common& common, const NvmeOptions& options, std::string fio_engine, uint64_t block_kib,
          Blocks blocks = Blocks::kPlain)
      : common_(common),
        options_(options),
        fio_engine_(std::move(fio_engine)),
        encrypted_(blocks == Blocks::kEncrypted),
        block_bytes_(block_kib * kKiB),
        blocks_a_round_(std::max<uint64_t>(1, options.round_mib * kMiB / block_bytes_)),
        file_bytes_(RoundUp(StoredRounds() * options.round_mib * kMiB * 5 / 4 + 512 * kMiB, kSegmentMaxBytes)) {}

  absl::Status Start() {
    KV_ASSIGN_OR_RETURN(daemon_, BenchDaemon::Prepare(common_, Setup(options_.round_mib * kMiB * 3 / 2)));
    KV_RETURN_IF_ERROR(Prewrite(daemon_->nvme_file(), file_bytes_));
    if (!fio_engine_.empty()) KV_RETURN_IF_ERROR(Prewrite(SiblingFile(), file_bytes_));
    KV_RETURN_IF_ERROR(daemon_->Launch());
    KV_RETURN_IF_ERROR(Attach());
    KV_ASSIGN_OR_RETURN(stream_, StreamCeiling::Create(options_.round_mib * kMiB));
    // The whole tier once: all memory is granted and present before anything is timed.
    for (int i = 0; i < kWarmUpRounds; ++i) KV_RETURN_IF_ERROR(StoreRound().status());
    return absl::OkStatus();
  }

  // The same blocks on disk, next to no DRAM: every load is from NVMe.
  absl::Status RestartForReads() {
    while (stored_rounds_ < StoredRounds()) KV_RETURN_IF_ERROR(StoreRound().status());
    client_.reset();
    KV_RETURN_IF_ERROR(daemon_->Stop());
    KV_RETURN_IF_ERROR(daemon_->Launch(Setup(options_.round_mib * kMiB / 2)));
    KV_RETURN_IF_ERROR(daemon_->WaitRecovered());
    KV_RETURN_IF_ERROR(Attach());
    KV_ASSIGN_OR_RETURN(const admin::v1::StatusReply status, daemon_->admin().GetStatus());
    direct_io_ = status.direct_io();
    io_engine_ = status.io_engine();
    huge_pages_ = status.huge_pages();
    return LoadRound().status();
  }

  // Bytes a second from the first Reserve until the last block is durable.
  absl::StatusOr<double> StoreRound() {
    const std::vector<BlockKey> chain = ChainOf(stored_rounds_++);
    KV_ASSIGN_OR_RETURN(const uint64_t durable_before, client_->Poll(0));
    const SystemClock clock;
    const int64_t start_ns = clock.MonotonicNs();
    uint64_t stored = 0, request = 0;
    for (size_t first = 0; first < chain.size(); first += kStoreBatch) {
      const size_t last = std::min(chain.size(), first + kStoreBatch);
      KV_ASSIGN_OR_RETURN(const Stored part, client_->Store(chain, first, last, request, [&](const Granted& slot) {
        FillBlock(chain[slot.index], slot.bytes);
      }));
      if (part.refused != 0) return absl::ResourceExhaustedError(absl::StrCat("store refused: ", part.refusal));
      stored += part.stored;
      KV_RETURN_IF_ERROR(AwaitDurable(durable_before + stored, kBacklogMax, start_ns));
    }
    KV_RETURN_IF_ERROR(AwaitDurable(durable_before + stored, 0, start_ns));
    return Rate(stored, clock.MonotonicNs() - start_ns);
  }

  // Bytes a second of Lookup, Load in windows, Release; then, untimed, nothing: bytes are compared as they come.
  absl::StatusOr<double> LoadRound() {
    const std::vector<BlockKey> chain = ChainOf(loaded_rounds_++ * 2);
    const SystemClock clock;
    const int64_t start_ns = clock.MonotonicNs();
    KV_ASSIGN_OR_RETURN(Found found, client_->Lookup(chain));
    if (found.matched != chain.size()) {
      return absl::InternalError(absl::StrCat(found.matched, " of ", chain.size(), " blocks found after the restart"));
    }
    for (uint32_t i = 0; i < found.matched; ++i) from_memory_ += found.lease.blocks()[i].tier != KV_TIER_NVME;
    for (uint32_t first = 0; first < found.matched;) {
      const client::Lease::Loaded loaded = found.lease.Load(first, found.matched - first, kDeadlineMs);
      KV_RETURN_IF_ERROR(client_->StatusOf(loaded.status, "load"));
      if (loaded.count == 0) return absl::InternalError("load brought nothing");
      for (uint32_t i = first; i < first + loaded.count; ++i) CheckStamp(chain[i], found.lease.Shard(i, 0));
      found.lease.ReleaseFront(loaded.count);
      first += loaded.count;
    }
    return Rate(found.matched, clock.MonotonicNs() - start_ns);
  }

  absl::StatusOr<double> FioWrite() { return RunFio(Job(SiblingFile(), true, fio_writes_++)); }
  absl::StatusOr<double> StreamWrite() { return stream_->Write(Job(SiblingFile(), true, fio_writes_)); }
  // The daemon's own file, what it wrote in every other round: as old as what it reads itself, and never the same.
  absl::StatusOr<double> FioRead() { return RunFio(Job(daemon_->nvme_file(), false, fio_reads_++ * 2 + 1)); }
  pid_t daemon_pid() const { return daemon_->pid(); }
  double RoundGib() const { return static_cast<double>(blocks_a_round_ * block_bytes_) / kGiB; }

  uint64_t from_memory() const { return from_memory_; }
  uint64_t wrong() const { return wrong_; }
  bool direct_io() const { return direct_io_; }
  const std::string& io_engine() const { return io_engine_; }
  // Of the daemon's memory. Transfers of huge pages are fewer pieces; fio's own buffers have none.
  bool huge_pages() const { return huge_pages_; }

 private:
  // Half of them are read by the daemon, half by fio; one more of each than is timed.
  uint64_t StoredRounds() const {
    return std::max<uint64_t>(options_.rounds + kWarmUpRounds, 2 * (options_.rounds + 1));
  }

  DaemonSetup Setup(uint64_t dram_bytes) const {
    DaemonSetup setup = OneTenant(RoundUp(dram_bytes, kExtentAlignBytes), file_bytes_);
    setup.nvme_threads = options_.io_threads;
    setup.nvme_io = options_.io;
    setup.encrypted = encrypted_;
    return setup;
  }

  std::string SiblingFile() const { return daemon_->folder() + "/ceiling.dat"; }

  absl::Status Attach() {
    const kv_layout layout{16, 1, static_cast<uint32_t>(block_bytes_)};
    KV_ASSIGN_OR_RETURN(client_, BenchClient::Attach(daemon_->attach_socket(), kDigestName, layout));
    return absl::OkStatus();
  }

  std::vector<BlockKey> ChainOf(uint64_t round) const {
    std::vector<BlockKey> keys;
    keys.reserve(blocks_a_round_);
    for (uint64_t i = 0; i < blocks_a_round_; ++i) keys.push_back(MakeKey(kDigestName, round * blocks_a_round_ + i));
    return keys;
  }

  // The daemon verifies every byte it reads; one page here makes sure that it is the right block.
  void CheckStamp(const BlockKey& key, const void* data) {
    wrong_ += data == nullptr || WrongBytes(key, {static_cast<const std::byte*>(data), 4096}) != 0;
  }

  // Until all but `backlog` of `wanted` blocks are durable.
  absl::Status AwaitDurable(uint64_t wanted, uint64_t backlog, int64_t start_ns) {
    const SystemClock clock;
    for (uint32_t wait_ms = 0;; wait_ms = kPollMs) {
      KV_ASSIGN_OR_RETURN(const uint64_t durable, client_->Poll(wait_ms));
      if (durable + backlog >= wanted) return absl::OkStatus();
      if (clock.MonotonicNs() - start_ns > kDurableTimeoutMs * kNsPerMs) {
        return absl::DeadlineExceededError(absl::StrCat(wanted - durable, " blocks did not become durable"));
      }
    }
  }

  FioJob Job(const std::string& path, bool write, uint64_t place) const {
    FioJob job;
    job.path = path;
    job.write = write;
    job.io_bytes = block_bytes_ + kNvmeHeaderBytes;
    job.total_bytes = blocks_a_round_ * job.io_bytes;
    job.depth = options_.io_threads;
    job.engine = fio_engine_;
    const uint64_t places = std::max<uint64_t>(1, file_bytes_ / job.total_bytes);
    job.offset_bytes = RoundUp(place % places * job.total_bytes, kSlotAlignBytes);
    if (job.offset_bytes + job.total_bytes > file_bytes_) job.offset_bytes = 0;
    return job;
  }

  double Rate(uint64_t blocks, int64_t ns) const {
    return static_cast<double>(blocks * (block_bytes_ + kNvmeHeaderBytes)) * 1e9 / static_cast<double>(ns);
  }

  const Common& common_;
  const NvmeOptions& options_;
  const std::string fio_engine_;
  const bool encrypted_;
  const uint64_t block_bytes_;
  const uint64_t blocks_a_round_;
  const uint64_t file_bytes_;
  std::unique_ptr<BenchDaemon> daemon_;
  std::unique_ptr<BenchClient> client_;
  std::optional<StreamCeiling> stream_;
  uint64_t stored_rounds_ = 0, loaded_rounds_ = 0, fio_writes_ = 0, fio_reads_ = 0;
  bool direct_io_ = false, huge_pages_ = false;
  std::string io_engine_;
  uint64_t from_memory_ = 0, wrong_ = 0;
};

// What the rounds of one block size came to.
struct Figures {
  RatioRounds write, read;
  std::vector<double> stream;  // a ring: beside each round of `write`
  double write_cpu_s_per_gib = 0, read_cpu_s_per_gib = 0;
};

absl::StatusOr<Figures> Measure(NvmeRun* run, int rounds, bool stream) {
  Figures figures;
  const double gib = rounds * run->RoundGib();
  KV_RETURN_IF_ERROR(run->Start());
  KV_ASSIGN_OR_RETURN(const double before_writes, CpuSecondsOf(run->daemon_pid()));
  const auto ceilings = [&]() -> absl::StatusOr<double> {
    if (stream) {
      KV_ASSIGN_OR_RETURN(const double rate, run->StreamWrite());
      figures.stream.push_back(rate);
    }
    return run->FioWrite();
  };
  KV_ASSIGN_OR_RETURN(figures.write, Interleave(rounds, [&] { return run->StoreRound(); }, ceilings));
  KV_ASSIGN_OR_RETURN(const double after_writes, CpuSecondsOf(run->daemon_pid()));
  KV_RETURN_IF_ERROR(run->RestartForReads());
  KV_ASSIGN_OR_RETURN(const double before_reads, CpuSecondsOf(run->daemon_pid()));
  KV_ASSIGN_OR_RETURN(figures.read,
                      Interleave(rounds, [&] { return run->LoadRound(); }, [&] { return run->FioRead(); }));
  KV_ASSIGN_OR_RETURN(const double after_reads, CpuSecondsOf(run->daemon_pid()));
  figures.write_cpu_s_per_gib = (after_writes - before_writes) / gib;
  figures.read_cpu_s_per_gib = (after_reads - before_reads) / gib;
  return figures;
}

void Add(const Figures& figures, const std::string& suffix, Report* report) {
  const RatioRounds& write = figures.write;
  const RatioRounds& read = figures.read;
  report->Add("write_ratio" + suffix, write.MedianRatio());
  report->Add("read_ratio" + suffix, read.MedianRatio());
  report->Add("write_gb_per_s" + suffix, Median(write.measured) / 1e9);
  report->Add("fio_write_gb_per_s" + suffix, Median(write.ceiling) / 1e9);
  if (!figures.stream.empty()) {
    report->Add("stream_write_ratio" + suffix, RatioRounds{write.measured, figures.stream}.MedianRatio());
    report->Add("stream_write_gb_per_s" + suffix, Median(figures.stream) / 1e9);
  }
  report->Add("read_gb_per_s" + suffix, Median(read.measured) / 1e9);
  report->Add("fio_read_gb_per_s" + suffix, Median(read.ceiling) / 1e9);
  report->Add("write_cpu_s_per_gib" + suffix, figures.write_cpu_s_per_gib);
  report->Add("read_cpu_s_per_gib" + suffix, figures.read_cpu_s_per_gib);
}

}  // namespace

absl::StatusOr<Report> RunNvme(const Common& common, const NvmeOptions& options) {
  if (!common.socket.empty()) return absl::InvalidArgumentError("nvme restarts its daemon: it cannot use --socket");
  Report report("nvme");
  double write_ratio = 0, read_ratio = 0;
  uint64_t wrong = 0, from_memory = 0;
  bool direct_io = true, huge_pages = false;
  const bool ring = device::ProbeUring(-1).ok();
  const std::string fio_engine = ring ? "io_uring" : "libaio";
  std::string io_engine;
  for (size_t i = 0; i < options.block_kib.size(); ++i) {
    NvmeRun run(common, options, fio_engine, options.block_kib[i]);
    KV_ASSIGN_OR_RETURN(const Figures figures, Measure(&run, options.rounds, ring));
    Add(figures, absl::StrCat("_", options.block_kib[i]), &report);
    const double written = figures.write.MedianRatio(), read = figures.read.MedianRatio();
    write_ratio = i == 0 ? written : std::min(write_ratio, written);
    read_ratio = i == 0 ? read : std::min(read_ratio, read);
    wrong += run.wrong();
    direct_io = direct_io && run.direct_io();
    io_engine = run.io_engine();
    huge_pages = huge_pages || run.huge_pages();
    from_memory += run.from_memory();
  }
  report.Add("write_ratio", write_ratio);
  report.Add("read_ratio", read_ratio);
  report.Add("io_threads", static_cast<uint64_t>(options.io_threads));
  report.Add("blocks_not_from_nvme", from_memory);
  report.Add("direct_io", direct_io);
  report.Add("io", io_engine);
  report.Add("fio_engine", fio_engine);
  report.Add("huge_pages", huge_pages);
  report.Add("wrong", wrong);
  report.Require(wrong == 0, "wrong");
  report.Note(
      "ratios: the smallest over the block sizes. fio reads the daemon's own file and writes a prewritten file of the "
      "same size beside it; I/O size is block + 4 KiB header, depth is the daemon's I/O threads. stream: the same "
      "writes by one ring from memory as large as what it writes, where fio has a few buffers that stay in the "
      "processor's cache. cpu: the daemon's, user and system");
  return report;
}

absl::StatusOr<Report> RunNvmeEncrypted(const Common& common, const NvmeOptions& options) {
  if (!common.socket.empty()) return absl::InvalidArgumentError("nvme restarts its daemon: it cannot use --socket");
  Report report("nvme-encrypted");
  uint64_t wrong = 0, from_memory = 0;
  for (const uint64_t block_kib : options.block_kib) {
    NvmeRun plain(common, options, "", block_kib),
        encrypted(common, options, "", block_kib, NvmeRun::Blocks::kEncrypted);
    KV_RETURN_IF_ERROR(plain.Start());
    KV_RETURN_IF_ERROR(encrypted.Start());
    KV_ASSIGN_OR_RETURN(
        const RatioRounds write,
        Interleave(options.rounds, [&] { return encrypted.StoreRound(); }, [&] { return plain.StoreRound(); }));
    KV_RETURN_IF_ERROR(plain.RestartForReads());
    KV_RETURN_IF_ERROR(encrypted.RestartForReads());
    KV_ASSIGN_OR_RETURN(
        const RatioRounds read,
        Interleave(options.rounds, [&] { return encrypted.LoadRound(); }, [&] { return plain.LoadRound(); }));
    const std::string suffix = absl::StrCat("_", block_kib);
    report.Add("encrypted_write_ratio" + suffix, write.MedianRatio());
    report.Add("encrypted_read_ratio" + suffix, read.MedianRatio());
    report.Add("encrypted_write_gb_per_s" + suffix, Median(write.measured) / 1e9);
    report.Add("plain_write_gb_per_s" + suffix, Median(write.ceiling) / 1e9);
    report.Add("encrypted_read_gb_per_s" + suffix, Median(read.measured) / 1e9);
    report.Add("plain_read_gb_per_s" + suffix, Median(read.ceiling) / 1e9);
    wrong += plain.wrong() + encrypted.wrong();
    from_memory += plain.from_memory() + encrypted.from_memory();
  }
  report.Add("io_threads", static_cast<uint64_t>(options.io_threads));
  report.Add("blocks_not_from_nvme", from_memory);
  report.Add("wrong", wrong);
  report.Require(wrong == 0, "wrong");
  report.Note(
      "two daemons, each with a prewritten file of its own on one disk, measured in turns; the tenant of one asks for "
      "encryption: {nvme: Required}. The reads verify a tag where the plain ones verify a checksum");
  return report;
}

}  // namespace kvartal::bench
