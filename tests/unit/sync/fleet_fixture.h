// A fleet without any network: messages in, messages out.
// Confined to the thread of the test.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "operator/sync/fleet.h"

namespace kvartal::sync {

inline SharedNode Target(const std::map<std::string, std::string>& policies, const std::string& pool = "p") {
  auto node = std::make_shared<reconcile::CompiledNode>();
  node->pool = pool;
  for (const auto& [name, manifest] : policies) node->set.Put("TenantKVPolicy/red/" + name, manifest, "ns");
  node->Seal();
  return node;
}

// A node as its daemon would be.
struct FakeNode {
  std::string name;
  StreamId stream = 0;
  crds::PolicySet held = {};
  bool holds = false;
  std::string rejected = {};

  v1::NodeMessage Hello() const {
    v1::NodeMessage message;
    message.mutable_hello()->set_node(name);
    if (holds) message.mutable_hello()->set_version(held.Version());
    for (const auto& [key, object] : held.objects()) {
      v1::Held* one = message.mutable_hello()->add_held();
      one->set_key(key);
      one->set_hash(object.hash);
    }
    message.mutable_hello()->set_rejected_version(rejected);
    return message;
  }
  v1::NodeMessage Take(const v1::Update& update) {
    const absl::StatusOr<crds::PolicySet> made = held.With(update);
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) held = *made;
    holds = true;
    return Answer(update.version(), "");
  }
  static v1::NodeMessage Answer(const std::string& version, const std::string& reason) {
    v1::NodeMessage message;
    message.mutable_answer()->set_version(version);
    message.mutable_answer()->set_reason(reason);
    return message;
  }
};

class FleetFixture : public ::testing::Test {
 protected:
  void Dial(FakeNode* node, const std::string& attested = "") {
    node->stream = ++last_stream_;
    fleet_.OnMessage(node->stream, attested, node->Hello());
  }
  // What was sent to this node since the last call, without welcomes.
  std::vector<v1::Update> SentTo(const FakeNode& node) {
    std::vector<v1::Update> updates;
    for (const SharedMessage& message : std::exchange(sent_[node.stream], {})) {
      if (message->has_update()) updates.push_back(message->update());
    }
    return updates;
  }
  // Takes the one update there is, and answers.
  void Obey(FakeNode* node) {
    const std::vector<v1::Update> updates = SentTo(*node);
    ASSERT_THAT(updates, ::testing::SizeIs(1));
    fleet_.OnMessage(node->stream, "", node->Take(updates[0]));
  }
  reconcile::PolicyProgress Of(const std::string& name) const { return fleet_.ProgressOf("red", name, {"p"}); }

  ManualClock clock_;
  StreamId last_stream_ = 0;
  std::map<StreamId, std::vector<SharedMessage>> sent_;
  std::map<StreamId, std::string> closed_;
  std::vector<std::string> progress_;
  Fleet fleet_{&clock_,
               {.send = [this](StreamId stream, SharedMessage message) { sent_[stream].push_back(std::move(message)); },
                .close = [this](StreamId stream, const std::string& why) { closed_[stream] = why; },
                .on_progress = [this](const std::string& key) { progress_.push_back(key); }}};
  FakeNode n1_{"n1"}, n2_{"n2"};
};

}  // namespace kvartal::sync
