// What the past of a tenant's blocks says about their future. Blocks are put in classes (how often used, how deep, in
// what phase of a conversation); a class learns how likely its blocks are used again, and how soon. Time is the ticks
// it is told.
// Confined to the engine loop.
#pragma once

#include <array>
#include <cstdint>

#include "daemon/policy/eviction_order.h"

namespace kvartal::policy {

inline constexpr uint32_t kReuseClassCount = 32;
// A request that finds so much of its chain in the cache goes on with a conversation rather than to share a prompt.
inline constexpr uint64_t kContinuingTokens = 1536;
uint32_t ReuseClassOf(const BlockTraits& traits);

// The last use of a block before the one at hand.
struct PastUse {
  uint32_t tick = 0;
  uint8_t frequency = 0;  // 0: none is known
  uint8_t reuse_class = 0;
};
PastUse PastUseOf(const BlockTraits& traits);

class ReuseClasses {
 public:
  // A block was used at `now_tick` and is in `reuse_class` from now on.
  void Use(const PastUse& past, uint32_t reuse_class, uint32_t now_tick);
  uint32_t now_tick() const { return now_tick_; }

  // Hits to expect of a block that was idle since `last_tick`, for each second it stays; it goes after `residence_s`
  // without one. Falls with the time it was idle.
  double HitDensity(uint32_t reuse_class, uint32_t last_tick, double residence_s) const;
  // Which part of the blocks of a class is used again, sooner or later.
  double Chance(uint32_t reuse_class) const;
  double IdleSeconds(uint32_t last_tick) const;

 private:
  struct Class {
    double uses = 0;
    double reuses = 0;  // uses that were followed by another
    double gaps_s = 0;  // how long those took, together
  };
  void DecayUntil(uint32_t now_tick);

  std::array<Class, kReuseClassCount> classes_;
  uint32_t now_tick_ = 0;
  uint32_t decayed_tick_ = 0;
};

}  // namespace kvartal::policy
