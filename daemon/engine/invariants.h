// Recomputes from the index what ledger, tiers and eviction orders claim, and KV_CHECKs that they agree. O(entries).
#pragma once

#include "daemon/engine/engine_state.h"

namespace kvartal::engine {

void CheckInvariants(const EngineState& state);

}  // namespace kvartal::engine
