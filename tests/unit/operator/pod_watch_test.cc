// Which pods are told to be on which node, over a transport by script and a clock that stands still.
#include "operator/process/pod_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "operator/kube/limits.h"
#include "operator/process/limits.h"
#include "tests/unit/kube/kube_loop.h"

namespace kvartal::process {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

json Pod(const std::string& uid, const std::string& node) {
  return {{"metadata", {{"namespace", "red"}, {"name", "of-" + uid}, {"uid", uid}, {"resourceVersion", "5"}}},
          {"spec", {{"nodeName", node}, {"schedulerName", "any"}}}};
}

class PodWatchTest : public testing::KubeLoop {
 protected:
  void List(const json& pods) { ListText(json{{"metadata", {{"resourceVersion", "9"}}}, {"items", pods}}.dump()); }
  void ListText(const std::string& page) {
    watch_.Start();
    RunDue();
    transport_.Answer(200, page);
    RunDue();
    transport_.Head(200);
  }
  void Event(const std::string& type, const json& pod) {
    transport_.Bytes(json{{"type", type}, {"object", pod}}.dump() + "\n");
  }
  // What a node was told to have; {"-"}: nothing.
  std::set<std::string> On(const std::string& node) const {
    const auto told = told_.find(node);
    return told == told_.end() ? std::set<std::string>{"-"} : told->second->uids();
  }

  PodWatch::OfNodes told_;
  int known_ = 0, changes_ = 0;
  PodWatch watch_{&client(),
                  loop_.get(),
                  &clock_,
                  1,
                  {.on_known =
                       [this](PodWatch::OfNodes pods) {
                         ++known_;
                         told_ = std::move(pods);
                       },
                   .on_changed =
                       [this](const PodWatch::OfNodes& changed) {
                         ++changes_;
                         for (const auto& [node, pods] : changed) told_[node] = pods;
                       }}};
};

TEST_F(PodWatchTest, AllAreToldWhenAllAreKnownAndThenTheNodesThatChange) {
  List(json::array({Pod("p1", "n1"), Pod("p2", "n1"), Pod("p3", "n2")}));
  EXPECT_EQ(known_, 0) << "at rest";
  Advance(kPodsSettleMs);
  EXPECT_EQ(known_, 1);
  EXPECT_THAT(On("n1"), ElementsAre("p1", "p2"));
  EXPECT_THAT(On("n2"), ElementsAre("p3"));
  Event("DELETED", Pod("p1", "n1"));
  Event("ADDED", Pod("p4", "n1"));
  Event("MODIFIED", Pod("p3", "n2"));
  Event("DELETED", Pod("p3", "n2"));
  EXPECT_THAT(On("n1"), ElementsAre("p1", "p2"));
  Advance(kPodsSettleMs);
  EXPECT_EQ(changes_, 1) << "together";
  EXPECT_THAT(On("n1"), ElementsAre("p2", "p4"));
  EXPECT_THAT(On("n2"), IsEmpty());
  Event("MODIFIED", Pod("p2", "n1"));
  Advance(10 * kPodsSettleMs);
  EXPECT_EQ(changes_, 1) << "a pod's status is nothing to tell";
}

TEST_F(PodWatchTest, APodThatIsMadeAnewUnderItsNameIsAnotherOne) {
  List(json::array({Pod("p1", "n1")}));
  Advance(kPodsSettleMs);
  json other = Pod("p2", "n2");
  other["metadata"]["name"] = "of-p1";
  Event("MODIFIED", other);
  Advance(kPodsSettleMs);
  EXPECT_THAT(On("n1"), IsEmpty());
  EXPECT_THAT(On("n2"), ElementsAre("p2"));
}

// What stands in a pod is its tenant's to say.
TEST_F(PodWatchTest, PodsAreKnownHoweverMuchStandsInThem) {
  std::string env = R"({"name":"a1"})";
  while (env.size() < 1 * kMiB) env += R"(,{"name":"a1"})";
  std::string items;
  std::set<std::string> uids;
  for (int64_t i = 0; i < kube::kSmallPageItems; ++i) {
    const std::string uid = absl::StrCat("p", i);
    uids.insert(uid);
    absl::StrAppend(&items, items.empty() ? "" : ",", R"({"metadata":{"namespace":"red","name":")", uid,
                    R"(","resourceVersion":"5","uid":")", uid, R"("},"spec":{"containers":[{"env":[)", env,
                    R"(]}],"nodeName":"n1"}})");
  }
  ListText(absl::StrCat(R"({"metadata":{"resourceVersion":"9"},"items":[)", items, "]}"));
  Advance(kPodsSettleMs);
  EXPECT_EQ(On("n1"), uids);
  constexpr size_t kObjectBytes = 9 * kMiB;
  json largest = Pod("large", "n1");
  largest["metadata"]["annotations"]["a"] = "";
  const size_t around = largest.dump().size();
  largest["metadata"]["annotations"]["a"] = std::string(kObjectBytes - around, '<');
  ASSERT_EQ(largest.dump().size(), kObjectBytes);
  Event("ADDED", largest);
  Advance(kPodsSettleMs);
  EXPECT_TRUE(On("n1").contains("large"));
  EXPECT_FALSE(watch_.report().failing);
}

TEST_F(PodWatchTest, ThatThereAreNoneIsKnownToo) {
  List(json::array());
  Advance(kPodsSettleMs);
  EXPECT_EQ(known_, 1);
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(PodWatchTest, WithoutThePermissionNothingIsToldAndWhatComesLaterIs) {
  watch_.Start();
  RunDue();
  transport_.Answer(403, R"({"kind":"Status","code":403,"reason":"Forbidden"})");
  RunDue();
  EXPECT_TRUE(watch_.report().failing);
  Advance(10 * kPodsSettleMs);
  EXPECT_EQ(known_, 0);
  Advance(60'000);
  ASSERT_EQ(transport_.open(), 1u) << "it is asked again: the permission may come";
  transport_.Answer(200,
                    json{{"metadata", {{"resourceVersion", "9"}}}, {"items", json::array({Pod("p1", "n1")})}}.dump());
  Advance(kPodsSettleMs);
  EXPECT_THAT(On("n1"), ElementsAre("p1"));
}

// A list that could not be had for a while: what ended meanwhile is told when it can.
TEST_F(PodWatchTest, WhatWasDeletedUnseenIsToldByTheNextList) {
  List(json::array({Pod("p1", "n1"), Pod("p2", "n1")}));
  Advance(kPodsSettleMs);
  Event("ERROR", {{"kind", "Status"}, {"code", 410}, {"reason", "Expired"}});
  Advance(10 * kPodsSettleMs);
  EXPECT_THAT(On("n1"), ElementsAre("p1", "p2")) << "not known is not gone";
  Advance(60'000);
  transport_.Answer(200,
                    json{{"metadata", {{"resourceVersion", "19"}}}, {"items", json::array({Pod("p2", "n1")})}}.dump());
  Advance(kPodsSettleMs);
  EXPECT_THAT(On("n1"), ElementsAre("p2"));
}

}  // namespace
}  // namespace kvartal::process
