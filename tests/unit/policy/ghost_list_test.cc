#include "daemon/policy/ghost_list.h"

#include <gtest/gtest.h>

namespace kvartal::policy {
namespace {

TEST(GhostListTest, OnlyWhatWasLostAndIsWantedAgainCounts) {
  GhostList ghosts;
  ghosts.SetBounds(1000, 100);
  ghosts.Add(1, 300);
  EXPECT_FALSE(ghosts.Miss(2)) << "a scanner's new keys are no demand";
  EXPECT_EQ(ghosts.missed_bytes(), 0u);
  EXPECT_TRUE(ghosts.Miss(1));
  EXPECT_EQ(ghosts.missed_bytes(), 300u);
  EXPECT_FALSE(ghosts.Miss(1)) << "once each time it is lost";
  EXPECT_EQ(ghosts.missed_bytes(), 300u);
}

TEST(GhostListTest, RemembersTheLatestWithinItsBytes) {
  GhostList ghosts;
  ghosts.SetBounds(1000, 100);
  for (uint64_t key = 1; key <= 5; ++key) ghosts.Add(key, 300);
  EXPECT_FALSE(ghosts.Miss(1));
  EXPECT_FALSE(ghosts.Miss(2));
  EXPECT_TRUE(ghosts.Miss(3));
  EXPECT_TRUE(ghosts.Miss(5));
  ghosts.Add(9, 1001);
  EXPECT_FALSE(ghosts.Miss(9)) << "larger than all it may remember";
}

TEST(GhostListTest, KeysAreBoundedEvenWhenTheyAreLostAgainAndAgain) {
  GhostList ghosts;
  ghosts.SetBounds(1 << 20, 3);
  for (int i = 0; i < 10; ++i) ghosts.Add(7, 1);
  ghosts.Add(8, 1);
  EXPECT_TRUE(ghosts.Miss(7)) << "its last loss is remembered";
  EXPECT_TRUE(ghosts.Miss(8));
  EXPECT_EQ(ghosts.missed_bytes(), 2u);
}

TEST(GhostListTest, ASmallerBoundForgetsTheOldest) {
  GhostList ghosts;
  ghosts.SetBounds(1000, 100);
  ghosts.Add(1, 400);
  ghosts.Add(2, 400);
  ghosts.SetBounds(500, 100);
  EXPECT_FALSE(ghosts.Miss(1));
  EXPECT_TRUE(ghosts.Miss(2));
  ghosts.SetBounds(0, 0);
  EXPECT_TRUE(ghosts.empty());
}

TEST(GhostListTest, MissesFadeToNothing) {
  GhostList ghosts;
  ghosts.SetBounds(1000, 100);
  ghosts.Add(1, 1000);
  ghosts.Miss(1);
  for (int second = 0; second < 60; ++second) ghosts.Fade();
  EXPECT_LT(ghosts.missed_bytes(), 450u);
  EXPECT_GT(ghosts.missed_bytes(), 250u);
  for (int second = 0; second < 600; ++second) ghosts.Fade();
  EXPECT_EQ(ghosts.missed_bytes(), 0u);
}

}  // namespace
}  // namespace kvartal::policy
