// Emptying one extent of a domain: what may move moves with its bytes, and nothing new goes in.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/base/units.h"
#include "daemon/tier/dram_tier.h"
#include "tests/support/fake_memory.h"
#include "tests/support/manual_executor.h"

namespace kvartal::tier {
namespace {

constexpr DomainId kDomain{0};
constexpr uint32_t kSlot = 1 * kMiB;
constexpr uint64_t kExtent = 2 * kMiB;  // two slots
constexpr auto kMayMove = [](EntryId id) { return id.valid(); };
constexpr auto kCost = [](EntryId id) -> size_t { return id.valid() ? 0 : 1; };

class DramLeavingTest : public ::testing::Test {
 protected:
  DramLeavingTest() { KV_CHECK(tier_->OpenDomain(kDomain).ok()); }

  void Grow(int extents) {
    for (int i = 0; i < extents; ++i) {
      std::optional<absl::Status> grown;
      tier_->Grow(kDomain, kSlot, kExtent, [&](absl::Status status) { grown = std::move(status); });
      executor_.RunAll();
      KV_CHECK(grown.has_value() && grown->ok());
    }
  }
  SlotId Put(uint32_t number) {
    const SlotId slot = tier_->Take(kDomain, kSlot);
    KV_CHECK(slot.valid());
    tier_->SetHolder(kDomain, slot, EntryId(number));
    std::memset(tier_->DataOf(kDomain, slot), static_cast<int>(number), kSlot);
    return slots_[number] = slot;
  }
  void MoveOut() {
    tier_->MoveOut(kDomain, kMayMove, [this](EntryId id, SlotId to) { slots_[id.value()] = to; });
  }

  testing::ManualExecutor executor_;
  testing::FakeMemory memory_{&executor_};
  std::unique_ptr<DramTier> tier_ = std::make_unique<DramTier>(&memory_, 64 * kMiB);
  std::map<uint32_t, SlotId> slots_;
};

TEST_F(DramLeavingTest, BlocksMoveWithTheirBytesAndTheExtentGoes) {
  Grow(2);
  for (uint32_t number = 1; number <= 4; ++number) Put(number);
  tier_->Give(kDomain, slots_.at(1));
  tier_->Give(kDomain, slots_.at(3));
  const SlotId old = slots_.at(4);
  const uint32_t old_generation = tier_->GenerationOf(kDomain, old);
  ASSERT_TRUE(tier_->StartLeaving(kDomain, kExtent, old, kCost));
  EXPECT_TRUE(tier_->IsLeaving(kDomain, old));
  EXPECT_FALSE(tier_->IsLeaving(kDomain, slots_.at(2)));
  EXPECT_EQ(tier_->LeavingHolders(kDomain), std::vector<EntryId>{EntryId(4)});
  MoveOut();
  EXPECT_EQ(tier_->LeavingSlots(kDomain), 0u);
  EXPECT_EQ(tier_->GenerationOf(kDomain, old), old_generation + 1) << "a late reader finds out";
  EXPECT_EQ(*tier_->DataOf(kDomain, slots_.at(4)), std::byte{4});
  EXPECT_EQ(*(tier_->DataOf(kDomain, slots_.at(4)) + kSlot - 1), std::byte{4});
  EXPECT_EQ(*tier_->DataOf(kDomain, slots_.at(2)), std::byte{2});
  EXPECT_EQ(tier_->Shrink(kDomain, 0, [] {}), kExtent);
  EXPECT_EQ(tier_->stats().slots_used, 2u);
}

TEST_F(DramLeavingTest, NothingNewGoesInAndWhatMayNotMoveStays) {
  Grow(2);
  for (uint32_t number = 1; number <= 2; ++number) Put(number);
  tier_->SetHolder(kDomain, slots_.at(2), EntryId::None());
  ASSERT_TRUE(tier_->StartLeaving(kDomain, kExtent, slots_.at(1), kCost));
  ASSERT_FALSE(tier_->IsLeaving(kDomain, slots_.at(1))) << "an empty extent is easier";
  tier_->StopLeaving(kDomain);
  Put(3);
  Put(4);
  tier_->Give(kDomain, slots_.at(1));
  ASSERT_TRUE(tier_->StartLeaving(kDomain, kExtent, SlotId::None(), [](EntryId) -> size_t { return 1; }));
  ASSERT_TRUE(tier_->IsLeaving(kDomain, slots_.at(2))) << "one that may not move is fewer than two";
  EXPECT_FALSE(tier_->Take(kDomain, kSlot).valid());
  MoveOut();
  EXPECT_EQ(tier_->LeavingSlots(kDomain), 1u);
  tier_->Give(kDomain, slots_.at(2));
  EXPECT_FALSE(tier_->Take(kDomain, kSlot).valid()) << "it became empty, and is still leaving";
  tier_->StopLeaving(kDomain);
  EXPECT_TRUE(tier_->Take(kDomain, kSlot).valid());
}

TEST_F(DramLeavingTest, NoneIsLargerThanAsked) {
  Grow(1);
  Put(1);
  EXPECT_FALSE(tier_->StartLeaving(kDomain, kExtent - 1, slots_.at(1), kCost));
  EXPECT_EQ(tier_->LeavingSlots(kDomain), 0u);
  EXPECT_TRUE(tier_->StartLeaving(kDomain, kExtent, slots_.at(1), kCost));
}

TEST_F(DramLeavingTest, WhatCostsMoreStaysHoweverFewItIs) {
  Grow(2);
  for (uint32_t number = 1; number <= 3; ++number) Put(number);
  const SlotId alone = slots_.at(3);
  ASSERT_TRUE(
      tier_->StartLeaving(kDomain, kExtent, alone, [](EntryId id) -> size_t { return id == EntryId(3) ? 9 : 1; }));
  EXPECT_FALSE(tier_->IsLeaving(kDomain, alone));
}

}  // namespace
}  // namespace kvartal::tier
