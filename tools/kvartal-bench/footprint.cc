#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/base/units.h"
#include "tools/kvartal-bench/bench_client.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/benches.h"

namespace kvartal::bench {
namespace {

// A "Name:  123 kB" line of /proc/<pid>/status, in KiB.
absl::StatusOr<uint64_t> StatusLineKib(pid_t pid, const std::string& name) {
  const std::string path = absl::StrCat("/proc/", pid, "/status");
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(name + ":", 0) != 0) continue;
    std::istringstream text(line.substr(name.size() + 1));
    uint64_t value = 0;
    if (text >> value) return value;
  }
  return absl::NotFoundError(absl::StrCat(path, ": no line ", name));
}

}  // namespace

absl::StatusOr<Report> RunFootprint(const Common& common, const FootprintOptions& options) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDaemon> daemon,
                      BenchDaemon::Start(common, OneTenant(options.dram_mib * kMiB, options.nvme_mib * kMiB)));
  // One answered question, so that what is set up at the first use is counted.
  KV_ASSIGN_OR_RETURN(const admin::v1::StatusReply status, daemon->admin().GetStatus());
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchClient> client,
                      BenchClient::Attach(daemon->attach_socket(), "footprint", kv_layout{512, 1, 4096}));
  KV_ASSIGN_OR_RETURN(const uint64_t rss_kib, StatusLineKib(daemon->pid(), "VmRSS"));
  KV_ASSIGN_OR_RETURN(const uint64_t shared_kib, StatusLineKib(daemon->pid(), "RssShmem"));
  Report report("footprint");
  report.Add("rss_idle_mib", static_cast<double>(rss_kib - shared_kib) / 1024);
  report.Add("rss_total_mib", static_cast<double>(rss_kib) / 1024);
  report.Add("cache_resident_mib", static_cast<double>(shared_kib) / 1024);
  report.Add("entries", status.entries());
  report.Note(absl::StrCat("resident memory beyond shared cache memory; dram ", options.dram_mib, " MiB and nvme ",
                           options.nvme_mib, " MiB configured, one client attached"));
  return report;
}

}  // namespace kvartal::bench
