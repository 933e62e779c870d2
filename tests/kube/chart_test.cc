// The Helm chart before a real API server: what it makes of many values is valid there, it installs, upgrades and goes
// without taking policies along, and the configuration it makes is one that kvartald takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "operator/kube/json_fields.h"
#include "tests/kube/chart_fixture.h"

namespace kvartal::testing {
namespace {

using kube::TextAt;
using ::testing::HasSubstr;
using ::testing::Not;

const Words kMonitoring = {"--api-versions", "monitoring.coreos.com/v1/PodMonitor",
                           "--api-versions", "monitoring.coreos.com/v1/ServiceMonitor",
                           "--api-versions", "monitoring.coreos.com/v1/PrometheusRule"};
const std::string kStatic =
    "operator: {enabled: false}\n"
    "daemon:\n"
    "  tokens: {issuer: 'https://kubernetes.default.svc', jwks: '{\"keys\":[]}'}\n"
    "  staticPolicy:\n"
    "    pool.yaml: |\n"
    "      apiVersion: kvartal.dev/v1alpha1\n"
    "      kind: KVNodePool\n"
    "      metadata: {name: all}\n"
    "      spec: {capacity: {dram: 4Gi}}\n";

TEST_F(ChartTest, TheServerTakesWhatTheChartMakesOfAnyValues) {
  const std::map<std::string, std::string> matrix = {
      {"defaults", "{}"},
      {"one replica", "operator: {replicas: 1}"},
      {"nvme with io_uring", "daemon: {nvme: {enabled: true, io: uring}, seccomp: {type: Localhost}}"},
      {"two disks, with keys",
       "daemon: {nvme: {enabled: true, keySecret: of-nvme, disks: [{hostPath: /a, size: 2Ti}, "
       "{hostPath: /b/c, size: 1Ti}]}}"},
      {"host pids",
       "daemon: {tokens: {hostPids: true}, memory: {size: 512Mi, overhead: 1Ti, hugePages: {advise: true}}}"},
      {"on delete", "daemon: {updateStrategy: {type: OnDelete}, nodeSelector: {gpu: 'yes'}, cpu: {limit: '4'}}"},
      {"no policies of the network", "networkPolicy: {enabled: false}\nmonitoring: {enabled: false}"},
      {"cert-manager", "operator: {tls: {mode: certManager, issuerRef: {name: ca, kind: ClusterIssuer}}}"},
      {"a secret of one's own", "operator: {tls: {mode: existingSecret, existingSecret: mine}}"},
      {"priority class", "priorityClass: {create: true}"},
      {"registry and digest", absl::StrCat("global: {imageRegistry: 'r.example/', imagePullSecrets: [{name: pull}]}\n"
                                           "image: {daemon: {digest: 'sha256:",
                                           std::string(64, 'a'), "'}}")},
      {"without pods", "operator: {watchPods: false, apiQps: 200}"},
      {"more objects", "extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: 'of-{{ .Release.Name }}'}}]"},
      {"without the operator", kStatic},
      {"no CRDs", "crds: {enabled: false}"}};
  for (const auto& [name, values] : matrix) {
    const CommandResult made = Template(values, kMonitoring);
    ASSERT_EQ(made.exit_code, 0) << name << ": " << made.err;
    // Objects of our own kinds need the kinds, which a dry run does not make: the policy of helm test is for below.
    const CommandResult without_tests = Template(values, kMonitoring + Words{"--skip-tests"});
    const std::set<std::string> taken = TakenByServer(without_tests.out);
    EXPECT_TRUE(taken.contains("daemonset.apps/cache-kvartal-daemon")) << name;
    EXPECT_EQ(taken.contains("deployment.apps/cache-kvartal-operator"), name != "without the operator") << name;
    EXPECT_EQ(taken.contains("poddisruptionbudget.policy/cache-kvartal-operator"),
              name != "without the operator" && name != "one replica")
        << name;
    EXPECT_EQ(taken.contains("prometheusrule.monitoring.coreos.com/cache-kvartal"),
              name != "no policies of the network")
        << name;
    EXPECT_EQ(taken.contains("customresourcedefinition.apiextensions.k8s.io/kvnodepools.kvartal.dev"),
              name != "no CRDs")
        << name;
  }
}

TEST_F(ChartTest, ValuesThatMakeNoSenseAreRefusedWithWhatToDo) {
  const std::map<std::string, std::string> refused = {
      {"daemon: {memory: {size: 4G}}", "does not match pattern"},
      {"daemon: {memroy: {size: 4Gi}}", "memroy"},
      {"operator: {replicas: 0}", "minimum"},
      {"operator: {apiQps: 0}", "apiQps"},
      {"daemon: {socketDir: relative}", "socketDir"},
      {"daemon: {leaseMs: 1}", "leaseMs"},
      {"daemon: {nvme: {enabled: true, disks: []}}", "disks"},
      {"daemon: {nvme: {enabled: true, disks: [{hostPath: /a}]}}", "size"},
      {"operator: {tls: {mode: existingSecret}}", "name it in operator.tls.existingSecret"},
      {"operator: {tls: {mode: certManager}}", "operator.tls.issuerRef"},
      {"operator: {enabled: false}", "nobody tells the daemons whose tokens count"},
      {"daemon: {staticPolicy: {a.yaml: x}}", "set operator.enabled=false"}};
  for (const auto& [values, why] : refused) {
    const CommandResult made = Template(values);
    EXPECT_NE(made.exit_code, 0) << values;
    EXPECT_THAT(made.err, HasSubstr(why)) << values;
  }
}

TEST_F(ChartTest, WhereThereIsNoOperatorNobodyMissesIt) {
  for (const auto& [values, has] : {std::pair(std::string("{}"), true), std::pair(kStatic, false)}) {
    const CommandResult made = Template(values, kMonitoring + Words{"--show-only", "templates/prometheusrule.yaml"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_THAT(made.out, HasSubstr("KvartalTierDown"));
    EXPECT_EQ(absl::StrContains(made.out, "KvartalOperatorWithoutLeader"), has) << made.out;
  }
}

TEST_F(ChartTest, AClusterWithoutPrometheusGetsNothingOfItsKinds) {
  const CommandResult made = Template("{}");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, Not(HasSubstr("monitoring.coreos.com")));
  EXPECT_THAT(made.out, HasSubstr("grafana_dashboard"));
}

TEST_F(ChartTest, NobodyIsGivenMoreThanIsSaid) {
  const CommandResult made = Template("{}", kMonitoring);
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, Not(HasSubstr("\"*\""))) << "no wildcards";
  EXPECT_THAT(made.out, Not(HasSubstr("'*'")));
  EXPECT_THAT(made.out, Not(HasSubstr("- '*'")));
  EXPECT_THAT(made.out, Not(HasSubstr("privileged: true")));
  EXPECT_THAT(made.out, Not(HasSubstr("hostPID")));
  EXPECT_THAT(made.out, Not(HasSubstr("hostIPC")));
  EXPECT_THAT(made.out, Not(HasSubstr("hostNetwork")));
  // The only rights there are; the word for Secrets would be there however they were listed.
  const CommandResult rights = Template("{}", {"--show-only", "templates/operator-rbac.yaml"});
  ASSERT_EQ(rights.exit_code, 0) << rights.err;
  EXPECT_THAT(rights.out, HasSubstr("tenantkvpolicies"));
  EXPECT_THAT(rights.out, Not(HasSubstr("secrets"))) << "nobody may read Secrets";
  size_t with_rules = 0;
  for (const absl::string_view document : absl::StrSplit(made.out, "\n---"))
    with_rules += absl::StrContains(document, "\nrules:") && absl::StrContains(document, "kind: ") &&
                  absl::StrContains(document, "rbac.authorization.k8s.io");
  EXPECT_EQ(with_rules, 2u) << "the ClusterRole and the Role of that file";
}

TEST_F(ChartTest, WhoDoesNotWantPodsToBeListedSaysSoAndTheyAreNot) {
  for (const auto& [values, listed] : {std::pair("{}", true), std::pair("operator: {watchPods: false}", false)}) {
    const CommandResult made = Template(values);
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_EQ(absl::StrContains(made.out, "resources: [pods]"), listed);
    EXPECT_EQ(absl::StrContains(made.out, "- --no-watch-pods"), !listed);
  }
}

// With the operator, which is the default, and without it; with a tier on disk and without.
TEST_F(ChartTest, KvartaldTakesTheConfigurationOfTheChart) {
  const std::string nvme =
      "  nvme: {enabled: true, io: pool, disks: [{hostPath: /a, size: 64Mi}, {hostPath: /b, size: 1Gi}]}\n";
  const std::string encrypted = "  nvme: {enabled: true, keySecret: of-nvme, disks: [{hostPath: /a, size: 64Mi}]}\n";
  for (const std::string& values :
       {std::string("daemon:\n  logLevel: info\n"), "daemon:\n" + nvme, kStatic, kStatic + nvme, kStatic + encrypted}) {
    const bool is_static = values.starts_with(kStatic);
    const CommandResult made = Template(values, Words{"--show-only", "templates/daemon-config.yaml"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const std::string path = server_->dir().File("config.yaml");
    WriteFile(path, made.out);
    const auto field = [&](const std::string& map, const std::string& key) {
      const CommandResult got = Kubectl({"create", "-f", path, "--dry-run=client", "-o",
                                         absl::StrCat("go-template={{if eq .metadata.name \"cache-kvartal-", map,
                                                      "\"}}{{index .data \"", key, "\"}}{{end}}")});
      EXPECT_EQ(got.exit_code, 0) << got.err;
      return got.out;
    };
    // As on a node, in a folder: what is absolute there is a copy here.
    std::string config = field("daemon", "kvartald.yaml");
    const std::string folder = server_->dir().File(is_static ? "static" : "stream");
    std::filesystem::create_directories(folder + "/policy");
    const auto move = [&](const std::string& from, const std::string& to) {
      const size_t at = config.find(from);
      ASSERT_NE(at, std::string::npos) << from << " in:\n" << config;
      config.replace(at, from.size(), to);
    };
    if (is_static) {
      WriteFile(folder + "/policy/pool.yaml", field("policy", "pool.yaml"));
      move("/etc/kvartal-policy", folder + "/policy");
    } else {
      EXPECT_THAT(config, HasSubstr("operator: cache-kvartal-operator.kv.svc:9443"));
      move("/var/lib/kvartal/state/policy", folder + "/policy");
    }
    WriteFile(folder + "/kvartald.yaml", config);
    ::setenv("KVARTAL_NODE", "node-1", 1);
    const CommandResult checked = RunCommand({"kvartald", "--check-config", "--config", folder + "/kvartald.yaml"});
    ::unsetenv("KVARTAL_NODE");
    EXPECT_EQ(checked.exit_code, 0) << checked.err << config;
  }
}

TEST_F(ChartTest, EveryDiskOfTheConfigurationIsAFolderOfTheNode) {
  const CommandResult made = Template(
      "daemon: {nvme: {enabled: true, disks: [{hostPath: /mnt/a, size: 2Ti}, {hostPath: /mnt/b, size: 1Ti}]}}");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  for (const auto& [mount, folder] :
       {std::pair("/var/lib/kvartal/nvme/0", "/mnt/a"), {"/var/lib/kvartal/nvme/1", "/mnt/b"}}) {
    EXPECT_THAT(made.out, HasSubstr(absl::StrCat("path: ", mount, "/cache.dat"))) << "in the configuration";
    EXPECT_THAT(made.out, HasSubstr(absl::StrCat("mountPath: ", mount, "}"))) << "in the pod";
    EXPECT_THAT(made.out, HasSubstr(absl::StrCat("hostPath: {path: ", folder, ","))) << "on the node";
  }
}

TEST_F(ChartTest, InstallsUpgradesAndLeavesThePoliciesWhereTheyAre) {
  const Words release = {"cache", kChart, "-n", "kv", "--set", "operator.replicas=2"};
  const CommandResult installed = Helm(Words{"install"} + release);
  ASSERT_EQ(installed.exit_code, 0) << installed.err;
  EXPECT_THAT(installed.out, HasSubstr("helm test -n kv cache"));
  const auto exists = [&](const std::string& path) { return session_->Call("GET", path).error.ok(); };
  const std::string apps = "/apis/apps/v1/namespaces/kv/";
  EXPECT_TRUE(exists(apps + "deployments/cache-kvartal-operator"));
  EXPECT_TRUE(exists(apps + "daemonsets/cache-kvartal-daemon"));
  EXPECT_TRUE(exists("/apis/policy/v1/namespaces/kv/poddisruptionbudgets/cache-kvartal-operator"));
  EXPECT_TRUE(exists("/apis/monitoring.coreos.com/v1/namespaces/kv/prometheusrules/cache-kvartal"));
  // The daemons are given the addresses of all replicas, of which only the leader's listens.
  const nlohmann::json service = session_->Call("GET", "/api/v1/namespaces/kv/services/cache-kvartal-operator").body;
  EXPECT_EQ(TextAt(service, {"spec", "clusterIP"}), "None");
  EXPECT_EQ(service["spec"]["ports"].size(), 1u);
  EXPECT_TRUE(exists("/api/v1/namespaces/kv/services/cache-kvartal-operator-health"));

  // The kinds are served, and take an object of each.
  ASSERT_EQ(Kubectl({"create", "namespace", "premium"}).exit_code, 0);
  for (const char* file : {"worked/node.yaml", "worked/premium.yaml"}) {
    const CommandResult made = Kubectl(
        {"create", "--validate=strict", "--dry-run=server", "-f", absl::StrCat(kSource, "/crds/examples/", file)});
    EXPECT_EQ(made.exit_code, 0) << file << made.err;
    EXPECT_THAT(made.out, HasSubstr("created (server dry run)")) << file;
  }
  const std::string policies = "/apis/kvartal.dev/v1alpha1/namespaces/kv/tenantkvpolicies";
  const KubeAnswer policy = session_->Call("POST", policies, R"({"apiVersion":"kvartal.dev/v1alpha1",
      "kind":"TenantKVPolicy","metadata":{"name":"chat"},"spec":{"subjects":[{"serviceAccountName":"vllm"}]}})");
  ASSERT_TRUE(policy.error.ok()) << policy.error.ToString();

  // An upgrade keeps the certificate by which the daemons know the operator.
  const std::string secret = "/api/v1/namespaces/kv/secrets/cache-kvartal-operator-tls";
  const std::string certificate = TextAt(session_->Call("GET", secret).body, {"data", "tls.crt"});
  EXPECT_NE(certificate, "");
  const CommandResult upgraded = Helm(Words{"upgrade"} + release + Words{"--set", "daemon.memory.size=8Gi"});
  ASSERT_EQ(upgraded.exit_code, 0) << upgraded.err;
  EXPECT_EQ(TextAt(session_->Call("GET", secret).body, {"data", "tls.crt"}), certificate);
  const KubeAnswer daemon = session_->Call("GET", apps + "daemonsets/cache-kvartal-daemon");
  EXPECT_THAT(daemon.body.dump(), HasSubstr("\"memory\":\"9Gi\"")) << "the cache and what is beside it";

  // What helm test would run is valid: its policy by the kinds that are served now.
  const CommandResult tests = Helm({"template", "cache", kChart, "-n", "kv", "--show-only",
                                    "templates/tests/attach.yaml", "--set-string", "test.pool=gpu"});
  ASSERT_EQ(tests.exit_code, 0) << tests.err;
  EXPECT_TRUE(TakenByServer(tests.out).contains("tenantkvpolicy.kvartal.dev/cache-kvartal-test"));

  const CommandResult gone = Helm({"uninstall", "cache", "-n", "kv"});
  ASSERT_EQ(gone.exit_code, 0) << gone.err;
  EXPECT_FALSE(exists(apps + "deployments/cache-kvartal-operator"));
  EXPECT_TRUE(exists(absl::StrCat(kCrds, "/tenantkvpolicies.kvartal.dev")));
  EXPECT_TRUE(exists(policies + "/chat")) << "policies are not the chart's to delete";
}

}  // namespace
}  // namespace kvartal::testing
