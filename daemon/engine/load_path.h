// Lookup, Load, Release: from keys to bytes a client may read in place.
// Confined to the engine loop. Lookup allocates nothing in steady state.
// Invariants: only committed, unexpired blocks are matched; every matched block is leased or held until its Release; a
// Load reports blocks from the front only, all of them in DRAM and leased in place.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "daemon/engine/engine_state.h"
#include "daemon/engine/movement.h"
#include "daemon/engine/residency.h"
#include "daemon/engine/space.h"

namespace kvartal::engine {

class LoadOperation;

class LoadPath {
 public:
  LoadPath(EngineState* state, Residency* residency, Space* space, Movement* movement)
      : state_(*state), residency_(*residency), space_(*space), movement_(*movement) {}

  LookupResult Lookup(NamespaceId ns, std::span<const BlockKey> keys, uint64_t prompt_tokens, uint64_t request,
                      std::vector<BlockPlace>* places);
  void Load(LoadRequest request, CacheEngine::LoadDone done);
  // Nobody waits for what a session asked for, or for what should have been there by now.
  void EndSession(SessionId session);
  void Tick();
  void Release(std::span<const Hold> holds);
  void Hint(std::span<const Hold> chain, policy::SessionHint hint);

 private:
  friend class LoadOperation;
  // Those that `is_over` knows answer with what they have.
  void GiveUp(policy::Refusal reason, absl::FunctionRef<bool(const LoadOperation&)> is_over);
  BlockPlace PlaceInDram(EntryId id) const;
  // False, and nothing happened, when the block is kept as often as can be counted, or has to go.
  bool TryKeep(Hold hold);
  bool AddHold(EntryId id);
  // Why not, for a lease in place; counted.
  policy::Refusal NoteNotLeased(EntryId id);

  EngineState& state_;
  Residency& residency_;
  Space& space_;
  Movement& movement_;
  std::vector<EntryId> found_;                            // scratch of Lookup
  std::list<std::shared_ptr<LoadOperation>> unanswered_;  // oldest first
};

}  // namespace kvartal::engine
