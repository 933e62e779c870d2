// The reflector against the real API server: what tests/unit/kube shows by script has to hold where the server, TLS and
// TCP do what they do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "operator/kube/json_fields.h"
#include "operator/kube/reflector.h"
#include "tests/kube/api_server.h"
#include "tests/kube/kube_session.h"

namespace kvartal::testing {
namespace {

using kube::ObjectChange;
using kube::Reflector;
using kube::ReflectorOptions;

const kube::ResourceType kConfigMaps = {"", "v1", "configmaps", true};

std::string ConfigMap(const std::string& name, const std::string& value) {
  return nlohmann::json{
      {"apiVersion", "v1"}, {"kind", "ConfigMap"}, {"metadata", {{"name", name}}}, {"data", {{"value", value}}}}
      .dump();
}

// What a consumer of the reflector knows, from changes alone.
class Consumer {
 public:
  Consumer(KubeSession* session, const std::string& ns, kube::WatchSeconds seconds = {600, 600},
           int64_t margin_ms = kube::kWatchMarginMs)
      : reflector_(session->client(), session->loop(), session->clock(),
                   ReflectorOptions{kConfigMaps, ns, 1, seconds, margin_ms},
                   [this](const ObjectChange& change) { Note(change); }) {
    reflector_.Start();
  }

  bool Has(const std::string& name, const std::string& value) const {
    const auto found = values_.find(name);
    return found != values_.end() && found->second == value;
  }
  bool Knows(const std::string& name) const { return values_.contains(name); }
  bool synced() const { return reflector_.synced(); }
  const Reflector& reflector() const { return reflector_; }

 private:
  void Note(const ObjectChange& change) {
    if (change.deleted) {
      values_.erase(change.key.name);
    } else {
      values_[change.key.name] = kube::TextAt(*change.object, {"data", "value"});
    }
  }
  std::map<std::string, std::string> values_;
  Reflector reflector_;
};

class ReflectorContractTest : public ::testing::Test {
 protected:
  void StartServer(ApiServerOptions options = {}) {
    server_ = std::make_unique<ApiServer>(options);
    const absl::Status started = server_->Start();
    ASSERT_TRUE(started.ok()) << started;
    writer_ = std::make_unique<KubeSession>(server_->admin());
    watcher_ = std::make_unique<KubeSession>(server_->admin());
    Write("POST", "/api/v1/namespaces", R"({"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n"}})");
  }
  // On the same port and state. The writer's connections are gone with it.
  void RestartServer() {
    server_->KillApiServer();
    const absl::Status started = server_->Start();
    ASSERT_TRUE(started.ok()) << started;
    writer_ = std::make_unique<KubeSession>(server_->admin());
  }
  void Write(const std::string& method, const std::string& target, const std::string& body = "") {
    const KubeAnswer answer = writer_->Call(method, target, body);
    ASSERT_TRUE(answer.error.ok()) << method << " " << target << ": " << answer.error.ToString();
  }
  void Create(const std::string& name, const std::string& value) {
    Write("POST", "/api/v1/namespaces/n/configmaps", ConfigMap(name, value));
  }
  void Update(const std::string& name, const std::string& value) {
    Write("PUT", "/api/v1/namespaces/n/configmaps/" + name, ConfigMap(name, value));
  }
  void Delete(const std::string& name) { Write("DELETE", "/api/v1/namespaces/n/configmaps/" + name); }

  std::unique_ptr<ApiServer> server_;
  std::unique_ptr<KubeSession> writer_, watcher_;
};

TEST_F(ReflectorContractTest, EveryChangeArrivesAcrossManyShortWatchesAndOneListIsEnough) {
  ASSERT_NO_FATAL_FAILURE(StartServer());
  Create("a", "1");
  Consumer consumer(watcher_.get(), "n", {1, 2});
  ASSERT_TRUE(watcher_->Wait([&] { return consumer.Has("a", "1"); }));
  for (int i = 0; i < 40; ++i) {
    Update("a", std::to_string(i));
    Create("b", std::to_string(i));
    ASSERT_TRUE(watcher_->Wait([&] { return consumer.Has("a", std::to_string(i)) && consumer.Knows("b"); })) << i;
    Delete("b");
    ASSERT_TRUE(watcher_->Wait([&] { return !consumer.Knows("b"); })) << i;
  }
  const kube::ListWatchStats& stats = consumer.reflector().stats();
  ASSERT_TRUE(watcher_->Wait([&] { return stats.watches > 4; }));
  EXPECT_EQ(stats.lists, 1u);
  EXPECT_EQ(stats.broken, 0u);
  EXPECT_GE(stats.ended, 3u);
}

TEST_F(ReflectorContractTest, ARestartOfTheServerLosesNoChange) {
  ASSERT_NO_FATAL_FAILURE(StartServer());
  Create("a", "1");
  Create("b", "1");
  Consumer consumer(watcher_.get(), "n");
  ASSERT_TRUE(watcher_->Wait([&] { return consumer.synced(); }));
  Update("b", "2");
  ASSERT_TRUE(watcher_->Wait([&] { return consumer.Has("b", "2"); }));  // told by the watch: it is open
  RestartServer();
  Update("a", "2");
  Delete("b");
  Create("c", "1");
  ASSERT_TRUE(watcher_->Wait([&] { return consumer.Has("a", "2") && consumer.Has("c", "1") && !consumer.Knows("b"); }));
  EXPECT_GE(consumer.reflector().stats().broken, 1u);
}

// The store forgets what the watch would go on from: a real 410, and what was deleted meanwhile is told nowhere.
TEST_F(ReflectorContractTest, AcrossACompactionNothingIsLost) {
  ASSERT_NO_FATAL_FAILURE(StartServer({.watch_cache = false}));
  Create("a", "1");
  Create("b", "1");
  Consumer consumer(watcher_.get(), "n");
  ASSERT_TRUE(watcher_->Wait([&] { return consumer.synced(); }));
  Update("b", "0");
  ASSERT_TRUE(watcher_->Wait([&] { return consumer.Has("b", "0"); }));  // told by the watch: it is open
  const std::string version = consumer.reflector().resource_version();
  // The watcher's loop does not run meanwhile.
  RestartServer();
  Delete("a");
  Update("b", "2");
  Create("c", "1");
  const absl::Status compacted = server_->Compact();
  ASSERT_TRUE(compacted.ok()) << compacted;
  // The positive control: that version is gone.
  const KubeAnswer gone =
      writer_->Call("GET", absl::StrCat("/api/v1/namespaces/n/configmaps?resourceVersionMatch=Exact&resourceVersion=",
                                        kube::QueryEscape(version)));
  ASSERT_EQ(gone.error.kind, kube::ErrorKind::kExpired) << gone.error.ToString();
  ASSERT_TRUE(watcher_->Wait([&] { return !consumer.Knows("a") && consumer.Has("b", "2") && consumer.Has("c", "1"); }));
  EXPECT_GE(consumer.reflector().stats().expired, 1u);
  EXPECT_GE(consumer.reflector().stats().lists, 2u);
  Create("d", "1");
  ASSERT_TRUE(watcher_->Wait([&] { return consumer.Knows("d"); }));
}

TEST_F(ReflectorContractTest, AServerThatFreezesIsLeftAtTheDeadlineAndFoundAgain) {
  ASSERT_NO_FATAL_FAILURE(StartServer());
  Create("a", "1");
  Consumer consumer(watcher_.get(), "n", {2, 2}, 1000);
  ASSERT_TRUE(watcher_->Wait([&] { return consumer.synced(); }));
  Update("a", "0");
  ASSERT_TRUE(watcher_->Wait([&] { return consumer.Has("a", "0"); }));
  server_->Freeze();
  ASSERT_TRUE(watcher_->Wait([&] { return consumer.reflector().last_error().kind == kube::ErrorKind::kDeadline; }));
  server_->Thaw();
  Update("a", "2");
  ASSERT_TRUE(watcher_->Wait([&] { return consumer.Has("a", "2"); }));
}

TEST_F(ReflectorContractTest, RightsThatAreTakenKeepTheLastStateAndRightsGivenBackGoOn) {
  ASSERT_NO_FATAL_FAILURE(StartServer());
  Create("a", "1");
  Write("POST", "/api/v1/namespaces/n/serviceaccounts",
        R"({"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"reader"}})");
  Write("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/n/roles",
        R"({"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"reader"},
            "rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list","watch"]}]})");
  const std::string binding =
      R"({"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"reader"},
          "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"reader"},
          "subjects":[{"kind":"ServiceAccount","name":"reader","namespace":"n"}]})";
  const std::string bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/n/rolebindings";
  Write("POST", bindings, binding);
  const KubeAnswer token = writer_->Call(
      "POST", "/api/v1/namespaces/n/serviceaccounts/reader/token",
      R"({"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":600}})");
  ASSERT_TRUE(token.error.ok()) << token.error.ToString();
  kube::ClusterAccess access = server_->ByTokenFile("");
  access.token.text = kube::TextAt(token.body, {"status", "token"});
  KubeSession reader(access);
  Consumer consumer(&reader, "n", {1, 1});
  ASSERT_TRUE(reader.Wait([&] { return consumer.Has("a", "1"); }));
  Write("DELETE", bindings + "/reader");
  ASSERT_TRUE(reader.Wait([&] { return consumer.reflector().last_error().kind == kube::ErrorKind::kForbidden; }));
  EXPECT_TRUE(consumer.Has("a", "1"));
  Update("a", "2");
  Write("POST", bindings, binding);
  ASSERT_TRUE(reader.Wait([&] { return consumer.Has("a", "2"); }));
}

}  // namespace
}  // namespace kvartal::testing
