// What a stream promises beyond what every feed does.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "daemon/base/mutex.h"
#include "daemon/base/unique_fd.h"
#include "tests/contract/policy_feed_fixture.h"
#include "tests/contract/relay.h"

namespace kvartal::control {
namespace {

using ::testing::HasSubstr;

class StreamFeedTest : public ::testing::Test, protected FeedLoop {
 protected:
  void Begin() { Begin(kNode, source_.port()); }
  void Begin(const policy::NodeCapacity& capacity, int port) {
    feed_ = source_.NewFeedOn(capacity, port);
    const absl::StatusOr<LoadedPolicy> begun = feed_->Begin();
    ASSERT_TRUE(begun.ok()) << begun.status();
    limit_ = LimitOf(*begun);
    limits_ = LimitsOf(*begun);
    refused_ = begun->refused;
    feed_->Watch(loop_.get(), Taker());
  }
  // Ends the feed as a daemon that ends does.
  void End() {
    feed_->StopWatching();
    ASSERT_TRUE(Until([&] { return !feed_->busy(); }));
    feed_.reset();
  }
  static crds::PolicySet Set(const std::map<std::string, std::string>& claims) {
    crds::PolicySet set;
    for (const auto& [name, claim] : claims) {
      set.Put("TenantKVPolicy/a/" + name,
              "{apiVersion: kvartal.dev/v1alpha1, kind: TenantKVPolicy, metadata: {name: '" + name +
                  "', namespace: a}, spec: {subjects: [{serviceAccountName: '" + name +
                  "'}], pools: [{poolRef: p, perNode: {dram: {" + claim + "}}}]}}",
              "ns");
    }
    return set;
  }
  static crds::PolicySet WithPool(const std::string& capacity) {
    crds::PolicySet set = Set({{"x", "limit: 50%"}});
    set.Put("KVNodePool//p",
            "{apiVersion: kvartal.dev/v1alpha1, kind: KVNodePool, metadata: {name: p}, spec: {capacity: {dram: " +
                capacity + "}}}",
            "");
    return set;
  }
  // In the place of what was kept.
  void Keep(const crds::PolicySet& set) {
    std::ofstream(source_.scratch().File("policy_set"), std::ios::binary) << set.DeltaFrom({}).SerializeAsString();
  }
  std::string RejectedOf(const std::string& name) {
    const auto progress = source_.fleet().ProgressOf("a", name, {""});
    return progress.rejected.empty() ? "" : progress.rejected[0].reason;
  }
  StreamSource source_{loop_.get(), &clock_};
  std::unique_ptr<PolicyFeed> feed_;
};

TEST_F(StreamFeedTest, WithoutAnOperatorWhatWasKeptHoldsAndItsReturnIsNoticed) {
  source_.Put(PolicyText("8Mi"));
  Begin();
  ASSERT_TRUE(Until([&] { return limit_ == 8 * kMiB && source_.fleet().stats().current == 1; }));
  EXPECT_EQ(feed_->note(), "");
  source_.GoAway();
  EXPECT_TRUE(Until([&] { return !feed_->note().empty(); }));
  EXPECT_THAT(feed_->note(), HasSubstr("what was last accepted holds"));
  feed_.reset();
  Begin();  // a restart without an operator
  EXPECT_EQ(limit_, 8 * kMiB);
  source_.Put(PolicyText("16Mi"));
  source_.ComeBack();
  EXPECT_TRUE(Until([&] { return limit_ == 16 * kMiB; }));
  EXPECT_TRUE(Until([&] { return feed_->note().empty(); }));
}

TEST_F(StreamFeedTest, WhatIsHeldAlreadyIsNotSentAgainAfterAnInterruption) {
  source_.Put(PolicyText("8Mi"));
  Begin();
  ASSERT_TRUE(Until([&] { return source_.fleet().stats().acks == 1; }));
  source_.GoAway();
  ASSERT_TRUE(Until([&] { return !feed_->note().empty(); }));
  source_.ComeBack();
  ASSERT_TRUE(Until([&] { return feed_->note().empty(); }));
  EXPECT_EQ(source_.fleet().stats().updates, 1u);
  EXPECT_EQ(source_.fleet().stats().current, 1u);
}

TEST_F(StreamFeedTest, ARefusalIsAnsweredWithItsReasonAndNotSentAgainOverANewStream) {
  source_.Put(PolicyText("8Mi"));
  Begin();
  ASSERT_TRUE(Until([&] { return source_.fleet().stats().acks == 1; }));
  source_.Put(
      "apiVersion: kvartal.dev/v1alpha1\nkind: TenantKVPolicy\nmetadata: {name: cache, namespace: a}\n"
      "spec: {subjects: [{uid: 1}], fieldOfTheFuture: 1}\n");
  ASSERT_TRUE(Until([&] { return source_.fleet().stats().nacks == 1; }));
  source_.GoAway();
  ASSERT_TRUE(Until([&] { return feed_->note().find("no word") != std::string::npos; }));
  source_.ComeBack();
  ASSERT_TRUE(Until([&] { return feed_->note().empty(); }));
  EXPECT_EQ(source_.fleet().stats().nacks, 1u);
  EXPECT_EQ(source_.fleet().stats().rejected, 1u);
  EXPECT_EQ(limit_, 8 * kMiB);
}

TEST_F(StreamFeedTest, ADamagedFileIsNoPolicyAndTheOperatorMendsIt) {
  std::ofstream(source_.scratch().File("policy_set")) << "garbage";
  source_.Put(PolicyText("8Mi"));
  Begin();
  EXPECT_TRUE(Until([&] { return limit_ == 8 * kMiB; }));
  EXPECT_TRUE(Until([&] { return source_.fleet().stats().current == 1; }));
  EXPECT_TRUE(Until([&] { return !feed_->busy(); }));
  feed_.reset();
  const absl::StatusOr<LoadedPolicy> again = source_.NewFeed()->Begin();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(LimitOf(*again), 8 * kMiB);
}

// A pool of a hundred tenants is not frozen by the one whose guarantee is above its limit here.
TEST_F(StreamFeedTest, OneTenantsPolicyThatCannotBeKeptLeavesTheOthersTheirs) {
  source_.PutSet(Set({{"x", "limit: 8Mi"}, {"y", "limit: 8Mi"}}));
  Begin();
  ASSERT_TRUE(Until([&] { return source_.fleet().stats().acks == 1; }));
  source_.PutSet(Set({{"w", "limit: 1Mi"}, {"x", "guarantee: 512Mi, limit: 25%"}, {"y", "limit: 16Mi"}}));
  ASSERT_TRUE(Until([&] { return source_.fleet().stats().nacks == 1; }));
  const std::map<std::string, uint64_t> kept = {{"a/w", kMiB}, {"a/x", 8 * kMiB}, {"a/y", 16 * kMiB}};
  EXPECT_EQ(limits_, kept);
  EXPECT_THAT(refused_, HasSubstr("TenantKVPolicy/a/x"));
  EXPECT_THAT(RejectedOf("x"), HasSubstr("above the limit"));
  EXPECT_EQ(RejectedOf("w") + RejectedOf("y"), "");
  EXPECT_EQ(source_.fleet().ProgressOf("a", "y", {""}).applied, 1u);
  // The next edit of somebody else is an edit as any other.
  source_.PutSet(Set({{"x", "guarantee: 512Mi, limit: 25%"}, {"y", "limit: 24Mi"}}));
  ASSERT_TRUE(Until([&] { return source_.fleet().stats().nacks == 2; }));
  EXPECT_EQ(limits_, (std::map<std::string, uint64_t>{{"a/x", 8 * kMiB}, {"a/y", 24 * kMiB}}));
  // Over a restart without an operator, too.
  source_.GoAway();
  End();
  Begin();
  EXPECT_EQ(limits_, (std::map<std::string, uint64_t>{{"a/x", 8 * kMiB}, {"a/y", 24 * kMiB}}));
  EXPECT_EQ(refused_, "");
}

// What waits for a restart is on the disk: taken back, it has to go from there.
TEST_F(StreamFeedTest, WhatIsTakenBackIsNotWhatTheNextStartBeginsWith) {
  Keep(WithPool("512Mi"));
  source_.PutSet(WithPool("512Mi"));
  Begin();
  EXPECT_EQ(limits_["a/x"], 256 * kMiB);
  ASSERT_TRUE(Until([&] { return source_.fleet().stats().current == 1; }));
  source_.PutSet(WithPool("64Mi"));
  ASSERT_TRUE(Until([&] { return source_.fleet().stats().nacks == 1; }));
  EXPECT_THAT(RejectedOf("x"), HasSubstr("restart kvartald"));
  EXPECT_EQ(limits_["a/x"], 256 * kMiB);
  source_.PutSet(WithPool("512Mi"));
  ASSERT_TRUE(Until([&] { return source_.fleet().stats().acks == 1; }));
  EXPECT_EQ(refused_, "");
  EXPECT_EQ(RejectedOf("x"), "");
  source_.GoAway();
  End();
  Begin();
  EXPECT_EQ(limits_["a/x"], 256 * kMiB);
}

// A daemon that ended for a capacity its next start does not find would end for ever.
TEST_F(StreamFeedTest, ACapacityThatCouldNotBeKeptIsNoneToStartAgainFor) {
  std::filesystem::create_directory(source_.scratch().File("policy_set.new"));
  source_.PutSet(WithPool("512Mi"));
  Begin();
  ASSERT_TRUE(Until([&] { return limits_.contains("a/x"); }));
  EXPECT_FALSE(capacity_waits_);
  EXPECT_EQ(limits_["a/x"], 512 * kMiB);
  std::filesystem::remove(source_.scratch().File("policy_set.new"));
  source_.PutSet(WithPool("256Mi"));
  EXPECT_TRUE(Until([&] { return capacity_waits_; }));
}

TEST_F(StreamFeedTest, AKeptSetThatFitsNoLongerCostsItsTenantAndNotTheStart) {
  const crds::PolicySet kept =
      Set({{"big", "guarantee: 800Mi"}, {"later", "limit: 8Mi, fieldOfTheFuture: 1"}, {"y", "limit: 16Mi"}});
  Keep(kept);
  source_.PutSet(kept);
  Begin({{0, 512 * kMiB, 0}}, source_.port());
  EXPECT_EQ(limits_, (std::map<std::string, uint64_t>{{"a/y", 16 * kMiB}}));
  EXPECT_THAT(refused_, HasSubstr("TenantKVPolicy/a/big"));
  ASSERT_TRUE(Until([&] { return RejectedOf("big").find("does not fit") != std::string::npos; }));
  EXPECT_THAT(RejectedOf("later"), HasSubstr("fieldOfTheFuture"));
  EXPECT_EQ(source_.fleet().ProgressOf("a", "y", {""}).applied, 1u);
  EXPECT_EQ(source_.fleet().stats().updates, 0u) << "it has just been tried";
  source_.PutSet(Set({{"y", "limit: 16Mi"}}));
  ASSERT_TRUE(Until([&] { return source_.fleet().stats().acks == 1; }))
      << "it holds that, and hears that no more is asked";
  EXPECT_EQ(refused_, "");
}

TEST_F(StreamFeedTest, AKeptSetWithAPoolThatCannotBeReadLeavesNobodyInForceAndIsTold) {
  crds::PolicySet set = Set({{"x", "limit: 8Mi"}});
  set.Put("KVNodePool//p", "{apiVersion: kvartal.dev/v1alpha1, kind: KVNodePool, metadata: {name: p}, later: 1}", "");
  Keep(set);
  source_.PutSet(set);
  Begin();
  EXPECT_TRUE(limits_.empty());
  EXPECT_THAT(refused_, HasSubstr("KVNodePool//p"));
  EXPECT_TRUE(Until([&] { return RejectedOf("x").find("KVNodePool//p") != std::string::npos; }));
  EXPECT_EQ(source_.fleet().stats().updates, 0u) << "it is not sent what it said it cannot read";
  EXPECT_TRUE(std::filesystem::exists(source_.scratch().File("policy_set"))) << "an upgrade may read it";
  source_.PutSet(Set({{"x", "limit: 8Mi"}}));
  EXPECT_TRUE(Until([&] { return limits_.contains("a/x"); }));
}

// A disk that does not answer is slow news, not the end of the daemon.
TEST_F(StreamFeedTest, KeysThatChangeOftenDoNotQueueUpBeforeAHungDisk) {
  ASSERT_EQ(::mkfifo(source_.scratch().File("token_keys.new").c_str(), 0600), 0);  // opened when somebody reads it
  source_.fleet().SetKeys("https://cluster", "0");
  Begin();
  std::string keys;
  feed_->WatchKeys([&](const std::string&, const std::string& set) {
    keys = set;
    return true;
  });
  ASSERT_TRUE(Until([&] { return keys == "0"; }));
  for (int i = 1; i <= 30; ++i) {
    source_.fleet().SetKeys("https://cluster", std::to_string(i));
    ASSERT_TRUE(Until([&] { return keys == std::to_string(i); }));
  }
  source_.Put(PolicyText("8Mi"));
  source_.fleet().SetKeys("https://cluster", "last");
  ASSERT_TRUE(Until([&] { return keys == "last"; })) << "the set came before it";
  const UniqueFd reader(::open(source_.scratch().File("token_keys.new").c_str(), O_RDONLY | O_NONBLOCK));
  EXPECT_TRUE(Until([&] { return limit_ == 8 * kMiB; }));
  End();
}

// An idle daemon says nothing by itself: only asking tells that its operator is gone without a word.
TEST_F(StreamFeedTest, AnOperatorThatVanishesFromAnIdleStreamIsNoticed) {
  testing::Relay relay(source_.port());
  source_.Put(PolicyText("8Mi"));
  Begin(kNode, relay.port());
  ASSERT_TRUE(Until([&] { return limit_ == 8 * kMiB && feed_->note().empty(); }));
  EXPECT_EQ(feed_->away_ms(), 0u);
  const int before = relay.pings();
  ASSERT_TRUE(Until([&] { return relay.pings() >= before + 6; })) << "it stopped asking";
  EXPECT_EQ(feed_->note(), "");
  relay.Swallow();
  EXPECT_TRUE(Until([&] { return !feed_->note().empty(); }));
  EXPECT_TRUE(Until([&] { return feed_->away_ms() > 0u; }));
  EXPECT_EQ(limit_, 8 * kMiB);
  End();
}

// Holds whoever posts, as a thread of gRPC that is not done may be held.
class HeldExecutor : public Executor {
 public:
  void Post(absl::AnyInvocable<void()> task) override {
    MutexLock lock(mutex_);
    ++held_;
    changed_.NotifyAll();
    while (!open_) changed_.Wait(mutex_);
    (void)task;
  }
  void WaitUntilHeld() {
    MutexLock lock(mutex_);
    while (held_ == 0) changed_.Wait(mutex_);
  }
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  Condition changed_;
  int held_ ABSL_GUARDED_BY(mutex_) = 0;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST_F(StreamFeedTest, TheLoopDoesNotWaitForGrpcToEndAStream) {
  HeldExecutor held;
  SyncChannel channel;
  sync::v1::NodeMessage hello;
  hello.mutable_hello()->set_node("n2");
  auto stream = SyncStream::Dial(
      {.address = "127.0.0.1:" + std::to_string(source_.port()), .ca_file = "", .token_file = ""},
      /*patient=*/true, &held, hello, {.on_message = [](auto) {}, .on_end = [](const auto&) {}}, &channel);
  ASSERT_TRUE(stream.ok()) << stream.status();
  std::atomic<bool> gone{false};
  std::thread loop([&] {
    held.WaitUntilHeld();
    stream->reset();
    gone = true;
  });
  EXPECT_TRUE(Until([&] { return gone.load(); })) << "it waits for a thread that is held";
  EXPECT_EQ(channel.ending->count(), 1u);
  held.Open();
  loop.join();
}

TEST_F(StreamFeedTest, TokenKeysComeByTheStreamAreKeptAndFollowTheirExchange) {
  std::string issuer, keys, refused;
  const auto take = [&](const std::string& from, const std::string& set) {
    if (set == "no keys") {
      refused = set;
      return false;
    }
    issuer = from;
    keys = set;
    return true;
  };
  source_.fleet().SetKeys("https://cluster", "{\"keys\":[1]}");
  Begin();
  feed_->WatchKeys(take);
  EXPECT_TRUE(Until([&] { return keys == "{\"keys\":[1]}"; }));
  EXPECT_EQ(issuer, "https://cluster");
  source_.fleet().SetKeys("https://cluster", "{\"keys\":[2]}");
  EXPECT_TRUE(Until([&] { return keys == "{\"keys\":[2]}"; }));
  source_.fleet().SetKeys("https://cluster", "no keys");
  EXPECT_TRUE(Until([&] { return !refused.empty(); }));
  EXPECT_TRUE(Until([&] { return !feed_->busy(); }));
  source_.GoAway();
  feed_.reset();
  keys.clear();
  Begin();
  feed_->WatchKeys(take);
  EXPECT_EQ(keys, "{\"keys\":[2]}") << "a start without an operator, by the last that were good";
}

TEST_F(StreamFeedTest, APodThatWasNamedAndIsNotAnyMoreIsGoneAlsoOverARestart) {
  const auto pods = [](std::set<std::string> uids) { return std::make_shared<crds::PodSet>(std::move(uids)); };
  std::vector<std::string> gone;
  const auto take = [&](const std::vector<std::string>& uids) { gone = uids; };
  source_.Put(PolicyText("8Mi"));
  Begin();
  feed_->WatchPods(take);
  ASSERT_TRUE(Until([&] { return limit_ == 8 * kMiB; })) << "an operator that does not know of pods";
  source_.fleet().SetPods({{"n1", pods({"a", "b", "c"})}});
  source_.fleet().ChangePods({{"n1", pods({"b", "c"})}});
  ASSERT_TRUE(Until([&] {
    source_.fleet().Tick();
    return !gone.empty();
  }));
  EXPECT_THAT(gone, ::testing::ElementsAre("a"));
  source_.GoAway();
  End();
  gone.clear();
  Begin();
  feed_->WatchPods(take);
  EXPECT_THAT(gone, ::testing::ElementsAre("a")) << "a start without an operator";
  source_.fleet().ChangePods({{"n1", pods({"c", "d"})}});
  source_.ComeBack();
  EXPECT_TRUE(Until([&] { return gone.size() == 2; }));
  EXPECT_THAT(gone, ::testing::ElementsAre("a", "b")) << "deleted while nobody told; d was never missed";
}

// Word of pods may come while the disk is busy with the word before it, and the daemon be told to end.
TEST_F(StreamFeedTest, WhatWaitsForTheDiskWhenTheDaemonEndsIsKept) {
  const auto pods = [](std::set<std::string> uids) { return std::make_shared<crds::PodSet>(std::move(uids)); };
  std::vector<std::string> gone;
  const auto take = [&](const std::vector<std::string>& uids) { gone = uids; };
  const std::string beside = source_.scratch().File("node_pods.new"), fifo = source_.scratch().File("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);  // opened when somebody reads it
  std::filesystem::create_hard_link(fifo, beside);
  source_.Put(PolicyText("8Mi"));
  source_.fleet().SetPods({{"n1", pods({"a", "b", "c"})}});
  Begin();
  feed_->WatchPods(take);
  for (const auto& [left, count] :
       {std::pair(std::set<std::string>{"b", "c"}, 1u), std::pair(std::set<std::string>{"c"}, 2u)}) {
    ASSERT_TRUE(Until([&] { return source_.fleet().stats().pod_updates >= count; }));
    source_.fleet().ChangePods({{"n1", pods(left)}});
    ASSERT_TRUE(Until([&] {
      source_.fleet().Tick();
      return gone.size() == count;
    }));
  }
  source_.GoAway();
  feed_->StopWatching();
  std::filesystem::remove(beside);
  const UniqueFd reader(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK));
  ASSERT_TRUE(Until([&] { return !feed_->busy(); }));
  feed_.reset();
  gone.clear();
  Begin();
  feed_->WatchPods(take);
  EXPECT_THAT(gone, ::testing::ElementsAre("a", "b"));
}

TEST_F(StreamFeedTest, UseIsToldWhenATenantGoesAboveItsLimitAndNotForEveryByte) {
  source_.Put(PolicyText("8Mi"));
  Begin();
  ASSERT_TRUE(Until([&] { return source_.fleet().stats().current == 1; }));
  const auto use = [](uint64_t bytes, bool above) {
    return std::vector<TenantUse>{{.tenant = "a/cache", .bytes = {0, bytes, 0}, .above_limit = above}};
  };
  const auto seen = [&] { return source_.fleet().ProgressOf("a", "cache", {""}).dram_bytes; };
  feed_->TellUse(use(5, false));
  EXPECT_TRUE(Until([&] { return seen() == 5; }));
  feed_->TellUse(use(6, false));
  feed_->TellUse(use(7, true));
  EXPECT_TRUE(Until([&] { return seen() != 5; }));
  EXPECT_EQ(seen(), 7u);
  // Who is not named holds nothing any more.
  feed_->TellUse({{.tenant = "a/other", .bytes = {0, 1, 0}, .above_limit = true}, {.tenant = "a/cache", .bytes = {}}});
  EXPECT_TRUE(Until([&] { return seen() == 0; }));
}

}  // namespace
}  // namespace kvartal::control
