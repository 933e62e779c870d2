// After a restart: what the catalog (or, when it is lost, the headers of the file) says is on NVMe becomes visible
// again.
// Confined to the engine loop; records arrive in batches, lookups are served meanwhile.
// Invariants: NVMe is charged to nobody new until every surviving block is charged; a block that no longer fits its
// tenant's limit, or has been idle for too long, is forgotten, never squeezed in; one that is stored anew meanwhile has
// this copy beside. What is over age, or of a tenant that
// no policy names any more, is charged as well, served to nobody, and erased in its turn; so is what the process before
// this one had promised to erase, found by its record or by its header.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "daemon/engine/engine_state.h"
#include "daemon/engine/movement.h"
#include "daemon/engine/pins.h"
#include "daemon/engine/receipts.h"
#include "daemon/engine/removal.h"
#include "daemon/engine/residency.h"

namespace kvartal::engine {

class Recovery {
 public:
  Recovery(EngineState* state, Residency* residency, Movement* movement, Pins* pins, Removal* removal,
           Receipts* receipts)
      : state_(*state),
        residency_(*residency),
        movement_(*movement),
        pins_(*pins),
        removal_(*removal),
        receipts_(*receipts) {}

  void Start(absl::AnyInvocable<void(absl::Status)> done);
  // Tells the catalog that it knows all blocks once what the headers told of is recorded.
  void Tick();

 private:
  enum class Source : uint8_t { kCatalog, kHeaders };
  void AdoptBatch(const std::vector<tier::CatalogRecord>& records, Source source);
  bool AdoptOne(const tier::CatalogRecord& record, Source source);
  // Of a block that is known to be on NVMe another record, or a header: what the first one did not say.
  void LearnFrom(EntryId id, const tier::CatalogRecord& record, bool pinned, uint32_t last_access_tick);
  void AdoptPin(EntryId id, uint32_t until_wall_s, bool in_force);
  // Of headers alone: the dates of a life that this one's clock is behind.
  tier::CatalogRecord NotToCome(tier::CatalogRecord record) const;
  // What the process before this one owed when it ended.
  void ResumeErasures();
  void ResumeUnzeroed(const tier::ErasureRecord& erasure);
  // It is part of a removal that could not be resumed for want of a tenant.
  bool IsCondemned(const tier::BlockHeader& header) const;
  bool OfUnresumed(const tier::BlockHeader& header) const;
  enum class Adopted : uint8_t {
    kTaken,
    kGivenUp,  // its place is others' now, or none: whoever had it gave it up before
    kNoRoom,
  };
  void AdoptOwed(TenantState& past, const tier::CatalogRecord& record, Source source);
  void AdoptHeaders(const std::vector<tier::CatalogRecord>& headers, tier::DiskSet unknown);
  Adopted TakeSlot(const TenantState& tenant, const tier::CatalogRecord& record);
  Adopted AdoptToErase(TenantState& past, const tier::CatalogRecord& record);
  void OnLoaded(absl::Status loaded);
  // What the records do not say: every block of the disks in `unknown`; of the others only what a removal owes.
  void ReadHeaders(tier::DiskSet unknown);
  void NoteUnseen();
  // The entry to hang a block under whose own entry is `id` (None: it has none yet). None when there is nothing to
  // link.
  EntryId ParentFor(NamespaceId ns, EntryId id, const tier::BlockIdentity& identity);
  void Finish(absl::Status status);

  EngineState& state_;
  Residency& residency_;
  Movement& movement_;
  Pins& pins_;
  Removal& removal_;
  Receipts& receipts_;
  std::vector<tier::ErasureRecord> unresumed_;
  std::map<tier::OwnerUidHash, int64_t> tombstones_;  // as of the start, while recovery lasts
  absl::AnyInvocable<void(absl::Status)> done_;
  bool completes_catalog_ = false;  // all headers were read, and that is not told yet
  bool syncing_ = false;            // to find out whether it may be
  uint32_t next_sync_tick_ = 0;
  uint64_t adopted_ = 0;
  uint64_t forgotten_ = 0;
  uint64_t owed_ = 0;  // to erasures that a restart cut short
  uint64_t pinned_ = 0;
  uint64_t unpinned_ = 0;  // a pin on disk that was over, or that the guarantee no longer covers
};

}  // namespace kvartal::engine
