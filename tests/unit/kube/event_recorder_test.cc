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
  // How often we may call is not what is tested.
  ApiClient fast_{&transport_, loop_.get(), &clock_, TokenSource({}), 1e6};
  EventRecorder recorder_{&fast_, &clock_, "tester"};
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

// A message with a number in it that changes would be another Event each time.
TEST_F(EventRecorderTest, ManyMessagesOfOneReasonBecomeOneEventThatCounts) {
  for (int i = 0; i < 14; ++i) Tell("u1", "Refused", std::to_string(i));
  Tell("u1", "Refused", "3");
  Tell("u1", "Turned", "another reason is another Event");
  ASSERT_EQ(transport_.requests.size(), 16u);
  std::set<std::string> names;
  for (size_t i = 0; i < 14; ++i) names.insert(transport_.requests[i].target);
  EXPECT_EQ(names.size(), kEventSimilarMax + 1);
  EXPECT_EQ(Body(13)["series"]["count"], 4);
  EXPECT_EQ(Body(13)["note"], Body(10)["note"]) << "an Event's note cannot be changed";
  EXPECT_EQ(Body(10)["note"], "(combined from similar events) 10");
  EXPECT_EQ(transport_.requests[14].target, transport_.requests[3].target) << "what was told apart still is";
  EXPECT_FALSE(names.contains(transport_.requests[15].target));
  clock_.AdvanceMs(kEventSimilarMs + 1);
  Tell("u1", "Refused", "calm");
  EXPECT_EQ(Body(16)["note"], "calm");
}

TEST_F(EventRecorderTest, WhoWasNotToldOfForLongestIsForgotten) {
  const auto uid = [](size_t i) { return "u" + std::to_string(i + 10'000); };
  for (size_t i = 0; i < kEventSubjectsMax; ++i) Tell(uid(i), "Refused", "too much");
  Tell(uid(0), "Refused", "too much");  // the smallest uid, and the last that was told of
  Tell("another", "Refused", "too much");
  Tell(uid(0), "Refused", "too much");
  EXPECT_EQ(Body(transport_.requests.size() - 1)["series"]["count"], 3) << "it is remembered";
  Tell(uid(1), "Refused", "too much");
  EXPECT_FALSE(Body(transport_.requests.size() - 1).contains("series"));
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
