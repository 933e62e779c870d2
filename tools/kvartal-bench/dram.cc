#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/mapping.h"
#include "daemon/base/units.h"
#include "tools/kvartal-bench/bench_client.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/shmem_huge_pages.h"
#include "tools/kvartal-bench/stats.h"

namespace kvartal::bench {
namespace {

constexpr int kBatchesARound = 4;
constexpr const char* kDigestName = "dram";

// The one loop both sides of `load_ratio` read with.
uint64_t XorOfWords(const std::byte* data, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, data + i, sizeof(word));
    sum ^= word;
  }
  return sum;
}

// Stores and reads batches of `slots` blocks; beside it, the same bytes in private memory of the same extent, so that
// neither side is better cached, and of the same page size.
class DramRounds {
 public:
  DramRounds(BenchClient* client, const DramOptions& options)
      : client_(client), options_(options), block_bytes_(options.block_kib * kKiB) {}

  absl::Status MakeBuffers(bool huge_pages) {
    KV_ASSIGN_OR_RETURN(source_, Mapping::Anonymous(BatchBytes()));
    KV_ASSIGN_OR_RETURN(private_, Mapping::Anonymous(Batches() * BatchBytes()));
    for (const Mapping* const mapping : {&source_, &private_}) {
      ::madvise(mapping->data(), mapping->size(), huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
      std::memset(mapping->data(), 1, mapping->size());
    }
    FillBlock(MakeKey(kDigestName, 0), {source_.data(), source_.size()});
    return absl::OkStatus();
  }

  // Fills the tier once, so that every range is granted and present in both mappings before anything is timed.
  absl::Status WarmUp() {
    for (uint64_t i = 0; i < Batches() + Batches() / 4; ++i) KV_RETURN_IF_ERROR(StoreBatch());
    return absl::OkStatus();
  }

  absl::StatusOr<double> StoreRound() {
    return BytesPerSecond([this] { return StoreBatch(); });
  }
  absl::StatusOr<double> CopyRound() {
    return BytesPerSecond([this] {
      // Block by block, as a store copies: one huge memcpy takes another path through the caches.
      std::byte* const to = private_.data() + NextPrivate() * BatchBytes();
      for (size_t at = 0; at < BatchBytes(); at += block_bytes_)
        std::memcpy(to + at, source_.data() + at, block_bytes_);
      return absl::OkStatus();
    });
  }
  absl::StatusOr<double> LoadRound() {
    return BytesPerSecond([this] { return LoadBatch(NextResident()); });
  }
  absl::StatusOr<double> ReadRound() {
    return BytesPerSecond([this] {
      sum_ ^= XorOfWords(private_.data() + NextPrivate() * BatchBytes(), BatchBytes());
      return absl::OkStatus();
    });
  }
  uint64_t sum() const { return sum_; }

 private:
  size_t BatchBytes() const { return options_.slots * block_bytes_; }
  uint64_t Batches() const { return std::max<uint64_t>(3, options_.dram_mib * kMiB / BatchBytes()); }
  uint64_t NextPrivate() { return private_turn_++ % Batches(); }
  // Through what is surely resident: the newest batches, less than the tier holds.
  uint64_t NextResident() { return next_key_ - 1 - load_turn_++ % std::max<uint64_t>(1, Batches() - 2); }

  template <typename Step>
  absl::StatusOr<double> BytesPerSecond(Step step) {
    const SystemClock clock;
    const int64_t start_ns = clock.MonotonicNs();
    for (int i = 0; i < kBatchesARound; ++i) KV_RETURN_IF_ERROR(step());
    return static_cast<double>(kBatchesARound * BatchBytes()) * 1e9 /
           static_cast<double>(clock.MonotonicNs() - start_ns);
  }

  std::vector<BlockKey> KeysOf(uint64_t batch) const {
    std::vector<BlockKey> keys;
    keys.reserve(options_.slots);
    for (uint64_t i = 0; i < options_.slots; ++i) keys.push_back(MakeKey(kDigestName, batch * options_.slots + i));
    return keys;
  }

  absl::Status StoreBatch() {
    const std::vector<BlockKey> keys = KeysOf(next_key_++);
    KV_ASSIGN_OR_RETURN(const Stored stored, client_->Store(keys, 0, keys.size(), 0, [this](const Granted& slot) {
      std::memcpy(slot.bytes.data(), source_.data() + slot.index * block_bytes_, slot.bytes.size());
    }));
    if (stored.stored == keys.size()) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat(stored.stored, " of ", keys.size(), " blocks stored: ", stored.refusal));
  }

  absl::Status LoadBatch(uint64_t batch) {
    const std::vector<BlockKey> keys = KeysOf(batch);
    KV_ASSIGN_OR_RETURN(Found found, client_->Lookup(keys));
    if (found.matched != keys.size())
      return absl::InternalError(absl::StrCat(found.matched, " of ", keys.size(), " blocks found"));
    for (uint32_t i = 0; i < found.matched; ++i) {
      sum_ ^= XorOfWords(static_cast<const std::byte*>(found.lease.blocks()[i].data), block_bytes_);
    }
    return absl::OkStatus();
  }

  BenchClient* const client_;
  const DramOptions& options_;
  const size_t block_bytes_;
  Mapping source_, private_;
  uint64_t next_key_ = 0;
  uint64_t private_turn_ = 0;
  uint64_t load_turn_ = 0;
  uint64_t sum_ = 0;
};

absl::Status OneRun(const Common& common, const DramOptions& options, const std::string& suffix, Report* report) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDaemon> daemon,
                      BenchDaemon::Start(common, OneTenant(options.dram_mib * kMiB)));
  KV_ASSIGN_OR_RETURN(const admin::v1::StatusReply status, daemon->admin().GetStatus());
  const kv_layout layout{16, 1, static_cast<uint32_t>(options.block_kib * kKiB)};
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchClient> client,
                      BenchClient::Attach(daemon->attach_socket(), kDigestName, layout));
  DramRounds rounds(client.get(), options);
  KV_RETURN_IF_ERROR(rounds.MakeBuffers(status.huge_pages()));
  KV_RETURN_IF_ERROR(rounds.WarmUp());
  KV_ASSIGN_OR_RETURN(
      const RatioRounds store,
      Interleave(options.rounds, [&] { return rounds.StoreRound(); }, [&] { return rounds.CopyRound(); }));
  KV_ASSIGN_OR_RETURN(
      const RatioRounds load,
      Interleave(options.rounds, [&] { return rounds.LoadRound(); }, [&] { return rounds.ReadRound(); }));
  report->Add("store_ratio" + suffix, store.MedianRatio());
  report->Add("load_ratio" + suffix, load.MedianRatio());
  report->Add("huge_pages" + suffix, status.huge_pages());
  report->Add("store_gb_per_s" + suffix, Median(store.measured) / 1e9);
  report->Add("memcpy_gb_per_s" + suffix, Median(store.ceiling) / 1e9);
  report->Add("load_gb_per_s" + suffix, Median(load.measured) / 1e9);
  report->Add("read_gb_per_s" + suffix, Median(load.ceiling) / 1e9);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> RunDram(const Common& common, const DramOptions& options) {
  if (options.slots == 0 || options.slots > kReservePerFrameMax) {
    return absl::InvalidArgumentError(absl::StrCat("--slots must be 1 to ", kReservePerFrameMax));
  }
  Report report("dram");
  report.Add("block_kib", options.block_kib);
  report.Add("slots", options.slots);
  const bool both = options.huge_pages == "both" && common.socket.empty();
  if (!both) {
    KV_RETURN_IF_ERROR(OneRun(common, options, "", &report));
    return report;
  }
  absl::StatusOr<std::unique_ptr<ShmemHugePages>> setting = ShmemHugePages::Set("never");
  KV_RETURN_IF_ERROR(OneRun(common, options, "", &report));
  if (!setting.ok()) {
    report.Note(absl::StrCat("no second run with huge pages: ", setting.status().message()));
    return report;
  }
  setting->reset();
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<ShmemHugePages> huge, ShmemHugePages::Set("advise"));
  KV_RETURN_IF_ERROR(OneRun(common, options, "_huge", &report));
  report.Note(
      "both sides use the same page size; private memory is as large as the tier; every range was present before");
  return report;
}

}  // namespace kvartal::bench
