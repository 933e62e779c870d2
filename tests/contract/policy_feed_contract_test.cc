// What every feed of policy promises, of a folder and of a stream from a real gRPC server.
#include <gmock/gmock.h>

#include "tests/contract/policy_feed_fixture.h"

namespace kvartal::control {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace kvartal::control
