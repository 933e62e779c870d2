// Who of the nodes is sent what and when, without any network: messages in, messages out.
#include "operator/sync/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "tests/unit/sync/fleet_fixture.h"

namespace kvartal::sync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using FleetTest = FleetFixture;

TEST_F(FleetTest, ANodeIsBroughtToItsSetAndThenSentWhatChanges) {
  fleet_.SetTargets({{"n1", Target({{"a", "1"}, {"b", "2"}})}});
  Dial(&n1_);
  Obey(&n1_);
  EXPECT_EQ(Of("a").applied, 1u);
  fleet_.SetTargets({{"n1", Target({{"a", "1"}, {"b", "3"}})}});
  EXPECT_EQ(Of("b").applied, 0u);
  EXPECT_EQ(Of("a").applied, 1u) << "what has not changed is still enforced";
  EXPECT_THAT(Of("b").awaited, ElementsAre("n1"));
  const std::vector<v1::Update> updates = SentTo(n1_);
  ASSERT_THAT(updates, SizeIs(1));
  EXPECT_EQ(updates[0].changed_size(), 1);
  progress_.clear();
  fleet_.OnMessage(n1_.stream, "", n1_.Take(updates[0]));
  EXPECT_EQ(Of("b").applied, 1u);
  EXPECT_THAT(progress_, ElementsAre("TenantKVPolicy/red/b"));
  EXPECT_THAT(SentTo(n1_), IsEmpty());
}

TEST_F(FleetTest, ANodeThatHoldsItsSetAlreadyIsSentNothing) {
  n1_.held.Put("TenantKVPolicy/red/a", "1", "ns");
  n1_.holds = true;
  fleet_.SetTargets({{"n1", Target({{"a", "1"}})}});
  Dial(&n1_);
  EXPECT_THAT(SentTo(n1_), IsEmpty());
  EXPECT_EQ(Of("a").applied, 1u);
}

TEST_F(FleetTest, ANodeThatHoldsNothingIsToldEvenOfAnEmptySet) {
  fleet_.SetTargets({{"n1", Target({}, "")}});
  Dial(&n1_);
  Obey(&n1_);
  EXPECT_EQ(fleet_.stats().current, 1u);
}

TEST_F(FleetTest, WhatChangesWhileANodeIsBusyWaitsAndComesAsOneUpdate) {
  fleet_.SetTargets({{"n1", Target({{"a", "1"}})}});
  Dial(&n1_);
  const std::vector<v1::Update> first = SentTo(n1_);
  fleet_.SetTargets({{"n1", Target({{"a", "2"}})}});
  fleet_.SetTargets({{"n1", Target({{"a", "3"}})}});
  EXPECT_THAT(SentTo(n1_), IsEmpty());
  fleet_.OnMessage(n1_.stream, "", n1_.Take(first.at(0)));
  Obey(&n1_);
  EXPECT_EQ(n1_.held.objects().at("TenantKVPolicy/red/a").manifest, "3");
}

TEST_F(FleetTest, ARefusedVersionIsNotSentAgainUntilItChangesAlsoAfterANewStream) {
  fleet_.SetTargets({{"n1", Target({{"a", "1"}})}});
  Dial(&n1_);
  Obey(&n1_);
  const SharedNode bad = Target({{"a", "bad"}});
  fleet_.SetTargets({{"n1", bad}});
  const std::vector<v1::Update> updates = SentTo(n1_);
  fleet_.OnMessage(n1_.stream, "", FakeNode::Answer(updates.at(0).version(), "no such thing"));
  ASSERT_THAT(Of("a").rejected, SizeIs(1));
  EXPECT_EQ(Of("a").rejected[0].reason, "no such thing");
  fleet_.SetTargets({{"n1", bad}});
  clock_.AdvanceMs(60'000);
  fleet_.Tick();
  EXPECT_THAT(SentTo(n1_), IsEmpty());
  n1_.rejected = bad->version;
  Dial(&n1_);
  EXPECT_THAT(SentTo(n1_), IsEmpty());
  fleet_.SetTargets({{"n1", Target({{"a", "good"}})}});
  Obey(&n1_);
  EXPECT_EQ(Of("a").applied, 1u);
  EXPECT_THAT(Of("a").rejected, IsEmpty());
}

v1::Refused Refusal(const std::string& key, const std::string& hash, const std::string& reason,
                    const std::string& held) {
  v1::Refused refused;
  refused.set_key(key);
  refused.set_hash(hash);
  refused.set_reason(reason);
  refused.set_held(held);
  return refused;
}

TEST_F(FleetTest, WhatANodeRefusesOfOneTenantIsToldToThatOneAlone) {
  const SharedNode good = Target({{"a", "1"}, {"b", "1"}});
  fleet_.SetTargets({{"n1", good}});
  Dial(&n1_);
  Obey(&n1_);
  const SharedNode mixed = Target({{"a", "bad"}, {"b", "2"}, {"c", "new"}});
  fleet_.SetTargets({{"n1", mixed}});
  const v1::Update update = SentTo(n1_).at(0);
  // a keeps what it had, c is left out, b is in force.
  v1::NodeMessage answer = FakeNode::Answer(update.version(), "");
  const std::string key_a = "TenantKVPolicy/red/a", key_c = "TenantKVPolicy/red/c";
  *answer.mutable_answer()->add_refused() =
      Refusal(key_a, mixed->set.objects().at(key_a).hash, "a's own reason", good->set.objects().at(key_a).hash);
  *answer.mutable_answer()->add_refused() = Refusal(key_c, mixed->set.objects().at(key_c).hash, "c's own reason", "");
  progress_.clear();
  fleet_.OnMessage(n1_.stream, "", answer);
  EXPECT_THAT(progress_, ElementsAre(key_a, "TenantKVPolicy/red/b", key_c));
  ASSERT_THAT(Of("a").rejected, SizeIs(1));
  EXPECT_EQ(Of("a").rejected[0].reason, "a's own reason");
  EXPECT_EQ(Of("c").rejected.at(0).reason, "c's own reason");
  EXPECT_THAT(Of("b").rejected, IsEmpty());
  EXPECT_EQ(Of("b").applied, 1u);
  EXPECT_EQ(fleet_.stats().nacks, 1u);
  EXPECT_TRUE(fleet_.IsHeld("red", "a"));
  EXPECT_TRUE(fleet_.IsHeld("red", "c")) << "it is wanted there, and may be taken at any moment";
  EXPECT_THAT(SentTo(n1_), IsEmpty()) << "not sent again until it changes";
  // The next delta is of what the node holds by now, and it has everything that is not in force.
  n1_.held.Put(key_a, "1", "ns");
  n1_.held.Put("TenantKVPolicy/red/b", "2", "ns");
  fleet_.SetTargets({{"n1", Target({{"a", "bad"}, {"b", "3"}, {"c", "new"}})}});
  const v1::Update next = SentTo(n1_).at(0);
  EXPECT_EQ(next.base(), n1_.held.Version());
  EXPECT_EQ(next.changed_size(), 3);
  EXPECT_THAT(Of("a").rejected, SizeIs(1)) << "the same words of the same object, until it is judged again";
  fleet_.OnMessage(n1_.stream, "", n1_.Take(next));
  EXPECT_EQ(Of("a").applied, 1u);
  EXPECT_THAT(Of("c").rejected, IsEmpty());
}

// What was refused may lie on the node's disk, and its metric says so: neither goes away by itself.
TEST_F(FleetTest, ThatARefusedSetIsTakenBackIsAlwaysSent) {
  const SharedNode good = Target({{"a", "1"}});
  fleet_.SetTargets({{"n1", good}});
  Dial(&n1_);
  Obey(&n1_);
  fleet_.SetTargets({{"n1", Target({{"a", "bad"}})}});
  const v1::Update update = SentTo(n1_).at(0);
  n1_.rejected = update.version();
  fleet_.OnMessage(n1_.stream, "", FakeNode::Answer(update.version(), "no such thing"));
  fleet_.SetTargets({{"n1", good}});
  const std::vector<v1::Update> back = SentTo(n1_);
  ASSERT_THAT(back, SizeIs(1));
  EXPECT_EQ(back[0].version(), good->version);
  fleet_.OnMessage(n1_.stream, "", n1_.Take(back[0]));
  EXPECT_EQ(fleet_.stats().current, 1u);
  EXPECT_THAT(SentTo(n1_), IsEmpty()) << "once";
  // Also when the node comes back with it.
  Dial(&n1_);
  Obey(&n1_);
}

// The policies of a pool whose capacity a node does not have yet are not in force there as their status says.
TEST_F(FleetTest, APoolThatWaitsForARestartIsToldToEveryPolicyOfThatNode) {
  auto target = std::make_shared<reconcile::CompiledNode>(*Target({{"a", "1"}}));
  target->set.Put("KVNodePool//p", "200Gi", "");
  target->version = target->set.Version();
  fleet_.SetTargets({{"n1", target}});
  Dial(&n1_);
  const v1::Update update = SentTo(n1_).at(0);
  v1::NodeMessage answer = n1_.Take(update);
  const std::string hash = target->set.objects().at("KVNodePool//p").hash;
  *answer.mutable_answer()->add_refused() = Refusal("KVNodePool//p", hash, "restart kvartald", hash);
  progress_.clear();
  fleet_.OnMessage(n1_.stream, "", answer);
  ASSERT_THAT(Of("a").rejected, SizeIs(1));
  EXPECT_EQ(Of("a").rejected[0].reason, "restart kvartald");
  EXPECT_TRUE(fleet_.IsHeld("red", "a"));
  EXPECT_THAT(progress_, ::testing::Contains("TenantKVPolicy/red/a"));
  EXPECT_THAT(SentTo(n1_), IsEmpty());
  Dial(&n1_);  // restarted: it has what it is to, and nothing is amiss
  EXPECT_THAT(SentTo(n1_), IsEmpty());
  EXPECT_EQ(Of("a").applied, 1u);
}

TEST_F(FleetTest, WhatWasRefusedBeforeTheOperatorCameIsTold) {
  const SharedNode target = Target({{"a", "bad"}, {"b", "1"}});
  fleet_.SetTargets({{"n1", target}});
  n1_.held.Put("TenantKVPolicy/red/b", "1", "ns");
  n1_.holds = true;
  n1_.rejected = target->version;
  v1::NodeMessage hello = n1_.Hello();
  *hello.mutable_hello()->add_refused() =
      Refusal("TenantKVPolicy/red/a", target->set.objects().at("TenantKVPolicy/red/a").hash, "why", "");
  fleet_.OnMessage(n1_.stream = 70, "", hello);
  EXPECT_THAT(SentTo(n1_), IsEmpty());
  EXPECT_EQ(Of("a").rejected.at(0).reason, "why");
  EXPECT_EQ(Of("b").applied, 1u);
}

TEST_F(FleetTest, ANodeGetsItsOwnSetAndAnUnknownOneNothing) {
  fleet_.SetTargets({{"n1", Target({{"a", "1"}})}, {"n2", Target({{"b", "1"}}, "q")}});
  FakeNode stranger{"n9"};
  for (FakeNode* node : {&n1_, &n2_, &stranger}) Dial(node);
  EXPECT_EQ(SentTo(n1_).at(0).changed(0).key(), "TenantKVPolicy/red/a");
  EXPECT_EQ(SentTo(n2_).at(0).changed(0).key(), "TenantKVPolicy/red/b");
  EXPECT_THAT(SentTo(stranger), IsEmpty());
}

TEST_F(FleetTest, ANodeSaysWhoItIsOnceAndAsItsTokenHasIt) {
  Dial(&n1_, "n2");
  EXPECT_THAT(closed_[n1_.stream], HasSubstr("its token is for node 'n2'"));
  Dial(&n1_, "n1");
  EXPECT_FALSE(closed_.contains(n1_.stream));
  fleet_.OnMessage(n1_.stream, "n1", n1_.Hello());
  EXPECT_THAT(closed_[n1_.stream], HasSubstr("one Hello"));
}

TEST_F(FleetTest, OfTwoStreamsOfANodeTheNewerIsItsStream) {
  fleet_.SetTargets({{"n1", Target({{"a", "1"}})}});
  Dial(&n1_);
  const StreamId old = n1_.stream;
  Dial(&n1_);
  EXPECT_TRUE(closed_.contains(old));
  fleet_.OnEnd(old);
  EXPECT_EQ(fleet_.stats().connected, 1u);
  Obey(&n1_);
  EXPECT_EQ(Of("a").applied, 1u);
}

TEST_F(FleetTest, ANodeThatIsAwayEnforcesWhatItHeldAndIsAwaitedForTheRest) {
  fleet_.SetTargets({{"n1", Target({{"a", "1"}})}});
  Dial(&n1_);
  Obey(&n1_);
  fleet_.OnEnd(n1_.stream);
  EXPECT_EQ(Of("a").applied, 1u);
  fleet_.SetTargets({{"n1", Target({{"a", "2"}})}});
  EXPECT_THAT(Of("a").awaited, ElementsAre("n1"));
  EXPECT_FALSE(fleet_.IsHeld("red", "a")) << "who is away cannot be waited for";
  Dial(&n1_);
  EXPECT_TRUE(fleet_.IsHeld("red", "a"));
  Obey(&n1_);
  EXPECT_EQ(Of("a").applied, 1u);
}

// Made and deleted at once: the node may put it in force at any moment, and its deletion has to wait for that.
TEST_F(FleetTest, APolicyThatWasSentAndNotAnsweredIsHeld) {
  fleet_.SetTargets({{"n1", Target({{"a", "1"}})}});
  Dial(&n1_);
  EXPECT_TRUE(fleet_.IsHeld("red", "a"));
  EXPECT_FALSE(fleet_.IsHeld("red", "b"));
  fleet_.SetTargets({{"n1", Target({{"a", "1"}, {"b", "1"}})}});
  EXPECT_TRUE(fleet_.IsHeld("red", "b")) << "it is sent with the answer to what is under way";
  fleet_.SetTargets({{"n1", Target({})}});
  EXPECT_TRUE(fleet_.IsHeld("red", "a"));
  Obey(&n1_);
  EXPECT_TRUE(fleet_.IsHeld("red", "a"));
  Obey(&n1_);
  EXPECT_FALSE(fleet_.IsHeld("red", "a"));
}

TEST_F(FleetTest, ANewStreamSaysWhatBecameOfWhatWasSentOnTheOneBefore) {
  n1_.holds = true;
  fleet_.SetTargets({{"n1", Target({})}});
  Dial(&n1_);
  fleet_.SetTargets({{"n1", Target({{"a", "1"}})}});
  ASSERT_THAT(SentTo(n1_), SizeIs(1));
  fleet_.SetTargets({{"n1", Target({})}});
  EXPECT_TRUE(fleet_.IsHeld("red", "a"));
  Dial(&n1_);  // it was lost on the way
  EXPECT_THAT(SentTo(n1_), IsEmpty());
  EXPECT_FALSE(fleet_.IsHeld("red", "a"));
}

TEST_F(FleetTest, AnAnswerThatDoesNotComeEndsTheStream) {
  fleet_.SetTargets({{"n1", Target({{"a", "1"}})}});
  Dial(&n1_);
  clock_.AdvanceMs(kAnswerMs + 1);
  fleet_.Tick();
  EXPECT_THAT(closed_[n1_.stream], HasSubstr("no answer"));
  const StreamId lost = n1_.stream;
  Dial(&n1_);
  Obey(&n1_);
  EXPECT_NE(lost, n1_.stream);
}

TEST_F(FleetTest, AHerdIsToldToComeAgainAndWholeSetsAreSentAtAPace) {
  std::map<std::string, std::string> policies;
  for (int i = 0; i < 50; ++i) policies["t" + std::to_string(i)] = "1";
  const SharedNode target = Target(policies);
  std::map<std::string, SharedNode> targets;
  std::vector<FakeNode> nodes(1000);
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].name = absl::StrCat("n", i);
    targets[nodes[i].name] = target;
  }
  fleet_.SetTargets(targets);
  std::vector<size_t> outside;
  for (size_t i = 0; i < nodes.size(); ++i) outside.push_back(i);
  int seconds = 0;
  size_t most = 0;
  for (; fleet_.stats().current < nodes.size() && seconds < 60; ++seconds) {
    const size_t before = fleet_.stats().streams;
    for (const size_t i : std::exchange(outside, {})) {
      Dial(&nodes[i]);
      if (closed_.contains(nodes[i].stream)) outside.push_back(i);
    }
    most = std::max(most, fleet_.stats().streams - before);
    for (int tick = 0; tick < 10; ++tick) {
      fleet_.Tick();
      for (FakeNode& node : nodes) {
        for (const v1::Update& update : SentTo(node)) fleet_.OnMessage(node.stream, "", node.Take(update));
      }
      clock_.AdvanceMs(100);
    }
  }
  EXPECT_EQ(fleet_.stats().current, nodes.size());
  EXPECT_LE(most, static_cast<size_t>(kStreamsBurst));
  EXPECT_GT(fleet_.stats().streams_refused, 0u);
  EXPECT_LT(seconds, 15);
}

// Of five thousand nodes with four hundred policies each, copies would be half a gigabyte.
TEST(NodeSession, NodesThatHoldTheSameShareWhatTheyHold) {
  SharedSets sets;
  const SharedNode first = Target({{"a", "1"}, {"b", "1"}}), next = Target({{"a", "2"}, {"b", "1"}});
  sets.Know(next->version, next->hashes);
  std::array<NodeSession, 3> nodes;
  FakeNode holder{"n"};
  holder.held = first->set;
  holder.holds = true;
  for (NodeSession& node : nodes) ASSERT_TRUE(node.Begin(holder.Hello().hello(), &sets));
  EXPECT_EQ(nodes[0].held(), nodes[1].held()) << "told by two nodes, kept once";
  const auto message = std::make_shared<v1::OperatorMessage>();
  *message->mutable_update() = nodes[0].DeltaTo(next->set);
  for (NodeSession& node : nodes) node.OnSent(message, next->hashes, 0);
  const std::string key_a = "TenantKVPolicy/red/a";
  for (size_t i = 0; i < 2; ++i) {
    const auto changed = nodes[i].OnAnswer(FakeNode::Answer(next->version, "").answer(), &sets);
    ASSERT_TRUE(changed);
    EXPECT_THAT(*changed, ElementsAre(key_a));
    EXPECT_EQ(nodes[i].held(), next->hashes);
    EXPECT_EQ(nodes[i].version(), next->version);
  }
  // Who refuses a part holds something of its own, and takes nothing from the others.
  v1::Answer answer = FakeNode::Answer(next->version, "").answer();
  *answer.add_refused() = Refusal(key_a, next->set.objects().at(key_a).hash, "no", first->set.objects().at(key_a).hash);
  ASSERT_TRUE(nodes[2].OnAnswer(answer, &sets));
  EXPECT_EQ(nodes[2].version(), first->version);
  EXPECT_EQ(nodes[0].held(), next->hashes);
  EXPECT_EQ(nodes[0].StandingOf(key_a, next->set, next->version).state, NodeSession::State::kApplied);
  EXPECT_EQ(nodes[2].StandingOf(key_a, next->set, next->version).state, NodeSession::State::kRefused);
}

TEST(SharedSets, WhoLiesAboutItsVersionSharesNothing) {
  SharedSets sets;
  const SharedHashes honest = sets.Share("version", {{"a", "1"}});
  const SharedHashes liar = sets.Share("version", {{"b", "1"}});
  EXPECT_EQ(liar->count("b"), 1u);
  EXPECT_EQ(honest->count("b"), 0u);
  EXPECT_EQ(sets.Share("version", {{"a", "1"}}), honest);
}

TEST(SharedSets, WhatNobodyHoldsIsNotKept) {
  SharedSets sets;
  const SharedHashes kept = sets.Share("kept", {{"a", "1"}});
  for (int i = 0; i < 10'000; ++i) {
    const std::string version = std::to_string(i);
    EXPECT_EQ(sets.Share(version, {{"a", version}})->at("a"), version);
  }
  EXPECT_LT(sets.size(), 1'000u);
  EXPECT_EQ(sets.Share("kept", {{"a", "1"}}), kept);
}

TEST_F(FleetTest, UsageIsAddedUpAndATenantAboveItsLimitIsTold) {
  fleet_.SetTargets({{"n1", Target({{"a", "1"}})}, {"n2", Target({{"a", "1"}})}});
  Dial(&n1_);
  Dial(&n2_);
  const auto tell = [&](const FakeNode& node, uint64_t bytes, bool above) {
    v1::NodeMessage message;
    v1::TenantUsage* tenant = message.mutable_usage()->add_tenants();
    tenant->set_tenant("red/a");
    tenant->set_dram_bytes(bytes);
    tenant->set_above_limit(above);
    progress_.clear();
    fleet_.OnMessage(node.stream, "", message);
  };
  tell(n1_, 5, false);
  EXPECT_THAT(progress_, IsEmpty()) << "usage alone is no news";
  tell(n2_, 7, true);
  EXPECT_THAT(progress_, ElementsAre("TenantKVPolicy/red/a"));
  EXPECT_EQ(Of("a").dram_bytes, 12u);
  EXPECT_THAT(Of("a").above_limit, ElementsAre("n2"));
  tell(n2_, 6, true);
  EXPECT_THAT(progress_, IsEmpty());
  tell(n2_, 2, false);
  EXPECT_THAT(progress_, ElementsAre("TenantKVPolicy/red/a"));
}

TEST_F(FleetTest, WhatIsSaidOfASetThatIsNotHeldIsRefused) {
  v1::NodeMessage lie = n1_.Hello();
  lie.mutable_hello()->set_version("0123");
  fleet_.OnMessage(7, "", lie);
  EXPECT_TRUE(closed_.contains(7));
  EXPECT_EQ(fleet_.stats().connected, 0u);
  Dial(&n1_);
  fleet_.OnMessage(n1_.stream, "", FakeNode::Answer("0123", ""));
  EXPECT_TRUE(closed_.contains(n1_.stream));
}

}  // namespace
}  // namespace kvartal::sync
