// What is in force stays in force: operators, API server and daemons that go away and come back.
#include "tests/kube/operator_fixture.h"

namespace kvartal::testing {
namespace {

constexpr int64_t kMiBytes = 1 << 20;

class OperatorFaultsTest : public OperatorFixture {};

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
