// kvartal-bench: every number of docs/CLAIMS.md and the demo. One subcommand a benchmark.
#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/policy/eviction_names.h"
#include "tools/command_line/words.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/demo_client.h"
#include "tools/kvartal-bench/interrupt.h"
#include "tools/kvartal-bench/reclaim_victim.h"

namespace kvartal::bench {
namespace {

constexpr int kExitUsage = 2;
constexpr int kExitUnmet = 3;

// "inf" or a number of blocks; 0 stands for no limit.
bool ParseCapacity(const std::string& text, uint64_t* blocks) {
  if (text == "inf") {
    *blocks = 0;
    return true;
  }
  // "-5" would be read as a number near 2^64.
  return text.find_first_not_of("0123456789") == std::string::npos && CLI::detail::lexical_cast(text, *blocks) &&
         *blocks != 0;
}

int AskedWrongly(const std::string& what) {
  std::fprintf(stderr, "kvartal-bench: %s\n", what.c_str());
  return kExitUsage;
}

std::vector<std::string> EvictionNames() { return {policy::kEvictionNames.begin(), policy::kEvictionNames.end()}; }
CLI::Validator Eviction() { return command_line::OneOf(EvictionNames()); }

// What LoadTrace finds.
CLI::Validator TraceName() {
  return CLI::Validator(
      [](const std::string& given) {
        if (given == "conversation" || given == "synthetic" || CLI::ExistingFile(given).empty()) return std::string();
        return "'" + given + "' is no trace: conversation, synthetic or a file of JSON lines";
      },
      "");
}

// The command line: owns every option struct, and runs the subcommand that was named.
// Confined to main.
class CommandLine {
 public:
  CommandLine()
      : app_(
            "Measures kvartald and shows it at work; needs the kvartald binary beside it.\n\n"
            "Exit codes: 0 done, 1 failed, 2 asked wrongly, 3 done and something is not as it must be on any machine "
            "(\"unmet\" of the JSON object names it): wrong bytes, a lost block, a limit exceeded, an --inject "
            "unseen.") {
    app_.require_subcommand(1);
    app_.add_flag("--json", json_, "print one JSON object on the last line of stdout");
    app_.add_option("--socket", common_.socket,
                    "attach socket of a running daemon (default: start one); replay: of one without NVMe");
    app_.add_option("--admin-socket", common_.admin_socket, "its admin socket (default: admin.sock beside it)");
    app_.add_option("--dir", common_.folder, "where the temporary folder is made (default: $TMPDIR or /tmp)");
    app_.add_option("--kvartald", common_.kvartald, "the daemon's binary (default: beside this one)");
    app_.fallthrough();
    AddReplay();
    AddLookup();
    AddEngine();
    AddNeighbour();
    AddMemory();
    AddDisk();
    AddQuota();
    AddDeaths();
    AddTime();
    AddFleet();
    AddDemo();
    AddInner();
    app_.allow_extras();  // and told below, in words
  }

  int Run(int argc, char** argv) {
    // What is counted here is never below 0, and would be taken for something near 2^64.
    for (int i = 1; i < argc; ++i) {
      const std::string_view word = argv[i];
      const size_t number = word.rfind("--", 0) == 0 ? word.find('=') + 1 : 0;
      if (word.size() > number + 1 && word[number] == '-' && std::isdigit(word[number + 1]) != 0)
        return AskedWrongly(absl::StrCat("no number may be below 0: ", argv[i]));
    }
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      const std::string unknown = command_line::UnknownCommand(app_);
      if (!unknown.empty()) return AskedWrongly(unknown);
      return app_.exit(error) == 0 ? 0 : kExitUsage;
    }
    if (const std::string strange = command_line::StrangeWord(app_); !strange.empty()) return AskedWrongly(strange);
    const absl::StatusOr<Report> report = run_();
    if (!report.ok()) {
      std::fprintf(stderr, "kvartal-bench: %s\n", std::string(report.status().message()).c_str());
      return 1;
    }
    if (silent_) return 0;
    std::printf("%s", report->Table().c_str());
    if (json_) std::printf("%s\n", report->Json().c_str());
    if (report->unmet().empty()) return 0;
    std::fflush(stdout);
    std::fprintf(stderr, "kvartal-bench: not as it must be on any machine: %s\n",
                 absl::StrJoin(report->unmet(), ", ").c_str());
    return kExitUnmet;
  }

 private:
  using Run0 = std::function<absl::StatusOr<Report>()>;

  CLI::App* Subcommand(const char* name, const char* what, Run0 run) {
    CLI::App* const sub = app_.add_subcommand(name, what);
    sub->callback([this, run = std::move(run)] { run_ = run; });
    return sub;
  }

  void AddReplay() {
    CLI::App* const sub = Subcommand("replay", "a real trace through one client; every loaded byte is verified",
                                     [this] { return RunReplay(common_, replay_); });
    sub->add_option("--trace", replay_.trace, "conversation | synthetic | path")
        ->check(TraceName())
        ->capture_default_str();
    sub->add_option_function<std::string>(
        "--capacity-blocks",
        [this](const std::string& text) {
          if (!ParseCapacity(text, &replay_.capacity_blocks))
            throw CLI::ValidationError("--capacity-blocks", "'" + text + "' is not allowed: 1 or more blocks, or inf");
        },
        "blocks the tenant may hold, or inf");
    sub->add_option("--eviction", replay_.eviction,
                    absl::StrCat("eviction order of the daemon: ", absl::StrJoin(EvictionNames(), " | ")))
        ->check(Eviction())
        ->capture_default_str();
    sub->add_option("--clock", replay_.clock,
                    "wall: a real daemon, as fast as it goes; trace: the engine alone, without bytes, at the times of "
                    "the trace [trace for all eviction orders but lru]")
        ->check(CLI::IsMember({"wall", "trace"}));
    CLI::Option* const nvme = sub->add_option("--nvme-blocks", replay_.nvme_blocks,
                                              "blocks NVMe may hold, too, on the clock of the trace [0: there is none]")
                                  ->check(CLI::Range(0, 100'000'000));
    sub->add_option("--write-budget", replay_.write_budget_per_second, "bytes a second written there [0: any amount]")
        ->needs(nvme);
    sub->add_option("--block-kib", replay_.block_kib)->check(CLI::Range(1, 32768))->capture_default_str();
    sub->add_option("--requests", replay_.requests, "only the first N requests (0: all)")
        ->check(CLI::Range(0, 1'000'000'000));
    sub->add_flag("--inject-flip", replay_.inject_flip, "flip one stored bit: wrong_bytes must not be 0");
  }

  void AddLookup() {
    CLI::App* const lookup = Subcommand("lookup", "Lookup and Release of resident chains against a bare echo",
                                        [this] { return RunLookup(common_, lookup_); });
    lookup->add_option("--chain", lookup_.chain, "keys a lookup")->check(CLI::Range(1, 1024))->capture_default_str();
    lookup->add_option("--clients", lookup_.clients, "sessions at once")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    lookup->add_option("--blocks", lookup_.blocks, "resident blocks")->capture_default_str();
    lookup->add_option("--block-kib", lookup_.block_kib)->check(CLI::Range(4, 32768))->capture_default_str();
    lookup->add_option("--rounds", lookup_.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
    CLI::App* const connector =
        Subcommand("connector", "what the vLLM connector adds to a scheduler's step with no hit",
                   [this] { return RunConnector(common_, connector_); });
    connector->add_option("--rounds", connector_.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
    connector->add_option("--requests", connector_.requests, "a round and length of prompt")
        ->check(CLI::Range(4, 1'000'000))
        ->capture_default_str();
    CLI::App* const index =
        Subcommand("index", "the prefix index alone, in this process", [this] { return RunIndex(index_); });
    index->add_option("--entries", index_.entries)->check(CLI::Range(1, 1'000'000'000))->capture_default_str();
    index->add_option("--chain", index_.chain)->check(CLI::Range(1, 1024))->capture_default_str();
  }

  void AddEngine() {
    CLI::App* const engine = Subcommand("engine", "the verbs of the engine alone, in this process, over many tenants",
                                        [this] { return RunEngineBench(engine_); });
    engine->add_option("--tenants", engine_.tenants)->check(CLI::Range(1, 4096))->capture_default_str();
    engine->add_option("--chain", engine_.chain, "blocks a prompt")->check(CLI::Range(1, 512))->capture_default_str();
    engine->add_option("--batches", engine_.batches_a_round, "prompts a round")
        ->check(CLI::Range(1, 10'000'000))
        ->capture_default_str();
    engine->add_option("--rounds", engine_.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
    engine->add_option("--eviction", engine_.eviction)->check(Eviction())->capture_default_str();
    CLI::App* const fp8 = Subcommand("fp8", "the FP8 codec on one core against memcpy, and what it costs in accuracy",
                                     [this] { return RunFp8(fp8_); });
    fp8->add_option("--channels", fp8_.channels, "of a head")
        ->check(CLI::IsMember({16, 64, 128, 256, 576}))
        ->capture_default_str();
    fp8->add_option("--buffer-mib", fp8_.buffer_mib)->check(CLI::Range(1, 4096))->capture_default_str();
    fp8->add_option("--rounds", fp8_.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  }

  void AddNeighbour() {
    CLI::App* const neighbour =
        Subcommand("neighbour", "four tenants beside a scanner, on the clock of a trace; or two at one disk",
                   [this] { return at_disk_ ? RunBandwidth(common_, bandwidth_) : RunNeighbour(neighbour_); });
    neighbour->add_option("--trace", neighbour_.trace, "conversation | synthetic | path")
        ->check(TraceName())
        ->capture_default_str();
    neighbour->add_option("--capacity-blocks", neighbour_.capacity_blocks, "of the node [20,000; idle: 10,000]");
    neighbour->add_option("--block-kib", neighbour_.block_kib)->check(CLI::Range(4, 32768))->capture_default_str();
    neighbour->add_option("--scans", neighbour_.scans, "prompts of the scanner a request")
        ->check(CLI::Range(0, 100))
        ->capture_default_str();
    neighbour->add_option("--eviction", neighbour_.eviction)->check(Eviction())->capture_default_str();
    neighbour->add_option("--requests", neighbour_.requests, "only the first N of the trace (0: all)")
        ->check(CLI::Range(0, 1'000'000'000));
    CLI::Option* const idle =
        neighbour->add_flag("--idle", neighbour_.idle, "two of the four and the scanner idle: what the others may use");
    neighbour
        ->add_flag("--bandwidth", at_disk_,
                   "instead: a Basic tenant floods loads from NVMe beside a Premium one, through a daemon")
        ->excludes(idle);
    neighbour->add_option("--depth", bandwidth_.depth, "closed loops a tenant, with --bandwidth")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    neighbour->add_option("--rounds", bandwidth_.rounds, "with --bandwidth")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
  }

  void AddMemory() {
    CLI::App* const dram = Subcommand("dram", "stores and loads of mapped memory against memcpy and private reads",
                                      [this] { return RunDram(common_, dram_); });
    dram->add_option("--block-kib", dram_.block_kib)->check(CLI::Range(4, 32768))->capture_default_str();
    dram->add_option("--slots", dram_.slots, "blocks a Reserve and a Commit")->capture_default_str();
    dram->add_option("--dram-mib", dram_.dram_mib, "size of the tier")->capture_default_str();
    dram->add_option("--rounds", dram_.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
    dram->add_option("--huge-pages", dram_.huge_pages,
                     "both: a second run with shmem_enabled=advise, put back after (root)")
        ->check(CLI::IsMember({"both", "as-is"}))
        ->capture_default_str();
    CLI::App* const footprint = Subcommand("footprint", "memory of an idle daemon beyond its cache",
                                           [this] { return RunFootprint(common_, footprint_); });
    footprint->add_option("--dram-mib", footprint_.dram_mib)->capture_default_str();
    footprint->add_option("--nvme-mib", footprint_.nvme_mib, "0: none")->capture_default_str();
  }

  void AddDisk() {
    CLI::App* const nvme = Subcommand("nvme", "write-through and loads of the NVMe tier against fio", [this] {
      if (nvme_.encrypted) return RunNvmeEncrypted(common_, nvme_);
      return nvme_.restore_gib > 0 ? RunRestore(common_, nvme_) : RunNvme(common_, nvme_);
    });
    nvme->add_option("--block-kib", nvme_.block_kib, "sizes, separated by commas")
        ->delimiter(',')
        ->check(CLI::Range(4, 32768))
        ->capture_default_str();
    nvme->add_option("--restore-gib", nvme_.restore_gib,
                     "instead: so much into memory of the client's own, against the slower stage")
        ->check(CLI::Range(1, 64));
    nvme->add_flag("--encrypted", nvme_.encrypted, "instead: blocks that are encrypted against blocks that are not");
    nvme->add_option("--round-mib", nvme_.round_mib, "stored or loaded a round")->capture_default_str();
    nvme->add_option("--rounds", nvme_.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
    nvme->add_option("--io-threads", nvme_.io_threads, "transfers at the disk at once: the daemon's, and fio's depth")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    nvme->add_option("--io", nvme_.io, "of the daemon; fio uses io_uring where this process may")
        ->check(CLI::IsMember({"auto", "uring", "pool"}))
        ->capture_default_str();
  }

  void AddQuota() {
    CLI::App* const quota = Subcommand("quota", "clients store past a limit that changes meanwhile",
                                       [this] { return RunQuota(common_, quota_); });
    quota->add_option("--clients", quota_.clients)->check(CLI::Range(1, 64))->capture_default_str();
    quota->add_option("--changes", quota_.changes, "of the limits")->check(CLI::Range(1, 10000))->capture_default_str();
    quota->add_flag("--inject", quota_.inject, "a daemon that asks no limit: overshoot_bytes must not be 0");
  }

  void AddDeaths() {
    CLI::App* const reclaim = Subcommand("reclaim", "a client with touched reservations is SIGKILLed",
                                         [this] { return RunReclaim(common_, reclaim_); });
    reclaim->add_option("--runs", reclaim_.runs)->check(CLI::Range(1, 10000))->capture_default_str();
    reclaim->add_option("--reserve-mib", reclaim_.reserve_mib)->capture_default_str();
    reclaim->add_flag("--inject-commit", reclaim_.inject_commit, "commit one block: visible_unfinished must not be 0");
    CLI::App* const restart = Subcommand("restart", "the daemon is ended under load and started again", [this] {
      return restart_.entries == 0 ? RunRestart(common_, restart_) : RunRestartEntries(common_, restart_);
    });
    restart->add_flag("--kill", restart_.kill, "by SIGKILL (default: SIGTERM)");
    restart->add_option("--loops", restart_.loops)->check(CLI::Range(1, 10000))->capture_default_str();
    restart->add_flag("--inject-loss", restart_.inject_loss, "empty the disk once: lost_durable must not be 0");
    restart->add_option("--seed", restart_.seed, "0: from the clock; printed either way");
    restart->add_option("--entries", restart_.entries, "instead: three starts on a catalog of so many records")
        ->check(CLI::Range(1'000, 100'000'000));
    CLI::App* const soak = Subcommand("soak", "mixed tenants on a disk that fails, for a long time: nothing may grow",
                                      [this] { return RunSoak(common_, soak_); });
    soak->add_option("--minutes", soak_.minutes)->check(CLI::Range(0.1, 10'000.0))->capture_default_str();
    soak->add_option("--seed", soak_.seed)->capture_default_str();
    soak->add_option("--block-kib", soak_.block_kib)->check(CLI::Range(4, 1024))->capture_default_str();
  }

  void AddTime() {
    CLI::App* const ttl = Subcommand("ttl", "blocks with TTLs of 2 to 5 seconds, looked for when their time is up",
                                     [this] { return RunTtl(common_, ttl_); });
    ttl->add_option("--blocks", ttl_.blocks)->check(CLI::Range(1000, 10'000'000))->capture_default_str();
    ttl->add_flag("--inject", ttl_.inject, "longer TTLs than told: served_after_expiry must not be 0");
    ttl->footer(
        "stall_*_ms: what look-ups of another tenant took while the blocks expired; stall_before_p99_ms: before that,\n"
        "while they were stored, to compare with.");
  }

  void AddFleet() {
    CLI::App* const fleet = Subcommand("fleet", "one operator on a real API server, and thousands of simulated nodes",
                                       [this] { return RunFleet(fleet_); });
    fleet->add_option("--nodes", fleet_.nodes)->check(CLI::Range(1, 20000))->capture_default_str();
    fleet->add_option("--policies", fleet_.policies)->check(CLI::Range(1, 20000))->capture_default_str();
    fleet->add_option("--pools", fleet_.pools, "each has a part of both")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    fleet->add_option("--edits", fleet_.edits)->check(CLI::Range(1, 1000))->capture_default_str();
    fleet->add_option("--api-qps", fleet_.api_qps, "of the operator")
        ->check(CLI::Range(1, 10000))
        ->capture_default_str();
    fleet->add_flag("--outage", fleet_.outage,
                    "kill operator and API server, and look at what a real node enforces meanwhile and how nodes come "
                    "back");
  }

  void AddDemo() {
    CLI::App* const demo = Subcommand("demo", "three tenants, three processes, three uids, one real trace",
                                      [this] { return RunDemo(common_, demo_); });
    demo->add_option("--trace", demo_.trace)->check(TraceName())->capture_default_str();
    demo->add_option("--requests", demo_.requests, "only the first N requests (0: all)")
        ->check(CLI::Range(0, 1'000'000'000));
    demo->add_option("--block-kib", demo_.block_kib)->check(CLI::Range(4, 1024))->capture_default_str();
  }

  // Processes that a benchmark starts as copies of this binary; hidden from --help.
  void AddInner() {
    CLI::App* const victim = Inner("reclaim-victim", [this] { return RunReclaimVictim(victim_); });
    victim->add_option("--blocks", victim_.blocks);
    victim->add_option("--block-kib", victim_.block_kib);
    victim->add_option("--run", victim_.run);
    CLI::App* const tenant = Inner("demo-client", [this] { return RunDemoClient(common_.socket, demo_client_); });
    tenant->add_option("--trace", demo_client_.trace);
    tenant->add_option("--requests", demo_client_.requests);
    tenant->add_option("--block-kib", demo_client_.block_kib);
    tenant->add_option("--uid", demo_client_.uid);
    tenant->add_option("--share-from", demo_client_.share_from);
    tenant->add_option("--share-to", demo_client_.share_to);
  }

  CLI::App* Inner(const char* name, std::function<absl::Status()> run) {
    CLI::App* const sub = Subcommand(name, "", [this, run = std::move(run)]() -> absl::StatusOr<Report> {
      silent_ = true;
      victim_.socket = common_.socket;
      KV_RETURN_IF_ERROR(run());
      return Report("");
    });
    sub->group("");
    return sub;
  }

  CLI::App app_;
  Common common_;
  bool json_ = false;
  bool silent_ = false;
  Run0 run_;
  ReplayOptions replay_;
  LookupOptions lookup_;
  ConnectorOptions connector_;
  IndexOptions index_;
  EngineBenchOptions engine_;
  Fp8Options fp8_;
  NeighbourOptions neighbour_;
  DramOptions dram_;
  NvmeOptions nvme_;
  BandwidthOptions bandwidth_;
  bool at_disk_ = false;
  QuotaOptions quota_;
  ReclaimOptions reclaim_;
  RestartOptions restart_;
  SoakOptions soak_;
  TtlOptions ttl_;
  FootprintOptions footprint_;
  FleetOptions fleet_;
  DemoOptions demo_;
  ReclaimVictimOptions victim_;
  DemoClientOptions demo_client_;
};

}  // namespace
}  // namespace kvartal::bench

int main(int argc, char** argv) {
  kvartal::bench::WatchInterrupts();
  return kvartal::bench::CommandLine().Run(argc, argv);
}
