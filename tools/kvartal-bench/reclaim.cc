#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/units.h"
#include "tools/kvartal-bench/bench_client.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/child_process.h"
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/reclaim_commit.h"
#include "tools/kvartal-bench/reclaim_victim.h"
#include "tools/kvartal-bench/stats.h"

namespace kvartal::bench {
namespace {

constexpr const char* kDigestName = "reclaim";
constexpr auto kPollEvery = std::chrono::microseconds(500);
constexpr int64_t kReclaimTimeoutNs = 30'000'000'000;

kv_layout LayoutOf(uint64_t block_kib) { return {16, 1, static_cast<uint32_t>(block_kib * kKiB)}; }

std::vector<BlockKey> KeysOf(uint64_t run, uint64_t count) {
  std::vector<BlockKey> keys;
  keys.reserve(count);
  for (uint64_t i = 0; i < count; ++i) keys.push_back(MakeKey(absl::StrCat(kDigestName, "/", run), i));
  return keys;
}

// Bytes of the tenant that no empty extent explains.
uint64_t ChargedInUse(const admin::v1::Tenant& tenant) {
  const admin::v1::TenantTier& dram = admin::TierOf(tenant, "dram");
  return dram.charged_bytes() - dram.granted_empty_bytes();
}

struct Figures {
  std::vector<double> reclaim_ms, kernel_ms;
  uint64_t visible = 0;
  uint64_t leaked_bytes = 0;
  uint64_t aborted_blocks = 0;  // told by the daemon: what it gave up
  CommitTally commits;          // of blocks that were never finished, by anyone but their dead client
};

class ReclaimRun {
 public:
  // `reaper`: of the tenant, in a group of its own.
  ReclaimRun(BenchDaemon* daemon, BenchClient* peer, RawSession* reaper, const ReclaimOptions& options)
      : daemon_(daemon),
        peer_(peer),
        reaper_(reaper),
        options_(options),
        blocks_(options.reserve_mib * kKiB / options.block_kib) {}

  absl::Status Once(uint64_t run, Figures* figures) {
    KV_ASSIGN_OR_RETURN(const admin::v1::Tenant before, daemon_->admin().GetTenant(peer_->tenant()));
    KV_ASSIGN_OR_RETURN(const admin::v1::StatusReply status, daemon_->admin().GetStatus());
    std::vector<std::string> arguments = {
        "reclaim-victim",      "--socket",    daemon_->attach_socket(),         "--blocks",
        absl::StrCat(blocks_), "--block-kib", absl::StrCat(options_.block_kib), "--run",
        absl::StrCat(run)};
    KV_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> victim, ChildProcess::Start(arguments));
    KV_ASSIGN_OR_RETURN(const VictimState state, ReadVictim(victim.get()));
    if (options_.inject_commit) KV_RETURN_IF_ERROR(CommitOneAlive(state, figures));
    const SystemClock clock;
    const int64_t killed_ns = clock.MonotonicNs();
    ::kill(victim->pid(), SIGKILL);
    KV_ASSIGN_OR_RETURN(const double reclaim_ms, WaitReclaimed(status.reclaims(), killed_ns));
    const double outside_ms = static_cast<double>(clock.MonotonicNs() - killed_ns) / 1e6;
    figures->reclaim_ms.push_back(reclaim_ms);
    figures->kernel_ms.push_back(std::max(0.0, outside_ms - reclaim_ms));
    KV_RETURN_IF_ERROR(TryToSee(run, state, figures));
    KV_ASSIGN_OR_RETURN(const admin::v1::Tenant after, daemon_->admin().GetTenant(peer_->tenant()));
    figures->leaked_bytes += ChargedInUse(after) - std::min(ChargedInUse(after), ChargedInUse(before));
    figures->aborted_blocks += after.blocks_aborted() - before.blocks_aborted();
    return absl::OkStatus();
  }

  uint64_t looked_up() const { return looked_up_; }
  // Sessions that got into a group whose last session had ended.
  uint64_t joined() const { return joined_; }

 private:
  absl::StatusOr<double> WaitReclaimed(uint64_t reclaims_before, int64_t killed_ns) {
    const SystemClock clock;
    while (clock.MonotonicNs() - killed_ns < kReclaimTimeoutNs) {
      KV_ASSIGN_OR_RETURN(const admin::v1::StatusReply status, daemon_->admin().GetStatus());
      if (status.reclaims() > reclaims_before && status.recent_reclaim_us_size() > 0) {
        return static_cast<double>(status.recent_reclaim_us(status.recent_reclaim_us_size() - 1)) / 1e3;
      }
      std::this_thread::sleep_for(kPollEvery);
    }
    return absl::DeadlineExceededError("the daemon did not notice the killed client");
  }

  // Blocks of the dead group that anyone of its tenant can see or make visible: a look-up by a peer; a commit by a
  // session that joins the dead group; a commit by one of another group; and looking again.
  absl::Status TryToSee(uint64_t run, const VictimState& state, Figures* figures) {
    const std::vector<BlockKey> keys = KeysOf(run, blocks_);
    KV_ASSIGN_OR_RETURN(const uint64_t seen_before, Visible(keys));
    looked_up_ += keys.size();
    const absl::StatusOr<std::unique_ptr<RawSession>> heir = JoinGroup(state);
    if (!heir.ok() && !absl::IsPermissionDenied(heir.status())) return heir.status();
    joined_ += heir.ok();
    for (RawSession* const session : {heir.ok() ? heir->get() : nullptr, reaper_}) {
      if (session == nullptr) continue;
      KV_ASSIGN_OR_RETURN(const CommitTally tally, session->Commit(state.reservations));
      figures->commits += tally;
      figures->visible += tally.accepted;
    }
    KV_ASSIGN_OR_RETURN(const uint64_t seen_after, Visible(keys));
    figures->visible += seen_before + seen_after;
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<RawSession>> JoinGroup(const VictimState& state) const {
    return RawSession::Attach(daemon_->attach_socket(), std::string(state.group.begin(), state.group.end()));
  }

  // The same frame at a time when it must be accepted: what refuses it later is the death of the group.
  absl::Status CommitOneAlive(const VictimState& state, Figures* figures) const {
    KV_ASSIGN_OR_RETURN(const std::unique_ptr<RawSession> sibling, JoinGroup(state));
    KV_ASSIGN_OR_RETURN(const CommitTally tally, sibling->Commit(std::span(state.reservations).first(1)));
    if (tally.accepted != 1) return absl::InternalError("a commit by a session of the living group was refused");
    figures->commits += tally;
    figures->visible += tally.accepted;
    return absl::OkStatus();
  }

  // Each key by itself: a gap at the head must not hide a block behind it.
  absl::StatusOr<uint64_t> Visible(const std::vector<BlockKey>& keys) {
    uint64_t visible = 0;
    for (const BlockKey& key : keys) {
      KV_ASSIGN_OR_RETURN(const Found found, peer_->Lookup({&key, 1}));
      visible += found.matched;
    }
    return visible;
  }

  BenchDaemon* const daemon_;
  BenchClient* const peer_;
  RawSession* const reaper_;
  const ReclaimOptions& options_;
  const uint64_t blocks_;
  uint64_t looked_up_ = 0;
  uint64_t joined_ = 0;
};

}  // namespace

absl::StatusOr<VictimState> ReadVictim(ChildProcess* victim) {
  KV_ASSIGN_OR_RETURN(const std::string line, victim->ReadLine());
  std::istringstream words(line);
  std::string group_hex;
  words >> group_hex;
  const std::string group = absl::HexStringToBytes(group_hex);
  VictimState state;
  if (group.size() != state.group.size())
    return absl::InternalError("the victim process did not tell its group: " + line);
  std::memcpy(state.group.data(), group.data(), group.size());
  for (uint64_t reservation; words >> reservation;) state.reservations.push_back(reservation);
  return state;
}

absl::Status RunReclaimVictim(const ReclaimVictimOptions& options) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchClient> client,
                      BenchClient::Attach(options.socket, kDigestName, LayoutOf(options.block_kib)));
  const std::vector<BlockKey> keys = KeysOf(options.run, options.blocks);
  client::Group group{};
  KV_RETURN_IF_ERROR(client->StatusOf(client->client().GetGroup(&group), "group"));
  std::string line =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(group.data()), group.size()));
  for (size_t first = 0; first < keys.size(); first += kReservePerFrameMax) {
    client::Client::ReserveArgs args;
    args.ns = client->ns();
    args.keys = ClientKeys(std::span(keys).subspan(first, std::min<size_t>(keys.size() - first, kReservePerFrameMax)));
    args.parent = first == 0 ? nullptr : &keys[first - 1].bytes;
    args.first_depth = static_cast<uint32_t>(first);
    std::vector<kv_slot> slots(args.keys.size());
    KV_RETURN_IF_ERROR(client->StatusOf(client->client().Reserve(args, slots, kDeadlineMs), "reserve"));
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].outcome != KV_GRANTED) {
        return absl::ResourceExhaustedError(absl::StrCat("slot ", first + i, " refused: ", client->client().refusal()));
      }
      FillBlock(keys[first + i], {static_cast<std::byte*>(slots[i].data), client->block_bytes()});
      absl::StrAppend(&line, " ", slots[i].reservation);
    }
  }
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  for (;;) ::pause();
}

absl::StatusOr<Report> RunReclaim(const Common& common, const ReclaimOptions& options) {
  const uint64_t dram_bytes = RoundUp(options.reserve_mib * kMiB * 5 / 4 + 256 * kMiB, kExtentAlignBytes);
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDaemon> daemon, BenchDaemon::Start(common, OneTenant(dram_bytes)));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchClient> peer,
                      BenchClient::Attach(daemon->attach_socket(), kDigestName, LayoutOf(options.block_kib)));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<RawSession> reaper, RawSession::Attach(daemon->attach_socket(), ""));
  ReclaimRun run(daemon.get(), peer.get(), reaper.get(), options);
  Figures figures;
  Progress progress("reclaim", static_cast<uint64_t>(options.runs));
  for (int i = 0; i < options.runs; ++i) {
    KV_RETURN_IF_ERROR(run.Once(static_cast<uint64_t>(i), &figures));
    progress.Update(static_cast<uint64_t>(i) + 1);
  }
  KV_RETURN_IF_ERROR(daemon->admin().CheckInvariants().status());
  KV_ASSIGN_OR_RETURN(const admin::v1::StatusReply status, daemon->admin().GetStatus());
  Report report("reclaim");
  report.Add("runs", static_cast<uint64_t>(options.runs));
  report.Add("reserved_mib", options.reserve_mib);
  report.Add("huge_pages", status.huge_pages());
  report.Add("p50_ms", Percentile(figures.reclaim_ms, 50));
  report.Add("p99_ms", Percentile(figures.reclaim_ms, 99));
  report.Add("kernel_ms", Median(figures.kernel_ms));
  report.Add("kernel_p99_ms", Percentile(figures.kernel_ms, 99));
  report.Add("unfinished_blocks", run.looked_up());
  report.Add("aborted_blocks", figures.aborted_blocks);
  report.Add("commits_tried", figures.commits.tried);
  report.Add("commits_refused", figures.commits.refused);
  report.Add("visible_unfinished", figures.visible);
  report.Add("dead_groups_joined", run.joined());
  report.Add("leaked_bytes", figures.leaked_bytes);
  report.Require((figures.visible == 0) != options.inject_commit, "visible_unfinished");
  report.Require(figures.leaked_bytes == 0, "leaked_bytes");
  report.Note(
      "p50, p99: EOF seen by the daemon to bytes charged back, told by the daemon; kernel: SIGKILL to that EOF, the "
      "rest of what is seen from outside, polling included");
  report.Note(
      "commits_tried: reservations of dead clients that a session of the same tenant sent in Commit frames; "
      "visible_unfinished: those accepted, and blocks found by look-ups before and after; aborted_blocks: told by the "
      "daemon");
  return report;
}

}  // namespace kvartal::bench
