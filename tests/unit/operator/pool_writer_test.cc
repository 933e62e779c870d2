// What is written to pools and when, over a transport by script and a clock that stands still.
#include "operator/process/pool_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "operator/reconcile/status_fields.h"
#include "tests/unit/kube/kube_loop.h"

namespace kvartal::process {
namespace {

using nlohmann::json;

class PoolWriterTest : public testing::KubeLoop {
 protected:
  static json Pool(json status = nullptr) {
    json pool = {{"apiVersion", "kvartal.dev/v1alpha1"},
                 {"kind", "KVNodePool"},
                 {"metadata", {{"name", "p"}, {"uid", "u"}, {"resourceVersion", "7"}, {"generation", 1}}},
                 {"spec", {{"nodeSelector", {{"kv", "here"}}}, {"capacity", {{"dram", "1Gi"}}}}}};
    if (!status.is_null()) pool["status"] = std::move(status);
    return pool;
  }
  static json Node(const std::string& name) {
    return {{"metadata", {{"name", name}, {"uid", name}, {"resourceVersion", "1"}, {"labels", {{"kv", "here"}}}}}};
  }
  void Begin(const json& pool) {
    watch_.Start();
    RunDue();
    for (size_t i = 0; i < 4; ++i) {
      const std::string& target = transport_.requests.at(i).target;
      json items = json::array();
      if (absl::StrContains(target, "kvnodepools")) {
        pools_ = i + 1;
        items.push_back(pool);
      }
      if (absl::StrContains(target, "/nodes"))
        for (const char* name : {"n1", "n2"}) items.push_back(Node(name));
      transport_.Head(i + 1, 200);
      transport_.Bytes(i + 1, json{{"metadata", {{"resourceVersion", "9"}}}, {"items", items}}.dump());
      transport_.End(i + 1, absl::OkStatus());
    }
    RunDue();
    ASSERT_TRUE(watch_.synced());
    decider_.Start();
    writer_.Start();
  }
  // A node that dials and takes what it is sent.
  void Dial(const std::string& name, sync::StreamId stream) {
    sync::v1::NodeMessage message;
    message.mutable_hello()->set_node(name);
    sent_.clear();
    fleet_.OnMessage(stream, "", message);
    message.Clear();
    message.mutable_answer()->set_version(sent_);
    fleet_.OnMessage(stream, "", message);
  }
  // The status that was written last, as the server would tell it; null: none was.
  json Written() {
    json last;
    for (const kube::HttpRequest& request : transport_.requests)
      if (absl::StrContains(request.target, "kvnodepools/p/status")) last = json::parse(request.body)["status"];
    return last;
  }
  size_t Writes() const {
    size_t count = 0;
    for (const kube::HttpRequest& request : transport_.requests)
      count += request.method == "PATCH" && absl::StrContains(request.target, "kvnodepools/p/status");
    return count;
  }
  // The server has what was written, and tells.
  void ServerTells() {
    transport_.Answer(200, "{}");
    for (size_t id = 1; id <= transport_.requests.size(); ++id) {
      const std::string& target = transport_.requests[id - 1].target;
      if (!transport_.IsOpen(id) || !absl::StrContains(target, "kvnodepools?")) continue;
      json pool = Pool(Written());
      pool["metadata"]["resourceVersion"] = absl::StrCat(10 + Writes());
      transport_.Head(id, 200);
      transport_.Bytes(id, json{{"type", "MODIFIED"}, {"object", pool}}.dump() + "\n");
    }
    RunDue();
  }

  size_t pools_ = 0;
  std::string sent_;  // version
  sync::Fleet fleet_{&clock_,
                     {.send =
                          [this](auto, const sync::SharedMessage& message) {
                            if (message->has_update()) sent_ = message->update().version();
                          },
                      .close = [](auto, auto&) {},
                      .on_progress =
                          [this](const std::string& key) {
                            if (key == "KVNodePool//p") writer_.Touch("p");
                          }}};
  ClusterWatch watch_{&client(),
                      loop_.get(),
                      &clock_,
                      1,
                      {.on_matter = [this] { decider_.OnMatter(); },
                       .on_policy = [](const kube::ObjectKey&) {},
                       .on_pool = [this](const kube::ObjectKey& key) { writer_.Touch(key.name); }}};
  Decider decider_{&watch_,
                   loop_.get(),
                   &clock_,
                   {.on_nodes = [this](const auto& nodes) { fleet_.SetTargets(nodes); },
                    .on_verdict = [](auto&) {},
                    .on_pool = [this](const kube::ObjectKey& key) { writer_.Touch(key.name); }}};
  PoolWriter writer_{&client(), loop_.get(), &clock_, &watch_, &decider_, &fleet_};
};

TEST_F(PoolWriterTest, APoolIsToldItsNodesAndWhenAllApplyIt) {
  Begin(Pool());
  Advance(2 * kStatusSettleMs);
  ASSERT_EQ(Writes(), 1u);
  EXPECT_EQ(Written()["nodes"]["matched"], 2);
  EXPECT_EQ(Written()["nodes"]["applied"], 0);
  EXPECT_EQ(Written()["observedGeneration"], 1);
  ServerTells();
  Dial("n1", 1);
  Dial("n2", 2);
  Advance(kStatusIntervalMs + kStatusSettleMs);
  ASSERT_EQ(Writes(), 2u) << "both together";
  EXPECT_EQ(Written()["nodes"]["applied"], 2);
  EXPECT_EQ(Written()["nodes"]["connected"], 2);
  EXPECT_EQ(reconcile::ConditionIn({{"status", Written()}}, "Ready")->at("status"), "True");
  ServerTells();
  Advance(10 * kStatusIntervalMs);
  EXPECT_EQ(Writes(), 2u) << "what is said is not said again";
}

// Streams end by age, of thousands one every second.
TEST_F(PoolWriterTest, WhoComesAndGoesIsToldOnceAMinute) {
  Begin(Pool());
  Dial("n1", 1);
  Dial("n2", 2);
  Advance(2 * kStatusSettleMs);
  ServerTells();
  const size_t writes = Writes();
  for (const sync::StreamId stream : {1, 2}) {
    fleet_.OnEnd(stream);
    Advance(10 * kStatusIntervalMs);
  }
  EXPECT_EQ(Writes(), writes);
  Advance(kConnectedIntervalMs);
  ASSERT_EQ(Writes(), writes + 1);
  EXPECT_EQ(Written()["nodes"]["connected"], 0);
  EXPECT_EQ(Written()["nodes"]["applied"], 2) << "they enforce what they hold";
}

TEST_F(PoolWriterTest, ThatANewLeaderHasNotHeardOfItsNodesIsNoNews) {
  json status = {{"observedGeneration", 1}};
  status["conditions"] = json::array(
      {{{"type", "Ready"}, {"status", "True"}, {"reason", "Ready"}, {"message", ""}, {"observedGeneration", 1}}});
  Begin(Pool(status));
  Advance(kReturnMs - kStatusIntervalMs);
  EXPECT_EQ(Writes(), 0u);
  Advance(3 * kStatusIntervalMs);
  ASSERT_EQ(Writes(), 1u);
  EXPECT_EQ(reconcile::ConditionIn({{"status", Written()}}, "Ready")->at("reason"), "Pending");
}

// A node waits for its next try to reach us for up to a minute and a half.
TEST_F(PoolWriterTest, ANodeThatComesBackAsLateAsItMayWasNeverMissed) {
  json status = {{"observedGeneration", 1}};
  status["conditions"] = json::array(
      {{{"type", "Ready"}, {"status", "True"}, {"reason", "Ready"}, {"message", ""}, {"observedGeneration", 1}}});
  Begin(Pool(status));
  Dial("n1", 1);
  Advance(control::kRedialLatestMs);
  EXPECT_EQ(Writes(), 0u);
  Dial("n2", 2);
  Advance(kReturnMs);
  ASSERT_GE(Writes(), 1u);
  for (const kube::HttpRequest& request : transport_.requests) {
    if (request.method != "PATCH") continue;
    EXPECT_EQ(reconcile::ConditionIn(json::parse(request.body), "Ready")->at("status"), "True") << request.body;
  }
}

// The pause between two writes is no success.
TEST_F(PoolWriterTest, AWriteThatIsRefusedIsTriedLessAndLess) {
  Begin(Pool());
  RefuseWritesFor(600'000);
  EXPECT_GE(Writes(), 5u);
  EXPECT_LE(Writes(), 25u);
  EXPECT_EQ(writer_.stats().failures, Writes());
  EXPECT_EQ(writer_.work().failed, Writes());
}

}  // namespace
}  // namespace kvartal::process
