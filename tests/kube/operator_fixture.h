// A real API server, real operators and three real daemons that follow them.
// Confined to the thread of the test.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "operator/kube/json_fields.h"
#include "operator/kube/resource.h"
#include "tests/kube/api_server.h"
#include "tests/kube/kube_session.h"
#include "tests/kube/operator_process.h"
#include "tests/support/daemon_process.h"

namespace kvartal::testing {

inline const kube::ResourceType kPolicyType = {"kvartal.dev", "v1alpha1", "tenantkvpolicies", true};

class OperatorFixture : public ::testing::Test {
 protected:
  static constexpr int kNodeCount = 3;

  void SetUp() override {
    const absl::Status started = server_.Start();
    ASSERT_TRUE(started.ok()) << started;
    session_ = std::make_unique<KubeSession>(server_.admin());
    const absl::Status installed = InstallCrds(session_.get());
    ASSERT_TRUE(installed.ok()) << installed;
    Write("POST", "/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: red}}");
    for (int i = 0; i < kNodeCount; ++i) {
      Write("POST", "/api/v1/nodes",
            absl::StrCat("{apiVersion: v1, kind: Node, metadata: {name: n", i, ", labels: {kv: here}}}"));
    }
    Write("POST", "/apis/kvartal.dev/v1alpha1/kvnodepools",
          "{apiVersion: kvartal.dev/v1alpha1, kind: KVNodePool, metadata: {name: p},\n"
          " spec: {nodeSelector: {kv: here}, capacity: {dram: 1Gi}}}");
    ASSERT_NO_FATAL_FAILURE(GiveRightsOfTheChart());
    operators_[0] = std::make_unique<OperatorProcess>(server_.dir().File("operator.kubeconfig"));
    operators_[1] = std::make_unique<OperatorProcess>(server_.dir().File("operator.kubeconfig"));
    operators_[0]->Start();
    ASSERT_TRUE(operators_[0]->WaitUntilItLeads()) << operators_[0]->log();
    for (int i = 0; i < kNodeCount; ++i) {
      DaemonOptions options;
      options.node = absl::StrCat("n", i);
      options.dram_size = i == 2 ? "64Mi" : "128Mi";
      options.more_config = DaemonConfig(options.node);
      options.policy_stream = absl::StrCat("ipv4:", operators_[0]->address(), ",", operators_[1]->address());
      daemons_[i] = std::make_unique<DaemonProcess>(options);
      const absl::Status up = daemons_[i]->Start();
      ASSERT_TRUE(up.ok()) << up;
    }
  }

  // More lines of the configuration of the daemon of this node.
  virtual std::string DaemonConfig(const std::string& /*node*/) const { return ""; }
  // The operators are the ServiceAccount of the chart, with what it is given there and no more.
  void GiveRightsOfTheChart() {
    const std::string source = KVARTAL_SOURCE_DIR, manifests = server_.dir().File("rights.yaml");
    const CommandResult found = RunCommand({source + "/tests/kube/testenv/helm"});
    ASSERT_EQ(found.exit_code, 0) << found.err;
    const std::string tools = std::string(absl::StripTrailingAsciiWhitespace(found.out));
    const CommandResult made = RunCommand({tools + "/helm", "template", "kvartal", source + "/charts/kvartal", "-n",
                                           "default", "--show-only", "templates/operator-rbac.yaml"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    WriteFile(manifests, made.out);
    const CommandResult given =
        RunCommand({tools + "/kubectl", "--kubeconfig", server_.kubeconfig_path(), "create", "-f", manifests});
    ASSERT_EQ(given.exit_code, 0) << given.err;
    const KubeAnswer token = session_->Call(
        "POST", "/api/v1/namespaces/default/serviceaccounts/kvartal-operator/token",
        R"({"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":3600}})");
    ASSERT_TRUE(token.error.ok()) << token.error.ToString();
    WriteFile(server_.dir().File("operator.kubeconfig"),
              absl::StrCat("apiVersion: v1\nkind: Config\ncurrent-context: test\n",
                           "contexts: [{name: test, context: {cluster: test, user: operator}}]\n",
                           "clusters: [{name: test, cluster: {server: '", server_.server(),
                           "', certificate-authority: '", server_.ca_path(), "'}}]\n",
                           "users: [{name: operator, user: {token: ", kube::TextAt(token.body, {"status", "token"}),
                           "}}]\n"));
  }

  void Write(const std::string& method, const std::string& target, const std::string& body,
             const std::string& type = kYaml) {
    const KubeAnswer answer = session_->Call(method, target, body, type);
    ASSERT_TRUE(answer.error.ok()) << target << ": " << answer.error.ToString();
  }
  // A pod that no kubelet runs, and a token of its account that is bound to it. `spec` and `request`: what else the two
  // say.
  std::string TokenOfNewPod(const std::string& ns, const std::string& pod, const std::string& account,
                            const std::string& spec, const std::string& request) {
    const std::string path = absl::StrCat("/api/v1/namespaces/", ns);
    const KubeAnswer made = session_->Call(
        "POST", path + "/pods",
        absl::StrCat("{apiVersion: v1, kind: Pod, metadata: {name: ", pod, "}, spec: {serviceAccountName: ", account,
                     spec, ", containers: [{name: c, image: none}]}}"),
        kYaml);
    EXPECT_TRUE(made.error.ok()) << made.error.ToString();
    const KubeAnswer token =
        session_->Call("POST", absl::StrCat(path, "/serviceaccounts/", account, "/token"),
                       absl::StrCat("{apiVersion: authentication.k8s.io/v1, kind: TokenRequest, spec: {", request,
                                    "boundObjectRef: {kind: Pod, apiVersion: v1, name: ", pod,
                                    ", uid: ", kube::TextAt(made.body, {"metadata", "uid"}), "}}}"),
                       kYaml);
    EXPECT_TRUE(token.error.ok()) << token.error.ToString();
    return kube::TextAt(token.body, {"status", "token"});
  }
  // As when a node has no kubelet that would have to stop it first.
  void DeletePod(const std::string& ns, const std::string& pod) {
    Write("DELETE", absl::StrCat("/api/v1/namespaces/", ns, "/pods/", pod, "?gracePeriodSeconds=0"), "");
  }
  bool IsGone(const std::string& name) {
    const std::string path = kube::PathOf(kPolicyType, kube::ObjectKey{"red", name});
    return session_->Wait([&] { return session_->Call("GET", path).error.kind == kube::ErrorKind::kNotFound; });
  }
  // Of DRAM; `account` is its subject.
  void Apply(const std::string& name, const std::string& claim, const std::string& account) {
    Write("PATCH", absl::StrCat(kube::PathOf(kPolicyType, {"red", name}), "?fieldManager=someone&force=true"),
          absl::StrCat("{apiVersion: kvartal.dev/v1alpha1, kind: TenantKVPolicy, metadata: {name: ", name,
                       ", namespace: red},\n spec: {subjects: [{serviceAccountName: ", account,
                       "}], pools: [{poolRef: p, perNode: {dram: {", claim, "}}}]}}"),
          kube::kApplyPatch);
  }
  nlohmann::json Get(const std::string& name) {
    return session_->Call("GET", kube::PathOf(kPolicyType, {"red", name})).body;
  }
  // "True/Ready", of the object's present generation; "" before.
  static std::string Told(const nlohmann::json& object, const std::string& type) {
    const nlohmann::json* conditions = kube::FieldAt(object, {"status", "conditions"});
    if (conditions == nullptr) return "";
    for (const nlohmann::json& condition : *conditions) {
      if (kube::TextAt(condition, {"type"}) == type &&
          kube::NumberAt(condition, {"observedGeneration"}) == kube::NumberAt(object, {"metadata", "generation"}))
        return kube::TextAt(condition, {"status"}) + "/" + kube::TextAt(condition, {"reason"});
    }
    return "";
  }
  bool Becomes(const std::string& name, const std::string& type, const std::string& told) {
    return session_->Wait([&] { return Told(Get(name), type) == told; });
  }
  // The DRAM limit that a daemon enforces for red/<name>; -1: it has no such tenant.
  static int64_t LimitOn(const DaemonProcess& daemon, const std::string& name) {
    const CommandResult result = daemon.Ctl({"tenants", "--output", "json"});
    const nlohmann::json all = nlohmann::json::parse(result.out, nullptr, false);
    if (all.is_discarded()) return -2;
    for (const nlohmann::json& tenant : all["tenants"]) {
      if (tenant["name"] != "red/" + name || tenant["removed"] == true) continue;
      for (const nlohmann::json& tier : tenant["tiers"]) {
        if (tier["name"] == "dram") return tier["limit_bytes"].get<int64_t>();
      }
    }
    return -1;
  }
  bool LimitBecomes(const std::string& name, int64_t bytes) {
    return session_->Wait([&] {
      for (const auto& daemon : daemons_) {
        if (daemon->running() && LimitOn(*daemon, name) != bytes) return false;
      }
      return true;
    });
  }
  // For so long nothing is to happen.
  void Pass(int64_t ms) {
    const int64_t until_ns = session_->clock()->MonotonicNs() + ms * kNsPerMs;
    session_->Wait([&] { return session_->clock()->MonotonicNs() > until_ns; });
  }

  ApiServer server_;
  std::unique_ptr<KubeSession> session_;
  std::array<std::unique_ptr<OperatorProcess>, 2> operators_;
  std::array<std::unique_ptr<DaemonProcess>, kNodeCount> daemons_;
};

}  // namespace kvartal::testing
