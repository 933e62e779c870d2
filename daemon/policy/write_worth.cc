#include "daemon/policy/write_worth.h"

namespace kvartal::policy {
namespace {

// One in four: of the bars that were tried on recorded chats the one that half of the blocks pass.
constexpr double kLikelyChance = 0.25;

// A block is found through all those before it, so that it is worth no more than they are: halving its depth passes
// through each class of depth on the way to the head.
bool AllLikely(BlockTraits traits, const ReuseClasses& classes) {
  while (classes.Chance(ReuseClassOf(traits)) > kLikelyChance) {
    if (traits.offset_tokens == 0) return true;
    traits.offset_tokens /= 2;
  }
  return false;
}

}  // namespace

WriteWorth WriteWorthOf(const BlockTraits& traits, const ReuseClasses* classes) {
  if (traits.phase == SessionPhase::kEnded) return WriteWorth::kAny;
  if (traits.phase == SessionPhase::kContinuing || traits.frequency > 1) return WriteWorth::kProven;
  return classes != nullptr && AllLikely(traits, *classes) ? WriteWorth::kLikely : WriteWorth::kAny;
}

}  // namespace kvartal::policy
