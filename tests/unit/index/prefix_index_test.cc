#include "daemon/index/prefix_index.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "daemon/base/units.h"

namespace kvartal::index {
namespace {

constexpr NamespaceId kNs(1);
constexpr NamespaceId kOtherNs(2);

BlockKey KeyOf(uint64_t number) {
  BlockKey key;
  std::memcpy(key.bytes.data() + 24, &number, sizeof(number));
  return key;
}

std::vector<EntryId> FindAll(const PrefixIndex& index, NamespaceId ns, const std::vector<BlockKey>& keys) {
  std::vector<EntryId> out(keys.size());
  index.FindChain(ns, keys, out);
  return out;
}

TEST(PrefixIndex, FindsWhatWasInsertedUnderItsNamespaceOnly) {
  PrefixIndex index;
  const EntryId id = index.Insert(kNs, KeyOf(1), EntryId::None(), 0);
  EXPECT_EQ(index.Find(kNs, KeyOf(1)), id);
  EXPECT_FALSE(index.Find(kOtherNs, KeyOf(1)).valid());
  EXPECT_FALSE(index.Find(kNs, KeyOf(2)).valid());
  EXPECT_EQ(index.size(), 1u);
  EXPECT_EQ(index.at(id).state, BlockState::kGone);
  EXPECT_EQ(index.at(id).key, KeyOf(1));
}

TEST(PrefixIndex, EqualKeysOfTwoNamespacesAreTwoEntries) {
  PrefixIndex index;
  const EntryId first = index.Insert(kNs, KeyOf(1), EntryId::None(), 0);
  const EntryId second = index.Insert(kOtherNs, KeyOf(1), EntryId::None(), 0);
  EXPECT_NE(first, second);
  index.Erase(first);
  EXPECT_FALSE(index.Find(kNs, KeyOf(1)).valid());
  EXPECT_EQ(index.Find(kOtherNs, KeyOf(1)), second);
}

TEST(PrefixIndex, ComparesKeysWhole) {
  PrefixIndex index;
  const BlockKey key = KeyOf(1);
  const EntryId id = index.Insert(kNs, key, EntryId::None(), 0);
  for (size_t byte = 0; byte < kBlockKeyBytes; ++byte) {
    BlockKey other = key;
    other.bytes[byte] ^= 0x80;
    EXPECT_FALSE(index.Find(kNs, other).valid()) << "byte " << byte;
  }
  EXPECT_EQ(index.Find(kNs, key), id);
}

TEST(PrefixIndex, FindChainAnswersEachKeyAndDoesNotStopAtGaps) {
  PrefixIndex index;
  std::vector<BlockKey> keys;
  EntryId parent;
  for (uint64_t i = 0; i < 200; ++i) {
    keys.push_back(KeyOf(i));
    if (i % 5 == 3) continue;
    parent = index.Insert(kNs, KeyOf(i), parent, static_cast<uint32_t>(i));
  }
  const std::vector<EntryId> found = FindAll(index, kNs, keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(found[i].valid(), i % 5 != 3) << i;
    EXPECT_EQ(found[i], index.Find(kNs, keys[i])) << i;
  }
  for (EntryId id : FindAll(index, kOtherNs, keys)) EXPECT_FALSE(id.valid());
  FindAll(index, kNs, {});
}

TEST(PrefixIndex, CountsChildrenOfEachParent) {
  PrefixIndex index;
  const EntryId root = index.Insert(kNs, KeyOf(0), EntryId::None(), 0);
  const EntryId left = index.Insert(kNs, KeyOf(1), root, 1);
  const EntryId right = index.Insert(kNs, KeyOf(2), root, 1);
  EXPECT_EQ(index.at(root).children, 2u);
  index.Erase(left);
  EXPECT_EQ(index.at(root).children, 1u);
  EXPECT_EQ(index.at(right).depth, 1u);
  EXPECT_EQ(index.at(right).parent, root);
}

TEST(PrefixIndex, CountsResidentChildrenPerTier) {
  PrefixIndex index;
  const EntryId root = index.Insert(kNs, KeyOf(0), EntryId::None(), 0);
  const EntryId left = index.Insert(kNs, KeyOf(1), root, 1);
  const EntryId right = index.Insert(kNs, KeyOf(2), root, 1);
  index.SetCopy(root, TierKind::kDram, SlotId(1));
  index.SetCopy(left, TierKind::kDram, SlotId(2));
  index.SetCopy(right, TierKind::kDram, SlotId(3));
  index.SetCopy(right, TierKind::kNvme, SlotId(9));
  EXPECT_EQ(index.at(root).copy(TierKind::kDram).children, 2u);
  EXPECT_EQ(index.at(root).copy(TierKind::kNvme).children, 1u);
  EXPECT_EQ(index.at(root).copy(TierKind::kHbm).children, 0u);
  EXPECT_EQ(index.at(left).copy(TierKind::kDram).children, 0u);

  index.SetCopy(left, TierKind::kDram, SlotId(7));  // moved within the tier: still one child
  EXPECT_EQ(index.at(root).copy(TierKind::kDram).children, 2u);
  EXPECT_EQ(index.at(left).copy(TierKind::kDram).slot, SlotId(7));

  index.ClearCopy(left, TierKind::kDram);
  index.ClearCopy(left, TierKind::kDram);
  EXPECT_FALSE(index.at(left).resident(TierKind::kDram));
  EXPECT_EQ(index.at(root).copy(TierKind::kDram).children, 1u);
  index.ClearCopy(right, TierKind::kDram);
  EXPECT_EQ(index.at(root).copy(TierKind::kDram).children, 0u);
  EXPECT_EQ(index.at(root).copy(TierKind::kNvme).children, 1u);
}

TEST(PrefixIndex, AParentFoundLaterCountsTheCopiesThatAreThere) {
  PrefixIndex index;
  const EntryId child = index.Insert(kNs, KeyOf(1), EntryId::None(), 1);
  index.SetCopy(child, TierKind::kNvme, SlotId(1));
  const EntryId parent = index.Insert(kNs, KeyOf(0), EntryId::None(), 0);
  index.SetParent(child, parent);
  EXPECT_EQ(index.at(child).parent, parent);
  EXPECT_EQ(index.at(parent).children, 1u);
  EXPECT_EQ(index.at(parent).copy(TierKind::kNvme).children, 1u);
  EXPECT_EQ(index.at(parent).copy(TierKind::kDram).children, 0u);
  index.ClearCopy(child, TierKind::kNvme);
  EXPECT_EQ(index.at(parent).copy(TierKind::kNvme).children, 0u);
  index.Erase(child);
  EXPECT_EQ(index.at(parent).children, 0u);
}

TEST(PrefixIndexDeathTest, AParentIsSetOnce) {
  PrefixIndex index;
  const EntryId parent = index.Insert(kNs, KeyOf(0), EntryId::None(), 0);
  const EntryId child = index.Insert(kNs, KeyOf(1), parent, 1);
  EXPECT_DEATH(index.SetParent(child, parent), "parent");
  EXPECT_DEATH(index.SetParent(parent, parent), "parent != id");
}

TEST(PrefixIndex, ReusesAnErasedIdAndStartsItClean) {
  PrefixIndex index;
  const EntryId first = index.Insert(kNs, KeyOf(1), EntryId::None(), 5);
  index.at(first).pinned = true;
  index.at(first).last_touch = 99;
  index.Erase(first);
  EXPECT_FALSE(index.IsLive(first));
  const EntryId second = index.Insert(kNs, KeyOf(2), EntryId::None(), 0);
  EXPECT_EQ(second, first);
  EXPECT_FALSE(index.at(second).pinned);
  EXPECT_EQ(index.at(second).last_touch, 0u);
  EXPECT_FALSE(index.Find(kNs, KeyOf(1)).valid());
}

TEST(PrefixIndex, NoneAndUnknownIdsAreNotLive) {
  PrefixIndex index;
  EXPECT_FALSE(index.IsLive(EntryId::None()));
  EXPECT_FALSE(index.IsLive(EntryId(0)));
  const EntryId id = index.Insert(kNs, KeyOf(1), EntryId::None(), 0);
  EXPECT_TRUE(index.IsLive(id));
  EXPECT_FALSE(index.IsLive(EntryId(id.value() + 1)));
  EXPECT_EQ(index.id_limit(), id.value() + 1);
}

TEST(PrefixIndexDeathTest, EraseRefusesWhatIsInUse) {
  PrefixIndex index;
  const EntryId root = index.Insert(kNs, KeyOf(0), EntryId::None(), 0);
  const EntryId leaf = index.Insert(kNs, KeyOf(1), root, 1);
  EXPECT_DEATH(index.Erase(root), "children");
  index.SetCopy(leaf, TierKind::kNvme, SlotId(1));
  EXPECT_DEATH(index.Erase(leaf), "resident");
  index.ClearCopy(leaf, TierKind::kNvme);
  index.at(leaf).lease_count = 1;
  EXPECT_DEATH(index.Erase(leaf), "in_use");
  index.at(leaf).lease_count = 0;
  index.at(leaf).writing = true;
  EXPECT_DEATH(index.Erase(leaf), "writing");
  index.at(leaf).writing = false;
  index.at(leaf).reading = true;
  EXPECT_DEATH(index.Erase(leaf), "reading");
  index.at(leaf).reading = false;
  index.Erase(leaf);
  EXPECT_DEATH(index.Erase(leaf), "IsLive");
  EXPECT_DEATH(index.at(leaf), "IsLive");
  index.Erase(root);
  EXPECT_EQ(index.size(), 0u);
}

TEST(PrefixIndexDeathTest, InsertRefusesASecondEntryOfAKeyAndADeadParent) {
  PrefixIndex index;
  const EntryId id = index.Insert(kNs, KeyOf(0), EntryId::None(), 0);
  EXPECT_DEATH(index.Insert(kNs, KeyOf(0), EntryId::None(), 0), "Find");
  index.Erase(id);
  EXPECT_DEATH(index.Insert(kNs, KeyOf(1), id, 1), "parent");
  EXPECT_DEATH(index.SetCopy(id, TierKind::kDram, SlotId(1)), "IsLive");
}

// What the index must be: a map, and counts that can be recomputed from it.
struct ModelEntry {
  EntryId id;
  std::pair<uint32_t, uint64_t> parent;
  bool has_parent = false;
  uint32_t children = 0;
  std::array<bool, kTierCount> resident{};
  std::array<uint32_t, kTierCount> resident_children{};
};

class IndexModel {
 public:
  explicit IndexModel(uint32_t seed) : random_(seed) {}

  void Step() {
    const auto name = std::pair(1 + random_() % 2, uint64_t{random_() % 3000});
    auto it = entries_.find(name);
    if (it == entries_.end()) {
      Insert(name);
    } else if (random_() % 2 == 0) {
      FlipCopy(it->second, kAllTiers[random_() % kTierCount]);
    } else {
      EraseIfFree(it);
    }
  }

  void ExpectEqual() const {
    ASSERT_EQ(index_.size(), entries_.size());
    std::array<std::vector<BlockKey>, 3> keys;
    for (uint32_t ns : {1, 2}) {
      for (uint64_t number = 0; number < 3000; ++number) keys[ns].push_back(KeyOf(number));
      const std::vector<EntryId> found = FindAll(index_, NamespaceId(ns), keys[ns]);
      for (uint64_t number = 0; number < 3000; ++number) {
        auto it = entries_.find({ns, number});
        ASSERT_EQ(found[number], it == entries_.end() ? EntryId::None() : it->second.id) << ns << "/" << number;
      }
    }
    for (const auto& [name, expected] : entries_) {
      const Entry& entry = index_.at(expected.id);
      ASSERT_EQ(entry.children, expected.children);
      for (TierKind tier : kAllTiers) {
        ASSERT_EQ(entry.resident(tier), expected.resident[TierIndex(tier)]);
        ASSERT_EQ(entry.copy(tier).children, expected.resident_children[TierIndex(tier)]);
      }
    }
  }
  size_t size() const { return entries_.size(); }

 private:
  using Name = std::pair<uint32_t, uint64_t>;

  void Insert(const Name& name) {
    ModelEntry entry;
    // A lower number of the same namespace, so that parents form a forest.
    auto parent = entries_.lower_bound({name.first, name.second - std::min<uint64_t>(name.second, random_() % 4)});
    if (parent != entries_.end() && parent->first.first == name.first && parent->first < name) {
      entry.has_parent = true;
      entry.parent = parent->first;
      ++parent->second.children;
    }
    entry.id = index_.Insert(NamespaceId(name.first), KeyOf(name.second),
                             entry.has_parent ? parent->second.id : EntryId::None(), 0);
    entries_.emplace(name, entry);
  }

  void FlipCopy(ModelEntry& entry, TierKind tier) {
    bool& resident = entry.resident[TierIndex(tier)];
    if (entry.has_parent) entries_.at(entry.parent).resident_children[TierIndex(tier)] += resident ? -1 : 1;
    resident = !resident;
    if (resident) {
      index_.SetCopy(entry.id, tier, SlotId(random_() % 1000));
    } else {
      index_.ClearCopy(entry.id, tier);
    }
  }

  void EraseIfFree(std::map<Name, ModelEntry>::iterator it) {
    if (it->second.children != 0) return;
    for (TierKind tier : kAllTiers) {
      if (it->second.resident[TierIndex(tier)]) FlipCopy(it->second, tier);
    }
    if (it->second.has_parent) --entries_.at(it->second.parent).children;
    index_.Erase(it->second.id);
    entries_.erase(it);
  }

  std::mt19937 random_;
  PrefixIndex index_;
  std::map<Name, ModelEntry> entries_;
};

TEST(PrefixIndex, AgreesWithAModelUnderRandomOperations) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    IndexModel model(seed);
    for (int step = 0; step < 60000; ++step) {
      model.Step();
      if (step % 5000 == 0) {
        ASSERT_NO_FATAL_FAILURE(model.ExpectEqual());
      }
    }
    ASSERT_NO_FATAL_FAILURE(model.ExpectEqual());
    EXPECT_GT(model.size(), 500u);
  }
}

TEST(PrefixIndex, EntriesStayWhereTheyAreWhileTheIndexGrows) {
  PrefixIndex index;
  const EntryId first = index.Insert(kNs, KeyOf(0), EntryId::None(), 0);
  const Entry* address = &index.at(first);
  for (uint64_t i = 1; i < 200000; ++i) index.Insert(kNs, KeyOf(i), EntryId::None(), 0);
  EXPECT_EQ(&index.at(first), address);
  EXPECT_EQ(index.Find(kNs, KeyOf(0)), first);
}

TEST(PrefixIndex, AnEntryCostsAtMost128BytesAtAnyFill) {
  PrefixIndex index;
  for (uint64_t i = 0; i < 900000; ++i) {
    index.Insert(kNs, KeyOf(i), EntryId::None(), 0);
    // The last chunk of entries is paid whole: a constant that no longer matters at ten million.
    if (i % 1000 != 0) continue;
    ASSERT_LE(index.MemoryBytes(), 128 * index.size() + 8 * kMiB) << index.size();
  }
}

}  // namespace
}  // namespace kvartal::index
