// kvartal-operator: the command line around one Operator.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/log.h"
#include "daemon/process/signal_watch.h"
#include "operator/process/operator.h"

namespace kvartal::process {
namespace {

constexpr int kExitRefused = 2;  // a flag, or where we are, does not allow a start: restarting will not help

struct Flags {
  std::string kubeconfig, ns, lease = "kvartal-operator", log_level = "info";
  std::string node_account, node_audience = "kvartal-operator";
  OperatorOptions options;
};

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<kube::ClusterAccess> FindCluster(const std::string& kubeconfig) {
  if (!kubeconfig.empty()) return kube::ReadKubeconfig(kubeconfig);
  return kube::InClusterAccess(Environment("KUBERNETES_SERVICE_HOST"), Environment("KUBERNETES_SERVICE_PORT"));
}

std::string UniqueIdentity(uint64_t seed) {
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  return absl::StrFormat("%s_%016x", host, seed);
}

void AddFlags(CLI::App* app, Flags* flags) {
  flags->options.health_address = "0.0.0.0:8081";
  flags->options.sync.address = "0.0.0.0:9443";
  app->add_option("--kubeconfig", flags->kubeconfig, "how to reach the API server; default: as a pod does")
      ->envname("KUBECONFIG")
      ->type_name("FILE");
  app->add_option("--namespace", flags->ns, "namespace of the Lease; default: our own")->type_name("NAME");
  app->add_option("--lease", flags->lease, "name of the Lease by which replicas elect a leader")
      ->capture_default_str()
      ->type_name("NAME");
  app->add_option("--listen", flags->options.sync.address, "address for the nodes; served while we lead")
      ->capture_default_str()
      ->type_name("HOST:PORT");
  app->add_option("--tls-cert", flags->options.sync.cert_file,
                  "certificate for the nodes (PEM), read again when changed")
      ->type_name("FILE");
  app->add_option("--tls-key", flags->options.sync.key_file, "its key (PEM)")->type_name("FILE");
  app->add_option("--node-account", flags->node_account,
                  "NAMESPACE/NAME of the daemons' ServiceAccount: a stream has to bring a token of its pod on the node "
                  "that it says it is; without, it is taken at its word")
      ->type_name("ACCOUNT");
  app->add_option("--node-audience", flags->node_audience, "audience of those tokens")
      ->capture_default_str()
      ->type_name("NAME");
  app->add_flag("!--no-watch-pods", flags->options.watch_pods,
                "do not list pods: nodes are not told which are deleted, and take their tokens until they expire");
  app->add_option("--health", flags->options.health_address, "address of /healthz, /readyz and /metrics")
      ->capture_default_str()
      ->type_name("HOST:PORT");
  app->add_option("--lease-ms", flags->options.lease_times.duration_ms, "how long a leader that is gone is waited for")
      ->capture_default_str()
      ->check(CLI::Range(1000, 600000))
      ->type_name("MS");
  app->add_option("--api-qps", flags->options.calls_per_second, "calls a second to the API server, at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000))
      ->type_name("N");
  app->add_option("--log-level", flags->log_level, "debug, info, warning or error")
      ->capture_default_str()
      ->type_name("LEVEL");
  app->set_version_flag("--version", std::string("kvartal-operator ") + KVARTAL_VERSION);
}

// A stream of a node is a descriptor; the soft limit of 1024 is a shell's habit.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int Refuse(const std::string& why) {
  std::fprintf(stderr, "kvartal-operator: %s\n", why.c_str());
  return kExitRefused;
}

int Serve(Flags flags) {
  if (!SetLogLevel(flags.log_level)) return Refuse("--log-level: allowed: debug, info, warning, error");
  if (flags.options.sync.cert_file.empty() != flags.options.sync.key_file.empty())
    return Refuse("--tls-cert and --tls-key belong together");
  const absl::StatusOr<kube::ClusterAccess> access = FindCluster(flags.kubeconfig);
  if (!access.ok()) return Refuse(std::string(access.status().message()));
  std::random_device random;
  OperatorOptions& options = flags.options;
  if (!flags.node_account.empty()) options.attest_nodes = {flags.node_account, flags.node_audience};
  options.seed = (uint64_t{random()} << 32) | random();
  options.identity = UniqueIdentity(options.seed);
  options.lease = {!flags.ns.empty() ? flags.ns : !access->ns.empty() ? access->ns : "default", flags.lease};
  // The others keep their proportion to it, as client-go has them.
  options.lease_times.renew_ms = options.lease_times.duration_ms * 2 / 3;
  options.lease_times.retry_ms = options.lease_times.duration_ms * 2 / 15;
  options.lease_times.call_ms = options.lease_times.duration_ms / 3;
  BlockSignals();
  RaiseDescriptorLimit();
  absl::StatusOr<std::unique_ptr<Operator>> one = Operator::Start(*access, options);
  if (!one.ok()) return Refuse(std::string(one.status().message()));
  std::printf("ready: identity=%s server=%s\n", options.identity.c_str(), access->server.c_str());
  std::fflush(stdout);
  return (*one)->Run();
}

int Main(int argc, char** argv) {
  CLI::App app{
      "kvartal-operator: turns TenantKVPolicy and KVNodePool objects into what each node enforces, and says what "
      "became "
      "of them.\n\n"
      "Signals: SIGTERM and SIGINT stop it and give its lease up (twice: at once).\n"
      "Exit codes: 0 stopped as asked, 1 it does not lead any more or cannot listen, 2 refused to start."};
  Flags flags;
  AddFlags(&app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitRefused;
  }
  return Serve(std::move(flags));
}

}  // namespace
}  // namespace kvartal::process

int main(int argc, char** argv) { return kvartal::process::Main(argc, argv); }
