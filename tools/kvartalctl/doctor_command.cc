#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "daemon/base/units.h"
#include "tools/admin/admin_client.h"
#include "tools/kvartalctl/commands.h"
#include "tools/kvartalctl/doctor_checks.h"

namespace kvartal::ctl {
namespace {

using Level = Finding::Level;

std::string ContentOf(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

uint64_t LimitOf(int resource) {
  rlimit limit{};
  ::getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  return limit.rlim_max == RLIM_INFINITY ? UINT64_MAX : limit.rlim_max;
}

// A field of /proc/meminfo, which counts KiB.
uint64_t MemoryField(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    uint64_t kib = 0;
    if (word == name && file >> kib) return kib * kKiB;
  }
  return 0;
}

void CheckMachine(std::vector<Finding>* findings) {
  utsname system{};
  ::uname(&system);
  findings->push_back(CheckKernel(system.release));
  findings->push_back(CheckHugePages(ContentOf("/sys/kernel/mm/transparent_hugepage/shmem_enabled")));
  findings->push_back(CheckDescriptors(LimitOf(RLIMIT_NOFILE)));
  findings->push_back(CheckLockedMemory(LimitOf(RLIMIT_MEMLOCK)));
  findings->push_back(CheckIoUring());
  findings->push_back(CheckGpu());
}

void CheckNeeds(const config::NodeConfig& config, std::vector<Finding>* findings) {
  findings->push_back(CheckMemory(config.dram_bytes, MemoryField("MemTotal:"), MemoryField("MemAvailable:")));
  if (!config.policy_stream) findings->push_back(CheckPolicy(config));
  findings->push_back(CheckRunFolder(config));
  for (const config::NvmeConfig& nvme : config.nvme) {
    findings->push_back(CheckDiskSpace(nvme));
    findings->push_back(CheckDirectIo(nvme));
  }
  if (!config.nvme_key_file.empty()) findings->push_back(CheckNvmeKeys(config.nvme_key_file));
}

const char* FixOf(const absl::Status& no_daemon) {
  if (absl::IsNotFound(no_daemon)) return "before the first start that is as it should be";
  if (absl::IsUnavailable(no_daemon)) return "it has ended: see its log, and start it again";
  if (absl::IsPermissionDenied(no_daemon)) return "run doctor as root, or as the user of kvartald";
  return "name the daemon's admin socket: --socket, or --config of its configuration";
}

void CheckDaemon(const std::string& socket, std::vector<Finding>* findings) {
  absl::StatusOr<admin::AdminClient> client = admin::AdminClient::Connect(socket);
  if (!client.ok()) {
    findings->push_back(
        {Level::kFail, "daemon",
         absl::StrCat(std::string(client.status().message()), "; its tiers, its books and its policy were not checked"),
         FixOf(client.status())});
    return;
  }
  const auto status = client->GetStatus();
  if (!status.ok()) {
    findings->push_back({Level::kFail, "daemon", std::string(status.status().message()), "restart it, keep its log"});
    return;
  }
  const std::vector<Finding> state = CheckStatus(*status);
  findings->insert(findings->end(), state.begin(), state.end());
  const auto check = client->CheckInvariants();
  if (check.ok()) {
    findings->push_back(
        {Level::kOk, "books", absl::StrCat("ledger and index agree over ", check->entries(), " blocks"), ""});
  } else {
    findings->push_back({Level::kFail, "books", std::string(check.status().message()),
                         "please report it, with the daemon's log; a restart recounts everything"});
  }
}

void Print(const Context& context, const std::vector<Finding>& findings, bool good) {
  if (context.output != OutputFormat::kTable) {
    nlohmann::ordered_json checks = nlohmann::ordered_json::array();
    for (const Finding& finding : findings) {
      checks.push_back({{"level", LevelName(finding.level)},
                        {"name", finding.name},
                        {"detail", finding.detail},
                        {"fix", finding.fix}});
    }
    PrintData(context.output, {{"good", good}, {"checks", checks}});
    return;
  }
  for (const Finding& finding : findings) {
    std::printf("%-5s %-14s %s\n", LevelName(finding.level), finding.name.c_str(), finding.detail.c_str());
    if (!finding.fix.empty()) std::printf("%-5s %-14s -> %s\n", "", "", finding.fix.c_str());
  }
}

}  // namespace

int RunDoctor(const Context& context, const std::string& config_path) {
  std::vector<Finding> findings;
  CheckMachine(&findings);
  std::string socket = context.socket;
  if (!config_path.empty()) {
    const absl::StatusOr<config::NodeConfig> config = config::LoadNodeConfig(config_path);
    if (config.ok()) {
      findings.push_back({Level::kOk, "configuration", config_path, ""});
      CheckNeeds(*config, &findings);
      if (!context.socket_given) socket = config->admin_socket;
    } else {
      findings.push_back({Level::kFail, "configuration", std::string(config.status().message()),
                          absl::IsNotFound(config.status()) ? "name the file that is meant" : "correct it"});
    }
  }
  CheckDaemon(socket, &findings);
  const bool good = std::none_of(findings.begin(), findings.end(),
                                 [](const Finding& finding) { return finding.level == Level::kFail; });
  Print(context, findings, good);
  return good ? 0 : 1;
}

}  // namespace kvartal::ctl
