// After a restart: what the catalog (or, when it is lost, the headers of the file) says is on NVMe becomes visible
// again.
// Confined to the engine loop; records arrive in batches, lookups are served meanwhile.
// Invariants: NVMe is charged to nobody new until every surviving block is charged; a block that no longer fits its
// tenant's limit, whose tenant is unknown, or whose time is over, is forgotten, never squeezed in.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/engine/engine_state.h"
#include "daemon/engine/movement.h"
#include "daemon/engine/residency.h"

namespace kvartal::engine {

class Recovery {
 public:
  Recovery(EngineState* state, Residency* residency, Movement* movement)
      : state_(*state), residency_(*residency), movement_(*movement) {}

  void Start(absl::AnyInvocable<void(absl::Status)> done);

 private:
  enum class Source : uint8_t { kCatalog, kHeaders };
  void AdoptBatch(const std::vector<tier::CatalogRecord>& records, Source source);
  bool AdoptOne(const tier::CatalogRecord& record);
  // The entry to hang a block under whose own entry is `id` (None: it has none yet). None when there is nothing to
  // link.
  EntryId ParentFor(NamespaceId ns, EntryId id, const tier::BlockIdentity& identity);
  void Finish(absl::Status status);

  EngineState& state_;
  Residency& residency_;
  Movement& movement_;
  absl::AnyInvocable<void(absl::Status)> done_;
  uint64_t adopted_ = 0;
  uint64_t forgotten_ = 0;
};

}  // namespace kvartal::engine
