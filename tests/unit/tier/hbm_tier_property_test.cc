#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/base/clock.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"
#include "daemon/tier/hbm_tier.h"
#include "tests/support/fake_slab_memory.h"
#include "tests/support/manual_executor.h"

namespace kvartal::tier {
namespace {

// Anything, in any order, against a model that knows only who was given what, and when it was asked back.
class HbmTierModel : public SlabObserver {
 public:
  explicit HbmTierModel(uint64_t seed) : random_(seed), memory_(&executor_, 3 * kCapacity / 4) {
    for (const DomainId domain : kDomains) tier_.OpenDomain(domain, kGpus);
    tier_.OpenDomain(kElsewhere, {});
  }

  void Step() {
    const DomainId domain = kDomains[random_() % std::size(kDomains)];
    switch (random_() % 16) {
      case 0:
        return Grow(random_() % 8 == 0 ? kElsewhere : domain);
      case 1:
        return random_() % 3 > 0 ? Grow(domain) : Shrink(domain, random_() % (16 * kMiB));
      case 2:
      case 3:
        return Grant(domain);
      case 4:
        return Detach();
      case 5:
        return EndPeer();
      case 6:
        return random_() % 8 == 0 ? Fail() : Advance();
      case 7:
      case 8:
        return Pump(random_() % 4);
      default:
        return random_() % 100 < take_percent_ ? Take(domain) : Give();
    }
  }

  // Takes prevail for a while, then gives: slabs fill and empty again.
  void TurnTide() { take_percent_ = 20 + random_() % 61; }

  void Check() {
    uint64_t granted = 0, reclaiming = 0, used = 0, zombie = 0;
    for (const DomainId domain : kDomains) {
      std::set<SlabId> there;
      for (const SlabInfo& info : tier_.slabs(domain)) {
        there.insert(info.id);
        const auto it = slabs_.find(info.id);
        ASSERT_TRUE(it != slabs_.end() && it->second.info.domain == domain);
        ASSERT_EQ(info.state, it->second.State());
      }
      uint64_t empty = 0;
      for (auto it = slabs_.begin(); it != slabs_.end();) {
        const ModelSlab& slab = it->second;
        if (slab.info.domain == domain && !there.contains(it->first)) {
          ASSERT_TRUE(slab.returned) << "it left its domain unseen";
          it = slabs_.erase(it);
          ++freed_;
          continue;
        }
        if (slab.info.domain == domain) {
          (slab.returned ? reclaiming : granted) += slab.bytes();
          used += slab.taken.size() * slab.info.slot_bytes;
          empty += slab.MayShrink() ? slab.bytes() : 0;
          zombie += slab.State() == SlabState::kZombie ? slab.bytes() : 0;
        }
        ++it;
      }
      ASSERT_EQ(tier_.EmptyBytes(domain), empty);
    }
    const TierStats stats = tier_.stats();
    ASSERT_EQ(stats.granted_bytes, granted);
    ASSERT_EQ(stats.reclaiming_bytes, reclaiming);
    ASSERT_EQ(stats.used_bytes, used);
    ASSERT_EQ(tier_.BytesIn(SlabState::kZombie), zombie);
    ASSERT_LE(granted + reclaiming + growing_, kCapacity);
    ASSERT_GE(memory_.live_bytes(kGpus[0]), granted + reclaiming);
    ASSERT_LE(memory_.live_bytes(kGpus[0]), granted + reclaiming + growing_);
    ASSERT_EQ(memory_.counts().dirty_exports, 0u);
    ASSERT_EQ(memory_.counts().dirty_releases, 0u);
    zombies_ += zombie > 0 ? 1 : 0;
  }

  // Gives everything back; then nothing may be left anywhere.
  void Finish() {
    memory_.SetQueueMax(0);
    while (Give(), used_slots_ > 0) {
    }
    for (int peer = 0; peer < kPeers; ++peer) EndPeer();
    for (int turn = 0; turn < 8; ++turn) {
      Pump(1u << 20);
      for (const DomainId domain : kDomains) Shrink(domain, 0);
      clock_.AdvanceMs(kScrubRetryNs / kNsPerMs);
      tier_.Tick();
    }
    Check();
    ASSERT_EQ(tier_.stats().granted_bytes + tier_.stats().reclaiming_bytes, 0u);
    ASSERT_EQ(memory_.live_bytes(kGpus[0]), 0u);
    ASSERT_EQ(shrinks_ended_, shrinks_);
    for (const DomainId domain : kDomains) ASSERT_TRUE(tier_.CloseDomain(domain));
    ASSERT_GT(freed_, 50u) << "the run did nothing";
    ASSERT_GT(zombies_, 50u);
    ASSERT_GT(failed_grows_, 0u);
    ASSERT_GT(denied_, 0u);
    ASSERT_GT(takes_, 500u);
  }

  void OnGranted(const SlabInfo& slab) override {
    KV_CHECK(slab.state == SlabState::kActive && slabs_.emplace(slab.id, ModelSlab{slab}).second);
    growing_ -= slab.range.bytes;
  }
  void OnRecall(const SlabInfo& slab) override { KV_CHECK(!slabs_.at(slab.id).peers.empty()); }
  void OnLetGo(DomainId domain) override {
    if (random_() % 2 == 0) Shrink(domain, 0);  // from inside, as the engine will
  }

 private:
  struct ModelSlab {
    uint64_t bytes() const { return info.range.bytes; }
    SlabState State() const {
      if (!asked) return SlabState::kActive;
      if (peers.empty()) return SlabState::kQuiesced;
      return late ? SlabState::kZombie : SlabState::kDetaching;
    }
    bool MayShrink() const { return !returned && (asked ? State() == SlabState::kQuiesced : taken.empty()); }
    SlabInfo info;
    std::set<PeerId> peers = {};
    std::set<SlotId> taken = {};
    bool asked = false, late = false, returned = false;
    int64_t asked_ns = 0;
  };
  static constexpr DomainId kDomains[] = {DomainId(0), DomainId(1), DomainId(4)};
  static constexpr DomainId kElsewhere{2};
  static constexpr int kGpus[] = {2};
  static constexpr int kPeers = 6;
  static constexpr uint64_t kCapacity = 96 * kMiB;
  static constexpr uint32_t kSlotSizes[] = {64 * kKiB, 448 * kKiB, 2560 * kKiB};

  void Grow(DomainId domain) {
    const uint32_t slot = kSlotSizes[random_() % std::size(kSlotSizes)];
    const uint64_t growth = tier_.GrowthBytes(domain, slot, random_() % (40 * kMiB));
    if (growth == 0) return;
    growing_ += growth;
    tier_.Grow(domain, slot, growth, [this, domain, growth](const absl::Status& status) {
      KV_CHECK(domain != kElsewhere || absl::IsPermissionDenied(status));
      if (status.ok()) return;
      growing_ -= growth;
      ++failed_grows_;
      denied_ += domain == kElsewhere ? 1 : 0;
    });
  }

  void Shrink(DomainId domain, uint64_t keep) {
    std::map<uint64_t, ModelSlab*> by_offset;
    for (auto& [id, slab] : slabs_) {
      if (slab.info.domain == domain && slab.MayShrink()) by_offset[slab.info.range.offset] = &slab;
    }
    uint64_t kept = 0, expected = 0;
    for (const auto& [offset, slab] : by_offset) {
      if (!slab->asked && kept + slab->bytes() <= keep) {
        kept += slab->bytes();
        continue;
      }
      if (!slab->asked) slab->asked_ns = clock_.MonotonicNs();
      slab->asked = true;
      slab->returned = slab->peers.empty();
      if (slab->returned) expected += slab->bytes();
    }
    ++shrinks_;
    ASSERT_EQ(tier_.Shrink(domain, keep, [this] { ++shrinks_ended_; }), expected);
  }

  SlabId AnySlab() {
    if (slabs_.empty()) return SlabId::None();
    return std::next(slabs_.begin(), static_cast<ptrdiff_t>(random_() % slabs_.size()))->first;
  }
  PeerId AnyPeer() { return peers_[random_() % kPeers]; }

  void Grant(DomainId domain) {
    const SlabId id = AnySlab();
    const PeerId peer = AnyPeer();
    const auto it = slabs_.find(id);
    const bool may = it != slabs_.end() && it->second.info.domain == domain && !it->second.asked;
    ASSERT_EQ(tier_.Grant(domain, id, peer).ok(), may);
    if (may) it->second.peers.insert(peer);
  }

  void Detach() {
    const SlabId id = AnySlab();
    const PeerId peer = AnyPeer();
    const auto it = slabs_.find(id);
    const bool had = it != slabs_.end() && it->second.peers.erase(peer) > 0;
    ASSERT_EQ(tier_.PeerDetached(peer, id), had);
  }

  void EndPeer() {
    PeerId& peer = peers_[next_peer_ % kPeers];
    for (auto& [id, slab] : slabs_) slab.peers.erase(peer);
    tier_.PeerGone(peer);
    peer = PeerId(kPeers + next_peer_++);
  }

  void Advance() {
    clock_.AdvanceMs(static_cast<int64_t>(random_() % 3000));
    for (auto& [id, slab] : slabs_) slab.late = slab.asked && clock_.MonotonicNs() - slab.asked_ns >= kRecallNs;
    tier_.Tick();
  }

  void Fail() {
    if (random_() % 4 == 0) memory_.FailNextCreates(1);
    if (random_() % 4 == 0) memory_.FailNextScrubs(2);
    memory_.SetQueueMax(random_() % 4 == 0 ? 1 : 0);
  }

  void Take(DomainId domain) {
    const uint32_t slot_bytes = kSlotSizes[random_() % std::size(kSlotSizes)];
    bool expected = false;
    for (const auto& [id, slab] : slabs_) {
      const uint64_t slots = slab.bytes() / slab.info.slot_bytes;
      expected = expected || (slab.info.domain == domain && slab.info.slot_bytes == slot_bytes && !slab.asked &&
                              slab.taken.size() < slots);
    }
    const SlotId slot = tier_.Take(domain, slot_bytes);
    ASSERT_EQ(slot.valid(), expected);
    if (!expected) return;
    const HbmTier::Place place = tier_.PlaceOf(domain, slot);
    ModelSlab& slab = slabs_.at(place.slab);
    ASSERT_TRUE(slab.info.domain == domain && !slab.asked && slab.info.slot_bytes == slot_bytes);
    ASSERT_EQ(place.offset % slot_bytes, 0u);
    ASSERT_LE(place.offset + slot_bytes, slab.bytes());
    ASSERT_TRUE(slab.taken.insert(slot).second) << "taken twice";
    ++used_slots_;
    ++takes_;
  }

  void Give() {
    for (auto& [id, slab] : slabs_) {
      if (slab.taken.empty() || (random_() % 4 == 0 && used_slots_ > slab.taken.size())) continue;
      const auto it = std::next(slab.taken.begin(), static_cast<ptrdiff_t>(random_() % slab.taken.size()));
      tier_.Give(slab.info.domain, *it);
      slab.taken.erase(it);
      --used_slots_;
      return;
    }
  }

  void Pump(uint64_t callbacks) {
    for (uint64_t i = 0; i < callbacks && executor_.RunOne(); ++i) {
    }
  }

  std::mt19937_64 random_;
  testing::ManualExecutor executor_;
  testing::FakeSlabMemory memory_;
  ManualClock clock_;
  HbmTier tier_{&memory_, kGpus[0], kCapacity, &clock_, this};
  std::map<SlabId, ModelSlab> slabs_;
  std::vector<PeerId> peers_ = {PeerId(0), PeerId(1), PeerId(2), PeerId(3), PeerId(4), PeerId(5)};
  uint64_t next_peer_ = 0, growing_ = 0, used_slots_ = 0, take_percent_ = 70;
  uint64_t shrinks_ = 0, shrinks_ended_ = 0, freed_ = 0, zombies_ = 0, failed_grows_ = 0, denied_ = 0, takes_ = 0;
};

class HbmTierPropertyTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(HbmTierPropertyTest, TheBooksAgreeAfterEachStep) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  HbmTierModel model(GetParam());
  for (int step = 0; step < 20'000; ++step) {
    if (step % 500 == 0) model.TurnTide();
    model.Step();
    model.Check();
    if (HasFatalFailure()) return;
  }
  model.Finish();
}

INSTANTIATE_TEST_SUITE_P(Seeds, HbmTierPropertyTest, ::testing::Range<uint64_t>(1, 9));

}  // namespace
}  // namespace kvartal::tier
