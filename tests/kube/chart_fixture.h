// The Helm chart before a real API server.
// Confined to the thread of the test; the server is shared by the cases of a binary.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/kube/api_server.h"
#include "tests/kube/kube_session.h"
#include "tests/support/daemon_process.h"

namespace kvartal::testing {

using Words = std::vector<std::string>;

inline const std::string kSource = KVARTAL_SOURCE_DIR;
inline const std::string kChart = kSource + "/charts/kvartal";
inline constexpr const char* kCrds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A kind of somebody else's that the chart makes objects of: anything goes, for its own validation is not ours to test.
inline std::string ForeignCrd(const std::string& group, const std::string& plural, const std::string& kind) {
  return absl::StrCat(
      R"({"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":")", plural, ".",
      group, R"(","annotations":{"api-approved.kubernetes.io":"unapproved, for a test"}},"spec":{"group":")", group,
      R"(","scope":"Namespaced","names":{"kind":")", kind, R"(","plural":")", plural,
      R"("},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object",)",
      R"("properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}})");
}

class ChartTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const CommandResult found = RunCommand({kSource + "/tests/kube/testenv/helm"});
    ASSERT_EQ(found.exit_code, 0) << found.err;
    tools_ = std::string(absl::StripTrailingAsciiWhitespace(found.out));
    server_ = std::make_unique<ApiServer>();
    const absl::Status started = server_->Start();
    ASSERT_TRUE(started.ok()) << started;
    session_ = std::make_unique<KubeSession>(server_->admin());
    for (const char* folder : {"HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"})
      ::setenv(folder, server_->dir().File("helm").c_str(), 1);
    for (const auto& [plural, kind] :
         {std::pair("podmonitors", "PodMonitor"), std::pair("prometheusrules", "PrometheusRule"),
          std::pair("servicemonitors", "ServiceMonitor")}) {
      const KubeAnswer made = session_->Call("POST", kCrds, ForeignCrd("monitoring.coreos.com", plural, kind));
      ASSERT_TRUE(made.error.ok()) << made.error.ToString();
    }
    ASSERT_TRUE(session_->Call("POST", kCrds, ForeignCrd("cert-manager.io", "certificates", "Certificate")).error.ok());
    ASSERT_TRUE(
        session_
            ->Call("POST", "/api/v1/namespaces", R"({"apiVersion":"v1","kind":"Namespace","metadata":{"name":"kv"}})")
            .error.ok());
  }
  static void TearDownTestSuite() {
    session_.reset();
    server_.reset();
  }
  void SetUp() override { ASSERT_NE(session_, nullptr); }

  static CommandResult Helm(const Words& arguments) {
    return RunCommand(Words{tools_ + "/helm"} + arguments + Words{"--kubeconfig", server_->kubeconfig_path()});
  }
  static CommandResult Kubectl(const Words& arguments) {
    return RunCommand(Words{tools_ + "/kubectl", "--kubeconfig", server_->kubeconfig_path()} + arguments);
  }
  // A file of values, for -f.
  static std::string Values(const std::string& text) {
    const std::string path = server_->dir().File("values.yaml");
    WriteFile(path, text);
    return path;
  }
  static CommandResult Template(const std::string& values, const Words& more = {}) {
    return Helm(Words{"template", "cache", kChart, "-n", "kv", "-f", Values(values)} + more);
  }
  // The objects that the server takes of it, as "kind/name"; strict: no field of them is unknown.
  static std::set<std::string> TakenByServer(const std::string& manifests) {
    const std::string path = server_->dir().File("manifests.yaml");
    WriteFile(path, manifests);
    const CommandResult taken = Kubectl({"create", "-f", path, "--dry-run=server", "--validate=strict", "-o", "name"});
    EXPECT_EQ(taken.exit_code, 0) << taken.err;
    return absl::StrSplit(taken.out, '\n', absl::SkipEmpty());
  }

  static inline std::unique_ptr<ApiServer> server_;
  static inline std::unique_ptr<KubeSession> session_;
  static inline std::string tools_;
};

}  // namespace kvartal::testing
