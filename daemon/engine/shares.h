// What each tenant is entitled to in each tier now: demand measured, shares poured once a second, and the questions
// that the search for space asks about them. The rule itself is policy/fair_share.h.
// Confined to the engine loop.
// Invariant: shares change only here, all of a tier at once.
#pragma once

#include <cstdint>

#include "daemon/engine/engine_state.h"
#include "daemon/policy/fair_share.h"

namespace kvartal::engine {

class Shares {
 public:
  explicit Shares(EngineState* state) : state_(*state) {}

  // Pours the shares anew every kSharePeriodTicks, and lets old misses fade.
  void Tick();
  // After a new policy.
  void Pour();

  policy::Claim ClaimOf(const TenantState& tenant, TierKind tier, uint64_t bytes) const;
  // What the tenant may still add while others wait for space that was taken for them.
  uint64_t EntitledRoom(const TenantState& tenant, TierKind tier) const;
  // Above its soft cap while somebody else is short: its room comes from its own blocks.
  bool AboveCap(const TenantState& tenant, TierKind tier) const;
  // It wanted more than it could get without giving up blocks of its own.
  void NoteRanOut(TenantState& tenant, TierKind tier);

  // Who has to give space to `taker`: the one who gives already, while it has to, else the one the rule names. nullptr
  // when nobody has to, or nobody who has to can now. O(tenants) once a victim.
  TenantState* Victim(TenantState& taker, TierKind tier, policy::Claim claim);
  // `victim` has nothing that can be taken on such a claim now.
  void NoteStuck(TenantState& taker, TenantState& victim, TierKind tier, policy::Claim claim);
  // Somebody holds what is owed to `taker`, and cannot be made to give it at once. O(tenants).
  bool Owed(const TenantState& taker, TierKind tier, policy::Claim claim) const;

 private:
  policy::Standing StandingOf(const TenantState& tenant, TierKind tier) const;
  uint64_t CapBytes(const TenantState& tenant, TierKind tier) const;
  void Pour(TierKind tier);
  uint64_t PouredBytes(TierKind tier) const;
  // Where Basic tenants get what is idle, and no more.
  TierKind FastestTier() const;

  EngineState& state_;
  uint32_t next_pour_tick_ = 0;
};

}  // namespace kvartal::engine
