#include "crds/claim_check.h"

namespace kvartal::crds {

ResolvedClaim Resolve(const TierClaim& claim, uint64_t capacity_bytes) {
  ResolvedClaim resolved;
  if (!claim.guarantee && !claim.limit) return resolved;
  if (claim.guarantee) resolved.guarantee_bytes = claim.guarantee->Resolve(capacity_bytes);
  resolved.limit_bytes = claim.limit ? claim.limit->Resolve(capacity_bytes) : capacity_bytes;
  if (resolved.guarantee_bytes > capacity_bytes) {
    resolved.fit = ClaimFit::kAboveCapacity;
  } else if (resolved.guarantee_bytes > resolved.limit_bytes) {
    resolved.fit = ClaimFit::kAboveLimit;
  }
  return resolved;
}

}  // namespace kvartal::crds
