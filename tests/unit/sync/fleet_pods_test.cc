// Who of the nodes is told of which pods, and when.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/unit/sync/fleet_fixture.h"

namespace kvartal::sync {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class FleetPodsTest : public FleetFixture {
 protected:
  // What this node was told of pods since the last call.
  std::vector<v1::Pods> PodsTo(const FakeNode& node) {
    std::vector<v1::Pods> told;
    std::vector<SharedMessage> others;
    for (const SharedMessage& message : std::exchange(sent_[node.stream], {})) {
      if (message->has_pods()) {
        told.push_back(message->pods());
      } else {
        others.push_back(message);
      }
    }
    sent_[node.stream] = std::move(others);
    return told;
  }
  static SharedPods PodsOf(std::set<std::string> uids) { return std::make_shared<crds::PodSet>(std::move(uids)); }
  void PassMs(int64_t ms) {
    for (int64_t passed = 0; passed < ms; passed += kTickMs) {
      clock_.AdvanceMs(kTickMs);
      fleet_.Tick();
    }
  }
};

TEST_F(FleetPodsTest, ANodeIsToldItsPodsWholeAndThenWhatChanges) {
  fleet_.SetTargets({{"n1", Target({{"a", "1"}})}, {"n2", Target({})}});
  Dial(&n1_);
  EXPECT_THAT(PodsTo(n1_), IsEmpty()) << "nothing is known of pods yet";
  fleet_.SetPods({{"n1", PodsOf({"p1", "p2"})}, {"n2", PodsOf({"p3"})}});
  std::vector<v1::Pods> told = PodsTo(n1_);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].base(), "");
  EXPECT_THAT(told[0].bound(), ElementsAre("p1", "p2"));
  const crds::PodSet held = *crds::PodSet().With(told[0]);
  PassMs(kPodsIntervalMs);
  fleet_.ChangePods({{"n1", PodsOf({"p2", "p4"})}});
  told = PodsTo(n1_);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_THAT(told[0].bound(), ElementsAre("p4"));
  EXPECT_THAT(told[0].gone(), ElementsAre("p1"));
  EXPECT_EQ(held.With(told[0])->uids(), (std::set<std::string>{"p2", "p4"}));
  Dial(&n1_);
  told = PodsTo(n1_);
  ASSERT_THAT(told, SizeIs(1)) << "a new stream begins with all of them";
  EXPECT_EQ(told[0].base(), "");
  PassMs(kPodsIntervalMs);
  fleet_.ChangePods({{"n1", PodsOf({})}});
  EXPECT_THAT(PodsTo(n1_).at(0).gone(), SizeIs(2));
}

TEST_F(FleetPodsTest, ANodeHearsOfItsOwnPodsAndAStrangerOfNone) {
  fleet_.SetTargets({{"n1", Target({})}, {"n2", Target({})}});
  fleet_.SetPods({{"n1", PodsOf({"p1"})}, {"n9", PodsOf({"p9"})}});
  FakeNode stranger{"n9"};
  for (FakeNode* node : {&n1_, &n2_, &stranger}) Dial(node);
  EXPECT_THAT(PodsTo(n1_).at(0).bound(), ElementsAre("p1"));
  EXPECT_THAT(PodsTo(n2_).at(0).bound(), IsEmpty()) << "it has none, and that is told";
  EXPECT_THAT(PodsTo(stranger), IsEmpty());
  fleet_.SetTargets({{"n1", Target({})}, {"n2", Target({})}, {"n9", Target({})}});
  EXPECT_THAT(PodsTo(stranger).at(0).bound(), ElementsAre("p9")) << "it is a node of the cluster by now";
}

TEST_F(FleetPodsTest, PodsThatComeAndGoAreToldTogetherAndNoSetWaitsForThem) {
  fleet_.SetTargets({{"n1", Target({{"a", "1"}})}});
  fleet_.SetPods({});
  Dial(&n1_);
  Obey(&n1_);
  size_t messages = 0;
  crds::PodSet held;
  std::set<std::string> now;
  for (int i = 0; i < 100; ++i) {
    now.insert(absl::StrCat("p", i));
    if (i > 10) now.erase(absl::StrCat("p", i - 10));
    fleet_.ChangePods({{"n1", PodsOf(now)}});
    fleet_.SetTargets({{"n1", Target({{"a", std::to_string(i)}})}});
    for (const v1::Pods& pods : PodsTo(n1_)) {
      ++messages;
      held = *held.With(pods);
    }
    Obey(&n1_);
    PassMs(kTickMs);
  }
  PassMs(kPodsIntervalMs + kTickMs);
  for (const v1::Pods& pods : PodsTo(n1_)) held = *held.With(pods);
  EXPECT_EQ(held.uids(), now);
  EXPECT_LE(messages, 12u) << "in ten seconds";
}

TEST_F(FleetPodsTest, WholeListsOfPodsAreSentAtAPace) {
  std::map<std::string, SharedNode> targets;
  std::map<std::string, SharedPods> pods;
  std::vector<FakeNode> nodes(3 * static_cast<size_t>(kPodsBurst));
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].name = absl::StrCat("n", i);
    targets[nodes[i].name] = Target({});
    pods[nodes[i].name] = PodsOf({absl::StrCat("p", i)});
  }
  fleet_.SetTargets(targets);
  for (FakeNode& node : nodes) {
    Dial(&node);
    clock_.AdvanceMs(6);
  }
  fleet_.SetPods(pods);
  EXPECT_EQ(fleet_.stats().pod_updates, static_cast<uint64_t>(kPodsBurst));
  PassMs(3'000);
  EXPECT_EQ(fleet_.stats().pod_updates, nodes.size());
  for (const FakeNode& node : nodes) EXPECT_THAT(PodsTo(node), SizeIs(1));
}

// A cluster whose pods come and go faster than all nodes can be told of them.
TEST_F(FleetPodsTest, WhoseNameComesLateIsToldAsOftenAsAnybody) {
  std::map<std::string, SharedNode> targets;
  std::vector<FakeNode> nodes(2 * static_cast<size_t>(kPodsPerSecond));
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].name = absl::StrCat("n", 1000 + i);
    targets[nodes[i].name] = Target({});
  }
  fleet_.SetTargets(targets);
  for (FakeNode& node : nodes) {
    Dial(&node);
    clock_.AdvanceMs(6);
  }
  fleet_.SetPods({});
  PassMs(3'000);
  for (const FakeNode& node : nodes) ASSERT_THAT(PodsTo(node), SizeIs(1));
  std::vector<size_t> told(nodes.size());
  constexpr int kSeconds = 20;
  for (int tick = 0; tick < kSeconds * 1000 / kTickMs; ++tick) {
    std::map<std::string, SharedPods> changed;
    for (const FakeNode& node : nodes) changed[node.name] = PodsOf({absl::StrCat("p", tick)});
    fleet_.ChangePods(changed);
    PassMs(kTickMs);
    for (size_t i = 0; i < nodes.size(); ++i) told[i] += PodsTo(nodes[i]).size();
  }
  const auto [least, most] = std::minmax_element(told.begin(), told.end());
  EXPECT_GE(*least, kSeconds / 2u - 2);
  EXPECT_LE(*most - *least, 2u);
}

// A part of a list would say of the others that they are gone.
TEST_F(FleetPodsTest, OfMorePodsThanANodeIsToldOfItIsToldNothing) {
  fleet_.SetTargets({{"n1", Target({})}});
  std::set<std::string> many;
  for (size_t i = 0; i <= kPodsOfNodeMax; ++i) many.insert(absl::StrCat("p", i));
  fleet_.SetPods({{"n1", PodsOf({"p1"})}});
  Dial(&n1_);
  ASSERT_THAT(PodsTo(n1_), SizeIs(1));
  PassMs(kPodsIntervalMs);
  fleet_.ChangePods({{"n1", PodsOf(many)}});
  EXPECT_THAT(PodsTo(n1_), IsEmpty());
  EXPECT_EQ(fleet_.stats().nodes_without_pods, 1u);
  many.erase("p0");
  fleet_.ChangePods({{"n1", PodsOf(many)}});
  EXPECT_THAT(PodsTo(n1_).at(0).gone(), IsEmpty());
}

}  // namespace
}  // namespace kvartal::sync
