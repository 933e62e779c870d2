// Calls, identity, leases and status against the real API server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "operator/kube/json_fields.h"
#include "operator/kube/lease_elector.h"
#include "tests/kube/api_server.h"
#include "tests/kube/kube_session.h"
#include "tests/support/daemon_process.h"

namespace kvartal::testing {
namespace {

using kube::ErrorKind;
using kube::TextAt;

const kube::ResourceType kPolicies = {"kvartal.dev", "v1alpha1", "tenantkvpolicies", true};
const kube::ObjectKey kLease = {"default", "kvartal-operator"};
// A tenth of the real times.
constexpr kube::LeaseTimes kFast = {.duration_ms = 2000, .renew_ms = 1300, .retry_ms = 200, .call_ms = 650};

class ClientContractTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<ApiServer>();
    const absl::Status started = server_->Start();
    ASSERT_TRUE(started.ok()) << started;
    session_ = std::make_unique<KubeSession>(server_->admin());
    const absl::Status installed = InstallCrds(session_.get());
    ASSERT_TRUE(installed.ok()) << installed;
  }
  static void TearDownTestSuite() {
    session_.reset();
    server_.reset();
  }
  void SetUp() override { ASSERT_NE(session_, nullptr); }

  // A token of a ServiceAccount that may do everything.
  static std::string Token() {
    session_->Call("POST", "/api/v1/namespaces/default/serviceaccounts",
                   R"({"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"operator"}})");
    session_->Call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
                   R"({"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding",
                       "metadata":{"name":"operator"},
                       "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
                       "subjects":[{"kind":"ServiceAccount","name":"operator","namespace":"default"}]})");
    const KubeAnswer token = session_->Call(
        "POST", "/api/v1/namespaces/default/serviceaccounts/operator/token",
        R"({"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":600}})");
    EXPECT_TRUE(token.error.ok()) << token.error.ToString();
    return TextAt(token.body, {"status", "token"});
  }

  static inline std::unique_ptr<ApiServer> server_;
  static inline std::unique_ptr<KubeSession> session_;
};

TEST_F(ClientContractTest, ATokenFileThatIsExchangedIsFollowedAtTheFirstRefusal) {
  const std::string path = server_->dir().File("token");
  WriteFile(path, "stale");
  KubeSession session(server_->ByTokenFile(path));
  EXPECT_EQ(session.Call("GET", "/api/v1/namespaces").error.kind, ErrorKind::kUnauthorized);
  WriteFile(path, Token());
  EXPECT_TRUE(session.Call("GET", "/api/v1/namespaces").error.ok());
}

TEST_F(ClientContractTest, AServerOfAnotherAuthorityIsNotTalkedTo) {
  kube::ClusterAccess access = server_->admin();
  const CommandResult made =
      RunCommand({"/usr/bin/openssl", "req", "-x509", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                  "-nodes", "-days", "1", "-subj", "/CN=kvartal-test-ca", "-keyout", server_->dir().File("other.key"),
                  "-out", server_->dir().File("other.crt")});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  access.authorities.path = server_->dir().File("other.crt");
  EXPECT_EQ(KubeSession(access).Call("GET", "/api/v1/namespaces").error.kind, ErrorKind::kTransport);
  // Neither is one whose authorities cannot be read, nor one that only the system vouches for.
  access.authorities.path = server_->dir().File("none.crt");
  EXPECT_EQ(KubeSession(access).Call("GET", "/api/v1/namespaces").error.kind, ErrorKind::kTransport);
  access.authorities.path = "";
  EXPECT_EQ(KubeSession(access).Call("GET", "/api/v1/namespaces").error.kind, ErrorKind::kTransport);
}

// An exchanged bundle of authorities is used by the next connection, without a restart.
TEST_F(ClientContractTest, AuthoritiesThatAreExchangedAreFollowed) {
  kube::ClusterAccess access = server_->admin();
  access.authorities.path = server_->dir().File("bundle.crt");
  WriteFile(access.authorities.path, "not yet");
  KubeSession session(access);
  EXPECT_EQ(session.Call("GET", "/api/v1/namespaces").error.kind, ErrorKind::kTransport);
  WriteFile(access.authorities.path, ReadFile(server_->ca_path()));
  EXPECT_TRUE(session.Call("GET", "/api/v1/namespaces").error.ok());
}

TEST_F(ClientContractTest, FailuresAreToldApart) {
  const std::string maps = "/api/v1/namespaces/default/configmaps";
  const std::string map = R"({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}})";
  EXPECT_EQ(session_->Call("GET", maps + "/x").error.kind, ErrorKind::kNotFound);
  const KubeAnswer made = session_->Call("POST", maps, map);
  ASSERT_TRUE(made.error.ok());
  EXPECT_EQ(session_->Call("POST", maps, map).error.kind, ErrorKind::kAlreadyExists);
  EXPECT_TRUE(session_->Call("PUT", maps + "/x", map).error.ok());
  nlohmann::json stale = made.body;
  stale["data"]["a"] = "b";
  EXPECT_TRUE(session_->Call("PUT", maps + "/x", stale.dump()).error.ok());
  EXPECT_EQ(session_->Call("PUT", maps + "/x", stale.dump()).error.kind, ErrorKind::kConflict);
  EXPECT_EQ(session_->Call("POST", maps, R"({"metadata":{"name":"Not A Name"}})").error.kind, ErrorKind::kInvalid);
  EXPECT_EQ(session_->Call("GET", maps + "?resourceVersion=99999999999&timeoutSeconds=1").error.kind,
            ErrorKind::kTooLargeVersion);
}

TEST_F(ClientContractTest, TheSameStatusTwiceIsOneWrite) {
  const std::string policies = kube::PathOf(kPolicies, "default");
  const KubeAnswer made = session_->Call(
      "POST", policies,
      R"({"apiVersion":"kvartal.dev/v1alpha1","kind":"TenantKVPolicy","metadata":{"name":"p"},"spec":{}})");
  ASSERT_TRUE(made.error.ok()) << made.error.ToString();
  const auto apply = [&](const std::string& ready) {
    const nlohmann::json object = {
        {"apiVersion", "kvartal.dev/v1alpha1"},
        {"kind", "TenantKVPolicy"},
        {"metadata", {{"namespace", "default"}, {"name", "p"}}},
        {"status",
         {{"observedGeneration", 1},
          {"conditions", nlohmann::json::array({{{"type", "Ready"},
                                                 {"status", ready},
                                                 {"reason", "Tested"},
                                                 {"message", ""},
                                                 {"lastTransitionTime", "2026-01-01T00:00:00Z"}}})}}}};
    KubeAnswer got;
    bool ended = false;
    session_->client()->ApplyStatus(kPolicies, object, "kvartal-operator",
                                    [&](kube::ApiError error, nlohmann::json body) {
                                      got = {std::move(error), std::move(body)};
                                      ended = true;
                                    });
    EXPECT_TRUE(session_->Wait([&] { return ended; }));
    EXPECT_TRUE(got.error.ok()) << got.error.ToString();
    return TextAt(got.body, {"metadata", "resourceVersion"});
  };
  const std::string first = apply("False");
  EXPECT_NE(first, TextAt(made.body, {"metadata", "resourceVersion"}));
  EXPECT_EQ(apply("False"), first);
  EXPECT_NE(apply("True"), first);
  const KubeAnswer now = session_->Call("GET", policies + "/p");
  EXPECT_EQ(kube::NumberAt(now.body, {"metadata", "generation"}), 1);  // status is not a change of what is wanted
}

TEST_F(ClientContractTest, OfTwoReplicasOneLeadsAndReleaseHandsOverAtOnce) {
  KubeSession a_session(server_->admin()), b_session(server_->admin());
  bool a_leads = false, b_leads = false, released = false;
  const auto elector = [](KubeSession* session, const std::string& name, bool* leads) {
    return std::make_unique<kube::LeaseElector>(
        session->client(), session->loop(), session->clock(), kLease, kube::LeaderElection(kLease, name, 1, kFast),
        kube::LeaseElector::Sink{[leads] { *leads = true; }, [leads] { *leads = false; }});
  };
  auto a = elector(&a_session, "a", &a_leads);
  a->Start();
  ASSERT_TRUE(a_session.Wait([&] { return a_leads; }));
  auto b = elector(&b_session, "b", &b_leads);
  b->Start();
  const auto both = [&](const std::function<bool()>& reached) {
    return a_session.Wait([&] {
      b_session.loop()->RunOnce(0);
      return reached();
    });
  };
  // Longer than a lease that nobody renews: a keeps it.
  const int64_t until_ns = a_session.clock()->MonotonicNs() + 2 * kFast.duration_ms * kNsPerMs;
  ASSERT_TRUE(both([&] { return a_session.clock()->MonotonicNs() > until_ns; }));
  EXPECT_TRUE(a->leading());
  EXPECT_FALSE(b_leads);
  EXPECT_EQ(b->holder(), "a");
  a->Release([&] { released = true; });
  ASSERT_TRUE(both([&] { return released && b_leads; }));
  EXPECT_FALSE(a->leading());
}

TEST_F(ClientContractTest, ALeaderThatDiesIsFollowedAndALeaderThatIsCutOffStopsFirst) {
  const kube::ObjectKey lease = {"default", "another"};
  KubeSession a_session(server_->admin()), b_session(server_->admin());
  bool a_leads = false, a_lost = false, b_leads = false;
  kube::LeaseElector a(a_session.client(), a_session.loop(), a_session.clock(), lease,
                       kube::LeaderElection(lease, "a", 1, kFast), {[&] { a_leads = true; }, [&] { a_lost = true; }});
  a.Start();
  ASSERT_TRUE(a_session.Wait([&] { return a_leads; }));
  kube::LeaseElector b(b_session.client(), b_session.loop(), b_session.clock(), lease,
                       kube::LeaderElection(lease, "b", 2, kFast), {[&] { b_leads = true; }, [] {}});
  b.Start();
  // a's loop does not run: as good as dead. Its own clock ends its claim before b's does.
  ASSERT_TRUE(b_session.Wait([&] {
    EXPECT_FALSE(a.leading() && b.leading());
    return b_leads;
  }));
  EXPECT_FALSE(a.leading());
  ASSERT_TRUE(a_session.Wait([&] { return a_lost; }));
}

}  // namespace
}  // namespace kvartal::testing
