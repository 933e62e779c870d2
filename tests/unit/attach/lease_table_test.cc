#include "daemon/attach/lease_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

namespace kvartal::attach {
namespace {

constexpr int64_t kLeaseNs = 10'000;
constexpr auto kAll = [](const Lease&) { return true; };

class LeaseTableTest : public ::testing::Test {
 protected:
  std::vector<engine::BlockPlace> Places(uint32_t first, uint32_t count) {
    std::vector<engine::BlockPlace> places(count);
    for (uint32_t i = 0; i < count; ++i) places[i].entry = EntryId(first + i);
    return places;
  }
  LeaseId Make(uint32_t first, uint32_t count, int64_t now_ns = 0) {
    Lease* lease = table_.Create(NamespaceId(1), now_ns);
    table_.Append(lease, Places(first, count), now_ns);
    return lease->id;
  }
  void GiveBack(std::span<const engine::Hold> blocks) {
    for (const engine::Hold block : blocks) given_back_.push_back(block.entry.value());
  }
  auto Sink() {
    return [this](std::span<const engine::Hold> blocks) { GiveBack(blocks); };
  }
  void Release(LeaseId id, uint32_t count) {
    table_.Release(table_.Find(id), count);
    table_.GiveBack(UINT32_MAX, Sink());
  }
  uint32_t Expire(int64_t now_ns) {
    const uint32_t leases = table_.Expire(now_ns);
    table_.GiveBack(UINT32_MAX, Sink());
    return leases;
  }

  uint64_t serial_ = 0;
  LeaseTable table_{&serial_, kLeaseNs};
  std::vector<uint32_t> given_back_;
};

// Sessions of a group may ask all the time: that costs the loop no more than one that asks.
TEST_F(LeaseTableTest, WhetherItMayBeRenewedIsLookedIntoOnceAWhile) {
  Make(100, 5);
  Make(200, 5);
  int looked = 0;
  bool may = true;
  const auto judge = [&](const Lease&) {
    ++looked;
    return may;
  };
  for (int i = 0; i < 50; ++i) EXPECT_EQ(table_.RenewAll(1, judge), 2u);
  EXPECT_EQ(looked, 2);
  may = false;
  constexpr int64_t kNextNs = 1 + kLeaseNs / kLeaseFreshParts;
  EXPECT_EQ(table_.RenewAll(kNextNs - 1, judge), 2u);
  EXPECT_EQ(table_.RenewAll(kNextNs, judge), 0u);
  EXPECT_EQ(table_.RenewAll(kNextNs + 1, judge), 0u);
  EXPECT_EQ(looked, 4);
  may = true;
  const LeaseId fresh = Make(300, 1, kNextNs + 1);
  EXPECT_TRUE(table_.MayRenew(table_.Find(fresh), kNextNs + 1, judge)) << "another lease is another question";
}

TEST_F(LeaseTableTest, AllTablesOfATenantAreCountedTogether) {
  const auto together = std::make_shared<uint64_t>(0);
  LeaseTable first(&serial_, kLeaseNs, together);
  {
    LeaseTable second(&serial_, kLeaseNs, together);
    first.Append(first.Create(NamespaceId(1), 0), Places(1, 3), 0);
    second.Append(second.Create(NamespaceId(1), 0), Places(1, 4), 0);
    EXPECT_EQ(first.tenant_positions(), 7u);
  }
  EXPECT_EQ(*together, 3u);
  first.ReleaseAll();
  EXPECT_EQ(*together, 3u) << "not yet given back";
  first.GiveBack(UINT32_MAX, Sink());
  EXPECT_EQ(*together, 0u);
}

TEST_F(LeaseTableTest, ReleasesFromTheFrontAndPositionsStay) {
  const LeaseId id = Make(100, 5);
  Release(id, 2);
  EXPECT_EQ(given_back_, (std::vector<uint32_t>{100, 101}));
  Lease* lease = table_.Find(id);
  ASSERT_NE(lease, nullptr);
  EXPECT_EQ(lease->front, 2u);
  EXPECT_EQ(lease->blocks[2].entry, EntryId(102)) << "position 2 is the same block as before";
  EXPECT_EQ(table_.leased_blocks(), 3u);
  Release(id, 0);
  EXPECT_EQ(given_back_.size(), 5u);
  EXPECT_EQ(table_.Find(id), nullptr);
  EXPECT_EQ(table_.leases(), 0u);
  EXPECT_EQ(table_.leased_blocks(), 0u);
}

TEST_F(LeaseTableTest, ReleasingMoreThanIsLeftReleasesWhatIsLeft) {
  const LeaseId id = Make(100, 3);
  Release(id, UINT32_MAX);
  EXPECT_EQ(given_back_.size(), 3u);
  EXPECT_EQ(table_.Find(id), nullptr);
}

TEST_F(LeaseTableTest, AnIdNeverComesBackWithItsSlot) {
  const LeaseId first = Make(1, 1);
  Release(first, 0);
  const LeaseId second = Make(2, 1);
  EXPECT_NE(first, second);
  EXPECT_EQ(table_.Find(first), nullptr);
  // Another group's lease in the same slot is not taken for ours either.
  LeaseTable other(&serial_, kLeaseNs);
  const LeaseId foreign = other.Create(NamespaceId(1), 0)->id;
  EXPECT_EQ(table_.Find(foreign), nullptr);
  EXPECT_EQ(other.Find(second), nullptr);
  EXPECT_EQ(table_.Find(LeaseId(0)), nullptr);
  EXPECT_EQ(table_.Find(LeaseId(UINT64_MAX)), nullptr);
}

TEST_F(LeaseTableTest, ExpiresWhatWasNotRenewed) {
  const LeaseId renewed = Make(1, 1, 0);
  const LeaseId appended = Make(2, 1, 0);
  const LeaseId forgotten = Make(3, 2, 0);
  table_.Renew(table_.Find(renewed), 5'000);
  table_.Append(table_.Find(appended), Places(10, 1), 6'000);
  EXPECT_EQ(Expire(kLeaseNs - 1), 0u);
  EXPECT_EQ(Expire(kLeaseNs), 1u);
  EXPECT_EQ(given_back_, (std::vector<uint32_t>{3, 4}));
  EXPECT_EQ(table_.Find(forgotten), nullptr);
  EXPECT_NE(table_.Find(renewed), nullptr);
  EXPECT_NE(table_.Find(appended), nullptr);
  EXPECT_EQ(table_.RenewAll(12'000, kAll), 2u);
  EXPECT_EQ(Expire(21'999), 0u);
  EXPECT_EQ(Expire(22'000), 2u);
}

TEST_F(LeaseTableTest, WhatMayNotBeRenewedEndsAtItsTime) {
  const LeaseId first = Make(1, 1), owed = Make(2, 1), last = Make(3, 1);
  EXPECT_EQ(table_.RenewAll(5'000, [&](const Lease& lease) { return lease.id != owed; }), 2u);
  table_.Append(table_.Find(owed), Places(4, 1), 6'000, /*renew=*/false);
  EXPECT_EQ(Expire(kLeaseNs), 1u);
  EXPECT_EQ(given_back_, (std::vector<uint32_t>{2, 4}));
  EXPECT_NE(table_.Find(first), nullptr);
  EXPECT_NE(table_.Find(last), nullptr);
}

TEST_F(LeaseTableTest, BlocksComeBackInPartsAndAnEndedLeaseIsGoneAtOnce) {
  const LeaseId big = Make(1, 10);
  EXPECT_EQ(table_.Expire(kLeaseNs), 1u);
  EXPECT_EQ(table_.GiveBack(4, Sink()), 4u);
  EXPECT_EQ(table_.Find(big), nullptr);
  EXPECT_EQ(table_.RenewAll(kLeaseNs, kAll), 0u) << "it cannot be brought back";
  EXPECT_EQ(table_.Expire(kLeaseNs), 0u) << "counted once";
  EXPECT_TRUE(table_.owes());
  EXPECT_FALSE(table_.MayAppend(kLeasedBlocksPerGroupMax)) << "what is not given back yet counts";
  EXPECT_EQ(table_.GiveBack(100, Sink()), 6u);
  EXPECT_FALSE(table_.owes());
  EXPECT_TRUE(table_.MayAppend(kLeasedBlocksPerGroupMax));
  EXPECT_EQ(given_back_.size(), 10u);
}

TEST_F(LeaseTableTest, WhatIsReleasedBesideWhatIsOwedComesBackOnce) {
  const LeaseId id = Make(1, 10);
  table_.Release(table_.Find(id), 5);
  EXPECT_EQ(table_.GiveBack(3, Sink()), 3u);
  table_.Release(table_.Find(id), 2);
  EXPECT_EQ(table_.GiveBack(3, Sink()), 3u);
  table_.Release(table_.Find(id), 0);
  EXPECT_EQ(table_.GiveBack(100, Sink()), 4u);
  EXPECT_EQ(given_back_, (std::vector<uint32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(table_.leases(), 0u);
}

TEST_F(LeaseTableTest, HoldsNoMoreThanItsLimits) {
  while (table_.MayCreate()) Make(1, 1);
  EXPECT_EQ(table_.leases(), kLeasesPerGroupMax);
  EXPECT_FALSE(table_.MayAppend(kLeasedBlocksPerGroupMax));
  table_.ReleaseAll();
  table_.GiveBack(UINT32_MAX, Sink());
  EXPECT_TRUE(table_.MayAppend(kLeasedBlocksPerGroupMax));
  EXPECT_FALSE(table_.MayAppend(kLeasedBlocksPerGroupMax + 1));
  // Released positions count until their lease ends: a window that moves for ever cannot grow for ever.
  const LeaseId id = Make(0, 1000);
  Release(id, 999);
  EXPECT_FALSE(table_.MayAppend(kLeasedBlocksPerGroupMax - 999));
}

// Any order of calls against a plain model: every block comes back exactly once, and only when it should.
class LeaseModelTest : public LeaseTableTest {
 protected:
  struct Model {
    std::vector<uint32_t> left;
    int64_t expires_ns = 0;
  };

  uint64_t Any() {
    if (model_.empty()) return 0;
    return std::next(model_.begin(), static_cast<int>(random_() % model_.size()))->first;
  }
  void DoCreate() {
    const uint32_t count = 1 + random_() % 6;
    Model& made = model_[Make(next_block_, count, now_ns_).value()];
    for (uint32_t i = 0; i < count; ++i) made.left.push_back(next_block_++);
    made.expires_ns = now_ns_ + kLeaseNs;
  }
  void DoAppend(uint64_t id) {
    table_.Append(table_.Find(LeaseId(id)), Places(next_block_, 1), now_ns_);
    model_[id].left.push_back(next_block_++);
    model_[id].expires_ns = now_ns_ + kLeaseNs;
  }
  void DoRelease(uint64_t id) {
    const uint32_t count = random_() % 4;
    std::vector<uint32_t>& left = model_[id].left;
    const auto taken = static_cast<ptrdiff_t>(count == 0 ? left.size() : std::min<size_t>(count, left.size()));
    Release(LeaseId(id), count);
    EXPECT_EQ(given_back_, std::vector<uint32_t>(left.begin(), left.begin() + taken));
    left.erase(left.begin(), left.begin() + taken);
    back_ += static_cast<uint32_t>(taken);
    if (left.empty()) model_.erase(id);
  }
  void DoRenew(uint64_t id) {
    table_.Renew(table_.Find(LeaseId(id)), now_ns_);
    model_[id].expires_ns = now_ns_ + kLeaseNs;
  }
  void DoExpire() {
    Expire(now_ns_);
    std::vector<uint32_t> expected;
    for (auto it = model_.begin(); it != model_.end();) {
      if (it->second.expires_ns > now_ns_) {
        ++it;
        continue;
      }
      expected.insert(expected.end(), it->second.left.begin(), it->second.left.end());
      it = model_.erase(it);
    }
    std::sort(given_back_.begin(), given_back_.end());
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(given_back_, expected);
    back_ += static_cast<uint32_t>(expected.size());
  }
  void DoAny() {
    given_back_.clear();
    now_ns_ += random_() % 300;
    const uint32_t verb = random_() % 5;
    if (verb == 0) return DoCreate();
    if (verb == 1) return DoExpire();
    const uint64_t id = Any();
    if (id == 0) return;
    if (verb == 2) return DoAppend(id);
    if (verb == 3) return DoRelease(id);
    DoRenew(id);
  }

  std::mt19937 random_;
  std::map<uint64_t, Model> model_;
  uint32_t next_block_ = 0;
  uint32_t back_ = 0;
  int64_t now_ns_ = 0;
};

TEST_F(LeaseModelTest, AnyOrderOfCallsAgreesWithAModel) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    random_.seed(seed);
    for (int step = 0; step < 2000 && !HasFailure(); ++step) {
      DoAny();
      EXPECT_EQ(table_.leases(), model_.size());
      EXPECT_EQ(table_.leased_blocks(), next_block_ - back_);
    }
  }
  given_back_.clear();
  table_.ReleaseAll();
  table_.GiveBack(UINT32_MAX, Sink());
  EXPECT_EQ(given_back_.size(), next_block_ - back_);
}

}  // namespace
}  // namespace kvartal::attach
