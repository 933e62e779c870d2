// A namespace that no engine group has open: its blocks stay, and are the first to go.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::DropReason;

class RetiredTest : public EngineTest, public ::testing::WithParamInterface<const char*> {
 protected:
  RetiredTest() { options_.eviction = GetParam(); }
  uint64_t Drops(DropReason reason, TierKind tier = TierKind::kDram) const {
    return TierStatsOf("a/p", tier).drop(reason).count;
  }
};

TEST_P(RetiredTest, ItsBlocksGoBeforeOlderOnesOfALiveNamespace) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId live = Open("a/p", 1);
  const NamespaceId over = Open("a/p", 2);
  ASSERT_EQ(Store("a/p", live, Chain(1, 8)), 8u);
  AdvanceMs(5000);
  ASSERT_EQ(Store("a/p", over, Chain(1, 8)), 8u);
  engine_->CloseNamespace(over);
  ASSERT_EQ(Store("a/p", live, Chain(100, 6)), 6u);
  EXPECT_EQ(Drops(DropReason::kRetired), 6u);
  EXPECT_EQ(Drops(DropReason::kOwnSpace), 0u);
  EXPECT_EQ(Matched(live, Chain(1, 8)), 8u);
  ASSERT_EQ(Store("a/p", live, Chain(200, 4)), 4u);
  EXPECT_EQ(Drops(DropReason::kRetired), 8u) << "then the live ones pay as ever";
  EXPECT_EQ(Drops(DropReason::kOwnSpace), 2u);
  engine_->CheckInvariants();
}

TEST_P(RetiredTest, OpenedByTwoGroupsItIsInUseUntilBothHaveClosedIt) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId other = Open("a/p", 1);
  const NamespaceId ns = Open("a/p", 2);
  ASSERT_EQ(Open("a/p", 2), ns);
  Store("a/p", other, Chain(1, 8));
  Store("a/p", ns, Chain(1, 8));
  Matched(ns, Chain(1, 8));
  engine_->CloseNamespace(ns);
  Store("a/p", other, Chain(100, 1));
  EXPECT_EQ(Drops(DropReason::kRetired), 0u);
  engine_->CloseNamespace(ns);
  Store("a/p", other, Chain(200, 1));
  EXPECT_EQ(Drops(DropReason::kRetired), 1u);
}

TEST_P(RetiredTest, OpenedAgainItIsLikeAnyOther) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId live = Open("a/p", 1);
  const NamespaceId back = Open("a/p", 2);
  Store("a/p", live, Chain(1, 8));
  AdvanceMs(5000);
  Store("a/p", back, Chain(1, 8));
  engine_->CloseNamespace(back);
  ASSERT_EQ(Open("a/p", 2), back);
  EXPECT_EQ(Matched(back, Chain(1, 8)), 8u) << "retiring deletes nothing";
  Store("a/p", live, Chain(100, 4));
  EXPECT_EQ(Drops(DropReason::kRetired), 0u);
  EXPECT_EQ(Drops(DropReason::kOwnSpace), 4u);
  if (options_.eviction == "lru") {
    EXPECT_EQ(Matched(live, Chain(1, 8)), 4u) << "the older ones paid";
  }
  engine_->CheckInvariants();
}

TEST_P(RetiredTest, LeasedBlocksStayEvenWhenRetired) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId live = Open("a/p", 1);
  const NamespaceId over = Open("a/p", 2);
  Store("a/p", over, Chain(1, 8));
  std::vector<BlockPlace> places;
  engine_->Lookup(over, Chain(1, 8), 0, 0, &places);
  engine_->CloseNamespace(over);
  Store("a/p", live, Chain(1, 16));
  EXPECT_EQ(Drops(DropReason::kRetired), 0u);
  engine_->Release(Holds(places));
  Store("a/p", live, Chain(100, 8));
  EXPECT_EQ(Drops(DropReason::kRetired), 8u);
}

TEST_P(RetiredTest, RecoveredBlocksAreRetiredUntilAGroupOpensTheirDigest) {
  const uint64_t slot = kTestBlockBytes + kNvmeHeaderBytes;
  Start({Rules("a/p", 16 * kMiB, 16 * slot)});
  Store("a/p", Open("a/p", 1), Chain(1, 8));
  Store("a/p", Open("a/p", 2), Chain(1, 8));
  Pump();
  ASSERT_EQ(TierStatsOf("a/p", TierKind::kNvme).blocks, 16u);
  Restart();
  const NamespaceId first = Open("a/p", 1);
  const NamespaceId fresh = Open("a/p", 3);
  Store("a/p", fresh, Chain(1, 8));
  Pump();
  EXPECT_EQ(Drops(DropReason::kRetired, TierKind::kNvme), 8u) << "digest 2, though digest 1 is older";
  EXPECT_EQ(Matched(first, Chain(1, 8)), 8u);
  EXPECT_EQ(Matched(Open("a/p", 2), Chain(1, 8)), 0u);
  engine_->CheckInvariants();
}

// An engine that resets its cache has a new digest each time, and closes the old one.
TEST_P(RetiredTest, NoNumberOfPastNamespacesKeepsAnotherFromBeingOpened) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const TenantId id = engine_->FindTenant("a/p");
  ASSERT_TRUE(engine_->OpenMemory(id).ok());
  const auto open = [&](uint32_t epoch) {
    NamespaceDigest digest;
    std::memcpy(digest.bytes.data(), &epoch, sizeof(epoch));
    return engine_->OpenNamespace(id, digest,
                                  {.tokens_per_block = 16, .shard_count = 1, .shard_bytes = kTestBlockBytes});
  };
  for (uint32_t epoch = 0; epoch < 1000; ++epoch) {
    const auto ns = open(epoch);
    ASSERT_TRUE(ns.ok()) << ns.status();
    ASSERT_LT(ns->value(), 20u) << "those without blocks are forgotten, and their numbers given again";
    ASSERT_EQ(Store("a/p", *ns, Chain(1, 2)), 2u);
    EXPECT_EQ(Matched(*ns, Chain(1, 2)), 2u) << "its own blocks, not those of who had the number before";
    engine_->CloseNamespace(*ns);
  }
  engine_->CheckInvariants();
  std::vector<NamespaceId> opened;
  for (uint32_t epoch = 5000; epoch < 5000 + kNamespacesPerTenantMax; ++epoch) opened.push_back(open(epoch).value());
  EXPECT_TRUE(absl::IsResourceExhausted(open(9999).status())) << "so many at once are too many";
  engine_->CloseNamespace(opened.back());
  EXPECT_TRUE(open(9999).ok());
}

TEST_P(RetiredTest, AReserveThatWaitsKeepsItsNamespace) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1);
  memory_->Hold();
  const auto keys = Chain(1, 1);
  bool answered = false;
  engine_->Reserve({.group = kGroup, .ns = ns, .keys = keys}, [&](const std::vector<ReservedBlock>& blocks) {
    answered = true;
    EXPECT_TRUE(engine_->Abort(kGroup, blocks.at(0).reservation));
  });
  Pump();
  ASSERT_FALSE(answered);
  engine_->CloseNamespace(ns);
  EXPECT_NE(Open("a/p", 2), ns);
  memory_->Release();
  Pump();
  EXPECT_TRUE(answered);
  EXPECT_EQ(Open("a/p", 3), ns) << "with its answer it is nobody's";
  engine_->CheckInvariants();
}

TEST_P(RetiredTest, ARestartDeletesNothingForTheNumberOfItsDigests) {
  Start({Rules("a/p", 64 * kMiB, 200 * kMiB)});
  const TenantId id = engine_->FindTenant("a/p");
  ASSERT_TRUE(engine_->OpenMemory(id).ok());
  const uint32_t digests = kNamespacesPerTenantMax + 100;
  const auto open = [&](uint32_t epoch) {
    NamespaceDigest digest;
    std::memcpy(digest.bytes.data(), &epoch, sizeof(epoch));
    return engine_
        ->OpenNamespace(engine_->FindTenant("a/p"), digest,
                        {.tokens_per_block = 16, .shard_count = 1, .shard_bytes = kTestBlockBytes})
        .value();
  };
  for (uint32_t epoch = 0; epoch < digests; ++epoch) {
    const NamespaceId ns = open(epoch);
    ASSERT_EQ(Store("a/p", ns, Chain(1, 1)), 1u);
    Pump();
    engine_->CloseNamespace(ns);
  }
  Restart();
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).blocks, digests);
  for (const uint32_t epoch : {0u, 255u, 256u, digests - 1}) EXPECT_EQ(Matched(open(epoch), Chain(1, 1)), 1u) << epoch;
  engine_->CheckInvariants();
}

INSTANTIATE_TEST_SUITE_P(Orders, RetiredTest, ::testing::Values("lru", "lhd"));

}  // namespace
}  // namespace kvartal::engine
