// The real engine under random verbs, disk faults, restarts and policy changes, from a seed. After every step: books
// that balance, limits that hold, and no byte that is not its key's.
#include <map>
#include <random>

#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

class RandomEngineTest : public EngineTest, public ::testing::WithParamInterface<uint64_t> {
 protected:
  struct Held {
    NamespaceId ns;
    std::string tenant;
    std::vector<BlockKey> keys;
    std::vector<Hold> holds;
  };
  struct Unfinished {
    std::string tenant;
    GroupId group;
    BlockKey key;
    ReservedBlock block;
  };

  uint64_t Random(uint64_t below) { return random_() % below; }
  const std::string& AnyTenant() { return rules_[Random(rules_.size())].name; }
  std::vector<BlockKey> AnyChain() { return Chain(1 + 1000 * Random(12), 1 + Random(24)); }

  void CheckBytes(const std::string& tenant, const BlockKey& key, uint64_t offset) {
    const std::byte* data = Data(tenant, offset);
    ASSERT_EQ(data[0], std::byte{key.bytes[0]});
    ASSERT_EQ(data[kTestBlockBytes - 1], std::byte{key.bytes[0]});
  }

  void DoReserve() {
    const std::string tenant = AnyTenant();
    const auto keys = AnyChain();
    const GroupId group(1 + Random(3));
    // A chain, the rest of one, or one under a parent that may be anything.
    const BlockKey parent = KeyOf(1 + 1000 * Random(12) + Random(24));
    const bool has_parent = Random(2) == 0;
    engine_->Reserve({.group = group,
                      .ns = Open(tenant),
                      .keys = keys,
                      .parent = has_parent ? &parent : nullptr,
                      .first_depth = has_parent ? static_cast<uint32_t>(Random(30)) : 0},
                     [this, tenant, keys, group](std::vector<ReservedBlock> blocks) {
                       ASSERT_EQ(blocks.size(), keys.size());
                       for (size_t i = 0; i < keys.size(); ++i) {
                         if (blocks[i].outcome != ReserveOutcome::kGranted) continue;
                         std::memset(Data(tenant, blocks[i].arena_offset), keys[i].bytes[0], kTestBlockBytes);
                         unfinished_.push_back({tenant, group, keys[i], blocks[i]});
                       }
                     });
  }

  void DoFinish() {
    for (int i = 0; i < 8 && !unfinished_.empty(); ++i) {
      const size_t at = Random(unfinished_.size());
      const Unfinished item = unfinished_[at];
      unfinished_.erase(unfinished_.begin() + at);
      if (Random(8) == 0) {
        EXPECT_TRUE(engine_->Abort(item.group, item.block.reservation) || sharing_);
      } else {
        // A fill may have been ended for a tenant that was owed the space.
        const CommitOutcome outcome = engine_->Commit(item.group, item.block.reservation, 0);
        EXPECT_TRUE(outcome == CommitOutcome::kVisible || (sharing_ && outcome == CommitOutcome::kNotFilling));
        ++stored_;
        if (item.tenant == kAging) committed_ns_[item.key.bytes] = clock_.MonotonicNs();
      }
    }
  }

  void DoLookup() {
    Held held{Open(AnyTenant()), "", AnyChain(), {}};
    held.tenant = tenant_of_ns_.at(held.ns.value());
    std::vector<BlockPlace> places;
    std::vector<EntryId> entries;
    engine_->Lookup(held.ns, held.keys, 0, 0, &places);
    for (size_t i = 0; i < places.size(); ++i) {
      held.holds.push_back(HoldOf(places[i]));
      entries.push_back(places[i].entry);
      if (places[i].tier == TierKind::kDram) CheckBytes(held.tenant, held.keys[i], places[i].arena_offset);
      if (held.tenant == kAging && !sharing_) {
        const int64_t age_ns = clock_.MonotonicNs() - committed_ns_.at(held.keys[i].bytes);
        EXPECT_LT(age_ns, (kMaxAgeMs + kTickMs) * 1'000'000) << "served beyond its maxAge";
        ++aged_served_;
      }
    }
    if (held.holds.empty()) return;
    if (Random(2) == 0) {
      engine_->Load(held.ns, entries, [this, held](CacheEngine::LoadResult result) {
        for (size_t i = 0; i < result.places.size(); ++i)
          CheckBytes(held.tenant, held.keys[i], result.places[i].arena_offset);
        engine_->Release(Holds(result.places));
      });
    }
    if (Random(6) == 0) engine_->Pin(held.holds, clock_.WallMs() + static_cast<int64_t>(Random(3000)));
    held_.push_back(std::move(held));
  }

  void DoRelease() {
    if (held_.empty()) return;
    const size_t at = Random(held_.size());
    engine_->Release(held_[at].holds);
    held_.erase(held_.begin() + at);
  }

  void DoGroupDeath() {
    const GroupId group(1 + Random(3));
    engine_->AbortGroup(group);
    std::erase_if(unfinished_, [&](const Unfinished& item) { return item.group == group; });
  }

  // Guarantees move between tenants, and never exceed the node.
  void DoSharingPolicy() {
    uint64_t left = dram_bytes_ / kMiB;
    for (auto& rules : rules_) {
      const uint64_t guarantee = Random(3) == 0 ? 0 : Random(left / 2 + 1);
      left -= guarantee;
      rules.tier(TierKind::kDram).guarantee_bytes = guarantee * kMiB;
      rules.tier(TierKind::kDram).limit_bytes = std::max((Random(7) + 1) * 4, guarantee) * kMiB;
      rules.weight = 1 + static_cast<uint32_t>(Random(4));
      rules.sla = static_cast<policy::SlaTier>(Random(3));
    }
    engine_->ApplyPolicy(Table());
  }

  void DoPolicy() {
    if (sharing_) return DoSharingPolicy();
    auto& rules = rules_[Random(rules_.size())];
    rules.tier(TierKind::kDram).limit_bytes = Random(5) * 4 * kMiB;
    rules.tier(TierKind::kNvme).limit_bytes = Random(5) * 8 * kMiB;
    rules.ttl_ms[TierIndex(TierKind::kDram)] = Random(2) * 1500;
    rules.ttl_ms[TierIndex(TierKind::kNvme)] = Random(2) * 2500;
    rules.on_expiry = Random(2) == 0 ? policy::OnExpiry::kDemote : policy::OnExpiry::kDelete;
    engine_->ApplyPolicy(Table());
  }

  void DoRestart() {
    held_.clear();
    unfinished_.clear();
    clock_.SetWallBy(static_cast<int64_t>(Random(2) * Random(3000)));  // ahead: what is on disk looks older
    Restart();
    RememberNamespaces();
  }

  void RememberNamespaces() {
    tenant_of_ns_.clear();
    for (const auto& rules : rules_) tenant_of_ns_[Open(rules.name).value()] = rules.name;
  }

  void Step(int step) {
    switch (Random(20)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return DoReserve();
      case 5:
      case 6:
      case 7:
        return DoFinish();
      case 8:
      case 9:
      case 10:
      case 11:
        return DoLookup();
      case 12:
      case 13:
        return DoRelease();
      case 14:
        return DoGroupDeath();
      case 15:
        return DoPolicy();
      case 16:
        return AdvanceMs(kTickMs * (1 + Random(6)));
      case 17:
        return Random(2) == 0 ? memory_->Hold() : memory_->Release();
      case 18:
        return Random(2) == 0 ? file_->Hold() : file_->Release();
      default:
        return step % 40 == 0 ? DoRestart() : Pump();
    }
  }

  static constexpr const char* kAging = "c/p";
  static constexpr int64_t kMaxAgeMs = 4000;

  std::mt19937_64 random_{GetParam()};
  bool sharing_ = false;  // a node smaller than what its tenants want
  std::map<std::array<uint8_t, 32>, int64_t> committed_ns_;  // of the aging tenant
  uint64_t aged_served_ = 0;
  uint64_t stored_ = 0;
  std::vector<Held> held_;
  std::vector<Unfinished> unfinished_;
  std::map<uint32_t, std::string> tenant_of_ns_;
};

TEST_P(RandomEngineTest, BooksBalanceAndBytesAreRight) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  auto pinning = Rules("a/p", 8 * kMiB, 16 * kMiB);
  pinning.tier(TierKind::kDram).guarantee_bytes = 2 * kMiB;
  auto aging = Rules(kAging, 16 * kMiB, 8 * kMiB);
  aging.max_age_ms = kMaxAgeMs;
  options_.eviction = GetParam() % 2 == 0 ? "lhd" : "lru";
  Start({pinning, Rules("b/p", 4 * kMiB, 8 * kMiB), aging});
  RememberNamespaces();
  file_->SetFaultRates({.io_error = 1, .short_transfer = 1, .torn_write = 1, .bit_flip = 1}, GetParam());
  file_->SetReorder(true, GetParam());
  memory_->FailNextPopulates(1);
  for (int step = 0; step < 3000 && !HasFatalFailure(); ++step) {
    Step(step);
    if (Random(3) != 0) executor_->RunOne();
    if (step % 8 == 0) engine_->CheckInvariants();
  }
  memory_->Release();
  file_->Release();
  for (const Held& held : held_) engine_->Release(held.holds);
  for (int group = 1; group <= 3; ++group) engine_->AbortGroup(GroupId(group));
  Pump();
  AdvanceMs(kMaxAgeMs + 3000);
  engine_->CheckInvariants();
  EXPECT_EQ(StatsOf(kAging).entries, 0u) << "all of it is over age";
  EXPECT_GT(aged_served_, 0u);
  for (const DeletionReceipt& receipt : receipts_) EXPECT_EQ(receipt.tenant, kAging);
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.leased_blocks, 0u);
  EXPECT_EQ(stats.waiting_reserves, 0u);
  EXPECT_EQ(stats.loads_under_way + stats.writes_under_way, 0u);
  EXPECT_GT(stored_, 100u) << "the test did something";
}

// What one tenant may do to another in a node that is full, whatever is leased, filled, pinned or written.
TEST_P(RandomEngineTest, GuaranteesHoldInAFullNode) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  sharing_ = true;
  dram_bytes_ = 28 * kMiB;
  nvme_capacity_bytes_ = 24 * kMiB;
  const auto with_guarantee = [](const char* name, uint64_t guarantee, uint64_t nvme_limit) {
    auto rules = Rules(name, 28 * kMiB, nvme_limit);
    rules.tier(TierKind::kDram).guarantee_bytes = guarantee;
    return rules;
  };
  Start({with_guarantee("a/p", 8 * kMiB, 16 * kMiB), with_guarantee("b/p", 7 * kMiB, 0),
         with_guarantee("c/p", 0, 16 * kMiB), with_guarantee("d/p", 13 * kMiB, 8 * kMiB)});
  RememberNamespaces();
  file_->SetReorder(true, GetParam());
  struct Seen {
    uint64_t charged, guarantee, refused, taken;
  };
  const auto look = [this] {
    std::map<std::string, Seen> seen;
    for (const TenantStats& tenant : engine_->stats().tenants) {
      const TenantTierStats& dram = tenant.tiers[TierIndex(TierKind::kDram)];
      seen[tenant.name] = {dram.charged_bytes, dram.guarantee_bytes, dram.refusal(policy::Refusal::kCapacity).count,
                           dram.drop(policy::DropReason::kTakenByOther).count};
    }
    return seen;
  };
  uint64_t taken = 0;
  for (int step = 0; step < 3000 && !HasFatalFailure(); ++step) {
    const auto before = look();
    const int boots = boots_;
    Step(step);
    if (Random(3) != 0) executor_->RunOne();
    if (step % 8 == 0) engine_->CheckInvariants();
    if (boots_ != boots) continue;
    for (const auto& [name, now] : look()) {
      const Seen& then = before.at(name);
      if (then.guarantee != now.guarantee) continue;
      taken += now.taken - then.taken;
      EXPECT_FALSE(now.refused > then.refused && std::max(now.charged, then.charged) + 2 * kMiB <= now.guarantee)
          << name << " was refused below its guarantee, step " << step;
      EXPECT_FALSE(now.taken > then.taken && std::max(now.charged, then.charged) <= now.guarantee)
          << name << " was pushed below its guarantee, step " << step;
    }
  }
  EXPECT_GT(taken, 10u) << "the test did something";
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomEngineTest, ::testing::Range<uint64_t>(1, 25));

}  // namespace
}  // namespace kvartal::engine
