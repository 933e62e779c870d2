// A policy's life: applied, enforced on three real daemons, told, edited, refused, deleted.
#include <map>
#include <set>

#include "tests/kube/operator_fixture.h"

namespace kvartal::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiBytes = 1 << 20;

class OperatorTest : public OperatorFixture {
 protected:
  int64_t NowMs() const { return session_->clock()->MonotonicNs() / kNsPerMs; }
  double Writes() const { return operators_[0]->Metric("kvartal_operator_status_writes_total"); }
};

TEST_F(OperatorTest, APolicyIsEnforcedEverywhereToldOnceEditedAndDeleted) {
  const int64_t begin_ms = NowMs();
  Apply("a", "guarantee: 8Mi, limit: 32Mi", "vllm");
  ASSERT_TRUE(Becomes("a", "Ready", "True/Ready")) << Get("a").dump(1) << operators_[0]->log();
  RecordProperty("apply_to_ready_ms", static_cast<int>(NowMs() - begin_ms));
  std::printf("apply_to_ready_ms=%d\n", static_cast<int>(NowMs() - begin_ms));
  nlohmann::json object = Get("a");
  for (const auto& [type, told] : std::map<std::string, std::string>{{"Accepted", "True/Accepted"},
                                                                     {"ResolvedRefs", "True/AllFound"},
                                                                     {"Programmed", "True/Programmed"},
                                                                     {"WithinQuota", "True/WithinLimits"},
                                                                     {"GuaranteeMet", "True/Fits"}})
    EXPECT_EQ(Told(object, type), told);
  EXPECT_EQ(object["status"]["observedGeneration"], 1);
  EXPECT_EQ(object["status"]["nodes"]["matched"], kNodeCount);
  EXPECT_EQ(object["status"]["nodes"]["applied"], kNodeCount);
  for (const auto& daemon : daemons_) EXPECT_EQ(LimitOn(*daemon, "a"), 32 * kMiBytes);

  // What was told is not told again: no write wakes the next one.
  Pass(2500);  // metrics are two seconds old at most
  EXPECT_LE(Writes(), 3);
  const double writes = Writes();
  const std::string version = kube::TextAt(Get("a"), {"metadata", "resourceVersion"});
  Pass(5000);
  EXPECT_EQ(Writes(), writes);
  EXPECT_EQ(kube::TextAt(Get("a"), {"metadata", "resourceVersion"}), version);

  // A lowered limit is an edit as any other.
  const int64_t edit_ms = NowMs();
  Apply("a", "guarantee: 8Mi, limit: 16Mi", "vllm");
  ASSERT_TRUE(Becomes("a", "Ready", "True/Ready")) << Get("a").dump(1);
  std::printf("edit_to_ready_ms=%d\n", static_cast<int>(NowMs() - edit_ms));
  EXPECT_EQ(Get("a")["status"]["observedGeneration"], 2);
  for (const auto& daemon : daemons_) EXPECT_EQ(LimitOn(*daemon, "a"), 16 * kMiBytes);
  EXPECT_LE(Writes() - writes, 3);

  // Nodes hear of a deletion before the object is gone.
  Write("DELETE", kube::PathOf(kPolicyType, kube::ObjectKey{"red", "a"}), "");
  ASSERT_TRUE(IsGone("a")) << Get("a").dump(1);
  for (const auto& daemon : daemons_) EXPECT_EQ(LimitOn(*daemon, "a"), -1);
}

TEST_F(OperatorTest, WhatIsRefusedSaysWhyAndChangesNothing) {
  Apply("a", "limit: 32Mi", "vllm");
  ASSERT_TRUE(Becomes("a", "Ready", "True/Ready")) << Get("a").dump(1);
  Apply("b", "limit: 16Mi", "vllm");
  ASSERT_TRUE(Becomes("b", "Accepted", "False/SubjectClaimed")) << Get("b").dump(1);
  EXPECT_EQ(Told(Get("b"), "Ready"), "False/SubjectClaimed");
  EXPECT_EQ(LimitOn(*daemons_[0], "b"), -1);

  // An edit that does not fit: what was accepted before stays, and stands in the status.
  Apply("a", "guarantee: 2Gi", "vllm");
  ASSERT_TRUE(Becomes("a", "Accepted", "False/NoCapacity")) << Get("a").dump(1);
  EXPECT_EQ(Get("a")["status"]["inForce"]["pools"][0]["perNode"]["dram"]["limit"], 32 * kMiBytes);
  for (const auto& daemon : daemons_) EXPECT_EQ(LimitOn(*daemon, "a"), 32 * kMiBytes);

  // A node that cannot keep a promise says so; the others enforce it.
  Apply("a", "guarantee: 100Mi", "vllm");
  ASSERT_TRUE(Becomes("a", "Programmed", "False/Rejected")) << Get("a").dump(1);
  const nlohmann::json object = Get("a");
  EXPECT_EQ(object["status"]["nodes"]["applied"], 2);
  EXPECT_EQ(object["status"]["nodes"]["rejected"][0]["node"], "n2");
  EXPECT_THAT(object["status"]["nodes"]["rejected"][0]["reason"].get<std::string>(), HasSubstr("does not fit"));
  EXPECT_EQ(LimitOn(*daemons_[2], "a"), 32 * kMiBytes);
  // And nobody else's policy waits for that, there or anywhere.
  Apply("c", "limit: 8Mi", "third");
  EXPECT_TRUE(Becomes("c", "Ready", "True/Ready")) << Get("c").dump(1);
  EXPECT_EQ(LimitOn(*daemons_[2], "c"), 8 * kMiBytes);
  Apply("d", "guarantee: 64Mi, limit: 1%", "fourth");
  EXPECT_TRUE(Becomes("d", "Accepted", "False/AboveLimit")) << Get("d").dump(1);
  Apply("a", "guarantee: 50Mi", "vllm");
  EXPECT_TRUE(Becomes("a", "Ready", "True/Ready")) << Get("a").dump(1);

  // People hear of it where they look.
  const nlohmann::json events = session_->Call("GET", "/apis/events.k8s.io/v1/namespaces/red/events").body;
  std::set<std::string> reasons;
  for (const nlohmann::json& event : events["items"]) reasons.insert(event["reason"].get<std::string>());
  for (const char* reason : {"Accepted", "SubjectClaimed", "NoCapacity", "Rejected", "Programmed"})
    EXPECT_TRUE(reasons.contains(reason)) << reason << " of " << events.dump();
}

TEST_F(OperatorTest, APoolSaysWhichOfItsNodesApplyItAndWhatIsGuaranteedThere) {
  const auto pool = [&] { return session_->Call("GET", "/apis/kvartal.dev/v1alpha1/kvnodepools/p").body; };
  // It states 1Gi, and no daemon of this test has that: what it states holds for the nodes as far as they have it.
  ASSERT_TRUE(session_->Wait([&] { return Told(pool(), "Accepted") == "True/Accepted"; })) << pool().dump(1);
  Apply("a", "guarantee: 8Mi, limit: 32Mi", "vllm");
  ASSERT_TRUE(Becomes("a", "Ready", "True/Ready")) << Get("a").dump(1);
  ASSERT_TRUE(session_->Wait([&] { return Told(pool(), "Ready") == "True/Ready"; })) << pool().dump(1);
  nlohmann::json status = pool()["status"];
  EXPECT_EQ(status["observedGeneration"], 1);
  EXPECT_EQ(status["nodes"]["matched"], kNodeCount);
  EXPECT_EQ(status["nodes"]["applied"], kNodeCount);
  ASSERT_TRUE(session_->Wait([&] { return pool()["status"]["guaranteed"]["dramBytes"] == 8 * kMiBytes; }))
      << pool().dump(1);
  // What was told is not told again.
  Pass(2500);
  const std::string version = kube::TextAt(pool(), {"metadata", "resourceVersion"});
  Pass(5000);
  EXPECT_EQ(kube::TextAt(pool(), {"metadata", "resourceVersion"}), version);
  Write("PATCH", "/apis/kvartal.dev/v1alpha1/kvnodepools/p", R"({"spec":{"nodeSelector":{"kv":"elsewhere"}}})",
        kube::kMergePatch);
  ASSERT_TRUE(session_->Wait([&] { return Told(pool(), "Ready") == "False/NoNodes"; })) << pool().dump(1);
  EXPECT_EQ(pool()["status"]["nodes"]["matched"], 0);
}

// dynamo 8204: an object that lingers after a foreground deletion was served on, and what it owned made again.
TEST_F(OperatorTest, APolicyThatLingersInAForegroundDeletionIsInForceNowhereAndLeftAlone) {
  Apply("a", "limit: 32Mi", "vllm");
  ASSERT_TRUE(Becomes("a", "Ready", "True/Ready")) << Get("a").dump(1);
  const std::string target = kube::PathOf(kPolicyType, kube::ObjectKey{"red", "a"});
  // No garbage collector runs here: the object stays until the server's finalizer is taken away by hand.
  Write("DELETE", target, R"({"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Foreground"})",
        kube::kJson);
  ASSERT_TRUE(session_->Wait([&] {
    return Get("a")["metadata"].value("finalizers", nlohmann::json()) == nlohmann::json{"foregroundDeletion"};
  })) << Get("a").dump(1);
  for (const auto& daemon : daemons_) EXPECT_EQ(LimitOn(*daemon, "a"), -1);
  const std::string version = kube::TextAt(Get("a"), {"metadata", "resourceVersion"});
  Pass(5'000);
  EXPECT_EQ(kube::TextAt(Get("a"), {"metadata", "resourceVersion"}), version) << "nobody writes to it any more";
  for (const auto& daemon : daemons_) EXPECT_EQ(LimitOn(*daemon, "a"), -1);
  Write("PATCH", target, R"({"metadata":{"finalizers":null}})", kube::kMergePatch);
  EXPECT_TRUE(IsGone("a"));
}

TEST_F(OperatorTest, APausedPolicyStaysAsItIs) {
  Apply("a", "limit: 32Mi", "vllm");
  ASSERT_TRUE(Becomes("a", "Ready", "True/Ready"));
  const std::string target = kube::PathOf(kPolicyType, kube::ObjectKey{"red", "a"});
  Write("PATCH", target, R"({"metadata":{"annotations":{"kvartal.dev/paused":"true"}}})", kube::kMergePatch);
  Apply("a", "limit: 16Mi", "vllm");
  Apply("b", "limit: 8Mi", "other");
  ASSERT_TRUE(Becomes("b", "Ready", "True/Ready")) << "others go on";
  EXPECT_EQ(LimitOn(*daemons_[0], "a"), 32 * kMiBytes);
  EXPECT_EQ(Get("a")["status"]["observedGeneration"], 1);
  Write("PATCH", target, R"({"metadata":{"annotations":{"kvartal.dev/paused":null}}})", kube::kMergePatch);
  EXPECT_TRUE(LimitBecomes("a", 16 * kMiBytes));
}

}  // namespace
}  // namespace kvartal::testing
