// What is in force stays in force: operators, API server and daemons that go away and come back.
#include "tests/kube/operator_fixture.h"

namespace kvartal::testing {
namespace {

constexpr int64_t kMiBytes = 1 << 20;

class OperatorFaultsTest : public OperatorFixture {
 protected:
  // A token of the operator's account that counts as long as this pod is there, in the file that operators read.
  void GiveTokenOfPod(const std::string& pod) {
    WriteFile(server_.dir().File("operator.token"),
              TokenOfNewPod("default", pod, "kvartal-operator", "", "expirationSeconds: 3600, "));
    WriteFile(
        server_.dir().File("by-file.kubeconfig"),
        absl::StrCat("apiVersion: v1\nkind: Config\ncurrent-context: test\n",
                     "contexts: [{name: test, context: {cluster: test, user: operator}}]\n",
                     "clusters: [{name: test, cluster: {server: '", server_.server(), "', certificate-authority: '",
                     server_.ca_path(), "'}}]\n", "users: [{name: operator, user: {tokenFile: '",
                     server_.dir().File("operator.token"), "'}}]\n"));
  }
};

TEST_F(OperatorFaultsTest, WhatWasAcceptedStaysAcceptedOverARestartOfTheOperator) {
  Apply("a", "guarantee: 16Mi, limit: 32Mi", "vllm");
  ASSERT_TRUE(Becomes("a", "Ready", "True/Ready")) << Get("a").dump(1);
  operators_[0]->Kill();
  // Nobody is there to judge this edit when it is made, and a daemon has to begin without anybody.
  Apply("a", "guarantee: 2Gi", "vllm");
  daemons_[0]->Kill();
  ASSERT_TRUE(daemons_[0]->Start().ok()) << daemons_[0]->log();
  for (const auto& daemon : daemons_) EXPECT_EQ(LimitOn(*daemon, "a"), 32 * kMiBytes);

  operators_[0]->Start();
  ASSERT_TRUE(Becomes("a", "Accepted", "False/NoCapacity")) << Get("a").dump(1) << operators_[0]->log();
  EXPECT_EQ(Get("a")["status"]["inForce"]["pools"][0]["perNode"]["dram"]["limit"], 32 * kMiBytes);
  ASSERT_TRUE(session_->Wait([&] { return operators_[0]->Metric("kvartal_operator_nodes_current") == kNodeCount; }));
  // They held what they are to: nothing was sent to anybody.
  EXPECT_EQ(operators_[0]->Metric("kvartal_operator_updates_total"), 0);
  for (const auto& daemon : daemons_) EXPECT_EQ(LimitOn(*daemon, "a"), 32 * kMiBytes);
  Apply("a", "limit: 16Mi", "vllm");
  EXPECT_TRUE(Becomes("a", "Ready", "True/Ready")) << Get("a").dump(1);
}

TEST_F(OperatorFaultsTest, TheOtherReplicaTakesOverAndNodesFindIt) {
  Apply("a", "limit: 32Mi", "vllm");
  ASSERT_TRUE(Becomes("a", "Ready", "True/Ready"));
  operators_[1]->Start();
  ASSERT_TRUE(session_->Wait([&] { return operators_[1]->Health("/readyz") == 200; })) << "who does not lead is ready";
  EXPECT_EQ(operators_[0]->Stop(), 0) << operators_[0]->log();
  ASSERT_TRUE(operators_[1]->WaitUntilItLeads()) << operators_[1]->log();
  Apply("a", "limit: 16Mi", "vllm");
  ASSERT_TRUE(Becomes("a", "Ready", "True/Ready")) << Get("a").dump(1) << operators_[1]->log();
  for (const auto& daemon : daemons_) EXPECT_EQ(LimitOn(*daemon, "a"), 16 * kMiBytes);
  EXPECT_TRUE(session_->Wait([&] { return operators_[1]->Metric("kvartal_operator_nodes_connected") == kNodeCount; }));
}

// Nobody gives the lease up: the other replica waits for it to run out, and nodes hold what they have.
TEST_F(OperatorFaultsTest, ALeaderThatIsKilledIsFollowedByTheOtherAndNodesAreSentNothing) {
  Apply("a", "limit: 32Mi", "vllm");
  ASSERT_TRUE(Becomes("a", "Ready", "True/Ready"));
  operators_[1]->Start();
  ASSERT_TRUE(session_->Wait([&] { return operators_[1]->Health("/readyz") == 200; }));
  operators_[0]->Kill();
  for (const auto& daemon : daemons_) EXPECT_EQ(LimitOn(*daemon, "a"), 32 * kMiBytes);
  ASSERT_TRUE(operators_[1]->WaitUntilItLeads()) << operators_[1]->log();
  ASSERT_TRUE(session_->Wait([&] { return operators_[1]->Metric("kvartal_operator_nodes_current") == kNodeCount; }));
  EXPECT_EQ(operators_[1]->Metric("kvartal_operator_updates_total"), 0) << "they had what they are to";
  EXPECT_EQ(Told(Get("a"), "Ready"), "True/Ready") << "and nobody was told otherwise meanwhile";
  Apply("a", "limit: 16Mi", "vllm");
  EXPECT_TRUE(Becomes("a", "Ready", "True/Ready")) << Get("a").dump(1) << operators_[1]->log();
  for (const auto& daemon : daemons_) EXPECT_EQ(LimitOn(*daemon, "a"), 16 * kMiBytes);
}

// The policy is in force all the same; only nobody is told, until it may be told again.
TEST_F(OperatorFaultsTest, WithoutThePermissionToTellItEnforcesAndTellsWhenItMay) {
  Apply("a", "limit: 32Mi", "vllm");
  ASSERT_TRUE(Becomes("a", "Ready", "True/Ready"));
  const std::string role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kvartal-operator";
  nlohmann::json rights = session_->Call("GET", role).body, fewer = rights;
  const size_t rules = rights["rules"].size();
  for (size_t i = rules; i-- > 0;) {
    if (rights["rules"][i].dump().find("/status") != std::string::npos) fewer["rules"].erase(i);
  }
  ASSERT_LT(fewer["rules"].size(), rules);
  fewer["metadata"].erase("resourceVersion");
  rights["metadata"].erase("resourceVersion");
  Write("PUT", role, fewer.dump(), kube::kJson);
  Apply("a", "limit: 16Mi", "vllm");
  EXPECT_TRUE(LimitBecomes("a", 16 * kMiBytes));
  ASSERT_TRUE(session_->Wait([&] { return operators_[0]->Metric("kvartal_operator_write_failures_total") >= 2; }))
      << operators_[0]->log();
  EXPECT_EQ(Told(Get("a"), "Ready"), "") << "of the generation before";
  EXPECT_NE(operators_[0]->log().find("its status: forbidden"), std::string::npos) << operators_[0]->log();
  Write("PUT", role, rights.dump(), kube::kJson);
  EXPECT_TRUE(Becomes("a", "Ready", "True/Ready")) << Get("a").dump(1) << operators_[0]->log();
}

TEST_F(OperatorFaultsTest, WithoutAnApiServerNodesEnforceAndAfterItsReturnEditsGoOn) {
  Apply("a", "limit: 32Mi", "vllm");
  ASSERT_TRUE(Becomes("a", "Ready", "True/Ready"));
  server_.KillApiServer();
  // It cannot know any more that it leads, and ends, for its supervisor to start it again.
  EXPECT_EQ(operators_[0]->WaitForEnd(), 1) << operators_[0]->log();
  for (const auto& daemon : daemons_) EXPECT_EQ(LimitOn(*daemon, "a"), 32 * kMiBytes);
  const absl::Status back = server_.Start();
  ASSERT_TRUE(back.ok()) << back;
  session_ = std::make_unique<KubeSession>(server_.admin());
  operators_[0]->Start();
  Apply("a", "limit: 16Mi", "vllm");
  EXPECT_TRUE(Becomes("a", "Ready", "True/Ready")) << Get("a").dump(1) << operators_[0]->log();
}

// A server takes a token for nothing from one moment to the next, whatever time it has left: its pod is gone. (For ten
// seconds it may remember that it was good.)
TEST_F(OperatorFaultsTest, ATokenThatCountsNoMoreIsExchangedAndWithoutANewOneNobodyLeads) {
  operators_[0]->Kill();
  ASSERT_NO_FATAL_FAILURE(GiveTokenOfPod("op-0"));
  OperatorProcess by_file(server_.dir().File("by-file.kubeconfig"));
  by_file.Start();
  ASSERT_TRUE(by_file.WaitUntilItLeads()) << by_file.log();
  Apply("a", "limit: 32Mi", "vllm");
  const auto refused = [&] {
    return by_file.MetricSum("rest_client_requests_total",
                             [](const std::string& labels) { return labels.find("\"401\"") != std::string::npos; });
  };
  ASSERT_TRUE(Becomes("a", "Accepted", "True/Accepted")) << Get("a").dump(1) << by_file.log();
  EXPECT_EQ(refused(), 0);
  // The new one is there when the old one ends, and was not read yet: the 401 has it read, and nothing is lost.
  ASSERT_NO_FATAL_FAILURE(GiveTokenOfPod("op-1"));
  DeletePod("default", "op-0");
  ASSERT_TRUE(session_->Wait([&] { return refused() > 0; })) << by_file.log();
  Apply("a", "limit: 16Mi", "vllm");
  EXPECT_TRUE(session_->Wait([&] { return Told(Get("a"), "Accepted") == "True/Accepted"; })) << Get("a").dump(1);
  EXPECT_EQ(by_file.log().find("is lost"), std::string::npos) << by_file.log();
  // There is no new one: it cannot renew its lease, and ends before another may lead.
  DeletePod("default", "op-1");
  EXPECT_EQ(by_file.WaitForEnd(), 1) << by_file.log();
  EXPECT_NE(by_file.log().find("is lost"), std::string::npos) << by_file.log();
}

// The tier is sized by its pool when a daemon starts; one that serves nobody may start again for it.
TEST_F(OperatorFaultsTest, ADaemonThatServesNobodyStartsAgainForTheCapacityOfItsPool) {
  Write("PATCH", "/apis/kvartal.dev/v1alpha1/kvnodepools/p", R"({"spec":{"capacity":{"dram":"32Mi"}}})",
        kube::kMergePatch);
  const ExitState ended = daemons_[0]->WaitForEnd();
  EXPECT_TRUE(ended.exited && ended.code == 0) << daemons_[0]->log();
  ASSERT_TRUE(daemons_[0]->Start().ok()) << daemons_[0]->log();
  EXPECT_EQ(daemons_[0]->ReadyWord("dram_bytes"), std::to_string(32 * kMiBytes));
  Apply("a", "limit: 50%", "vllm");
  ASSERT_TRUE(session_->Wait([&] { return LimitOn(*daemons_[0], "a") == 16 * kMiBytes; })) << daemons_[0]->log();
}

}  // namespace
}  // namespace kvartal::testing
