// From objects in a real API server to what nodes enforce and what policies are told, and back into the server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "operator/kube/json_fields.h"
#include "operator/kube/reflector.h"
#include "operator/reconcile/cluster_reader.h"
#include "operator/reconcile/compile_cluster.h"
#include "operator/reconcile/policy_status.h"
#include "tests/kube/api_server.h"
#include "tests/kube/kube_session.h"

namespace kvartal::testing {
namespace {

using kube::ObjectKey;
using kube::ResourceType;
using kube::TextAt;

const ResourceType kPolicies = {"kvartal.dev", "v1alpha1", "tenantkvpolicies", true};
const ResourceType kPools = {"kvartal.dev", "v1alpha1", "kvnodepools", false};
const ResourceType kNodes = {"", "v1", "nodes", false};
const ResourceType kNamespaces = {"", "v1", "namespaces", false};

// Four caches and the pure functions over them: what an operator does at each change.
class Decider {
 public:
  explicit Decider(KubeSession* session) : session_(session) {
    for (const ResourceType& type : {kPolicies, kPools, kNodes, kNamespaces}) {
      kube::ReflectorOptions options;
      options.type = type;
      reflectors_.push_back(std::make_unique<kube::Reflector>(session->client(), session->loop(), session->clock(),
                                                              options, [](const kube::ObjectChange&) {}));
      reflectors_.back()->Start();
    }
  }
  bool synced() const {
    return std::all_of(reflectors_.begin(), reflectors_.end(), [](const auto& one) { return one->synced(); });
  }
  const kube::ObjectStore& policies() const { return reflectors_[0]->store(); }

  // Compiles what the caches say now and writes what policies have to be told. Returns how many were written.
  size_t Run() {
    std::vector<std::string> unreadable;
    compiled = reconcile::CompileCluster(
        reader_.Read({&policies(), &reflectors_[1]->store(), &reflectors_[2]->store(), &reflectors_[3]->store()},
                     accepted_, &unreadable));
    EXPECT_THAT(unreadable, ::testing::IsEmpty());
    size_t writes = 0, answers = 0;
    for (const auto& [key, object] : policies().objects()) {
      const reconcile::PolicyVerdict& verdict = compiled.policies.at({key.ns, key.name});
      if (verdict.accepted) accepted_[key] = *verdict.accepted;
      const auto status = reconcile::StatusToApply(*object, verdict, {}, session_->clock()->WallMs());
      if (!status) continue;
      ++writes;
      session_->client()->ApplyStatus(kPolicies, *status, "kvartal-operator",
                                      [&](const kube::ApiError& error, const nlohmann::json&) {
                                        EXPECT_TRUE(error.ok()) << error.ToString();
                                        ++answers;
                                      });
    }
    EXPECT_TRUE(session_->Wait([&] { return answers == writes; }));
    return writes;
  }

  // Beside its pool.
  size_t TenantsOn(const std::string& node) const { return compiled.nodes.at(node)->set.objects().size() - 1; }

  reconcile::CompiledCluster compiled;

 private:
  KubeSession* const session_;
  std::vector<std::unique_ptr<kube::Reflector>> reflectors_;
  reconcile::ClusterReader reader_;
  std::map<ObjectKey, reconcile::SharedPolicy> accepted_;
};

class ReconcileContractTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status started = server_.Start();
    ASSERT_TRUE(started.ok()) << started;
    session_ = std::make_unique<KubeSession>(server_.admin());
    const absl::Status installed = InstallCrds(session_.get());
    ASSERT_TRUE(installed.ok()) << installed;
    Write("POST", kube::PathOf(kNamespaces), "{apiVersion: v1, kind: Namespace, metadata: {name: red}}");
    Write("POST", kube::PathOf(kNodes), "{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {gpu: h200}}}");
    Write("POST", kube::PathOf(kNodes), "{apiVersion: v1, kind: Node, metadata: {name: n2}}");
    Write("POST", kube::PathOf(kPools),
          "{apiVersion: kvartal.dev/v1alpha1, kind: KVNodePool, metadata: {name: p},\n"
          " spec: {nodeSelector: {gpu: h200}, capacity: {dram: 100Gi}}}");
  }
  void Write(const std::string& method, const std::string& target, const std::string& body) {
    const KubeAnswer answer = session_->Call(method, target, body, kYaml);
    ASSERT_TRUE(answer.error.ok()) << target << ": " << answer.error.ToString();
  }
  void WritePolicy(const std::string& name, const std::string& guarantee) {
    const std::string target = kube::PathOf(kPolicies, {"red", name}) + "?fieldManager=someone&force=true";
    const KubeAnswer answer =
        session_->Call("PATCH", target,
                       absl::StrCat("{apiVersion: kvartal.dev/v1alpha1, kind: TenantKVPolicy, metadata: {name: ", name,
                                    ", namespace: red},\n spec: {subjects: [{serviceAccountName: ", name,
                                    "}], pools: [{poolRef: p, perNode: {dram: {guarantee: ", guarantee, "}}}]}}"),
                       kube::kApplyPatch);
    ASSERT_TRUE(answer.error.ok()) << answer.error.ToString();
  }
  // "True/Accepted", as the server has it.
  std::string Told(const std::string& name, const std::string& type) {
    const KubeAnswer answer = session_->Call("GET", kube::PathOf(kPolicies, {"red", name}));
    const nlohmann::json* conditions = kube::FieldAt(answer.body, {"status", "conditions"});
    if (conditions == nullptr) return "nothing";
    for (const nlohmann::json& condition : *conditions) {
      if (TextAt(condition, {"type"}) == type)
        return TextAt(condition, {"status"}) + "/" + TextAt(condition, {"reason"});
    }
    return "nothing";
  }
  // The cache has what was written to the server last.
  bool CacheHas(const Decider& decider, const std::string& name,
                const std::function<bool(const nlohmann::json&)>& what) {
    return session_->Wait([&] {
      const auto object = decider.policies().Find({"red", name});
      return object != nullptr && what(*object);
    });
  }

  ApiServer server_;
  std::unique_ptr<KubeSession> session_;
};

TEST_F(ReconcileContractTest, PoliciesAreToldWhatBecameOfThemOnceAndNodesGetWhatIsInForce) {
  WritePolicy("a", "60Gi");
  Decider decider(session_.get());
  ASSERT_TRUE(session_->Wait([&] { return decider.synced(); }));
  // The first list is what the server's cache has, which may lag behind what was just written.
  ASSERT_TRUE(CacheHas(decider, "a", [](const nlohmann::json&) { return true; }));
  EXPECT_EQ(decider.Run(), 1u);
  EXPECT_EQ(Told("a", "Accepted"), "True/Accepted");
  ASSERT_TRUE(decider.compiled.nodes.contains("n1"));
  EXPECT_FALSE(decider.compiled.nodes.contains("n2"));
  EXPECT_EQ(decider.TenantsOn("n1"), 1u);
  const auto told = [](const nlohmann::json& object) {
    return kube::FieldAt(object, {"status", "effective"}) != nullptr;
  };
  ASSERT_TRUE(CacheHas(decider, "a", told));
  // The status we wrote came back by the watch, and there is nothing more to say.
  EXPECT_EQ(decider.Run(), 0u);

  WritePolicy("b", "41Gi");
  ASSERT_TRUE(CacheHas(decider, "b", [](const nlohmann::json&) { return true; }));
  EXPECT_EQ(decider.Run(), 1u);
  EXPECT_EQ(Told("b", "Accepted"), "False/NoCapacity");
  EXPECT_EQ(decider.TenantsOn("n1"), 1u);

  // An edit that does not fit leaves in force what was; one that does is told at once.
  const std::string version = decider.compiled.nodes.at("n1")->version;
  WritePolicy("a", "101Gi");
  const auto second = [](const nlohmann::json& object) {
    return kube::NumberAt(object, {"metadata", "generation"}) == 2;
  };
  ASSERT_TRUE(CacheHas(decider, "a", second));
  decider.Run();
  EXPECT_EQ(Told("a", "Accepted"), "False/NoCapacity");
  EXPECT_EQ(decider.compiled.nodes.at("n1")->version, version);
  WritePolicy("b", "40Gi");
  ASSERT_TRUE(CacheHas(decider, "b", second));
  decider.Run();
  EXPECT_EQ(Told("b", "Accepted"), "True/Accepted");
  EXPECT_EQ(decider.TenantsOn("n1"), 2u);
}

}  // namespace
}  // namespace kvartal::testing
