// What is written to policies and when, over a transport by script and a clock that stands still.
#include "operator/process/status_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/kube/kube_loop.h"

namespace kvartal::process {
namespace {

using nlohmann::json;

class StatusWriterTest : public testing::KubeLoop {
 protected:
  // One policy, red/a, that is being deleted and has our finalizer; its deletion was long ago by the server's clock.
  static json DeletedPolicy() {
    return {{"metadata",
             {{"namespace", "red"},
              {"name", "a"},
              {"uid", "u"},
              {"resourceVersion", "7"},
              {"deletionTimestamp", "2001-01-01T00:00:00Z"},
              {"finalizers", {kFinalizer}}}}};
  }
  // One of which something is to be told.
  static json Policy() {
    json policy = DeletedPolicy();
    policy["metadata"].erase("deletionTimestamp");
    policy["metadata"]["generation"] = 1;
    policy["apiVersion"] = "kvartal.dev/v1alpha1";
    policy["kind"] = "TenantKVPolicy";
    policy["spec"] = {{"subjects", json::array({{{"serviceAccountName", "vllm"}}})},
                      {"pools", json::array({{{"poolRef", "p"}, {"perNode", {{"dram", {{"limit", "1Gi"}}}}}}})}};
    return policy;
  }
  void Begin(const json& policy = DeletedPolicy()) {
    watch_.Start();
    RunDue();
    for (size_t i = 0; i < 4; ++i) {
      json items = json::array();
      if (absl::StrContains(transport_.requests.at(i).target, "tenantkvpolicies")) items.push_back(policy);
      const json page = {{"metadata", {{"resourceVersion", "9"}}}, {"items", items}};
      transport_.Head(i + 1, 200);
      transport_.Bytes(i + 1, page.dump());
      transport_.End(i + 1, absl::OkStatus());
    }
    RunDue();
    ASSERT_TRUE(watch_.synced());
    decider_.Start();
    writer_.Start();
  }
  // A node that is connected and enforces red/a.
  void ConnectHolder() {
    crds::PolicySet held;
    held.Put("TenantKVPolicy/red/a", "{}", "ns");
    sync::v1::NodeMessage hello;
    hello.mutable_hello()->set_node("n1");
    hello.mutable_hello()->set_version(held.Version());
    for (const auto& [key, object] : held.objects()) {
      sync::v1::Held* one = hello.mutable_hello()->add_held();
      one->set_key(key);
      one->set_hash(object.hash);
    }
    fleet_.OnMessage(1, "", hello);
    ASSERT_TRUE(fleet_.IsHeld("red", "a"));
  }
  // Finalizers that were written.
  size_t Patches() const {
    size_t count = 0;
    for (const kube::HttpRequest& request : transport_.requests) count += request.method == "PATCH";
    return count;
  }

  void StopWithAnEventOnItsWay() {
    Begin(Policy());
    Advance(2 * kStatusSettleMs);
    transport_.Answer(200, "{}");  // its status is taken
    RunDue();
    ASSERT_TRUE(absl::StrContains(transport_.requests.back().target, "/events")) << transport_.requests.back().target;
    writer_.Stop([this] { stopped_ = true; });
    RunDue();
  }

  bool stopped_ = false;
  sync::Fleet fleet_{&clock_, {.send = [](auto, auto) {}, .close = [](auto, auto&) {}, .on_progress = [](auto&) {}}};
  ClusterWatch watch_{&client(),
                      loop_.get(),
                      &clock_,
                      1,
                      {.on_matter = [this] { decider_.OnMatter(); },
                       .on_policy = [this](const kube::ObjectKey& key) { writer_.Touch(key); },
                       .on_pool = [](const kube::ObjectKey&) {}}};
  Decider decider_{
      &watch_, loop_.get(), &clock_, {.on_nodes = [](auto&) {}, .on_verdict = [](auto&) {}, .on_pool = [](auto&) {}}};
  StatusWriter writer_{&client(), loop_.get(), &clock_, &watch_, &decider_, &fleet_};
};

// The deletion is timed by the API server's clock, which may be far from ours.
TEST_F(StatusWriterTest, ADeletionWaitsForItsNodesByOurClockAlone) {
  Begin();
  ConnectHolder();
  Advance(kFinalizeMaxMs);
  EXPECT_EQ(Patches(), 0u);
  Advance(2 * kFinalizePollMs);
  EXPECT_GE(Patches(), 1u) << "a node that does not answer holds nobody up for ever";
}

TEST_F(StatusWriterTest, ADeletionThatNoNodeHoldsUpIsOver) {
  Begin();
  Advance(2 * kStatusSettleMs);
  EXPECT_EQ(Patches(), 1u);
}

// A process that was frozen past its lease goes on where it was, before it notices.
TEST_F(StatusWriterTest, WhoDoesNotLeadAnyMoreWritesNothing) {
  bool leading = true;
  client().SetLeading([&] { return leading; });
  Begin();
  leading = false;
  Advance(2 * kStatusSettleMs + kReturnMs + kFinalizeMaxMs);
  EXPECT_EQ(Patches(), 0u);
  leading = true;
  writer_.Touch({"red", "a"});
  Advance(2 * kStatusSettleMs);
  EXPECT_EQ(Patches(), 1u);
}

// The pause between two writes is no success.
TEST_F(StatusWriterTest, AWriteThatIsRefusedIsTriedLessAndLess) {
  Begin(Policy());
  RefuseWritesFor(600'000);
  EXPECT_GE(Patches(), 5u);
  EXPECT_LE(Patches(), 25u);
  EXPECT_EQ(writer_.stats().failures, Patches());
  EXPECT_GE(writer_.stats().status_writes, 5u);
}

// A server that is short of breath says for how long it wants to be left alone.
TEST_F(StatusWriterTest, AServerThatAsksForAPauseGetsIt) {
  Begin(Policy());
  Advance(2 * kStatusSettleMs);
  ASSERT_EQ(Patches(), 1u);
  transport_.Head(transport_.last(), 429, 20'000);
  transport_.End();
  Advance(19'000);
  EXPECT_EQ(Patches(), 1u);
  Advance(2'000);
  EXPECT_EQ(Patches(), 2u);
}

// What happened last is told before the lease is given up, and nobody waits for it for ever.
TEST_F(StatusWriterTest, AStopWaitsForTheEventOfTheLastWrite) {
  ASSERT_NO_FATAL_FAILURE(StopWithAnEventOnItsWay());
  EXPECT_FALSE(stopped_);
  transport_.Answer(200, "{}");
  EXPECT_TRUE(stopped_);
}

TEST_F(StatusWriterTest, AStopDoesNotWaitLongForEvents) {
  ASSERT_NO_FATAL_FAILURE(StopWithAnEventOnItsWay());
  Advance(kStopEventsMs - 500);
  EXPECT_FALSE(stopped_);
  Advance(1'000);
  EXPECT_TRUE(stopped_);
}

}  // namespace
}  // namespace kvartal::process
