#include "crds/pod_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvartal::crds {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PodSetTest, AChangeMakesOneOfTheOther) {
  const PodSet before({"a", "b"}), after({"b", "c"});
  const sync::v1::Pods change = after.ChangesFrom(before);
  EXPECT_THAT(change.bound(), ElementsAre("c"));
  EXPECT_THAT(change.gone(), ElementsAre("a"));
  const absl::StatusOr<PodSet> made = before.With(change);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->uids(), after.uids());
  EXPECT_EQ(made->version(), after.version());
}

TEST(PodSetTest, TheWholeMakesItOfAnything) {
  const PodSet set({"a", "b"});
  EXPECT_EQ(PodSet({"x"}).With(set.Whole())->uids(), set.uids());
  EXPECT_THAT(PodSet({"x"}).With(PodSet().Whole())->uids(), IsEmpty()) << "that there are none is something, too";
}

TEST(PodSetTest, WhatIsOfAnotherSetOrDoesNotGiveWhatItSaysIsRefused) {
  const PodSet before({"a"}), after({"a", "b"});
  EXPECT_FALSE(PodSet({"x"}).With(after.ChangesFrom(before)).ok());
  EXPECT_FALSE(PodSet().With(after.ChangesFrom(before)).ok()) << "of nothing at all";
  sync::v1::Pods lost = after.Whole();
  lost.clear_bound();
  EXPECT_FALSE(before.With(lost).ok());
}

}  // namespace
}  // namespace kvartal::crds
