#include "daemon/policy/eviction_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

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

TEST(LruOrder, TouchMovesABlockBehindOlderOnes) {
  const auto order = NewLruOrder();
  order->Insert(EntryId(1), Traits(1, 0));
  order->Insert(EntryId(2), Traits(2, 0));
  order->Touch(EntryId(1), Traits(1, 0), Traits(3, 0));
  EXPECT_EQ(order->Oldest(), EntryId(2));
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
  EXPECT_DEATH(order->Remove(EntryId(1), Traits(2, 1)), "erase");
  EXPECT_DEATH(order->Touch(EntryId(2), Traits(1, 1), Traits(2, 1)), "erase");
}

TEST(NewEvictionOrder, KnowsLruAndNamesWhatIsAllowed) {
  EXPECT_TRUE(NewEvictionOrder("lru").ok());
  const auto unknown = NewEvictionOrder("lfu");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(unknown.status().message()).find("'lfu'"), std::string::npos);
  EXPECT_NE(std::string(unknown.status().message()).find("lru"), std::string::npos);
}

// --- a replay: requests are chains of block numbers; a request touches its first min(length, capacity) blocks, which
// are pinned while the cache shrinks to its capacity.
using Chain = std::vector<uint32_t>;

// The rule said as plainly as it can be: look at every block, smallest last touch first, within it the greatest depth.
class NaiveCache {
 public:
  explicit NaiveCache(size_t capacity) : capacity_(capacity) {}

  void Serve(uint64_t request, const Chain& chain, std::vector<uint32_t>* victims) {
    const size_t touched = std::min(chain.size(), capacity_);
    for (size_t i = 0; i < touched; ++i) blocks_[chain[i]] = {request, static_cast<uint32_t>(i)};
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

// The same cache as the engine keeps it: only leaves are in the order, and a parent enters it when its last child
// leaves.
class LeafCache {
 public:
  explicit LeafCache(size_t capacity) : capacity_(capacity), order_(NewLruOrder()) {}

  void Serve(uint64_t request, const Chain& chain, std::vector<uint32_t>* victims) {
    const size_t touched = std::min(chain.size(), capacity_);
    const std::set<uint32_t> pinned(chain.begin(), chain.begin() + touched);
    for (size_t i = 0; i < touched; ++i) Touch(chain, i, request);
    while (blocks_.size() > capacity_) {
      const EntryId victim = order_->Victim([&](EntryId id) { return pinned.count(id.value()) == 0; }, 1000);
      ASSERT_TRUE(victim.valid());
      victims->push_back(victim.value());
      Evict(victim);
    }
  }
  size_t leaves() const { return order_->size(); }
  size_t blocks() const { return blocks_.size(); }

 private:
  struct Block {
    BlockTraits traits;
    EntryId parent;
    uint32_t children = 0;
  };

  void Touch(const Chain& chain, size_t depth, uint64_t request) {
    const auto [it, is_new] = blocks_.try_emplace(chain[depth]);
    Block& block = it->second;
    const BlockTraits before = block.traits;
    block.traits = Traits(request, static_cast<uint32_t>(depth));
    if (!is_new) {
      if (block.children == 0) order_->Touch(EntryId(chain[depth]), before, block.traits);
      return;
    }
    if (depth > 0) {
      block.parent = EntryId(chain[depth - 1]);
      Block& parent = blocks_.at(chain[depth - 1]);
      if (parent.children++ == 0) order_->Remove(block.parent, parent.traits);
    }
    order_->Insert(EntryId(chain[depth]), block.traits);
  }
  void Evict(EntryId victim) {
    const Block block = blocks_.at(victim.value());
    ASSERT_EQ(block.children, 0u);
    order_->Remove(victim, block.traits);
    blocks_.erase(victim.value());
    if (!block.parent.valid()) return;
    Block& parent = blocks_.at(block.parent.value());
    if (--parent.children == 0) order_->Insert(block.parent, parent.traits);
  }

  const size_t capacity_;
  std::map<uint32_t, Block> blocks_;
  std::unique_ptr<EvictionOrder> order_;
};

// Conversations that come back longer, over a few shared system prompts, and some one-off requests: the shape of the
// Mooncake traces in small.
std::vector<Chain> ConversationTrace(uint32_t seed) {
  std::mt19937 random(seed);
  uint32_t next_block = 0;
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
    LeafCache leaves(GetParam());
    std::vector<uint32_t> expected;
    std::vector<uint32_t> victims;
    uint64_t request = 0;
    for (const Chain& chain : ConversationTrace(seed)) {
      ++request;
      naive.Serve(request, chain, &expected);
      ASSERT_NO_FATAL_FAILURE(leaves.Serve(request, chain, &victims));
      ASSERT_EQ(victims, expected) << "request " << request;
    }
    EXPECT_GT(victims.size(), 500u);
    EXPECT_LE(leaves.leaves(), leaves.blocks());
  }
}

INSTANTIATE_TEST_SUITE_P(Capacities, LruReplayTest, ::testing::Values(5, 40, 200, 700));

}  // namespace
}  // namespace kvartal::policy
