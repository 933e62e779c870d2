#include <gtest/gtest.h>
#include <unistd.h>

#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"
#include "daemon/tier/dram_tier.h"
#include "tests/support/fake_memory.h"
#include "tests/support/manual_executor.h"

namespace kvartal::tier {
namespace {

using ::kvartal::testing::FakeMemory;
using ::kvartal::testing::ManualExecutor;

// Anything, in any order, against a model.
class DramTierModel {
 public:
  DramTierModel(uint64_t seed, uint64_t capacity) : random_(seed), capacity_(capacity), tier_(&memory_, capacity) {
    for (DomainId domain : kDomains) KV_CHECK(tier_.OpenDomain(domain).ok());
    tier_.SetOnGranted([this](DomainId domain, GrantedRange range) { OnGranted(domain, range); });
  }

  void Step() {
    const DomainId domain = kDomains[random_() % std::size(kDomains)];
    switch (random_() % 16) {
      case 0:
        return Grow(domain);
      case 1:
        return Shrink(domain, random_() % 3 == 0 ? random_() % (40 * kMiB) : 0);
      case 2:
        if (random_() % 4 == 0) memory_.FailNextPopulates(1);
        return;
      case 3:
        return Pump(random_() % 4);
      case 4:
        tier_.PunchStrayPages();
        return;
      case 5:
        // As a client that scribbles where it has no business.
        return FakeMemory::TouchHole(tier_.arena(domain), random_() % (capacity_ * kArenaOverCapacity), 1);
      default:
        return random_() % 100 < take_percent_ ? Take(domain) : Give(domain);
    }
  }

  // Takes prevail for a while, then gives: extents fill and empty again.
  void TurnTide() { take_percent_ = 20 + random_() % 61; }

  void CheckStats() const {
    uint64_t granted = 0;
    uint64_t used = 0;
    uint64_t slots = 0;
    for (DomainId domain : kDomains) {
      std::map<uint64_t, uint64_t> taken_in;  // extent -> bytes taken
      for (const auto& [offset, slot] : taken_[domain.value()]) {
        used += slot.bytes;
        ++slots;
        taken_in[std::prev(extents_[domain.value()].upper_bound(offset))->first] += slot.bytes;
      }
      uint64_t empty = 0;
      for (const auto& [offset, bytes] : extents_[domain.value()]) {
        granted += bytes;
        if (!taken_in.contains(offset)) empty += bytes;
      }
      ASSERT_EQ(tier_.EmptyBytes(domain), empty);
    }
    const TierStats stats = tier_.stats();
    ASSERT_EQ(stats.granted_bytes, granted);
    ASSERT_EQ(stats.used_bytes, used);
    ASSERT_EQ(stats.slots_used, slots);
    ASSERT_LE(stats.granted_bytes + stats.reclaiming_bytes, capacity_);
  }

  // Gives everything back; then nothing may be left anywhere.
  void Finish() {
    for (DomainId domain : kDomains) {
      while (!taken_[domain.value()].empty()) Give(domain);
    }
    Pump(1u << 20);
    for (DomainId domain : kDomains) Shrink(domain, 0);
    for (uint64_t tick = 0; tick < 4 * kStrayPunchParts; ++tick) {
      tier_.PunchStrayPages();
      Pump(1u << 20);
    }
    CheckStats();
    ASSERT_EQ(tier_.stats().granted_bytes, 0u);
    ASSERT_EQ(tier_.stats().reclaiming_bytes, 0u);
    ASSERT_EQ(grows_ended_, grows_);
    ASSERT_EQ(shrinks_ended_, shrinks_);
    for (DomainId domain : kDomains) ASSERT_EQ(tier_.arena(domain)->AllocatedBytes(), 0u);
    ASSERT_GT(takes_, 100u) << "the run did nothing";
    ASSERT_GT(failed_grows_, 0u);
  }

 private:
  struct TakenSlot {
    uint64_t bytes;
    uint32_t generation;
  };
  static constexpr DomainId kDomains[] = {DomainId(0), DomainId(1), DomainId(4)};
  static constexpr uint32_t kSlotSizes[] = {4 * kKiB, 12 * kKiB, 448 * kKiB, 2560 * kKiB, 4 * kMiB, 32 * kMiB};

  void Grow(DomainId domain) {
    const uint32_t slot = kSlotSizes[random_() % std::size(kSlotSizes)];
    const uint64_t growth = tier_.GrowthBytes(slot, random_() % (70 * kMiB));
    if (growth == 0) return;
    ++grows_;
    tier_.Grow(domain, slot, growth, [this](const absl::Status& status) {
      ++grows_ended_;
      if (!status.ok()) ++failed_grows_;
    });
  }

  void OnGranted(DomainId domain, GrantedRange range) {
    auto& extents = extents_[domain.value()];
    ExpectDisjoint(extents, range);
    ExpectDisjoint(leaving_[domain.value()], range);
    extents[range.offset] = range.bytes;
    // pread: looking at a hole through the mapping would allocate it.
    for (uint64_t at = range.offset; at < range.offset + range.bytes; at += 64 * kKiB) {
      char byte = 1;
      KV_CHECK(::pread(tier_.arena(domain)->fd(), &byte, 1, static_cast<off_t>(at)) == 1);
      ASSERT_EQ(byte, 0) << "bytes of a previous owner at " << at;
    }
  }

  static void ExpectDisjoint(const std::map<uint64_t, uint64_t>& ranges, GrantedRange range) {
    auto after = ranges.lower_bound(range.offset);
    ASSERT_TRUE(after == ranges.end() || range.offset + range.bytes <= after->first);
    if (after != ranges.begin()) {
      const auto& [offset, bytes] = *std::prev(after);
      ASSERT_LE(offset + bytes, range.offset);
    }
  }

  void Take(DomainId domain) {
    const uint32_t slot_bytes = kSlotSizes[random_() % std::size(kSlotSizes)];
    const SlotId slot = tier_.Take(domain, slot_bytes);
    if (!slot.valid()) return;
    ++takes_;
    const uint64_t offset = DramTier::OffsetOf(slot);
    auto& taken = taken_[domain.value()];
    auto after = taken.lower_bound(offset);
    ASSERT_TRUE(after == taken.end() || offset + slot_bytes <= after->first) << "overlaps the next slot";
    ASSERT_TRUE(after == taken.begin() || std::prev(after)->first + std::prev(after)->second.bytes <= offset);
    auto extent = extents_[domain.value()].upper_bound(offset);
    ASSERT_NE(extent, extents_[domain.value()].begin());
    --extent;
    ASSERT_LE(offset + slot_bytes, extent->first + extent->second) << "a slot outside what was granted";
    const uint32_t generation = tier_.GenerationOf(domain, slot);
    const uint32_t last = last_generation_[{domain.value(), slot.value()}];
    ASSERT_GE(generation, last);
    taken[offset] = {slot_bytes, generation};
    *tier_.DataOf(domain, slot) = std::byte{0x5a};
  }

  void Give(DomainId domain) {
    auto& taken = taken_[domain.value()];
    if (taken.empty()) return;
    auto it = std::next(taken.begin(), static_cast<ptrdiff_t>(random_() % taken.size()));
    const SlotId slot(static_cast<uint32_t>(it->first / kSlotAlignBytes));
    const uint32_t before = it->second.generation;
    ASSERT_EQ(tier_.GenerationOf(domain, slot), before) << "raised while the slot was taken";
    taken.erase(it);
    tier_.Give(domain, slot);
    ASSERT_GT(tier_.GenerationOf(domain, slot), before);
    last_generation_[{domain.value(), slot.value()}] = before + 1;
  }

  void Shrink(DomainId domain, uint64_t keep) {
    const uint64_t empty = tier_.EmptyBytes(domain);
    ++shrinks_;
    auto gone = std::make_shared<std::map<uint64_t, uint64_t>>();
    const uint64_t returned = tier_.Shrink(domain, keep, [this, domain, gone] {
      ++shrinks_ended_;
      for (const auto& [offset, bytes] : *gone) leaving_[domain.value()].erase(offset);
    });
    ASSERT_LE(empty - returned, keep);
    ASSERT_EQ(tier_.EmptyBytes(domain), empty - returned);
    // What is no longer granted is on its way out.
    auto& extents = extents_[domain.value()];
    uint64_t left = 0;
    for (auto it = extents.begin(); it != extents.end();) {
      bool still = false;
      for (const GrantedRange& range : tier_.granted(domain)) {
        still = still || (range.offset <= it->first && it->first < range.offset + range.bytes);
      }
      if (still) {
        ++it;
        continue;
      }
      left += it->second;
      gone->insert(*it);
      leaving_[domain.value()].insert(*it);
      it = extents.erase(it);
    }
    ASSERT_EQ(left, returned);
  }

  void Pump(uint64_t callbacks) {
    for (uint64_t i = 0; i < callbacks && executor_.RunOne(); ++i) {
    }
  }

  std::mt19937_64 random_;
  const uint64_t capacity_;
  ManualExecutor executor_;
  FakeMemory memory_{&executor_};
  DramTier tier_;
  uint64_t take_percent_ = 70;
  std::map<uint64_t, uint64_t> extents_[5];  // by domain: granted
  std::map<uint64_t, uint64_t> leaving_[5];  // taken back, punch not ended
  std::map<uint64_t, TakenSlot> taken_[5];
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> last_generation_;
  uint64_t grows_ = 0, grows_ended_ = 0, failed_grows_ = 0, shrinks_ = 0, shrinks_ended_ = 0, takes_ = 0;
};

class DramTierPropertyTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(DramTierPropertyTest, NoOverlapExactBytesRisingGenerations) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  DramTierModel model(GetParam(), GetParam() % 2 == 0 ? 512 * kMiB : 96 * kMiB);
  for (int step = 0; step < 20'000; ++step) {
    if (step % 500 == 0) model.TurnTide();
    model.Step();
    if (step % 50 == 0) model.CheckStats();
    if (HasFatalFailure()) return;
  }
  model.Finish();
}

INSTANTIATE_TEST_SUITE_P(Seeds, DramTierPropertyTest, ::testing::Range<uint64_t>(1, 9));

}  // namespace
}  // namespace kvartal::tier
