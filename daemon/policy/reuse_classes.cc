#include "daemon/policy/reuse_classes.h"

#include <algorithm>
#include <cmath>

#include "daemon/base/limits.h"

namespace kvartal::policy {
namespace {

constexpr double kSecondsPerTick = kTickMs / 1000.0;
constexpr uint32_t kDecayTicks = 300'000 / kTickMs;  // five minutes: the median reuse of a chat is under two
constexpr double kDecay = 0.6;
// What a class is taken for before it has shown anything: three blocks in ten come back, within minutes.
constexpr double kPriorReuses = 0.3;
constexpr double kPriorUses = 1;
constexpr double kPriorGapS = 60;
// The same where the question is whether to wear a disk for it: it has to show first that it is worth that.
constexpr double kPriorChanceReuses = 0.2;
constexpr double kReuseMax = 0.999;  // uses decay before their reuses come: more than all seem to return

}  // namespace

uint32_t ReuseClassOf(const BlockTraits& traits) {
  const uint32_t frequency = traits.frequency <= 1 ? 0 : traits.frequency == 2 ? 1 : traits.frequency <= 5 ? 2 : 3;
  // System prompts, then first turns, then long chats and documents.
  const uint64_t at = traits.offset_tokens;
  const uint32_t depth = at < 1024 ? 0 : at < 6 * 1024 ? 1 : at < 20 * 1024 ? 2 : 3;
  return (frequency * 4 + depth) * 2 + (traits.phase == SessionPhase::kContinuing ? 1 : 0);
}

PastUse PastUseOf(const BlockTraits& traits) {
  return {traits.last_access_tick, traits.frequency, static_cast<uint8_t>(ReuseClassOf(traits))};
}

void ReuseClasses::DecayUntil(uint32_t now_tick) {
  now_tick_ = std::max(now_tick_, now_tick);
  if (decayed_tick_ == 0) decayed_tick_ = now_tick_;  // the first use starts the clock
  const uint32_t periods = (now_tick_ - decayed_tick_) / kDecayTicks;
  if (periods == 0) return;
  decayed_tick_ += periods * kDecayTicks;
  const double left = std::pow(kDecay, periods);
  for (Class& each : classes_) {
    each.uses *= left;
    each.reuses *= left;
    each.gaps_s *= left;
  }
}

void ReuseClasses::Use(const PastUse& past, uint32_t reuse_class, uint32_t now_tick) {
  DecayUntil(now_tick);
  if (past.frequency > 0) {
    Class& before = classes_[past.reuse_class];
    before.reuses += 1;
    before.gaps_s += IdleSeconds(past.tick);
  }
  classes_[reuse_class].uses += 1;
}

double ReuseClasses::IdleSeconds(uint32_t last_tick) const {
  return last_tick < now_tick_ ? (now_tick_ - last_tick) * kSecondsPerTick : 0;
}

double ReuseClasses::HitDensity(uint32_t reuse_class, uint32_t last_tick, double residence_s) const {
  const Class& learnt = classes_[reuse_class];
  const double reused = std::min((learnt.reuses + kPriorReuses) / (learnt.uses + kPriorUses), kReuseMax);
  const double rate = (learnt.reuses + kPriorReuses) / (learnt.gaps_s + kPriorGapS);
  // Reuse comes at an exponential rate, or never: the longer it did not, the likelier the latter.
  const double still_to_come = reused * std::exp(-rate * IdleSeconds(last_tick));
  const double comes = still_to_come / (1 - reused + still_to_come);
  const double hits = comes * (1 - std::exp(-rate * residence_s));
  return hits / (hits / rate + (1 - comes) * residence_s);
}

double ReuseClasses::Chance(uint32_t reuse_class) const {
  const Class& learnt = classes_[reuse_class];
  return std::min((learnt.reuses + kPriorChanceReuses) / (learnt.uses + kPriorUses), kReuseMax);
}

}  // namespace kvartal::policy
