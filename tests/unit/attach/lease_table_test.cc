#include "daemon/attach/lease_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace kvartal::attach {
namespace {

constexpr int64_t kLeaseNs = 10'000;

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

  uint64_t serial_ = 0;
  LeaseTable table_{&serial_, kLeaseNs};
  std::vector<uint32_t> given_back_;
};

TEST_F(LeaseTableTest, ReleasesFromTheFrontAndPositionsStay) {
  const LeaseId id = Make(100, 5);
  table_.Release(table_.Find(id), 2, Sink());
  EXPECT_EQ(given_back_, (std::vector<uint32_t>{100, 101}));
  Lease* lease = table_.Find(id);
  ASSERT_NE(lease, nullptr);
  EXPECT_EQ(lease->front, 2u);
  EXPECT_EQ(lease->blocks[2].entry, EntryId(102)) << "position 2 is the same block as before";
  EXPECT_EQ(table_.leased_blocks(), 3u);
  table_.Release(lease, 0, Sink());
  EXPECT_EQ(given_back_.size(), 5u);
  EXPECT_EQ(table_.Find(id), nullptr);
  EXPECT_EQ(table_.leases(), 0u);
  EXPECT_EQ(table_.leased_blocks(), 0u);
}

TEST_F(LeaseTableTest, ReleasingMoreThanIsLeftReleasesWhatIsLeft) {
  const LeaseId id = Make(100, 3);
  table_.Release(table_.Find(id), UINT32_MAX, Sink());
  EXPECT_EQ(given_back_.size(), 3u);
  EXPECT_EQ(table_.Find(id), nullptr);
}

TEST_F(LeaseTableTest, AnIdNeverComesBackWithItsSlot) {
  const LeaseId first = Make(1, 1);
  table_.Release(table_.Find(first), 0, Sink());
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
  EXPECT_EQ(table_.Expire(kLeaseNs - 1, 100, Sink()).leases, 0u);
  const LeaseTable::Expired expired = table_.Expire(kLeaseNs, 100, Sink());
  EXPECT_EQ(expired.leases, 1u);
  EXPECT_EQ(expired.blocks, 2u);
  EXPECT_EQ(given_back_, (std::vector<uint32_t>{3, 4}));
  EXPECT_EQ(table_.Find(forgotten), nullptr);
  EXPECT_NE(table_.Find(renewed), nullptr);
  EXPECT_NE(table_.Find(appended), nullptr);
  EXPECT_EQ(table_.RenewAll(12'000), 2u);
  EXPECT_EQ(table_.Expire(21'999, 100, Sink()).leases, 0u);
  EXPECT_EQ(table_.Expire(22'000, 100, Sink()).leases, 2u);
}

TEST_F(LeaseTableTest, ExpiryIsBoundedAndAnEndedLeaseIsGoneAtOnce) {
  const LeaseId big = Make(1, 10);
  const LeaseTable::Expired first = table_.Expire(kLeaseNs, 4, Sink());
  EXPECT_EQ(first.leases, 1u);
  EXPECT_EQ(first.blocks, 4u);
  EXPECT_EQ(table_.Find(big), nullptr);
  EXPECT_EQ(table_.RenewAll(kLeaseNs), 0u) << "it cannot be brought back";
  const LeaseTable::Expired second = table_.Expire(kLeaseNs, 100, Sink());
  EXPECT_EQ(second.leases, 0u) << "counted once";
  EXPECT_EQ(second.blocks, 6u);
  EXPECT_EQ(given_back_.size(), 10u);
}

TEST_F(LeaseTableTest, HoldsNoMoreThanItsLimits) {
  while (table_.MayCreate()) Make(1, 1);
  EXPECT_EQ(table_.leases(), kLeasesPerGroupMax);
  EXPECT_FALSE(table_.MayAppend(kLeasedBlocksPerGroupMax));
  table_.ReleaseAll(Sink());
  EXPECT_TRUE(table_.MayAppend(kLeasedBlocksPerGroupMax));
  EXPECT_FALSE(table_.MayAppend(kLeasedBlocksPerGroupMax + 1));
  // Released positions count until their lease ends: a window that moves for ever cannot grow for ever.
  const LeaseId id = Make(0, 1000);
  table_.Release(table_.Find(id), 999, Sink());
  EXPECT_FALSE(table_.MayAppend(kLeasedBlocksPerGroupMax - 999));
}

// Any order of calls against a plain model: every block comes back exactly once, and only when it should.
TEST_F(LeaseTableTest, AnyOrderOfCallsAgreesWithAModel) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    given_back_.clear();
    struct Model {
      std::vector<uint32_t> left;
      int64_t expires_ns;
    };
    std::map<uint64_t, Model> model;
    uint32_t next_block = 0;
    uint32_t expected_back = 0;
    int64_t now_ns = 0;
    auto any = [&]() -> uint64_t {
      if (model.empty()) return 0;
      return std::next(model.begin(), static_cast<int>(random() % model.size()))->first;
    };
    for (int step = 0; step < 2000; ++step) {
      now_ns += random() % 300;
      switch (random() % 5) {
        case 0: {
          const uint32_t count = 1 + random() % 6;
          const LeaseId id = Make(next_block, count, now_ns);
          Model& made = model[id.value()];
          for (uint32_t i = 0; i < count; ++i) made.left.push_back(next_block + i);
          made.expires_ns = now_ns + kLeaseNs;
          next_block += count;
          break;
        }
        case 1: {
          const uint64_t id = any();
          if (id == 0) break;
          table_.Append(table_.Find(LeaseId(id)), Places(next_block, 1), now_ns);
          model[id].left.push_back(next_block++);
          model[id].expires_ns = now_ns + kLeaseNs;
          break;
        }
        case 2: {
          const uint64_t id = any();
          if (id == 0) break;
          const uint32_t count = random() % 4;
          std::vector<uint32_t>& left = model[id].left;
          const size_t taken = count == 0 ? left.size() : std::min<size_t>(count, left.size());
          given_back_.clear();
          table_.Release(table_.Find(LeaseId(id)), count, Sink());
          EXPECT_EQ(given_back_, std::vector<uint32_t>(left.begin(), left.begin() + static_cast<ptrdiff_t>(taken)));
          left.erase(left.begin(), left.begin() + static_cast<ptrdiff_t>(taken));
          expected_back += static_cast<uint32_t>(taken);
          if (left.empty()) model.erase(id);
          break;
        }
        case 3: {
          const uint64_t id = any();
          if (id == 0) break;
          table_.Renew(table_.Find(LeaseId(id)), now_ns);
          model[id].expires_ns = now_ns + kLeaseNs;
          break;
        }
        case 4: {
          given_back_.clear();
          table_.Expire(now_ns, UINT32_MAX, Sink());
          std::vector<uint32_t> expected;
          for (auto it = model.begin(); it != model.end();) {
            if (it->second.expires_ns > now_ns) {
              ++it;
              continue;
            }
            expected.insert(expected.end(), it->second.left.begin(), it->second.left.end());
            it = model.erase(it);
          }
          std::sort(given_back_.begin(), given_back_.end());
          std::sort(expected.begin(), expected.end());
          EXPECT_EQ(given_back_, expected) << "seed " << seed << " step " << step;
          expected_back += static_cast<uint32_t>(expected.size());
          break;
        }
      }
      EXPECT_EQ(table_.leases(), model.size());
      EXPECT_EQ(table_.leased_blocks(), next_block - expected_back);
      if (HasFailure()) return;
    }
    given_back_.clear();
    table_.ReleaseAll(Sink());
    EXPECT_EQ(given_back_.size(), next_block - expected_back);
  }
}

}  // namespace
}  // namespace kvartal::attach
