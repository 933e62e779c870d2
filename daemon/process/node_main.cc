// kvartald: the command line around one Node.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "daemon/base/log.h"
#include "daemon/config/node_config.h"
#include "daemon/control/readiness.h"
#include "daemon/process/node.h"
#include "daemon/process/signal_watch.h"

namespace kvartal::process {
namespace {

constexpr int kExitRefused =
    2;  // configuration, policy or the machine does not allow a start: restarting will not help

int Refuse(const absl::Status& status) {
  std::fprintf(stderr, "kvartald: %s\n", std::string(status.message()).c_str());
  return kExitRefused;
}

// Arenas, sockets and RocksDB each take descriptors; the soft limit of 1024 is a shell's habit.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

int CheckConfig(const config::NodeConfig& config) {
  const SystemClock clock;
  const absl::StatusOr<std::unique_ptr<NodePolicy>> policy = NodePolicy::Load(config, &clock);
  if (!policy.ok()) return Refuse(policy.status());
  std::printf("configuration and policy are valid; tenants: %zu, warnings: %zu\n", (*policy)->table()->tenants().size(),
              (*policy)->warnings().size());
  return 0;
}

int Serve(config::NodeConfig config, int ready_fd) {
  BlockSignals();
  RaiseDescriptorLimit();
  absl::StatusOr<std::unique_ptr<Node>> node = Node::Start(std::move(config));
  if (!node.ok()) return Refuse(node.status());
  std::printf("%s\n", (*node)->ReadyLine().c_str());
  std::fflush(stdout);
  if (ready_fd >= 0) {
    if (absl::Status status = control::SignalReadyFd(ready_fd); !status.ok()) {
      Log(LogLevel::kWarning, "node", status.message());
    }
  }
  (*node)->Run();
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app{
      "kvartald: the KV cache daemon of one node.\n\n"
      "Signals: SIGTERM and SIGINT drain and stop (twice: at once), SIGHUP reads the policy folder again.\n"
      "Exit codes: 0 stopped as asked, 2 refused to start (the reason is on stderr)."};
  std::string config_path;
  bool check_only = false;
  int ready_fd = -1;
  app.add_option("--config", config_path, "configuration file (YAML); required")->type_name("FILE");
  app.add_flag("--check-config", check_only, "check configuration and policy, then exit");
  app.add_option("--ready-fd", ready_fd, "inherited descriptor that gets one byte and is closed when the daemon serves")
      ->type_name("N");
  std::string node_name = HostName();
  app.add_option("--node", node_name, "name of this node in the cluster, for policyStream; default: the host's name")
      ->envname("KVARTAL_NODE")
      ->type_name("NAME");
  app.set_version_flag("--version", std::string("kvartald ") + KVARTAL_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitRefused;
  }
  // Not by the library, which would say so instead of naming a flag that was mistyped.
  if (config_path.empty()) return Refuse(absl::InvalidArgumentError("--config FILE is required"));

  absl::StatusOr<config::NodeConfig> config = config::LoadNodeConfig(config_path);
  if (!config.ok()) return Refuse(config.status());
  config->node_name = config->kubernetes ? config->kubernetes->node_name : node_name;
  SetLogLevel(config->log_level);
  return check_only ? CheckConfig(*config) : Serve(*std::move(config), ready_fd);
}

}  // namespace
}  // namespace kvartal::process

int main(int argc, char** argv) { return kvartal::process::Main(argc, argv); }
