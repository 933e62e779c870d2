#include "daemon/engine/recovery.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "daemon/base/check.h"
#include "daemon/base/log.h"

namespace kvartal::engine {

void Recovery::Start(absl::AnyInvocable<void(absl::Status)> done) {
  if (state_.devices.nvme == nullptr) return done(absl::OkStatus());
  done_ = std::move(done);
  state_.recovering = true;
  tombstones_ = state_.devices.catalog->tombstones();
  ResumeErasures();
  state_.devices.catalog->Load(
      [this](const std::vector<tier::CatalogRecord>& records) { AdoptBatch(records, Source::kCatalog); },
      [this](absl::Status status) { OnLoaded(std::move(status)); });
}

void Recovery::OnLoaded(absl::Status loaded) {
  if (absl::IsCancelled(loaded)) return Finish(std::move(loaded));
  const tier::DiskSet incomplete = state_.devices.catalog->incomplete();
  if (!loaded.ok()) {
    Log(LogLevel::kError, "engine", "the NVMe catalog could not be read in full (", std::string(loaded.message()),
        "): looking for the rest in the headers of the file");
  } else if (incomplete != tier::kNoDisk) {
    Log(LogLevel::kInfo, "engine",
        "the NVMe catalog does not know all blocks: looking for others in the headers of the file (none on a new one)");
  }
  ReadHeaders(loaded.ok() ? incomplete : tier::kAllDisks);
}

// Data goes to disk before its record, and a process may end in between: a removal it had begun owes those bytes, too,
// whatever disk they lie on.
void Recovery::ReadHeaders(tier::DiskSet unknown) {
  const tier::DiskSet disks = removal_.owed().empty() ? unknown : tier::kAllDisks;
  if (disks == tier::kNoDisk) return Finish(absl::OkStatus());
  state_.devices.nvme->ScanHeaders(
      [this, unknown](const std::vector<tier::CatalogRecord>& headers) { AdoptHeaders(headers, unknown); },
      [this, unknown](absl::Status scanned) {
        if (!scanned.ok()) NoteUnseen();
        completes_catalog_ = scanned.ok() && state_.devices.catalog->incomplete() != tier::kNoDisk;
        // What cannot be read is a miss.
        const bool served = unknown == tier::kNoDisk || absl::IsDataLoss(scanned);
        Finish(served ? absl::OkStatus() : std::move(scanned));
      },
      disks);
}

void Recovery::AdoptHeaders(const std::vector<tier::CatalogRecord>& headers, tier::DiskSet unknown) {
  const tier::DiskMap& map = state_.devices.nvme->map();
  std::vector<tier::CatalogRecord> of_unknown;
  of_unknown.reserve(headers.size());
  for (const tier::CatalogRecord& header : headers) {
    if ((tier::SetOfDisk(map.Find(header.slot)->disk) & unknown) != tier::kNoDisk) {
      of_unknown.push_back(header);
    } else if (TenantState* const past = removal_.Owing(header.header, false); past != nullptr) {
      AdoptOwed(*past, header, Source::kHeaders);
    }
  }
  AdoptBatch(of_unknown, Source::kHeaders);
}

// What was not seen is not certified.
void Recovery::NoteUnseen() {
  for (const TenantId id : removal_.owed())
    receipts_.NoteUnzeroed(state_.tenant(id).owner, state_.tenant(id).stats.name);
}

void Recovery::ResumeErasures() {
  using Kind = tier::ErasureRecord::Kind;
  const std::vector<tier::ErasureRecord> erasures = state_.devices.catalog->open_erasures();
  for (const tier::ErasureRecord& erasure : erasures) state_.last_erasure = std::max(state_.last_erasure, erasure.id);
  for (const tier::ErasureRecord& erasure : erasures) {
    if (erasure.kind == Kind::kUnzeroed) ResumeUnzeroed(erasure);
    if (erasure.kind == Kind::kRemoval && removal_.Resume(erasure) == nullptr) unresumed_.push_back(erasure);
    if (erasure.kind != Kind::kMaxAge) continue;
    TenantState* tenant = state_.FindOwner(erasure.owner);
    if (tenant == nullptr) tenant = state_.AddRemoved(erasure.owner);
    if (tenant != nullptr) receipts_.Resume(*tenant, erasure);
  }
}

// Two disks that were never there together have each counted for themselves.
void Recovery::ResumeUnzeroed(const tier::ErasureRecord& erasure) {
  UnzeroedBlocks less{erasure.id, erasure.unzeroed_blocks};
  UnzeroedBlocks& most = state_.unzeroed[erasure.owner];
  if (less.blocks > most.blocks) std::swap(less, most);
  if (less.erasure != 0) state_.devices.catalog->EndErasure(less.erasure);
}

bool Recovery::OfUnresumed(const tier::BlockHeader& header) const {
  return std::any_of(unresumed_.begin(), unresumed_.end(), [&](const tier::ErasureRecord& erasure) {
    return erasure.owner == header.identity.owner && header.first_commit_ms < erasure.before_wall_ms;
  });
}

void Recovery::AdoptOwed(TenantState& past, const tier::CatalogRecord& record, Source source) {
  const Adopted adopted = AdoptToErase(past, record);
  if (adopted == Adopted::kTaken) ++owed_;
  if (adopted == Adopted::kNoRoom) receipts_.NoteUnzeroed(past.owner, past.stats.name);
  // A header that was found beside its record is no news.
  if (adopted != Adopted::kTaken && source == Source::kCatalog) state_.devices.catalog->Delete(record.slot);
}

// Nobody will ask for it: it is known by its slot alone.
Recovery::Adopted Recovery::AdoptToErase(TenantState& past, const tier::CatalogRecord& record) {
  const tier::BlockIdentity& identity = record.header.identity;
  const ModelLayout layout{identity.tokens_per_block, identity.shard_count, identity.shard_bytes};
  const auto ns = state_.AddNamespace(past.id, identity.digest, layout);
  const absl::Cleanup forget = [&] {
    if (ns.ok()) state_.ForgetIfUnused(*ns);
  };
  if (!ns.ok() || layout.SlotBytes() != identity.payload_bytes) return Adopted::kNoRoom;
  if (const Adopted adopted = TakeSlot(past, record); adopted != Adopted::kTaken) return adopted;
  BlockKey key;
  const uint32_t slot = record.slot.value();
  std::memcpy(key.bytes.data(), &slot, sizeof(slot));
  const EntryId id = state_.InsertEntry(*ns, key, EntryId::None(), 0);
  residency_.AdoptOnNvme(id, record.slot, state_.TickOfWallMs(record.header.first_commit_ms),
                         state_.TickOfWallMs(record.header.last_access_ms));
  return Adopted::kTaken;
}

Recovery::Adopted Recovery::TakeSlot(const TenantState& tenant, const tier::CatalogRecord& record) {
  const uint32_t payload_bytes = record.header.identity.payload_bytes;
  tier::NvmeTier& nvme = *state_.devices.nvme;
  const tier::BlockHeader& header = record.header;
  if (!nvme.Adopt(tenant.domain(), record.slot, payload_bytes, header.generation, header.seal.key_id))
    return Adopted::kGivenUp;
  if (state_.ledger.Adopt(tenant.id, TierKind::kNvme, payload_bytes + kNvmeHeaderBytes)) return Adopted::kTaken;
  nvme.Give(tenant.domain(), record.slot);
  nvme.Shrink(tenant.domain(), 0, [] {});
  return Adopted::kNoRoom;
}

// By what any disk knows: another may have been away when it was said, and have had no room for it since.
bool Recovery::IsCondemned(const tier::BlockHeader& header) const {
  const auto tombstone = tombstones_.find(header.identity.owner);
  return tombstone != tombstones_.end() && header.first_commit_ms < tombstone->second;
}

void Recovery::AdoptBatch(const std::vector<tier::CatalogRecord>& records, Source source) {
  for (const tier::CatalogRecord& record : records) {
    const bool condemned = record.condemned || IsCondemned(record.header);
    if (TenantState* const past = removal_.Owing(record.header, condemned); past != nullptr) {
      AdoptOwed(*past, record, source);
      continue;
    }
    // There are too many tenants: nobody gets what is to be erased, and nobody is told that it was.
    const bool nobodys = condemned || OfUnresumed(record.header);
    if (nobodys) receipts_.NoteUnzeroed(record.header.identity.owner, "");
    if (nobodys || !AdoptOne(record, source)) {
      // A header beside its record is no news, and the record stays.
      if (source == Source::kHeaders) continue;
      ++forgotten_;
      state_.devices.catalog->Delete(record.slot);
      continue;
    }
    ++adopted_;
    if (source == Source::kHeaders) movement_.RecordAgain(NotToCome(record));
  }
}

// What counts as now in this life does so in the next one: a drop is after it.
tier::CatalogRecord Recovery::NotToCome(tier::CatalogRecord record) const {
  const int64_t now_ms = state_.WallMsOfTick(state_.NowTick());
  record.header.first_commit_ms = std::min(record.header.first_commit_ms, now_ms);
  record.header.last_access_ms = std::min(record.header.last_access_ms, now_ms);
  return record;
}

bool Recovery::AdoptOne(const tier::CatalogRecord& record, Source source) {
  const tier::BlockIdentity& identity = record.header.identity;
  TenantState* tenant = state_.FindOwner(identity.owner);
  if (tenant == nullptr) tenant = state_.AddRemoved(identity.owner);
  if (tenant == nullptr) return false;
  const ModelLayout layout{identity.tokens_per_block, identity.shard_count, identity.shard_bytes};
  const auto ns = state_.AddNamespace(tenant->id, identity.digest, layout);
  const absl::Cleanup forget = [&] {
    if (ns.ok()) state_.ForgetIfUnused(*ns);
  };
  if (!ns.ok() || layout.SlotBytes() != identity.payload_bytes) return false;
  policy::BlockAges ages;
  ages.first_commit_tick = state_.TickOfWallMs(record.header.first_commit_ms);
  ages.last_access_tick = state_.TickOfWallMs(record.header.last_access_ms);
  const uint32_t now_tick = state_.NowTick();
  const bool pinned = int64_t{record.header.pinned_until_s} * 1000 > state_.WallMsOfTick(now_tick);
  const bool over_age = policy::OverAge(tenant->rules, ages, now_tick);
  EntryId id = state_.index.Find(*ns, identity.key);
  if (id.valid() && state_.index.at(id).resident(TierKind::kNvme)) {
    LearnFrom(id, record, pinned && !over_age, ages.last_access_tick);
    return false;
  }
  const bool stored_anew = id.valid() && state_.index.at(id).state != BlockState::kGone;
  // What is over age is erased, whatever else there is to say against it.
  if (!over_age && !pinned && policy::Expired(tenant->rules, ages, TierKind::kNvme, now_tick)) return false;
  // It was written before the policy asked for more.
  if (!over_age && tenant->rules.encrypt_nvme && record.header.seal.key_id == 0) return false;
  // Its own, and maybe its parent's.
  if (!stored_anew && tenant->stats.entries + 2 > tenant->rules.max_entries) return false;

  if (TakeSlot(*tenant, record) != Adopted::kTaken) return false;
  if (stored_anew) {
    residency_.AdoptBeside(id, record.slot, ages.first_commit_tick, source == Source::kCatalog);
    if (state_.index.at(id).durable && state_.index.at(id).state == BlockState::kCommitted) movement_.TellDurable(id);
    AdoptPin(id, record.header.pinned_until_s, pinned && !over_age);
    return true;
  }
  const EntryId parent = ParentFor(*ns, id, identity);
  if (!id.valid()) {
    id = state_.InsertEntry(*ns, identity.key, parent, identity.depth);
  } else if (parent.valid()) {
    state_.index.SetParent(id, parent);
  }
  residency_.AdoptOnNvme(id, record.slot, ages.first_commit_tick, ages.last_access_tick);
  AdoptPin(id, record.header.pinned_until_s, pinned && !over_age);
  return true;
}

void Recovery::LearnFrom(EntryId id, const tier::CatalogRecord& record, bool pinned, uint32_t last_access_tick) {
  index::Entry& entry = state_.index.at(id);
  // What was found first may be an older copy, from before the block was given up and stored anew.
  if (entry.state == BlockState::kCommitted && last_access_tick > entry.last_access_tick) {
    residency_.Refresh(id, last_access_tick, last_access_tick);
    entry.times_unrecorded = true;
    state_.timers.Schedule(id, state_.NowTick() + 1);
  }
  // It was stored anew, and pinned, on another disk while that of the first record was away.
  if (pinned && pins_.Adopt(id, record.header.pinned_until_s)) entry.times_unrecorded = true;
  // The record is an earlier build's, which noted no numbers of keys.
  const tier::BlockHeader& header = record.header;
  const bool same_place = entry.copy(TierKind::kNvme).slot == record.slot;
  if (!same_place || !state_.devices.nvme->LearnKey(record.slot, header.generation, header.seal.key_id)) return;
  tier::CatalogRecord whole = record;
  whole.header.last_access_ms = state_.WallMsOfTick(entry.last_access_tick);
  if (entry.pinned_in(TierKind::kNvme)) whole.header.pinned_until_s = state_.PinnedUntilWallS(id);
  movement_.RecordAgain(NotToCome(whole));
}

void Recovery::AdoptPin(EntryId id, uint32_t until_wall_s, bool in_force) {
  if (until_wall_s == 0) return;
  ++(in_force && pins_.Adopt(id, until_wall_s) ? pinned_ : unpinned_);
}

EntryId Recovery::ParentFor(NamespaceId ns, EntryId id, const tier::BlockIdentity& identity) {
  if (id.valid() && state_.index.at(id).parent.valid()) return EntryId::None();  // linked already
  // A block that was stored without its parent names none, and a client may write any key: neither may tie a knot here.
  const uint32_t depth = id.valid() ? state_.index.at(id).depth : identity.depth;
  if (depth == 0 || identity.parent == BlockKey{} || identity.parent == identity.key) return EntryId::None();
  const EntryId known = state_.index.Find(ns, identity.parent);
  if (known.valid()) return state_.index.at(known).depth < depth ? known : EntryId::None();
  // Its record may come later: a placeholder is there for it.
  return state_.InsertEntry(ns, identity.parent, EntryId::None(), depth - 1);
}

void Recovery::Finish(absl::Status status) {
  state_.recovering = false;
  unresumed_.clear();
  tombstones_.clear();
  removal_.EndResume();
  // Removed tenants got back what they had, and may not grow beyond it.
  for (const auto& tenant : state_.tenants) state_.SetQuotas(*tenant);
  Log(LogLevel::kInfo, "engine", "recovered ", adopted_, " blocks from NVMe, forgot ", forgotten_, "; ", pinned_,
      " are pinned, ", unpinned_, " no longer; ", owed_, " are to be erased");
  state_.WakeAll();
  done_(std::move(status));
  Tick();
}

// Not before each of them has its record: those that were refused are put again in a later tick.
void Recovery::Tick() {
  if (!completes_catalog_ || syncing_ || movement_.has_unrecorded() || state_.NowTick() < next_sync_tick_) return;
  syncing_ = true;
  state_.devices.catalog->Flush([this](const absl::Status& synced) {
    syncing_ = false;
    if (!synced.ok()) next_sync_tick_ = state_.NowTick() + kCatalogRetryTicks;
    if (!synced.ok() || movement_.has_unrecorded()) return;
    completes_catalog_ = false;
    state_.devices.catalog->MarkComplete();
  });
}

}  // namespace kvartal::engine
