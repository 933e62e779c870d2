#include "daemon/index/key_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "daemon/base/limits.h"

namespace kvartal::index {
namespace {

// What the table must be: a multimap from hash to entries.
class Model {
 public:
  void Insert(uint32_t hash, uint32_t entry) {
    table_.Insert(hash, entry);
    expected_.emplace(entry, hash);
  }
  void Erase(uint32_t entry) {
    table_.Erase(expected_.at(entry), entry);
    expected_.erase(entry);
  }
  uint32_t Find(uint32_t hash, uint32_t entry) const {
    return table_.Find(hash, [entry](uint32_t found) { return found == entry; });
  }
  void ExpectEqual() const {
    ASSERT_EQ(table_.size(), expected_.size());
    for (const auto& [entry, hash] : expected_) ASSERT_EQ(Find(hash, entry), entry) << "hash " << hash;
  }
  KeyTable& table() { return table_; }
  const std::unordered_map<uint32_t, uint32_t>& expected() const { return expected_; }

 private:
  KeyTable table_;
  std::unordered_map<uint32_t, uint32_t> expected_;
};

TEST(KeyTable, FindsNothingWhenEmpty) {
  KeyTable table;
  EXPECT_EQ(table.FirstCandidate(0), KeyTable::kNone);
  EXPECT_EQ(table.FirstCandidate(UINT32_MAX), KeyTable::kNone);
}

TEST(KeyTable, TellsEntriesOfOneHashApart) {
  Model model;
  for (uint32_t entry = 0; entry < 50; ++entry) model.Insert(7, entry);
  model.ExpectEqual();
  for (uint32_t entry = 0; entry < 50; entry += 2) model.Erase(entry);
  model.ExpectEqual();
  EXPECT_EQ(model.Find(7, 0), KeyTable::kNone);
}

TEST(KeyTable, ProbesAcrossTheEndOfTheArray) {
  Model model;
  for (uint32_t entry = 0; entry < 20; ++entry) model.Insert(UINT32_MAX - entry % 3, entry);
  for (uint32_t entry = 20; entry < 30; ++entry) model.Insert(entry % 3, entry);
  model.ExpectEqual();
  for (uint32_t entry = 0; entry < 20; entry += 3) model.Erase(entry);
  model.ExpectEqual();
}

TEST(KeyTable, ErasingWhatIsAbsentEndsTheProcess) {
  KeyTable table;
  table.Insert(1, 1);
  EXPECT_DEATH(table.Erase(1, 2), "erased");
  EXPECT_DEATH(table.Erase(2, 1), "erased");
}

// Few distinct homes make long clusters; several growths happen on the way and every step is checked against the model.
class KeyTableRandomTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(KeyTableRandomTest, AgreesWithAModelThroughGrowthAndErasure) {
  const uint32_t hash_step = GetParam();
  std::mt19937 random(hash_step);
  Model model;
  std::vector<uint32_t> live;
  uint32_t next = 0;
  bool grew = false;
  for (int step = 0; step < 40000; ++step) {
    if (live.empty() || random() % 3 != 0) {
      model.Insert(random() / hash_step * hash_step, next);
      live.push_back(next++);
    } else {
      const size_t victim = random() % live.size();
      std::swap(live[victim], live.back());
      model.Erase(live.back());
      live.pop_back();
    }
    if (live.empty()) continue;
    const uint32_t probe = live[random() % live.size()];
    ASSERT_EQ(model.Find(model.expected().at(probe), probe), probe) << "step " << step;
    grew |= model.table().growing();
    if (step % 997 == 0) {
      ASSERT_NO_FATAL_FAILURE(model.ExpectEqual());
    }
  }
  EXPECT_TRUE(grew);
  model.ExpectEqual();
}

INSTANTIATE_TEST_SUITE_P(HashSteps, KeyTableRandomTest, ::testing::Values(1u, 1u << 12, 1u << 22));

TEST(KeyTable, EraseDuringGrowthReachesBothRegions) {
  std::mt19937 random(3);
  Model model;
  uint32_t next = 0;
  while (next < 20000 || !model.table().growing()) model.Insert(random(), next++);
  // Half way through the move: old entries are on both sides of the walk.
  while (model.table().growing()) {
    model.Erase(std::min_element(model.expected().begin(), model.expected().end())->first);
  }
  model.ExpectEqual();
}

TEST(KeyTable, GrowingMovesFewCellsAnInsertAndEnds) {
  std::mt19937 random(4);
  KeyTable table;
  uint32_t next = 0;
  while (table.size() < 200000 || !table.growing()) table.Insert(random(), next++);
  const size_t cells = table.size() * 5 / 4;
  uint32_t inserts = 0;
  for (; table.growing(); ++inserts) table.Insert(random(), next++);
  // Not in one go, and long before the next growth is due.
  EXPECT_GT(inserts, cells / (8 * kIndexCellsPerMove));
  EXPECT_LT(inserts, cells / kIndexCellsPerMove + 2);
}

TEST(KeyTable, GivesTheOldRegionBackWhileItMoves) {
  std::mt19937 random(5);
  KeyTable table;
  uint32_t next = 0;
  while (table.size() < (1u << 20) || !table.growing()) table.Insert(random(), next++);
  const size_t both_bytes = table.MemoryBytes();
  size_t previous_bytes = both_bytes;
  int drops = 0;
  while (table.growing()) {
    table.Insert(random(), next++);
    drops += table.MemoryBytes() < previous_bytes;
    previous_bytes = table.MemoryBytes();
  }
  EXPECT_GE(drops, 4);
  EXPECT_EQ(table.MemoryBytes() * 3, both_bytes * 2);  // old and new were 1 : 2
  std::mt19937 again(5);
  for (uint32_t entry = 0; entry < next; ++entry) {
    ASSERT_EQ(table.Find(again(), [entry](uint32_t found) { return found == entry; }), entry);
  }
}

}  // namespace
}  // namespace kvartal::index
