// Which node a stream is of is proven by a token that a real API server signed: a daemon gets the policy of its own
// node and of no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "daemon/control/sync_stream.h"
#include "operator/kube/json_fields.h"
#include "tests/kube/api_server.h"
#include "tests/kube/kube_session.h"
#include "tests/kube/operator_process.h"
#include "tests/support/daemon_process.h"

namespace kvartal::testing {
namespace {

using kube::TextAt;
using ::testing::HasSubstr;

class NodeTokenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(server_.Start().ok());
    session_ = std::make_unique<KubeSession>(server_.admin());
    ASSERT_TRUE(InstallCrds(session_.get()).ok());
    Make("/api/v1/namespaces", R"({"apiVersion":"v1","kind":"Namespace","metadata":{"name":"kv"}})");
    for (const char* account : {"daemon", "stranger"}) {
      Make("/api/v1/namespaces/kv/serviceaccounts",
           absl::StrCat(R"({"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":")", account, R"("}})"));
      for (const char* node : {"n0", "n1"}) MakePod(account, node);
    }
    operator_ = std::make_unique<OperatorProcess>(server_.kubeconfig_path(),
                                                  std::vector<std::string>{"--node-account=kv/daemon"});
    operator_->Start();
    ASSERT_TRUE(operator_->WaitUntilItLeads()) << operator_->log();
  }
  nlohmann::json Make(const std::string& path, const std::string& body) {
    const KubeAnswer made = session_->Call("POST", path, body);
    EXPECT_TRUE(made.error.ok()) << path << ": " << made.error.ToString();
    return made.body;
  }
  void MakePod(const std::string& account, const std::string& node) {
    const std::string name = account + "-" + node;
    const nlohmann::json made = Make("/api/v1/namespaces/kv/pods",
                                     absl::StrCat(R"({"apiVersion":"v1","kind":"Pod","metadata":{"name":")", name,
                                                  R"("},"spec":{"serviceAccountName":")", account, R"(","nodeName":")",
                                                  node, R"(","containers":[{"name":"c","image":"none"}]}})"));
    uids_[name] = TextAt(made, {"metadata", "uid"});
  }
  std::string Token(const std::string& account, const std::string& node, const std::string& audience) {
    const std::string pod = account + "-" + node;
    const nlohmann::json request = {
        {"apiVersion", "authentication.k8s.io/v1"},
        {"kind", "TokenRequest"},
        {"spec",
         {{"audiences", {audience}},
          {"expirationSeconds", 600},
          {"boundObjectRef", {{"kind", "Pod"}, {"apiVersion", "v1"}, {"name", pod}, {"uid", uids_.at(pod)}}}}}};
    return TextAt(Make(absl::StrCat("/api/v1/namespaces/kv/serviceaccounts/", account, "/token"), request.dump()),
                  {"status", "token"});
  }
  // What becomes of a stream that says it is `node` and shows `token`: "" when it is welcome.
  std::string DialAs(const std::string& node, const std::string& token) {
    const std::string path = server_.dir().File("token");
    if (!token.empty()) WriteFile(path, token);
    sync::v1::NodeMessage hello;
    hello.mutable_hello()->set_node(node);
    std::optional<std::string> result;
    const auto stream = control::SyncStream::Dial({"ipv4:" + operator_->address(), "", token.empty() ? "" : path},
                                                  /*patient=*/true, session_->loop(), hello,
                                                  {.on_message =
                                                       [&](const auto&) {
                                                         if (!result) result = "";
                                                       },
                                                   .on_end =
                                                       [&](const absl::Status& why) {
                                                         if (!result) result = std::string(why.message());
                                                       }},
                                                  &channel_);
    EXPECT_TRUE(stream.ok()) << stream.status();
    EXPECT_TRUE(session_->Wait([&] { return result.has_value(); })) << operator_->log();
    return result.value_or("nothing");
  }

  ApiServer server_;
  std::unique_ptr<KubeSession> session_;
  std::map<std::string, std::string> uids_;  // by pod
  control::SyncChannel channel_;
  std::unique_ptr<OperatorProcess> operator_;
};

TEST_F(NodeTokenTest, ADaemonIsTheNodeOfItsPodAndNoOther) {
  const std::string good = Token("daemon", "n0", "kvartal-operator");
  // The operator may not know the keys of the cluster yet.
  ASSERT_TRUE(session_->Wait([&] { return DialAs("n0", good).empty(); })) << operator_->log();
  EXPECT_THAT(DialAs("n1", good), HasSubstr("its token is for node 'n0'"));
  EXPECT_THAT(DialAs("n0", Token("stranger", "n0", "kvartal-operator")), HasSubstr("kv/stranger"));
  EXPECT_THAT(DialAs("n0", Token("daemon", "n0", "kvartal")), HasSubstr("audience"));
  EXPECT_THAT(DialAs("n0", ""), HasSubstr("no token"));
  EXPECT_TRUE(session_->Wait([&] { return operator_->Metric("kvartal_operator_streams_refused_total") >= 4; }));
}

}  // namespace
}  // namespace kvartal::testing
