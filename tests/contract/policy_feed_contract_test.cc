// What every feed of policy promises, of a folder and of a stream from a real gRPC server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>

#include "daemon/base/units.h"
#include "daemon/control/folder_feed.h"
#include "daemon/control/stream_feed.h"
#include "operator/sync/fleet.h"
#include "operator/sync/sync_server.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::control {
namespace {

using ::testing::HasSubstr;

constexpr policy::NodeCapacity kNode = {{0, kGiB, 4 * kGiB}};
constexpr int64_t kPatienceNs = 60'000'000'000;

std::string PolicyText(const std::string& limit) {
  return "apiVersion: kvartal.dev/v1alpha1\nkind: TenantKVPolicy\nmetadata: {name: cache, namespace: a}\n"
         "spec: {subjects: [{uid: 1}], pools: [{poolRef: p, perNode: {dram: {limit: " +
         limit + "}}}]}\n";
}

// The other end of a feed, and how to make another one of the same.
class Source {
 public:
  virtual ~Source() = default;
  virtual void Put(const std::string& manifest) = 0;
  virtual std::unique_ptr<PolicyFeed> NewFeed() = 0;
};

class FolderSource : public Source {
 public:
  explicit FolderSource(EventLoop*, const Clock*) {}
  void Put(const std::string& manifest) override {
    std::ofstream(scratch_.File("a.yaml"), std::ios::trunc) << manifest;
  }
  std::unique_ptr<PolicyFeed> NewFeed() override { return std::make_unique<FolderFeed>(scratch_.path(), kNode); }

 private:
  const testing::ScratchDir scratch_;
};

// A real operator's end on a port of this machine.
class StreamSource : public Source {
 public:
  StreamSource(EventLoop* loop, const Clock* clock)
      : loop_(loop),
        clock_(clock),
        fleet_(clock, {.send = [this](auto stream, auto message) { server_->Send(stream, std::move(message)); },
                       .close = [this](auto stream, const auto& why) { server_->Close(stream, why); },
                       .on_progress = [](const std::string&) {}}) {
    Listen("127.0.0.1:0");
  }
  void Put(const std::string& manifest) override {
    auto node = std::make_shared<reconcile::CompiledNode>();
    node->set.Put("TenantKVPolicy/a/cache", manifest, "");
    node->version = node->set.Version();
    fleet_.SetTargets({{"n1", node}});
  }
  std::unique_ptr<PolicyFeed> NewFeed() override {
    return std::make_unique<StreamFeed>(
        StreamFeedOptions{.stream = {.address = "127.0.0.1:" + std::to_string(port_), .ca_file = "", .token_file = ""},
                          .keep_in = scratch_.path(),
                          .node = "n1",
                          .program = "test",
                          .redial_ms = 20},
        kNode, clock_);
  }
  void Listen(const std::string& address) {
    auto server = sync::SyncServer::Start({.address = address, .cert_file = "", .key_file = ""}, loop_,
                                          {.on_message =
                                               [this](auto stream, const std::string&, const auto& message) {
                                                 streams_.insert(stream);
                                                 fleet_.OnMessage(stream, "", message);
                                               },
                                           .on_end = [this](auto stream) { EndStream(stream); }});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = server_->port();
  }
  // As an operator that ends: the streams it had are gone, and so is what it knew of them.
  void GoAway() {
    server_.reset();
    while (!streams_.empty()) EndStream(*streams_.begin());
  }
  void ComeBack() { Listen("127.0.0.1:" + std::to_string(port_)); }
  sync::Fleet& fleet() { return fleet_; }
  const testing::ScratchDir& scratch() const { return scratch_; }

 private:
  void EndStream(sync::StreamId stream) {
    streams_.erase(stream);
    fleet_.OnEnd(stream);
  }

  EventLoop* const loop_;
  const Clock* const clock_;
  const testing::ScratchDir scratch_;
  int port_ = 0;
  std::set<sync::StreamId> streams_;
  std::unique_ptr<sync::SyncServer> server_;
  sync::Fleet fleet_;
};

// Offers, as NodePolicy takes them.
class FeedLoop {
 public:
  FeedLoop() : loop_(*EventLoop::Create(&clock_)) {}
  PolicyFeed::Offer Taker() {
    return [this](absl::StatusOr<LoadedPolicy> read) {
      ++offers_;
      if (!read.ok()) return read.status();
      limit_ = LimitOf(*read);
      return absl::OkStatus();
    };
  }
  bool Until(const std::function<bool()>& reached) {
    const int64_t until_ns = clock_.MonotonicNs() + kPatienceNs;
    while (!reached()) {
      if (clock_.MonotonicNs() > until_ns) return false;
      loop_->RunOnce(20);
    }
    return true;
  }
  static uint64_t LimitOf(const LoadedPolicy& loaded) {
    return loaded.table->tenants().empty() ? 0 : loaded.table->tenants()[0].tier(TierKind::kDram).limit_bytes;
  }

  const SystemClock clock_;
  std::unique_ptr<EventLoop> loop_;
  int offers_ = 0;
  uint64_t limit_ = 0;  // that is in force
};

template <typename Kind>
class PolicyFeedContract : public ::testing::Test, protected FeedLoop {
 protected:
  PolicyFeedContract() : source_(loop_.get(), &clock_) {}
  Kind source_;
};
using Kinds = ::testing::Types<FolderSource, StreamSource>;
TYPED_TEST_SUITE(PolicyFeedContract, Kinds);

TYPED_TEST(PolicyFeedContract, AChangeIsOfferedAndABadOneIsRefusedUntilAGoodOneComes) {
  this->source_.Put(PolicyText("8Mi"));
  auto feed = this->source_.NewFeed();
  const absl::StatusOr<LoadedPolicy> begun = feed->Begin();
  ASSERT_TRUE(begun.ok()) << begun.status();
  this->limit_ = FeedLoop::LimitOf(*begun);
  feed->Watch(this->loop_.get(), this->Taker());
  EXPECT_TRUE(this->Until([&] { return this->limit_ == 8 * kMiB; }));
  const int offers = this->offers_;
  this->source_.Put(PolicyText("nonsense"));
  EXPECT_TRUE(this->Until([&] { return this->offers_ == offers + 1; }));
  EXPECT_EQ(this->limit_, 8 * kMiB);
  absl::Status reloaded;
  bool done = false;
  feed->Reload([&](const absl::Status& status) {
    reloaded = status;
    done = true;
  });
  EXPECT_TRUE(this->Until([&] { return done; }));
  EXPECT_THAT(std::string(reloaded.message()), HasSubstr("nonsense"));
  this->source_.Put(PolicyText("16Mi"));
  EXPECT_TRUE(this->Until([&] { return this->limit_ == 16 * kMiB; }));
}

TYPED_TEST(PolicyFeedContract, WhatWasInForceIsWhatTheNextOneBeginsWith) {
  this->source_.Put(PolicyText("8Mi"));
  {
    auto feed = this->source_.NewFeed();
    this->limit_ = FeedLoop::LimitOf(*feed->Begin());
    feed->Watch(this->loop_.get(), this->Taker());
    ASSERT_TRUE(this->Until([&] { return this->limit_ == 8 * kMiB; }));
  }
  const absl::StatusOr<LoadedPolicy> begun = this->source_.NewFeed()->Begin();
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(FeedLoop::LimitOf(*begun), 8 * kMiB);
}

TYPED_TEST(PolicyFeedContract, AfterStopWatchingNothingIsOffered) {
  this->source_.Put(PolicyText("8Mi"));
  auto feed = this->source_.NewFeed();
  this->limit_ = FeedLoop::LimitOf(*feed->Begin());
  feed->Watch(this->loop_.get(), this->Taker());
  ASSERT_TRUE(this->Until([&] { return this->limit_ == 8 * kMiB; }));
  feed->StopWatching();
  EXPECT_TRUE(this->Until([&] { return !feed->busy(); }));
  const int offers = this->offers_;
  this->source_.Put(PolicyText("16Mi"));
  for (int i = 0; i < 50; ++i) this->loop_->RunOnce(20);
  EXPECT_EQ(this->offers_, offers);
}

class StreamFeedTest : public ::testing::Test, protected FeedLoop {
 protected:
  void Begin() {
    feed_ = source_.NewFeed();
    const absl::StatusOr<LoadedPolicy> begun = feed_->Begin();
    ASSERT_TRUE(begun.ok()) << begun.status();
    limit_ = LimitOf(*begun);
    feed_->Watch(loop_.get(), Taker());
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

TEST_F(StreamFeedTest, TokenKeysComeByTheStreamAreKeptAndFollowTheirExchange) {
  std::string issuer, keys;
  const auto take = [&](const std::string& from, const std::string& set) {
    issuer = from;
    keys = set;
  };
  source_.fleet().SetKeys("https://cluster", "{\"keys\":[1]}");
  Begin();
  feed_->WatchKeys(take);
  EXPECT_TRUE(Until([&] { return keys == "{\"keys\":[1]}"; }));
  EXPECT_EQ(issuer, "https://cluster");
  source_.fleet().SetKeys("https://cluster", "{\"keys\":[2]}");
  EXPECT_TRUE(Until([&] { return keys == "{\"keys\":[2]}"; }));
  EXPECT_TRUE(Until([&] { return !feed_->busy(); }));
  source_.GoAway();
  feed_.reset();
  keys.clear();
  Begin();
  feed_->WatchKeys(take);
  EXPECT_EQ(keys, "{\"keys\":[2]}") << "a start without an operator";
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
}

}  // namespace
}  // namespace kvartal::control
