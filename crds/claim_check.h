// What a claim on one tier comes to in bytes, and whether that can be kept. Pure: the operator judges a pool by the
// same function by which a daemon judges itself.
#pragma once

#include <cstdint>

#include "crds/tenant_policy.h"

namespace kvartal::crds {

enum class ClaimFit : uint8_t {
  kFits,
  kAboveCapacity,  // the guarantee alone is more than there is
  kAboveLimit,     // guarantee and limit in different units, and in bytes the guarantee is the larger
};

struct ResolvedClaim {
  uint64_t guarantee_bytes = 0;
  uint64_t limit_bytes = 0;  // as asked, also above the capacity; a guarantee alone: the capacity; no claim: 0
  ClaimFit fit = ClaimFit::kFits;
};

ResolvedClaim Resolve(const TierClaim& claim, uint64_t capacity_bytes);

}  // namespace kvartal::crds
