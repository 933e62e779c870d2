// What a decision of the engine means to a person: a sentence for each reason, and what would help. Pure.
// Invariant: every Refusal and every DropReason has both.
#pragma once

#include "daemon/policy/drop_reason.h"
#include "daemon/policy/refusal.h"

namespace kvartal::control {

struct DecisionWords {
  const char* meaning;  // why it happened, without a full stop
  const char* remedy;   // what to do about it, if anything should be done
};

DecisionWords WordsOf(policy::Refusal reason);
DecisionWords WordsOf(policy::DropReason reason);

}  // namespace kvartal::control
