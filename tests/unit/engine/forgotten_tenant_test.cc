// Tenants that come and go leave nothing behind: no arena, no account, no order, no line of statistics.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

class ForgottenTenantTest : public EngineTest {
 protected:
  void StartOne() {
    options_.removed_grace_ms = 500;
    Start({Rules("stays/p", 64 * kMiB, 64 * kMiB)});
    Open("stays/p");
  }
  void Add(const std::string& name) {
    rules_.push_back(Rules(name, 16 * kMiB, 16 * kMiB));
    engine_->ApplyPolicy(Table());
  }
  void RemoveLast() {
    rules_.pop_back();
    engine_->ApplyPolicy(Table());
  }
  size_t Arenas(uint32_t domains) const {
    size_t arenas = 0;
    for (uint32_t id = 0; id < domains; ++id) arenas += dram_->arena(DomainId(id)) != nullptr ? 1 : 0;
    return arenas;
  }
};

TEST_F(ForgottenTenantTest, ANodeThatSeesManyTenantsComeAndGoStaysFlat) {
  StartOne();
  constexpr uint32_t kMany = 1000;
  uint32_t largest_number = 0, largest_namespace = 0;
  for (uint32_t i = 0; i < kMany; ++i) {
    const std::string name = "t" + std::to_string(i) + "/p";
    Add(name);
    const NamespaceId ns = Open(name);
    largest_number = std::max(largest_number, engine_->FindTenant(name).value());
    largest_namespace = std::max(largest_namespace, ns.value());
    ASSERT_EQ(Matched(ns, Chain(1, 2)), 0u) << "it inherits nothing of who had its number";
    ASSERT_EQ(Store(name, ns, Chain(1, 2)), 2u);
    Pump();
    engine_->CloseNamespace(ns);
    RemoveLast();
    AdvanceMs(400);
  }
  AdvanceMs(1000);
  EXPECT_LT(largest_number, 8u);
  EXPECT_LT(largest_namespace, 8u);
  EXPECT_EQ(Arenas(kMany + 1), 1u);
  ASSERT_EQ(engine_->stats().tenants.size(), 1u);
  EXPECT_EQ(engine_->stats().tenants[0].name, "stays/p");
  EXPECT_EQ(engine_->stats().entries, 0u);
  EXPECT_EQ(engine_->stats().charged_bytes[TierIndex(TierKind::kNvme)], 0u);
  ASSERT_EQ(receipts_.size(), kMany);
  for (uint32_t i = 0; i < kMany; ++i) {
    ASSERT_EQ(receipts_[i].tenant, "t" + std::to_string(i) + "/p");
    ASSERT_EQ(receipts_[i].blocks, 2u);
  }
  EXPECT_TRUE(catalog_disk_->erasures.empty());
  engine_->CheckInvariants();
}

TEST_F(ForgottenTenantTest, WhoHasANamespaceOpenIsNotForgotten) {
  StartOne();
  Add("t/p");
  const NamespaceId ns = Open("t/p");
  Store("t/p", ns, Chain(1, 2));
  RemoveLast();
  AdvanceMs(3000);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(engine_->stats().tenants.size(), 2u);
  EXPECT_EQ(Matched(ns, Chain(1, 2)), 0u) << "whoever holds on to it may still ask";
  engine_->CloseNamespace(ns);
  AdvanceMs(200);
  EXPECT_EQ(engine_->stats().tenants.size(), 1u);
}

TEST_F(ForgottenTenantTest, WhoseReceiptIsNotKeptIsNotForgotten) {
  StartOne();
  Add("t/p");
  RemoveLast();
  keeps_receipts_ = false;
  AdvanceMs(3000);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(engine_->stats().tenants.size(), 2u);
  EXPECT_TRUE(engine_->stats().tenants[1].removed);
  untold_.back()(true);
  AdvanceMs(200);
  EXPECT_EQ(engine_->stats().tenants.size(), 1u);
}

TEST_F(ForgottenTenantTest, WhoWasDroppedOnRequestIsErasedAgainWhenItIsRemoved) {
  StartOne();
  Add("t/p");
  const NamespaceId ns = Open("t/p");
  Store("t/p", ns, Chain(1, 2));
  engine_->DropTenant(engine_->FindTenant("t/p"), [](const absl::StatusOr<uint64_t>&) {});
  AdvanceMs(300);
  Store("t/p", ns, Chain(1, 3));
  Pump();
  engine_->CloseNamespace(ns);
  RemoveLast();
  AdvanceMs(2000);
  ASSERT_EQ(receipts_.size(), 2u);
  EXPECT_EQ(receipts_[1].blocks, 3u);
  EXPECT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  EXPECT_EQ(engine_->stats().tenants.size(), 1u);
}

TEST_F(ForgottenTenantTest, TheSameUidBeginsAnewWithNothing) {
  StartOne();
  Add("t/p");
  NamespaceId ns = Open("t/p");
  Store("t/p", ns, Chain(1, 4));
  Matched(ns, Chain(1, 4));
  AdvanceMs(300);
  engine_->CloseNamespace(ns);
  RemoveLast();
  AdvanceMs(3000);
  ASSERT_EQ(engine_->stats().tenants.size(), 1u);
  Add("t/p");
  const TenantStats stats = StatsOf("t/p");
  EXPECT_FALSE(stats.removed);
  EXPECT_EQ(stats.lookups + stats.blocks_stored + stats.entries, 0u);
  for (const TierKind tier : kAllTiers) {
    const TenantTierStats& of_tier = stats.tiers[TierIndex(tier)];
    EXPECT_EQ(of_tier.byte_seconds, 0.0);
    EXPECT_EQ(of_tier.peak_bytes + of_tier.charged_bytes + of_tier.drop(policy::DropReason::kRemoved).count, 0u);
  }
  ns = Open("t/p");
  EXPECT_EQ(Matched(ns, Chain(1, 4)), 0u);
  EXPECT_EQ(Store("t/p", ns, Chain(1, 4)), 4u);
  engine_->CheckInvariants();
}

TEST_F(ForgottenTenantTest, ALoadThatWaitsEndsWithItsGroup) {
  StartOne();
  Store("stays/p", Open("stays/p"), Chain(1, 4));
  Pump();
  Restart();
  const NamespaceId ns = Open("stays/p");
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 4), 0, 0, &places);
  ASSERT_EQ(places.size(), 4u);
  std::vector<EntryId> entries;
  for (const BlockPlace& place : places) entries.push_back(place.entry);
  memory_->Hold();
  std::optional<CacheEngine::LoadResult> answer;
  engine_->Load({.ns = ns, .entries = entries, .group = kGroup},
                [&](CacheEngine::LoadResult result) { answer = std::move(result); });
  Pump();
  ASSERT_EQ(engine_->stats().waiting_requests, 1u);
  engine_->AbortGroup(GroupId(99));
  EXPECT_EQ(engine_->stats().waiting_requests, 1u) << "another group's end is none of its business";
  engine_->AbortGroup(kGroup);
  EXPECT_EQ(engine_->stats().waiting_requests, 0u);
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->places.empty());
  engine_->Release(Holds(places));
  EXPECT_EQ(engine_->stats().leased_blocks, 0u);
  memory_->Release();
  AdvanceMs(200);
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::engine
