// A client that renews for ever, or looks up again before its lease ends: what it keeps in use outlives neither maxAge
// nor a lowered limit, and costs nobody else what is pinned.
#include <algorithm>

#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::DropReason;
using policy::Refusal;

class LastingUseTest : public EngineTest {
 protected:
  std::vector<Hold> Lease(NamespaceId ns, const std::vector<BlockKey>& keys) {
    std::vector<BlockPlace> places;
    engine_->Lookup(ns, keys, 0, 0, &places);
    return Holds(places);
  }

  // As long as the engine renews it.
  struct Kept {
    std::vector<Hold> holds;
    int64_t left_ms = kLeaseMs;
  };
  // Time passes for clients that never let go, and look up anew whatever they can.
  void Use(std::vector<Kept>* kept, int64_t ms, NamespaceId ns, const std::vector<BlockKey>& wanted) {
    for (int64_t passed = 0; passed < ms; passed += kTickMs) {
      AdvanceMs(kTickMs);
      for (Kept& each : *kept) {
        each.left_ms = engine_->MayRenew(each.holds) ? kLeaseMs : each.left_ms - kTickMs;
        if (each.left_ms <= 0) engine_->Release(std::exchange(each.holds, {}));
      }
      std::erase_if(*kept, [](const Kept& each) { return each.holds.empty(); });
      for (size_t i = passed / kTickMs % 7; i < wanted.size(); i += 7) {
        if (auto holds = Lease(ns, {wanted[i]}); !holds.empty()) kept->push_back({std::move(holds)});
      }
      if (kept->size() > 2000) Trim(kept);
    }
  }
  void Trim(std::vector<Kept>* kept) {
    for (size_t i = 0; i < kept->size(); i += 2) engine_->Release(std::exchange((*kept)[i].holds, {}));
    std::erase_if(*kept, [](const Kept& each) { return each.holds.empty(); });
  }
  void ReleaseAll(std::vector<Kept>* kept) {
    for (Kept& each : *kept) engine_->Release(each.holds);
    kept->clear();
  }

  static constexpr int64_t kLeaseMs = 2000;
};

TEST_F(LastingUseTest, ABlockOverAgeIsRenewedNoMoreAndErasedAfterItsLease) {
  auto rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
  rules.max_age_ms = 3000;
  Start({rules});
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 4)), 4u);
  std::vector<Kept> kept{{Lease(ns, Chain(1, 4))}};
  ASSERT_EQ(kept[0].holds.size(), 4u);
  Use(&kept, 2000, ns, {});
  EXPECT_TRUE(engine_->MayRenew(kept[0].holds));
  Use(&kept, 1500, ns, Chain(1, 4));
  ASSERT_FALSE(kept.empty());
  EXPECT_FALSE(engine_->MayRenew(kept[0].holds));
  Use(&kept, kLeaseMs + 2000, ns, Chain(1, 4));
  EXPECT_TRUE(kept.empty());
  EXPECT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  ASSERT_FALSE(receipts_.empty());
  engine_->CheckInvariants();
}

// Whoever merely holds it reads nothing that is there.
TEST_F(LastingUseTest, AHoldOnNvmeKeepsNothingFromItsErasure) {
  auto rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
  rules.max_age_ms = 3000;
  Start({rules});
  ASSERT_EQ(Store("a/p", Open("a/p"), Chain(1, 4)), 4u);
  Pump();
  Restart();
  const NamespaceId ns = Open("a/p");
  const std::vector<Hold> holds = Lease(ns, Chain(1, 4));
  ASSERT_EQ(holds.size(), 4u);
  EXPECT_FALSE(holds[0].in_place);
  AdvanceMs(4000);
  EXPECT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  std::vector<EntryId> entries;
  for (const Hold& hold : holds) entries.push_back(hold.entry);
  std::optional<CacheEngine::LoadResult> answer;
  engine_->Load({.ns = ns, .entries = entries}, [&](CacheEngine::LoadResult result) { answer = std::move(result); });
  Pump();
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->places.empty());
  EXPECT_TRUE(answer->read_failed);
  engine_->Release(holds);
  engine_->CheckInvariants();
}

TEST_F(LastingUseTest, ALoadHandsOutNothingOverAge) {
  auto rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
  rules.max_age_ms = 3000;
  Start({rules});
  ASSERT_EQ(Store("a/p", Open("a/p"), Chain(1, 4)), 4u);
  Pump();
  Restart();
  const NamespaceId ns = Open("a/p");
  const std::vector<Hold> holds = Lease(ns, Chain(1, 4));
  std::vector<EntryId> entries;
  for (const Hold& hold : holds) entries.push_back(hold.entry);
  const auto load = [&] {
    std::optional<CacheEngine::LoadResult> answer;
    file_->Hold();
    engine_->Load({.ns = ns, .entries = entries}, [&](CacheEngine::LoadResult result) { answer = std::move(result); });
    Pump();
    clock_.AdvanceMs(4000);  // while it is read, and before any timer looks at it
    file_->Release();
    Pump();
    return answer;
  };
  for (const char* when : {"it became too old while it was read", "it is too old to be read"}) {
    const auto answer = load();
    ASSERT_TRUE(answer.has_value());
    EXPECT_TRUE(answer->places.empty()) << when;
    EXPECT_TRUE(answer->read_failed) << when;
  }
  engine_->Release(holds);
  AdvanceMs(2000);
  engine_->CheckInvariants();
}

TEST_F(LastingUseTest, ALoweredLimitOfMemoryIsMetUnderAClientThatNeverLetsGo) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  const auto keys = Chain(1, 256);
  for (const BlockKey& key : keys) ASSERT_EQ(Store("a/p", ns, {key}), 1u);
  std::vector<Kept> kept;
  Use(&kept, 700, ns, keys);
  ASSERT_EQ(StatsOf("a/p").leased_bytes, 64 * kMiB);
  rules_[0].tier(TierKind::kDram).limit_bytes = 32 * kMiB;
  engine_->ApplyPolicy(Table());
  Use(&kept, kLeaseMs + 4 * kLeaseMs, ns, keys);
  EXPECT_LE(TierStatsOf("a/p", TierKind::kDram).charged_bytes, 32 * kMiB);
  EXPECT_GE(StatsOf("a/p").leased_bytes, 16 * kMiB) << "what is within it is read all the while";
  EXPECT_GE(TierStatsOf("a/p", TierKind::kDram).blocks, 64u) << "nor is more dropped than has to be";
  ReleaseAll(&kept);
  engine_->CheckInvariants();
}

// Blocks on NVMe alone, each held by somebody who might load it.
TEST_F(LastingUseTest, ALoweredLimitOfNvmeIsMetUnderAClientThatNeverLetsGo) {
  Start({Rules("a/p", 64 * kMiB, 64 * kMiB)});
  const auto keys = Chain(1, 128);
  for (const BlockKey& key : keys) ASSERT_EQ(Store("a/p", Open("a/p"), {key}), 1u);
  Pump();
  Restart();
  const NamespaceId ns = Open("a/p");
  std::vector<Kept> kept;
  Use(&kept, 700, ns, keys);
  rules_[0].tier(TierKind::kNvme).limit_bytes = 8 * kMiB;
  engine_->ApplyPolicy(Table());
  Use(&kept, 2 * kLeaseMs, ns, keys);
  EXPECT_LE(TierStatsOf("a/p", TierKind::kNvme).charged_bytes, 8 * kMiB);
  Use(&kept, kLeaseMs, ns, keys);
  EXPECT_FALSE(kept.empty()) << "within its limit it is served again";
  ReleaseAll(&kept);
  engine_->CheckInvariants();
}

TEST_F(LastingUseTest, ALoweredEntryCapIsMetUnderAClientThatNeverLetsGo) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  const auto keys = Chain(1, 128);
  for (const BlockKey& key : keys) ASSERT_EQ(Store("a/p", ns, {key}), 1u);
  std::vector<Kept> kept;
  Use(&kept, 700, ns, keys);
  rules_[0].max_entries = 32;
  engine_->ApplyPolicy(Table());
  Use(&kept, 2 * kLeaseMs, ns, keys);
  EXPECT_LE(StatsOf("a/p").entries, 32u);
  ReleaseAll(&kept);
  engine_->CheckInvariants();
}

// Its guarantee is pinned in memory, what it borrowed is all read: the borrowed part is what another one waits for.
TEST_F(LastingUseTest, WhatIsPinnedInMemoryGoesToNobody) {
  dram_bytes_ = 32 * kMiB;
  auto a_rules = Rules("a/p", 32 * kMiB, 64 * kMiB), b_rules = Rules("b/p", 32 * kMiB);
  a_rules.tier(TierKind::kDram).guarantee_bytes = b_rules.tier(TierKind::kDram).guarantee_bytes = 16 * kMiB;
  Start({a_rules, b_rules});
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  ASSERT_EQ(Store("a/p", a, Chain(1, 64)), 64u);
  Pump();
  ASSERT_EQ(Pin(a, Chain(1, 64), 3'600'000), Refusal::kNone);
  std::vector<Kept> kept;
  for (uint64_t i = 0; i < 64; ++i) {
    ASSERT_EQ(Store("a/p", a, Chain(1000 + i, 1)), 1u);
    kept.push_back({Lease(a, Chain(1000 + i, 1))});
  }
  Pump();
  std::optional<std::vector<ReservedBlock>> answer;
  const auto keys = Chain(5000, 32);
  engine_->Reserve({.group = GroupId(8), .ns = b, .keys = keys},
                   [&](std::vector<ReservedBlock> blocks) { answer = std::move(blocks); });
  Use(&kept, 5 * kLeaseMs, a, {});
  EXPECT_TRUE(answer.has_value()) << "what was borrowed comes back with its leases";
  std::vector<TierKind> tiers;
  EXPECT_EQ(Matched(a, Chain(1, 64), &tiers), 64u);
  EXPECT_EQ(std::count(tiers.begin(), tiers.end(), TierKind::kDram), 64);
  ReleaseAll(&kept);
  engine_->CheckInvariants();
}

// Each waits for the writes of its own blocks; the answer of one gives the other a slot.
TEST_F(LastingUseTest, AWakeOfAnotherTenantWithinAWakeIsNotLost) {
  Start({Rules("a/p", 2 * kMiB, 64 * kMiB), Rules("b/p", 2 * kMiB, 64 * kMiB)});
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  const auto fill = [&](const char* tenant, NamespaceId ns) {
    EXPECT_EQ(Store(tenant, ns, Chain(1, 7)), 7u);
    return Reserve(kGroup, ns, Chain(100, 1)).at(0).reservation;
  };
  file_->Hold();
  const ReservationId of_a = fill("a/p", a), of_b = fill("b/p", b);
  bool a_answered = false, b_answered = false;
  const auto keys = Chain(200, 1);
  engine_->Reserve({.group = kGroup, .ns = a, .keys = keys}, [&](const std::vector<ReservedBlock>&) {
    a_answered = true;
    EXPECT_TRUE(engine_->Abort(kGroup, of_b));
  });
  engine_->Reserve({.group = kGroup, .ns = b, .keys = keys},
                   [&](const std::vector<ReservedBlock>&) { b_answered = true; });
  ASSERT_FALSE(a_answered || b_answered);
  EXPECT_TRUE(engine_->Abort(kGroup, of_a));
  EXPECT_TRUE(a_answered);
  EXPECT_TRUE(b_answered) << "without a tick";
  file_->Release();
  Pump();
}

}  // namespace
}  // namespace kvartal::engine
