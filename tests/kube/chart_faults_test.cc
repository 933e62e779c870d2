// What went wrong with the charts of others, tried with ours (docs/KUBERNETES_FAULTS.md).
#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "operator/kube/json_fields.h"
#include "tests/kube/chart_fixture.h"

namespace kvartal::testing {
namespace {

using kube::TextAt;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ChartFaultsTest : public ChartTest {
 protected:
  // The objects of what helm made, as JSON.
  static std::vector<json> ObjectsOf(const std::string& manifests) {
    const std::string path = server_->dir().File("objects.yaml");
    WriteFile(path, manifests);
    const CommandResult read =
        Kubectl({"create", "-f", path, "--dry-run=client", "--validate=false", "-o", "jsonpath={@}{'\\n'}"});
    EXPECT_EQ(read.exit_code, 0) << read.err;
    std::vector<json> objects;
    for (const absl::string_view line : absl::StrSplit(read.out, '\n', absl::SkipEmpty()))
      objects.push_back(json::parse(line));
    return objects;
  }
  static json Find(const std::vector<json>& objects, const std::string& kind, const std::string& name) {
    for (const json& object : objects) {
      if (TextAt(object, {"kind"}) == kind && TextAt(object, {"metadata", "name"}) == name) return object;
    }
    ADD_FAILURE() << kind << " " << name;
    return {};
  }
  // "TCP/9443", of every rule in this direction.
  static std::vector<std::string> Ports(const json& policy, const char* direction) {
    std::vector<std::string> ports;
    for (const json& rule : policy["spec"][direction]) {
      for (const json& port : rule["ports"])
        ports.push_back(absl::StrCat(TextAt(port, {"protocol"}), "/",
                                     port["port"].is_string() ? TextAt(port, {"port"}) : port["port"].dump()));
    }
    return ports;
  }
};

// dynamo 6395: hooks that are not deleted pile up.
TEST_F(ChartFaultsTest, EveryHookObjectIsDeletedWhenItIsDone) {
  const CommandResult made = Template("{}");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  size_t hooks = 0;
  for (const absl::string_view document : absl::StrSplit(made.out, "\n---")) {
    if (!absl::StrContains(document, "helm.sh/hook:")) continue;
    ++hooks;
    EXPECT_TRUE(absl::StrContains(document, "helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded"))
        << document;
    EXPECT_FALSE(absl::StrContains(document, "kind: Job")) << "a Job would need ttlSecondsAfterFinished, too";
  }
  EXPECT_EQ(hooks, 3u);
}

// harbor-operator 780, awx-operator 1855: what stands in a chart's crds/ is never upgraded.
TEST_F(ChartFaultsTest, AnUpgradeOfTheChartUpgradesTheDefinitions) {
  // The chart of a version before that did not know a field: what is told in it would be pruned.
  const std::string older = server_->dir().File("older-chart"), file = older + "/files/crds/tenantkvpolicy.yaml";
  std::filesystem::copy(kChart, older, std::filesystem::copy_options::recursive);
  std::string definition = ReadFile(file);
  const size_t at = definition.find(" effective:");
  ASSERT_NE(at, std::string::npos);
  WriteFile(file, definition.replace(at, 11, " effectiveOnce:"));
  const std::string path = absl::StrCat(kCrds, "/tenantkvpolicies.kvartal.dev");
  const auto has_field = [&] {
    return session_->Call("GET", path).body.dump().find("\"effective\":{") != std::string::npos;
  };
  const CommandResult installed = Helm({"install", "faults", older, "-n", "kv"});
  ASSERT_EQ(installed.exit_code, 0) << installed.err;
  ASSERT_FALSE(has_field());
  const CommandResult upgraded = Helm({"upgrade", "faults", kChart, "-n", "kv"});
  ASSERT_EQ(upgraded.exit_code, 0) << upgraded.err;
  EXPECT_TRUE(has_field());
  EXPECT_EQ(Helm({"uninstall", "faults", "-n", "kv"}).exit_code, 0);
}

// The level docs/OPERATIONS.md names for the operator, asked of the server itself.
TEST_F(ChartFaultsTest, ARestrictedNamespaceTakesTheOperatorsPodAndNotTheDaemons) {
  ASSERT_TRUE(
      session_
          ->Call("POST", "/api/v1/namespaces",
                 R"({"metadata":{"name":"strict","labels":{"pod-security.kubernetes.io/enforce":"restricted"}}})")
          .error.ok());
  const CommandResult made = Template("{}");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const std::vector<json> objects = ObjectsOf(made.out);
  const auto dry_run = [&](const json& owner) {
    json pod = {{"apiVersion", "v1"}, {"kind", "Pod"}, {"metadata", {{"name", "p"}}}};
    pod["spec"] = owner["spec"]["template"]["spec"];
    pod["spec"].erase("priorityClassName");  // no controller has made the classes
    return session_->Call("POST", "/api/v1/namespaces/strict/pods?dryRun=All", pod.dump()).error;
  };
  const kube::ApiError of_operator = dry_run(Find(objects, "Deployment", "cache-kvartal-operator"));
  EXPECT_TRUE(of_operator.ok()) << of_operator.ToString();
  const kube::ApiError of_daemon = dry_run(Find(objects, "DaemonSet", "cache-kvartal-daemon"));
  EXPECT_EQ(of_daemon.kind, kube::ErrorKind::kForbidden) << "the level is asked about at all";
  EXPECT_THAT(of_daemon.message, HasSubstr("hostPath"));
}

// LMCache 5128: an administrator's port on every interface. Ours is a socket file; what listens is named.
TEST_F(ChartFaultsTest, NothingListensButWhatTheNetworkPolicyNames) {
  const CommandResult made = Template("{}");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const std::vector<json> objects = ObjectsOf(made.out);
  const json daemon = Find(objects, "NetworkPolicy", "cache-kvartal-daemon");
  EXPECT_THAT(Ports(daemon, "ingress"), ElementsAre("TCP/metrics"));
  EXPECT_THAT(Ports(daemon, "egress"), ElementsAre("TCP/9443", "UDP/53", "TCP/53"));
  const json of_operator = Find(objects, "NetworkPolicy", "cache-kvartal-operator");
  EXPECT_THAT(Ports(of_operator, "ingress"), ElementsAre("TCP/stream", "TCP/health"));
  EXPECT_THAT(Ports(of_operator, "egress"), ElementsAre("TCP/443", "TCP/6443", "UDP/53", "TCP/53"));
  // A name means the port of the pod that has it: each is there, and there is no other.
  const auto named = [&](const char* kind, const char* name) {
    std::map<std::string, int> ports;
    const json owner = Find(objects, kind, name);
    for (const json& container : owner["spec"]["template"]["spec"]["containers"]) {
      for (const json& port : container.value("ports", json::array())) ports[port["name"]] = port["containerPort"];
    }
    return ports;
  };
  EXPECT_EQ(named("Deployment", "cache-kvartal-operator"),
            (std::map<std::string, int>{{"stream", 9443}, {"health", 8081}}));
  EXPECT_EQ(named("DaemonSet", "cache-kvartal-daemon").size(), 1u);
  EXPECT_TRUE(named("DaemonSet", "cache-kvartal-daemon").contains("metrics"));
  EXPECT_EQ(made.out.find("hostPort"), std::string::npos);
}

TEST_F(ChartFaultsTest, TheOperatorAsksAsOftenAsItIsAllowed) {
  for (const auto& [values, flag] :
       {std::pair("{}", "- --api-qps=20\n"), std::pair("operator: {apiQps: 250}", "- --api-qps=250\n")}) {
    const CommandResult made = Template(values);
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_THAT(made.out, HasSubstr(flag));
  }
}

}  // namespace
}  // namespace kvartal::testing
