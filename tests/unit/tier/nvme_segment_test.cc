#include "daemon/tier/nvme_segment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "daemon/base/limits.h"
#include "daemon/base/units.h"

namespace kvartal::tier {
namespace {

constexpr uint64_t kFirst = kNvmeDataStartBytes;
constexpr uint64_t kSegment = kSegmentMinBytes;
constexpr uint32_t kSmall = 60 * 1024;  // 256 slots less one a segment
constexpr uint32_t kLarge = 2 * 1024 * 1024;

uint64_t OffsetOf(SlotId slot) { return uint64_t{slot.value()} * kSlotAlignBytes; }

SegmentTable TableOf(uint64_t segments, uint64_t tail_bytes = 0) {
  return SegmentTable(kFirst, kFirst + segments * kSegment + tail_bytes, kSegment);
}

std::vector<SlotId> Fill(SegmentTable* table, uint32_t payload_bytes, size_t count) {
  std::vector<SlotId> slots;
  for (size_t i = 0; i < count; ++i) {
    slots.push_back(table->Reserve(payload_bytes));
    EXPECT_TRUE(slots.back().valid());
  }
  return slots;
}

TEST(SegmentTable, WhatIsReservedBehindSomethingLiesBehindItWhoeverElseReserves) {
  SegmentTable table = TableOf(2);
  std::vector<SlotId> first = {table.ReserveBehind(kSmall, SlotId::None())};
  std::vector<SlotId> second = {table.ReserveBehind(kSmall, SlotId::None())};
  for (uint32_t i = 1; i < kSlotRun; ++i) {
    first.push_back(table.ReserveBehind(kSmall, first.back()));
    second.push_back(table.ReserveBehind(kSmall, second.back()));
  }
  const uint64_t stride = kNvmeHeaderBytes + kSmall;
  for (uint32_t i = 1; i < kSlotRun; ++i) {
    EXPECT_EQ(OffsetOf(first[i]), OffsetOf(first[0]) + i * stride);
    EXPECT_EQ(OffsetOf(second[i]), OffsetOf(second[0]) + i * stride);
  }
  const SlotId next = table.ReserveBehind(kSmall, first.back());
  EXPECT_GT(OffsetOf(next), OffsetOf(second.back())) << "the slot behind is the second one's: a run of its own";
  table.CheckInvariants();
}

TEST(SegmentTable, RunsLeaveNoSlotUnused) {
  SegmentTable table = TableOf(3);
  const uint32_t slots = 3 * table.SlotsOf(0, kSmall);
  std::set<SlotId> seen;
  for (uint32_t i = 0; i < slots; ++i) {
    const SlotId slot = table.ReserveBehind(kSmall, SlotId::None());
    ASSERT_TRUE(slot.valid()) << i;
    EXPECT_TRUE(seen.insert(slot).second);
  }
  EXPECT_FALSE(table.ReserveBehind(kSmall, *seen.begin()).valid());
  table.CheckInvariants();
  const SlotId freed = *std::next(seen.begin());
  table.Free(freed);
  EXPECT_EQ(table.ReserveBehind(kSmall, *seen.begin()), freed);
}

TEST(SegmentTable, BehindASlotOfAnotherSizeOrOfASegmentThatIsLeavingNothingIsReserved) {
  SegmentTable table = TableOf(3);
  const SlotId small = table.Reserve(kSmall);
  const SlotId large = table.ReserveBehind(kLarge, small);
  EXPECT_NE(table.SegmentOf(large), table.SegmentOf(small));
  ASSERT_TRUE(
      table.Claim(SlotId(static_cast<uint32_t>((kFirst + 2 * kSegment + kNvmeHeaderBytes) / kSlotAlignBytes)), kSmall));
  ASSERT_TRUE(table.StartLeaving(kLarge, [&](uint32_t segment) { return segment == table.SegmentOf(small); }));
  EXPECT_NE(table.SegmentOf(table.ReserveBehind(kSmall, small)), table.SegmentOf(small));
  table.CheckInvariants();
}

TEST(SegmentTable, SlotsOfOneSizeFollowEachOther) {
  SegmentTable table = TableOf(2);
  SlotId last = table.Reserve(kSmall);
  EXPECT_EQ(OffsetOf(last), kFirst + kNvmeHeaderBytes);
  for (uint32_t i = 1; i < table.SlotsOf(0, kSmall); ++i) {
    const SlotId next = table.Reserve(kSmall);
    ASSERT_EQ(OffsetOf(next), OffsetOf(last) + kNvmeHeaderBytes + kSmall);
    last = next;
  }
  EXPECT_LE(OffsetOf(last) + kNvmeHeaderBytes + kSmall, kFirst + kSegment);
  EXPECT_EQ(OffsetOf(table.Reserve(kSmall)), kFirst + kSegment + kNvmeHeaderBytes);
  table.CheckInvariants();
}

TEST(SegmentTable, TwoSizesNeverShareASegment) {
  SegmentTable table = TableOf(2);
  const SlotId small = table.Reserve(kSmall);
  const SlotId large = table.Reserve(kLarge);
  EXPECT_NE(table.SegmentOf(small), table.SegmentOf(large));
  EXPECT_EQ(table.PayloadBytesOf(*table.SegmentOf(small)), kSmall);
  EXPECT_EQ(table.PayloadBytesOf(*table.SegmentOf(large)), kLarge);
  EXPECT_FALSE(table.CanReserve(8192));
  EXPECT_FALSE(table.Reserve(8192).valid());
}

TEST(SegmentTable, EmptySegmentTakesAnotherSize) {
  SegmentTable table = TableOf(1);
  const std::vector<SlotId> small = Fill(&table, kSmall, 3);
  EXPECT_FALSE(table.CanReserve(kLarge));
  table.Free(small[1]);
  table.Free(small[0]);
  EXPECT_FALSE(table.CanReserve(kLarge));
  table.Free(small[2]);
  EXPECT_EQ(table.PayloadBytesOf(0), 0u);
  ASSERT_TRUE(table.CanReserve(kLarge));
  EXPECT_EQ(*table.SegmentOf(table.Reserve(kLarge)), 0u);
  table.CheckInvariants();
}

TEST(SegmentTable, OwnHoleIsFilledBeforeAFreeSegmentIsTaken) {
  SegmentTable table = TableOf(2);
  const uint32_t in_segment = table.SlotsOf(0, kLarge);
  const std::vector<SlotId> slots = Fill(&table, kLarge, in_segment);
  table.Free(slots[2]);
  EXPECT_EQ(table.Reserve(kLarge), slots[2]);
  EXPECT_TRUE(table.CanReserve(kSmall)) << "the other segment must still be without a size";
}

TEST(SegmentTable, EmptiestSegmentIsReusedFirst) {
  SegmentTable table = TableOf(3);
  const uint32_t in_segment = table.SlotsOf(0, kSmall);
  const std::vector<SlotId> slots = Fill(&table, kSmall, 3 * in_segment);
  // One slot of segment 0, nearly all of segment 1, half of segment 2.
  table.Free(slots[0]);
  for (uint32_t i = 0; i + 1 < in_segment; ++i) table.Free(slots[in_segment + i]);
  for (uint32_t i = 0; i < in_segment / 2; ++i) table.Free(slots[2 * in_segment + i]);
  // The open segment, the last that was filled, goes on first: what is written together lies together.
  for (uint32_t i = 0; i < in_segment / 2; ++i) ASSERT_EQ(*table.SegmentOf(table.Reserve(kSmall)), 2u);
  for (uint32_t i = 0; i + 1 < in_segment; ++i) ASSERT_EQ(*table.SegmentOf(table.Reserve(kSmall)), 1u);
  EXPECT_EQ(*table.SegmentOf(table.Reserve(kSmall)), 0u);
  EXPECT_FALSE(table.CanReserve(kSmall));
}

TEST(SegmentTable, ShortTailIsUsedLastAndOnlyForWhatFits) {
  SegmentTable table = TableOf(1, kMiB);
  ASSERT_EQ(table.segment_count(), 2u);
  EXPECT_EQ(table.capacity_bytes(), kSegment + kMiB - 2 * kNvmeHeaderBytes);
  Fill(&table, kLarge, table.SlotsOf(0, kLarge));
  EXPECT_FALSE(table.CanReserve(kLarge));
  EXPECT_EQ(table.SlotsOf(1, kLarge), 0u);
  const SlotId tail = table.Reserve(kSmall);
  EXPECT_EQ(*table.SegmentOf(tail), 1u);
  table.Free(tail);
  table.CheckInvariants();
}

TEST(SegmentTable, ASizeAboveASegmentNeverFits) {
  SegmentTable table = TableOf(4);
  EXPECT_FALSE(table.CanReserve(kSegment));
  EXPECT_FALSE(table.Reserve(kSegment).valid());
}

TEST(SegmentTable, NoSegmentsIsNoSpace) {
  SegmentTable table(kFirst, kFirst + 8192, kSegment);
  EXPECT_EQ(table.segment_count(), 0u);
  EXPECT_FALSE(table.CanReserve(4096));
}

TEST(SegmentTable, ClaimTakesExactlyTheSlotsThatCanBe) {
  SegmentTable source = TableOf(2);
  const SlotId small = source.Reserve(kSmall);
  SegmentTable table = TableOf(2);
  EXPECT_FALSE(table.Claim(SlotId::None(), kSmall));
  EXPECT_FALSE(table.Claim(SlotId(0), kSmall));                  // the superblock
  EXPECT_FALSE(table.Claim(SlotId(small.value() - 1), kSmall));  // the segment's header
  EXPECT_FALSE(table.Claim(SlotId(small.value() + 1), kSmall));  // inside a slot
  EXPECT_FALSE(table.Claim(small, 0));
  EXPECT_FALSE(table.Claim(small, 5000));
  EXPECT_FALSE(table.Claim(small, kSegment));
  EXPECT_FALSE(
      table.Claim(SlotId(static_cast<uint32_t>((kFirst + 2 * kSegment + 4096) / 4096)), kSmall));  // past the end
  ASSERT_TRUE(table.Claim(small, kSmall));
  EXPECT_FALSE(table.Claim(small, kSmall));  // in use
  const SlotId sibling = source.Reserve(kSmall);
  EXPECT_FALSE(table.Claim(sibling, kLarge));  // another size there
  EXPECT_TRUE(table.Claim(sibling, kSmall));
  EXPECT_EQ(table.slots_used(), 2u);
  // What was claimed is not handed out again.
  std::set<SlotId> seen = {small, sibling};
  while (table.CanReserve(kSmall)) ASSERT_TRUE(seen.insert(table.Reserve(kSmall)).second);
  EXPECT_EQ(seen.size(), 2 * table.SlotsOf(0, kSmall));
  table.CheckInvariants();
}

constexpr auto kAnySegment = [](uint32_t) { return true; };

TEST(SegmentTable, ASegmentLeavesWhenTheOthersHaveRoomForItsBlocks) {
  SegmentTable table = TableOf(3);
  const uint32_t a_segment = table.SlotsOf(0, kSmall);
  std::vector<SlotId> slots = Fill(&table, kSmall, 3 * a_segment);
  EXPECT_FALSE(table.StartLeaving(kLarge, kAnySegment)) << "nothing is free";
  // Two thirds of the first, a third of the others: one slot less than a segment, then one more.
  size_t freed = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    const bool go = i < a_segment ? i % 3 != 0 : i % 3 == 0;
    if (!go) continue;
    table.Free(slots[i]);
    if (++freed + 1 == a_segment) {
      EXPECT_FALSE(table.StartLeaving(kLarge, kAnySegment));
    }
    slots[i] = SlotId::None();
    if (freed == a_segment) break;
  }
  EXPECT_FALSE(table.StartLeaving(kSmall, kAnySegment)) << "its own size has room";
  EXPECT_FALSE(table.StartLeaving(kLarge, [](uint32_t) { return false; }));
  ASSERT_TRUE(table.StartLeaving(kLarge, kAnySegment));
  ASSERT_EQ(table.leaving(), std::optional<uint32_t>(0)) << "the emptiest";
  EXPECT_FALSE(table.CanReserve(kSmall)) << "all that is free is for what leaves";
  const auto elsewhere = std::find_if(slots.begin() + a_segment, slots.end(), [](SlotId slot) { return slot.valid(); });
  table.Free(*elsewhere);
  EXPECT_TRUE(table.CanReserve(kSmall));
  *elsewhere = table.ReserveBehind(kSmall, SlotId::None());
  EXPECT_TRUE(elsewhere->valid());
  EXPECT_FALSE(table.CanReserve(kSmall));
  table.CheckInvariants();
  // What is in it has a place in the others, to the last block.
  for (size_t i = 0; i < a_segment; ++i) {
    if (!slots[i].valid()) continue;
    const SlotId to = table.Reserve(kSmall);
    ASSERT_TRUE(to.valid());
    ASSERT_NE(table.SegmentOf(to), std::optional<uint32_t>(0));
    EXPECT_FALSE(table.Claim(slots[i], kSmall));
    table.Free(slots[i]);
  }
  EXPECT_FALSE(table.CanReserve(kSmall) && table.leaving().has_value());
  EXPECT_EQ(table.leaving(), std::nullopt);
  EXPECT_EQ(table.PayloadBytesOf(0), 0u);
  EXPECT_TRUE(table.Reserve(kLarge).valid());
  table.CheckInvariants();
}

TEST(SegmentTable, OneThatStaysHandsOutItsSlotsAgain) {
  SegmentTable table = TableOf(2);
  const std::vector<SlotId> slots = Fill(&table, kSmall, 2 * table.SlotsOf(0, kSmall));
  for (size_t i = 0; i < slots.size() / 2 + 1; ++i) table.Free(slots[2 * i % slots.size() + 2 * i / slots.size()]);
  ASSERT_TRUE(table.StartLeaving(kLarge, kAnySegment));
  table.StopLeaving();
  table.CheckInvariants();
  Fill(&table, kSmall, slots.size() / 2 + 1);
  EXPECT_FALSE(table.CanReserve(kSmall));
  table.CheckInvariants();
}

// Random reserves, frees and claims against a map of who holds which bytes.
TEST(SegmentTable, AgreesWithAModel) {
  const std::vector<uint32_t> sizes = {4096, kSmall, 448 * 1024, kLarge, 5 * 1024 * 1024};
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    SegmentTable table = TableOf(5, seed % 2 == 0 ? 3 * kMiB : 0);
    const uint64_t end = kFirst + 5 * kSegment + (seed % 2 == 0 ? 3 * kMiB : 0);
    std::map<uint64_t, std::pair<uint64_t, uint32_t>> held;  // start -> end, payload
    std::vector<SlotId> slots;
    const auto insert = [&](SlotId slot, uint32_t payload) {
      const uint64_t from = OffsetOf(slot), to = from + kNvmeHeaderBytes + payload;
      const auto after = held.lower_bound(from);
      ASSERT_TRUE(after == held.end() || after->first >= to);
      ASSERT_TRUE(after == held.begin() || std::prev(after)->second.first <= from);
      ASSERT_TRUE(from >= kFirst && to <= end);
      ASSERT_EQ((from - kFirst) / kSegment, (to - 1 - kFirst) / kSegment) << "a slot crosses segments";
      held[from] = {to, payload};
      slots.push_back(slot);
    };
    for (int step = 0; step < 4000; ++step) {
      // Drifts between filling up and running empty, so that segments change size.
      const bool fill = random() % 100 < ((step / 500) % 2 == 0 ? 70u : 30u);
      const uint32_t payload = sizes[random() % sizes.size()];
      if (step % 97 == 0 && !table.leaving().has_value()) (void)table.StartLeaving(payload, kAnySegment);
      if (step % 131 == 0) table.StopLeaving();
      if (fill) {
        const bool can = table.CanReserve(payload);
        const std::optional<uint32_t> leaving = table.leaving();
        const bool for_what_leaves = leaving.has_value() && table.PayloadBytesOf(*leaving) == payload;
        const SlotId slot = table.Reserve(payload);
        ASSERT_TRUE(can == slot.valid() || (for_what_leaves && !can));
        if (slot.valid()) {
          ASSERT_NE(table.SegmentOf(slot), table.leaving());
          insert(slot, payload);
        }
      } else if (random() % 10 == 0) {
        const SlotId slot(static_cast<uint32_t>(random() % (end / kSlotAlignBytes)));
        if (table.Claim(slot, payload)) insert(slot, payload);
      } else if (!slots.empty()) {
        const size_t at = random() % slots.size();
        ASSERT_TRUE(table.InUse(slots[at]));
        table.Free(slots[at]);
        EXPECT_FALSE(table.InUse(slots[at]));
        held.erase(OffsetOf(slots[at]));
        slots[at] = slots.back();
        slots.pop_back();
      }
      ASSERT_EQ(table.slots_used(), slots.size());
      if (step % 50 == 0) table.CheckInvariants();
    }
    // A full table refuses; an emptied one has all its segments back.
    for (const SlotId slot : slots) table.Free(slot);
    table.CheckInvariants();
    for (uint32_t id = 0; id < table.segment_count(); ++id) EXPECT_EQ(table.PayloadBytesOf(id), 0u);
    EXPECT_TRUE(table.CanReserve(kLarge));
  }
}

}  // namespace
}  // namespace kvartal::tier
