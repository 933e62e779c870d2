#include "operator/kube/event_recorder.h"

#include <gtest/gtest.h>

#include <set>

#include "operator/kube/limits.h"
#include "tests/unit/kube/kube_loop.h"

namespace kvartal::kube {
namespace {

using nlohmann::json;

class EventRecorderTest : public testing::KubeLoop {
 protected:
  void Tell(const std::string& uid, const std::string& reason, const std::string& text) {
    const json object = {
        {"apiVersion", "v1"}, {"kind", "Thing"}, {"metadata", {{"name", "a"}, {"namespace", "red"}, {"uid", uid}}}};
    recorder_.Tell(object, "Warning", reason, text);
    RunDue();
    if (transport_.open() > 0) transport_.Answer(200, "{}");
    RunDue();
  }
  json Body(size_t i) const { return json::parse(transport_.requests.at(i).body); }
  EventRecorder recorder_{client_.get(), &clock_, "tester"};
};

TEST_F(EventRecorderTest, TheSameOfTheSameObjectIsOneEventThatCounts) {
  Tell("u1", "Refused", "too much");
  clock_.AdvanceMs(1000);
  Tell("u1", "Refused", "too much");
  Tell("u1", "Refused", "far too much");
  Tell("u2", "Refused", "too much");
  ASSERT_EQ(transport_.requests.size(), 4u);
  EXPECT_EQ(transport_.requests[1].target, transport_.requests[0].target);
  EXPECT_FALSE(Body(0).contains("series"));
  EXPECT_EQ(Body(1)["series"]["count"], 2);
  EXPECT_EQ(Body(1)["eventTime"], Body(0)["eventTime"]);
  const std::set<std::string> names = {transport_.requests[0].target, transport_.requests[2].target,
                                       transport_.requests[3].target};
  EXPECT_EQ(names.size(), 3u);
}

TEST_F(EventRecorderTest, AnObjectThatIsToldOfTooOftenHasToCalmDown) {
  for (int i = 0; i < 100; ++i) Tell("u1", "Refused", std::to_string(i));
  EXPECT_EQ(recorder_.stats().told, static_cast<uint64_t>(kEventsBurst));
  EXPECT_EQ(recorder_.stats().dropped, 100 - static_cast<uint64_t>(kEventsBurst));
  Tell("u2", "Refused", "another object is told of");
  EXPECT_EQ(recorder_.stats().told, static_cast<uint64_t>(kEventsBurst) + 1);
  clock_.AdvanceMs(300'000);
  Tell("u1", "Refused", "calm");
  EXPECT_EQ(recorder_.stats().told, static_cast<uint64_t>(kEventsBurst) + 2);
}

}  // namespace
}  // namespace kvartal::kube
