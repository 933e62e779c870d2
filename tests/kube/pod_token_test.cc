// A real kvartald, and pods' real tokens: made by the API server's TokenRequest for ServiceAccounts and pods it has,
// verified by the keys it serves. No pod runs; this process is the client of each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/libkvartal/kvartal.hpp"
#include "operator/kube/json_fields.h"
#include "tests/kube/api_server.h"
#include "tests/kube/kube_session.h"
#include "tests/support/daemon_process.h"

namespace kvartal::testing {
namespace {

using client::Client;
using kube::TextAt;
using ::testing::HasSubstr;

constexpr uint32_t kPatient = 20'000;

class PodTokenTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<ApiServer>();
    const absl::Status started = server_->Start();
    ASSERT_TRUE(started.ok()) << started;
    session_ = std::make_unique<KubeSession>(server_->admin());
    Make("/api/v1/namespaces", R"({"apiVersion":"v1","kind":"Namespace","metadata":{"name":"test"}})");
    for (const char* account : {"vllm", "stranger"}) {
      Make("/api/v1/namespaces/test/serviceaccounts",
           absl::StrCat(R"({"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":")", account, R"("}})"));
    }
    for (const char* node : {"node-1", "node-2"}) {
      Make("/api/v1/nodes", absl::StrCat(R"({"apiVersion":"v1","kind":"Node","metadata":{"name":")", node, R"("}})"));
    }
    MakePod("chat-0", "vllm", "node-1");
    MakePod("far-0", "vllm", "node-2");
    MakePod("stranger-0", "stranger", "node-1");
  }
  static void TearDownTestSuite() {
    session_.reset();
    server_.reset();
  }
  void SetUp() override {
    ASSERT_NE(session_, nullptr);
    WriteKeys();
    DaemonOptions options;
    options.manifests = TenantManifest("own", "serviceAccountName: vllm", "32Mi");
    options.more_config =
        absl::StrCat("attestUid: false\nkubernetes:\n  nodeName: node-1\n  issuer: ", server_->server(),
                     "\n  jwksFile: ", jwks_path(), "\nauditLog: audit.jsonl\n");
    daemon_ = std::make_unique<DaemonProcess>(options);
    const absl::Status started = daemon_->Start();
    ASSERT_TRUE(started.ok()) << started;
  }

  static KubeAnswer Make(const std::string& path, const std::string& body) {
    KubeAnswer made = session_->Call("POST", path + "?fieldValidation=Strict", body);
    EXPECT_TRUE(made.error.ok()) << path << ": " << made.error.ToString();
    return made;
  }
  static void MakePod(const std::string& name, const std::string& account, const std::string& node) {
    const KubeAnswer made = Make("/api/v1/namespaces/test/pods",
                                 absl::StrCat(R"({"apiVersion":"v1","kind":"Pod","metadata":{"name":")", name,
                                              R"("},"spec":{"serviceAccountName":")", account, R"(","nodeName":")",
                                              node, R"(","containers":[{"name":"engine","image":"none"}]}})"));
    pods_[name] = TextAt(made.body, {"metadata", "uid"});
  }
  // `pod` "": a token that is bound to none.
  static std::string Token(const std::string& account, const std::string& pod,
                           const std::string& audience = "kvartal") {
    nlohmann::json request = {{"apiVersion", "authentication.k8s.io/v1"},
                              {"kind", "TokenRequest"},
                              {"spec", {{"audiences", {audience}}, {"expirationSeconds", 600}}}};
    if (!pod.empty()) {
      request["spec"]["boundObjectRef"] = {
          {"kind", "Pod"}, {"apiVersion", "v1"}, {"name", pod}, {"uid", pods_.at(pod)}};
    }
    return TextAt(
        Make(absl::StrCat("/api/v1/namespaces/test/serviceaccounts/", account, "/token"), request.dump()).body,
        {"status", "token"});
  }
  static std::string jwks_path() { return server_->dir().File("jwks.json"); }
  static void WriteKeys() {
    static const std::string tools = RunCommand({std::string(KVARTAL_SOURCE_DIR) + "/tests/kube/testenv/helm"}).out;
    // As docs/OPERATIONS.md has it.
    const CommandResult keys = RunCommand({absl::StrCat(absl::StripSuffix(tools, "\n"), "/kubectl"), "--kubeconfig",
                                           server_->kubeconfig_path(), "get", "--raw", "/openid/v1/jwks"});
    ASSERT_EQ(keys.exit_code, 0) << keys.err;
    WriteFile(jwks_path() + ".new", keys.out);
    ASSERT_EQ(::rename((jwks_path() + ".new").c_str(), jwks_path().c_str()), 0);
  }
  // As a pod does it: by a file.
  kv_status AttachBy(const std::string& token, Client* client) const {
    const std::string path = server_->dir().File("token");
    WriteFile(path, token);
    return client->Attach(daemon_->attach_socket(), "test", nullptr, kPatient, path);
  }
  std::string WhyDenied(const std::string& token) const {
    Client client;
    const kv_status status = AttachBy(token, &client);
    return status == KV_DENIED ? client.error() : absl::StrCat("not denied: ", kv_status_name(status));
  }

  static inline std::unique_ptr<ApiServer> server_;
  static inline std::unique_ptr<KubeSession> session_;
  static inline std::map<std::string, std::string> pods_;  // name -> uid
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(PodTokenTest, APodOfThisNodeAttachesByTheTokenItsApiServerSigned) {
  Client client;
  ASSERT_EQ(AttachBy(Token("vllm", "chat-0"), &client), KV_OK) << client.error() << daemon_->log();
  EXPECT_EQ(client.tenant(), "test/own");
  const Client::Opened opened = client.OpenNamespace(client::Digest{7}, {16, 1, 4096}, kPatient);
  ASSERT_EQ(opened.status, KV_OK) << client.error();
  const std::vector<client::Key> keys = {client::Key{1}, client::Key{2}};
  std::vector<kv_slot> slots(keys.size());
  ASSERT_EQ(client.Reserve({.ns = opened.ns, .keys = keys}, slots, kPatient), KV_OK) << client.error();
  EXPECT_EQ(client.Commit(slots, 0, kPatient).count, keys.size());
  EXPECT_EQ(client.Lookup(opened.ns, keys, 0, kPatient).matched, keys.size());
  EXPECT_THAT(daemon_->Ctl({"sessions"}).out, HasSubstr("k8s-token"));
  std::string record;
  for (int i = 0; i < 500 && record.find("\"attach\"") == std::string::npos; ++i) {
    ::usleep(10'000);
    record = ReadFile(daemon_->folder() + "/audit.jsonl");
  }
  EXPECT_THAT(record, HasSubstr("test/chat-0")) << "which pod it was";
}

TEST_F(PodTokenTest, WhateverElseTheSameServerSignsIsRefused) {
  EXPECT_THAT(WhyDenied(Token("vllm", "far-0")), HasSubstr("not on node node-1"));
  EXPECT_THAT(WhyDenied(Token("stranger", "stranger-0")), HasSubstr("no policy of namespace test"));
  EXPECT_THAT(WhyDenied(Token("vllm", "")), HasSubstr("bound to no pod"));
  EXPECT_THAT(WhyDenied(Token("vllm", "chat-0", "another")), HasSubstr("audience kvartal"));
  std::string changed = Token("vllm", "chat-0");
  changed[changed.size() - 10] = changed[changed.size() - 10] == 'A' ? 'B' : 'A';
  EXPECT_THAT(WhyDenied(changed), HasSubstr("signature"));
  const std::string log = daemon_->log();
  EXPECT_THAT(log, HasSubstr("foreign_node"));
  EXPECT_THAT(log, ::testing::Not(HasSubstr(changed.substr(0, 40)))) << "tokens are not logged";
}

TEST_F(PodTokenTest, KeysThatAreRotatedAreFollowedWithoutARestart) {
  Client before;
  const std::string by_old = Token("vllm", "chat-0");
  ASSERT_EQ(AttachBy(by_old, &before), KV_OK) << before.error();
  server_->KillApiServer();
  const std::string key = server_->dir().File("sa.key"), pub = server_->dir().File("sa.pub");
  ASSERT_EQ(RunCommand({"/usr/bin/openssl", "genrsa", "-out", key, "2048"}).exit_code, 0);
  ASSERT_EQ(RunCommand({"/usr/bin/openssl", "rsa", "-in", key, "-pubout", "-out", pub}).exit_code, 0);
  const absl::Status started = server_->Start();
  ASSERT_TRUE(started.ok()) << started;
  session_ = std::make_unique<KubeSession>(server_->admin());  // the other's connections are to the one that is gone
  const std::string by_new = Token("vllm", "chat-0");
  EXPECT_THAT(WhyDenied(by_new), HasSubstr("not among the 1"));
  WriteKeys();
  Client after;
  kv_status status = KV_DENIED;
  for (int i = 0; i < 1000 && status == KV_DENIED; ++i) {
    ::usleep(20'000);
    status = AttachBy(by_new, &after);
  }
  EXPECT_EQ(status, KV_OK) << after.error();
  EXPECT_THAT(WhyDenied(by_old), HasSubstr("not among the 1"));
}

}  // namespace
}  // namespace kvartal::testing
