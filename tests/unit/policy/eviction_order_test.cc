#include "daemon/policy/eviction_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "daemon/policy/eviction_names.h"
#include "daemon/policy/tenant_orders.h"
#include "tests/unit/policy/replay_cache.h"

namespace kvartal::policy {
namespace {

BlockTraits Traits(uint64_t last_touch, uint32_t depth) {
  BlockTraits traits;
  traits.last_touch = last_touch;
  traits.depth = depth;
  return traits;
}

bool Any(EntryId) { return true; }

TEST(LruOrder, TakesTheOldestRequestFirstAndItsDeepestBlockFirst) {
  const std::map<uint32_t, BlockTraits> blocks = {
      {1, Traits(2, 9)}, {2, Traits(1, 0)}, {3, Traits(1, 7)}, {4, Traits(1, 3)}};
  const auto order = NewLruOrder();
  for (const auto& [id, traits] : blocks) order->Insert(EntryId(id), traits);
  std::vector<uint32_t> taken;
  while (order->size() > 0) {
    const EntryId victim = order->Victim(Any, 1);
    EXPECT_EQ(victim, order->Oldest());
    taken.push_back(victim.value());
    order->Remove(victim, blocks.at(victim.value()));
  }
  EXPECT_EQ(taken, (std::vector<uint32_t>{3, 4, 2, 1}));
}

TEST(LruOrder, EmptyHasNoVictimAndNoOldest) {
  const auto order = NewLruOrder();
  EXPECT_FALSE(order->Victim(Any, 100).valid());
  EXPECT_FALSE(order->Oldest().valid());
  EXPECT_EQ(order->size(), 0u);
}

TEST(LruOrder, ALeafThatAppearsLateGoesWhereItsLastUsePutsIt) {
  const auto order = NewLruOrder();
  order->Insert(EntryId(1), Traits(2, 0));
  order->Insert(EntryId(2), Traits(3, 0));
  order->Insert(EntryId(3), Traits(1, 0));
  EXPECT_EQ(order->Oldest(), EntryId(3));
  order->Remove(EntryId(3), Traits(1, 0));
  EXPECT_EQ(order->Oldest(), EntryId(1));
  EXPECT_EQ(order->size(), 2u);
}

TEST(LruOrder, PassesRefusedBlocksOverUpToTheProbeBound) {
  const auto order = NewLruOrder();
  for (uint32_t i = 0; i < 10; ++i) order->Insert(EntryId(i), Traits(i, 0));
  std::vector<uint32_t> asked;
  const auto from_five = [&asked](EntryId id) {
    asked.push_back(id.value());
    return id.value() >= 5;
  };
  EXPECT_EQ(order->Victim(from_five, 6), EntryId(5));
  EXPECT_EQ(asked, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5}));
  asked.clear();
  EXPECT_FALSE(order->Victim(from_five, 5).valid());
  EXPECT_EQ(asked.size(), 5u);
  EXPECT_FALSE(order->Victim(Any, 0).valid());
  EXPECT_EQ(order->size(), 10u);
}

TEST(LruOrder, KeepsBlocksWithEqualTraitsApart) {
  const auto order = NewLruOrder();
  order->Insert(EntryId(1), Traits(1, 1));
  order->Insert(EntryId(2), Traits(1, 1));
  order->Remove(EntryId(1), Traits(1, 1));
  EXPECT_EQ(order->Oldest(), EntryId(2));
}

TEST(LruOrderDeathTest, TraitsThatAreNotTheLastOnesEndTheProcess) {
  const auto order = NewLruOrder();
  order->Insert(EntryId(1), Traits(1, 1));
  EXPECT_DEATH(order->Insert(EntryId(1), Traits(1, 1)), "insert");
  EXPECT_DEATH(order->Remove(EntryId(1), Traits(2, 1)), "leaf");
  EXPECT_DEATH(order->Remove(EntryId(2), Traits(1, 1)), "leaf");
}

TEST(SetHistoryWanted, KeepsOneForWhoeverLearnsFromItAndNobodyElse) {
  TenantOrders lru = *NewTenantOrders("lru");
  SetHistoryWanted(true, &lru);
  ASSERT_NE(lru.history, nullptr);
  const ReuseHistory* const kept = lru.history.get();
  SetHistoryWanted(true, &lru);
  EXPECT_EQ(lru.history.get(), kept);
  SetHistoryWanted(false, &lru);
  EXPECT_EQ(lru.history, nullptr);
  TenantOrders lhd = *NewTenantOrders("lhd");
  SetHistoryWanted(false, &lhd);
  EXPECT_NE(lhd.history, nullptr) << "its orders learn from it";
}

TEST(NewTenantOrders, KnowsItsNamesAndSaysWhatIsAllowed) {
  ASSERT_TRUE(NewTenantOrders("lru").ok());
  EXPECT_EQ(NewTenantOrders("lru")->history, nullptr) << "LRU learns nothing, so nothing is remembered for it";
  ASSERT_TRUE(NewTenantOrders("lhd").ok());
  EXPECT_NE(NewTenantOrders("lhd")->history, nullptr);
  const auto unknown = NewTenantOrders("lfu");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(unknown.status().message()).find("'lfu'"), std::string::npos);
  EXPECT_NE(std::string(unknown.status().message()).find("lru, lhd"), std::string::npos);
}

// --- what every order does
class AnyOrderTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  static BlockTraits In(uint32_t ns, uint64_t request) {
    BlockTraits traits = Traits(request, 0);
    traits.ns = NamespaceId(ns);
    traits.last_access_tick = static_cast<uint32_t>(request);
    traits.frequency = 1;
    return traits;
  }
  std::vector<uint32_t> Drained() {
    std::vector<uint32_t> taken;
    while (order_.size() > 0) {
      const EntryId victim = order_.Victim(Any, 1);
      taken.push_back(victim.value());
      order_.Remove(victim, blocks_.at(victim.value()));
      blocks_.erase(victim.value());
    }
    return taken;
  }
  void Insert(uint32_t id, const BlockTraits& traits) {
    blocks_[id] = traits;
    order_.Insert(EntryId(id), traits);
  }

  TenantOrders orders_ = *NewTenantOrders(GetParam());
  EvictionOrder& order_ = *orders_.tiers[TierIndex(TierKind::kDram)].front();
  std::map<uint32_t, BlockTraits> blocks_;
};

TEST_P(AnyOrderTest, RetiredNamespacesGoFirstOldestFirst) {
  order_.SetRetired(NamespaceId(2), true);
  Insert(1, In(1, 1));
  Insert(2, In(2, 9));
  Insert(3, In(3, 2));
  Insert(4, In(2, 7));
  Insert(5, In(3, 8));
  order_.SetRetired(NamespaceId(3), true);  // with blocks in it
  EXPECT_EQ(order_.Oldest(), EntryId(1));
  EXPECT_TRUE(order_.GoesBefore(In(2, 9), In(1, 1)));
  EXPECT_FALSE(order_.GoesBefore(In(1, 1), In(2, 9)));
  EXPECT_EQ(Drained(), (std::vector<uint32_t>{3, 4, 5, 2, 1}));
}

TEST_P(AnyOrderTest, ANamespaceThatIsOpenedAgainIsLikeAnyOther) {
  Insert(1, In(1, 1));
  Insert(2, In(2, 2));
  Insert(3, In(1, 3));
  order_.SetRetired(NamespaceId(2), true);
  order_.SetRetired(NamespaceId(2), true);
  EXPECT_EQ(order_.Victim(Any, 1), EntryId(2));
  order_.SetRetired(NamespaceId(2), false);
  EXPECT_FALSE(order_.GoesBefore(In(2, 2), In(1, 1)));
  EXPECT_EQ(Drained(), (std::vector<uint32_t>{1, 2, 3}));
}

TEST_P(AnyOrderTest, ARetiredBlockThatMayNotGoDoesNotSaveTheOthers) {
  order_.SetRetired(NamespaceId(2), true);
  Insert(1, In(1, 1));
  Insert(2, In(2, 2));
  Insert(3, In(2, 3));
  EXPECT_EQ(order_.Victim([](EntryId id) { return id != EntryId(2); }, 10), EntryId(3));
  EXPECT_EQ(order_.Victim([](EntryId id) { return id == EntryId(1); }, 10), EntryId(1));
  EXPECT_FALSE(order_.Victim([](EntryId id) { return id == EntryId(1); }, 2).valid());
}

TEST_P(AnyOrderTest, AmongManyNamespacesTheOldestThatMayGoIsFound) {
  std::mt19937 random(7);
  for (uint32_t id = 0; id < 400; ++id) Insert(id, In(random() % 20, 1 + random() % 1000));
  for (int round = 0; round < 300; ++round) {
    const std::set<uint32_t> refused = {static_cast<uint32_t>(random() % 400), static_cast<uint32_t>(random() % 400)};
    const auto may_evict = [&](EntryId id) { return refused.count(id.value()) == 0; };
    uint64_t oldest = UINT64_MAX;
    for (const auto& [id, traits] : blocks_) {
      if (refused.count(id) == 0) oldest = std::min(oldest, traits.last_touch);
    }
    const EntryId victim = order_.Victim(may_evict, 100);
    ASSERT_TRUE(victim.valid());
    ASSERT_EQ(blocks_.at(victim.value()).last_touch, oldest);
    order_.Remove(victim, blocks_.at(victim.value()));
    blocks_.erase(victim.value());
  }
}

// Of a tenant with two models one has many more blocks than a search asks about, all of them older.
TEST_P(AnyOrderTest, ManyBlocksOfOtherNamespacesHideNone) {
  constexpr uint32_t kOthers = 10'000, kProbes = 64;
  for (uint32_t i = 0; i < kOthers; ++i) Insert(i, In(1, 1 + i));
  Insert(kOthers, In(2, kOthers + 1));
  Insert(kOthers + 1, In(2, kOthers + 2));
  const auto of_second = [](NamespaceId ns) { return ns == NamespaceId(2); };
  EXPECT_EQ(order_.Victim(Any, kProbes, of_second), EntryId(kOthers));
  order_.SetRetired(NamespaceId(1), true);
  EXPECT_EQ(order_.Victim(Any, kProbes, of_second), EntryId(kOthers));
  EXPECT_FALSE(order_.Victim(Any, kProbes, [](NamespaceId) { return false; }).valid());
}

INSTANTIATE_TEST_SUITE_P(Orders, AnyOrderTest, ::testing::ValuesIn(kEvictionNames));

// --- a replay: requests are chains of block numbers; a request touches its first min(length, capacity) blocks, which
// are pinned while the cache shrinks to its capacity.
using Chain = std::vector<uint64_t>;

// The rule said as plainly as it can be: look at every block, smallest last touch first, within it the greatest depth.
class NaiveCache {
 public:
  explicit NaiveCache(size_t capacity) : capacity_(capacity) {}

  void Serve(uint64_t request, const Chain& chain, std::vector<uint32_t>* victims) {
    const size_t touched = std::min(chain.size(), capacity_);
    for (size_t i = 0; i < touched; ++i) {
      blocks_[static_cast<uint32_t>(chain[i])] = {request, static_cast<uint32_t>(i)};
    }
    const std::set<uint32_t> pinned(chain.begin(), chain.begin() + touched);
    while (blocks_.size() > capacity_) {
      auto worst = blocks_.end();
      for (auto it = blocks_.begin(); it != blocks_.end(); ++it) {
        if (pinned.count(it->first) > 0) continue;
        if (worst == blocks_.end() || it->second.touch < worst->second.touch ||
            (it->second.touch == worst->second.touch && it->second.depth > worst->second.depth)) {
          worst = it;
        }
      }
      victims->push_back(worst->first);
      blocks_.erase(worst);
    }
  }

 private:
  struct Block {
    uint64_t touch;
    uint32_t depth;
  };
  const size_t capacity_;
  std::map<uint32_t, Block> blocks_;
};

// Conversations that come back longer, over a few shared system prompts, and some one-off requests: the shape of the
// Mooncake traces in small.
std::vector<Chain> ConversationTrace(uint32_t seed) {
  std::mt19937 random(seed);
  uint64_t next_block = 0;
  std::vector<Chain> prompts(3);
  for (Chain& prompt : prompts) {
    for (uint32_t i = 0, length = 1 + random() % 6; i < length; ++i) prompt.push_back(next_block++);
  }
  std::vector<Chain> sessions;
  std::vector<Chain> trace;
  for (int request = 0; request < 1500; ++request) {
    if (sessions.empty() || random() % 4 == 0) sessions.push_back(prompts[random() % prompts.size()]);
    // Recent sessions are likelier to come back.
    const size_t back = std::min<size_t>(random() % 12, random() % 12);
    Chain& session = sessions[sessions.size() - 1 - std::min(back, sessions.size() - 1)];
    for (uint32_t i = 0, grown = random() % 8; i < grown; ++i) session.push_back(next_block++);
    trace.push_back(session);
  }
  return trace;
}

class LruReplayTest : public ::testing::TestWithParam<size_t> {};

TEST_P(LruReplayTest, LeavesGoInExactlyTheOrderOfTheNaiveCache) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    NaiveCache naive(GetParam());
    ReplayCache leaves("lru", GetParam());
    std::vector<uint32_t> expected;
    uint32_t request = 0;
    for (const Chain& chain : ConversationTrace(seed)) {
      ++request;
      naive.Serve(request, chain, &expected);
      leaves.Serve(request, chain);
      ASSERT_EQ(leaves.victims(), expected) << "request " << request;
    }
    EXPECT_GT(expected.size(), 500u);
    EXPECT_LE(leaves.leaves(), leaves.resident());
  }
}

INSTANTIATE_TEST_SUITE_P(Capacities, LruReplayTest, ::testing::Values(5, 40, 200, 700));

}  // namespace
}  // namespace kvartal::policy
