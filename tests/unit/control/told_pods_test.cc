// When a pod is gone: the rule by which the token of a deleted pod ends and that of a new one counts.
#include "daemon/control/told_pods.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"

namespace kvartal::control {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

sync::v1::Pods All(std::set<std::string> uids) { return crds::PodSet(std::move(uids)).Whole(); }
sync::v1::Pods Change(std::set<std::string> from, std::set<std::string> to) {
  return crds::PodSet(std::move(to)).ChangesFrom(crds::PodSet(std::move(from)));
}

TEST(ToldPodsTest, WhatWasNamedAndIsNotAnyMoreIsGone) {
  ToldPods pods;
  ASSERT_TRUE(pods.Take(All({"a", "b"})).ok());
  EXPECT_THAT(pods.gone(), IsEmpty());
  ASSERT_TRUE(pods.Take(Change({"a", "b"}, {"b", "c"})).ok());
  EXPECT_THAT(pods.gone(), ElementsAre("a"));
  ASSERT_TRUE(pods.Take(All({"c"})).ok()) << "a stream that begins";
  EXPECT_THAT(pods.gone(), ElementsAre("a", "b"));
}

TEST(ToldPodsTest, WhatWasNeverNamedIsNotGone) {
  ToldPods pods;
  ASSERT_TRUE(pods.Take(All({})).ok());
  EXPECT_THAT(pods.gone(), IsEmpty());
  EXPECT_THAT(ToldPods().gone(), IsEmpty());
}

TEST(ToldPodsTest, TheNewestWordCounts) {
  ToldPods pods;
  ASSERT_TRUE(pods.Take(All({"a", "b"})).ok());
  ASSERT_TRUE(pods.Take(All({"b"})).ok());
  ASSERT_TRUE(pods.Take(All({"a", "b"})).ok());
  EXPECT_THAT(pods.gone(), IsEmpty());
}

TEST(ToldPodsTest, AChangeOfAnotherSetChangesNothing) {
  ToldPods pods;
  ASSERT_TRUE(pods.Take(All({"a", "b"})).ok());
  EXPECT_FALSE(pods.Take(Change({"x"}, {})).ok());
  EXPECT_THAT(pods.gone(), IsEmpty());
  EXPECT_THAT(pods.bound().uids(), ElementsAre("a", "b"));
}

TEST(ToldPodsTest, TheNextStartKnowsWhatThisOneKnew) {
  ToldPods pods, next;
  ASSERT_TRUE(pods.Take(All({"a", "b", "c"})).ok());
  ASSERT_TRUE(pods.Take(All({"b", "c"})).ok());
  ASSERT_TRUE(next.Restore(pods.Kept()).ok());
  EXPECT_THAT(next.gone(), ElementsAre("a"));
  ASSERT_TRUE(next.Take(All({"c", "d"})).ok());
  EXPECT_THAT(next.gone(), ElementsAre("a", "b")) << "deleted while it was down";
}

TEST(ToldPodsTest, WhatWasNotKeptByItIsNotRestored) {
  ToldPods pods;
  EXPECT_FALSE(pods.Restore("no message").ok());
  EXPECT_FALSE(pods.Restore(Change({"a"}, {"b"}).SerializeAsString()).ok());
  EXPECT_THAT(pods.bound().uids(), IsEmpty());
}

TEST(ToldPodsTest, WhatIsRememberedOfDeletedPodsIsBounded) {
  ToldPods pods;
  ASSERT_TRUE(pods.Take(All({"first"})).ok());
  std::set<std::string> many;
  for (size_t i = 0; i < kGonePodsMax; ++i) many.insert(absl::StrCat("pod-", i));
  ASSERT_TRUE(pods.Take(All(many)).ok());
  EXPECT_THAT(pods.gone(), ElementsAre("first"));
  ASSERT_TRUE(pods.Take(All({})).ok());
  EXPECT_EQ(pods.gone().size(), kGonePodsMax);
  EXPECT_NE(pods.gone().front(), "first") << "the oldest is forgotten, its token expired long ago";
}

}  // namespace
}  // namespace kvartal::control
