#include "daemon/engine/store_path.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "daemon/base/check.h"

namespace kvartal::engine {

using index::Entry;
using policy::Refusal;

// One Reserve under way: walks its keys in order, waits where space has to be made, answers once.
class StorePath::Operation : public Waiter {
 public:
  Operation(StorePath* path, const ReserveRequest& request, CacheEngine::ReserveDone done)
      : path_(*path),
        state_(path->state_),
        tenant_(state_.tenant(state_.ns(request.ns).tenant)),
        group_(request.group),
        ns_(request.ns),
        use_(&path->state_, request.ns),
        shard_(request.shard),
        due_tick_(state_.DueTick(request.deadline_ms)),
        request_(request.request != 0 ? request.request : state_.NextRequest()),
        depth_(request.first_depth),
        keys_(request.keys.begin(), request.keys.end()),
        done_(std::move(done)),
        arrived_ns_(state_.devices.clock->MonotonicNs()) {
    if (request.parent != nullptr) parent_key_ = *request.parent;
    if (const EntryId parent = Parent(); parent.valid()) path_.residency_.Touch(parent, request_, state_.NowTick());
    blocks_.reserve(keys_.size());
  }
  ~Operation() override {
    if (pending_.valid()) path_.residency_.Abandon(pending_);
  }

  GroupId group() const override { return group_; }
  uint32_t due_tick() const override { return due_tick_; }
  void Late() override { Refuse(Refusal::kLate); }

  bool Retry() override {
    const int64_t start_ns = state_.devices.clock->MonotonicNs();
    bool decided = true;
    while (decided && blocks_.size() < keys_.size()) decided = Step();
    deciding_ns_ += state_.devices.clock->MonotonicNs() - start_ns;
    if (decided) Answer();
    return decided;
  }

  // Refuses what is left and answers.
  void Refuse(Refusal reason) {
    if (pending_.valid()) path_.residency_.Abandon(std::exchange(pending_, EntryId::None()));
    while (blocks_.size() < keys_.size()) AddRefused(reason);
    Answer();
  }

 private:
  // Decides the next key. False: it has to wait.
  bool Step() {
    const BlockKey& key = keys_[blocks_.size()];
    if (!pending_.valid()) {
      if (refused_ == Refusal::kNone && tenant_.dropping) refused_ = Refusal::kDraining;
      if (refused_ != Refusal::kNone) return AddRefused(refused_), true;
      EntryId known = state_.index.Find(ns_, key);
      if (known.valid() && TryKnown(known)) return true;
      known = state_.index.Find(ns_, key);  // it may have been expired, and be gone
      if (!known.valid()) {
        const Refusal no_room = path_.space_.MakeEntryRoom(tenant_, request_);
        if (no_room != Refusal::kNone) return AddRefused(no_room), true;
      }
      pending_ = path_.residency_.Reserve(ns_, key, known, Parent(), depth_, request_);
    }
    const auto wanted = static_cast<uint32_t>(keys_.size() - blocks_.size());
    const SpaceResult room = path_.space_.TakeDram(tenant_, state_.ns(ns_).layout.SlotBytes(), request_, wanted);
    if (room.outcome == SpaceOutcome::kWait) return false;
    const EntryId entry = std::exchange(pending_, EntryId::None());
    if (room.outcome == SpaceOutcome::kRefused) {
      path_.residency_.Abandon(entry);
      AddRefused(room.reason);
    } else {
      path_.residency_.StartFilling(entry, room.slot);
      AddGranted(entry);
    }
    return true;
  }

  // Of the next key. Looked up each time: while this waited, the block may have gone and its id may be another's.
  EntryId Parent() const {
    if (!blocks_.empty()) return state_.index.Find(ns_, keys_[blocks_.size() - 1]);
    return parent_key_.has_value() ? state_.index.Find(ns_, *parent_key_) : EntryId::None();
  }

  // Decides a key that has an entry already. False: treat it as new.
  bool TryKnown(EntryId id) {
    Entry& entry = state_.index.at(id);
    TierKind tier;
    switch (entry.state) {
      case BlockState::kCommitted:
        if (!state_.FindTier(id, state_.NowTick(), &tier)) {
          if (MakeWay(id)) return false;
          return AddBusy(), true;
        }
        path_.residency_.Touch(id, request_, state_.NowTick());
        AddExisting();
        return true;
      case BlockState::kFilling:
        JoinFilling(id);
        return true;
      case BlockState::kReserved:
        AddBusy();
        return true;
      default:
        return false;  // a placeholder
    }
  }

  // Of a block that nobody can be served. True: it may be stored anew.
  bool MakeWay(EntryId id) {
    const Entry& entry = state_.index.at(id);
    const uint32_t now_tick = state_.NowTick();
    // What moves is not stored twice, and what is over age is erased first.
    if (entry.writing || entry.reading || state_.OverAge(id, now_tick)) return false;
    // On a disk that does not answer now: it is kept there, and stored beside.
    const bool kept = entry.resident(TierKind::kNvme) && !state_.Expired(id, TierKind::kNvme, now_tick);
    if (!kept) {
      // Expired and not yet swept.
      if (!path_.residency_.Removable(id)) return false;
      path_.residency_.DropBlock(id, policy::DropReason::kIdle);
    } else if (entry.resident(TierKind::kDram)) {
      if (!path_.residency_.Movable(id, TierKind::kDram)) return false;
      path_.residency_.DropCopy(id, TierKind::kDram, policy::DropReason::kIdle);
    }
    return true;
  }

  // Another rank of the same engine writes its shard of the block.
  void JoinFilling(EntryId id) {
    const ReservationId reservation = state_.filling_by_entry.at(id);
    Filling& filling = state_.fillings.at(reservation);
    const uint64_t bit = uint64_t{1} << shard_;
    if (filling.group != group_ || (filling.shards_taken & bit) != 0) return AddBusy();
    path_.half_stored_.erase({filling.stored_tick, reservation});
    filling.shards_taken |= bit;
    AddSlot(id, reservation);
  }

  void AddGranted(EntryId id) {
    const ReservationId reservation(++state_.last_reservation);
    const uint32_t shards = state_.ns(ns_).layout.shard_count;
    const uint64_t all = shards == 64 ? ~uint64_t{0} : (uint64_t{1} << shards) - 1;
    state_.fillings[reservation] = {group_, id, all, uint64_t{1} << shard_, state_.NowTick()};
    state_.filling_by_entry[id] = reservation;
    state_.fillings_by_group[group_].insert(reservation);
    if (state_.index.at(id).resident(TierKind::kNvme)) state_.NoteFillingBesideCopy(id);
    AddSlot(id, reservation);
  }

  void AddSlot(EntryId id, ReservationId reservation) {
    const SlotId slot = state_.index.at(id).copy(TierKind::kDram).slot;
    ReservedBlock block;
    block.outcome = ReserveOutcome::kGranted;
    block.reservation = reservation;
    block.generation = state_.devices.dram->GenerationOf(tenant_.domain(), slot);
    block.arena_offset = tier::DramTier::OffsetOf(slot) + state_.ns(ns_).layout.ShardOffset(shard_);
    Add(block);
  }

  void AddExisting() {
    ReservedBlock block;
    block.outcome = ReserveOutcome::kExists;
    Add(block);
  }

  void Add(ReservedBlock block) {
    blocks_.push_back(block);
    ++depth_;
  }

  // A want of space holds for every later key of the chain as well.
  void AddRefused(Refusal reason) {
    refused_ = reason;
    Refused(reason);
  }
  // A busy block is somebody's: the chain goes on behind it.
  void AddBusy() { Refused(Refusal::kBusy); }
  void Refused(Refusal reason) {
    state_.NoteRefusal(tenant_, TierKind::kDram, reason, state_.ns(ns_).layout.SlotBytes());
    any_refused_ = true;
    ReservedBlock block;
    block.reason = reason;
    Add(block);
  }

  // While this waited, others may have ended what it was granted: the slot is somebody else's by now.
  void TakeBackEnded() {
    for (ReservedBlock& block : blocks_) {
      if (block.outcome != ReserveOutcome::kGranted || state_.fillings.contains(block.reservation)) continue;
      block = ReservedBlock();
      block.reason = Refusal::kBusy;
      any_refused_ = true;
    }
  }

  void Answer() {
    TakeBackEnded();
    const int64_t took_ns = state_.devices.clock->MonotonicNs() - arrived_ns_;
    state_.LatencyOf(tenant_).reserve.AddNs(took_ns);
    if (any_refused_) {
      state_.refusals_decided.AddNs(deciding_ns_);
      state_.refusals_answered.AddNs(took_ns);
    }
    done_(std::move(blocks_));
  }

  StorePath& path_;
  EngineState& state_;
  TenantState& tenant_;
  const GroupId group_;
  const NamespaceId ns_;
  const NamespaceUse use_;  // its number is not another's, whoever closes it meanwhile
  const uint32_t shard_;
  const uint32_t due_tick_;
  const uint64_t request_;
  std::optional<BlockKey> parent_key_;  // of the first key
  uint32_t depth_;
  const std::vector<BlockKey> keys_;
  std::vector<ReservedBlock> blocks_;  // decided so far
  EntryId pending_;                    // in state kReserved, waiting for its slot
  Refusal refused_ = Refusal::kNone;
  CacheEngine::ReserveDone done_;
  const int64_t arrived_ns_;
  int64_t deciding_ns_ = 0;  // without the time it waited
  bool any_refused_ = false;
};

void StorePath::Reserve(const ReserveRequest& request, CacheEngine::ReserveDone done) {
  const NamespaceState& space = state_.ns(request.ns);
  KV_CHECK(request.shard < space.layout.shard_count);
  TenantState& tenant = state_.tenant(space.tenant);
  auto operation = std::make_unique<Operation>(this, request, std::move(done));
  if (state_.draining || tenant.dropping) return operation->Refuse(Refusal::kDraining);
  if (tenant.rules.tier(TierKind::kDram).limit_bytes == 0) return operation->Refuse(Refusal::kNoTier);
  // First come, first served: a later Reserve must not overtake those that wait already.
  if (tenant.waiters.empty() && operation->Retry()) return;
  if (!state_.MayPark(tenant)) return operation->Refuse(Refusal::kQueueFull);
  KV_CHECK(state_.Park(tenant, std::move(operation)));
}

CommitOutcome StorePath::Commit(GroupId group, ReservationId reservation, uint32_t shard) {
  auto it = state_.fillings.find(reservation);
  if (it == state_.fillings.end()) return CommitOutcome::kNotFilling;
  Filling& filling = it->second;
  if (filling.group != group) return CommitOutcome::kNotYours;
  const uint64_t bit = shard < kShardsMax ? uint64_t{1} << shard : 0;
  if ((filling.shards_taken & filling.shards_missing & bit) == 0) return CommitOutcome::kNotFilling;
  filling.shards_missing &= ~bit;
  if (filling.shards_missing != 0) {
    if (filling.shards_written() == 0) {
      filling.stored_tick = state_.NowTick();
      half_stored_.emplace(filling.stored_tick, reservation);
    }
    return CommitOutcome::kShardStored;
  }
  const EntryId id = filling.entry;
  EndFilling(reservation);
  residency_.Commit(id);
  TenantState& tenant = state_.TenantOf(state_.index.at(id));
  ++tenant.stats.blocks_stored;
  tenant.stats.stored_bytes += state_.SlotBytesOf(state_.index.at(id));
  if (tenant.rules.tier(TierKind::kNvme).limit_bytes > 0 && state_.devices.nvme != nullptr) {
    state_.durable_watch[id] = {group, reservation};
    movement_.WriteThrough(id);
  }
  state_.Wake(tenant);
  return CommitOutcome::kVisible;
}

void StorePath::EndFilling(ReservationId reservation) {
  auto node = state_.fillings.extract(reservation);
  const Filling& filling = node.mapped();
  half_stored_.erase({filling.stored_tick, reservation});
  state_.fillings_beside_copy.erase({filling.since_tick, reservation});
  state_.filling_by_entry.erase(filling.entry);
  auto group = state_.fillings_by_group.find(filling.group);
  group->second.erase(reservation);
  if (group->second.empty()) state_.fillings_by_group.erase(group);
}

bool StorePath::Abort(GroupId group, ReservationId reservation, uint64_t done) {
  auto it = state_.fillings.find(reservation);
  if (it == state_.fillings.end() || it->second.group != group) return false;
  const EntryId id = it->second.entry;
  TenantState& tenant = state_.TenantOf(state_.index.at(id));
  const uint64_t written = it->second.shards_written() & ~done;
  EndFilling(reservation);
  const SlotId slot = residency_.Abandon(id);
  if (written != 0) {
    state_.devices.dram->SetHolder(tenant.domain(), slot, EntryId::None());
    resting_[reservation] = {tenant.id, slot, written};
    rested_at_tick_.emplace_back(state_.NowTick() + kSlotRestTicks, reservation);
    ++tenant.resting_slots;
  } else {
    state_.devices.dram->Give(tenant.domain(), slot);
  }
  ++tenant.stats.blocks_aborted;
  state_.Wake(tenant);
  return true;
}

void StorePath::Tick() {
  GiveRested();
  AbortOverdue();
  AbortHalfStored();
}

void StorePath::GiveRested() {
  while (!rested_at_tick_.empty() && rested_at_tick_.front().first <= state_.NowTick()) {
    const ReservationId reservation = rested_at_tick_.front().second;
    rested_at_tick_.pop_front();
    Give(reservation);
  }
}

void StorePath::EndRest(ReservationId reservation, uint64_t done) {
  const auto it = resting_.find(reservation);
  if (it == resting_.end()) return;
  it->second.written &= ~done;
  if (it->second.written == 0) Give(reservation);
}

void StorePath::Give(ReservationId reservation) {
  const auto node = resting_.extract(reservation);
  if (node.empty()) return;
  TenantState& tenant = state_.tenant(node.mapped().tenant);
  state_.devices.dram->Give(tenant.domain(), node.mapped().slot);
  if (--tenant.resting_slots == 0) space_.GiveBackEmpty(tenant);
  state_.Wake(tenant);
}

bool StorePath::IsOverdue(uint32_t since_tick) const { return state_.NowTick() - since_tick >= kFillTicksMax; }

void StorePath::AbortOverdue() {
  std::vector<ReservationId> overdue;
  // Never all fills of the node: there may be millions, of tenants that owe nobody anything.
  for (const auto& tenant : state_.tenants) {
    if (!tenant->memory_open) continue;
    for (const EntryId id : state_.devices.dram->LeavingHolders(tenant->domain())) {
      const auto filling = state_.filling_by_entry.find(id);
      if (filling != state_.filling_by_entry.end() && IsOverdue(state_.fillings.at(filling->second).since_tick))
        overdue.push_back(filling->second);
    }
  }
  // What it has on NVMe may have to be erased, or go: until the fill ends it cannot.
  auto& beside = state_.fillings_beside_copy;
  for (; !beside.empty() && IsOverdue(beside.begin()->first); beside.erase(beside.begin())) {
    const ReservationId reservation = beside.begin()->second;
    if (state_.index.at(state_.fillings.at(reservation).entry).resident(TierKind::kNvme))
      overdue.push_back(reservation);
  }
  std::sort(overdue.begin(), overdue.end());
  for (const ReservationId reservation : overdue) EndUnasked(reservation);
}

void StorePath::AbortHalfStored() {
  while (!half_stored_.empty() && IsOverdue(half_stored_.begin()->first)) {
    const ReservationId reservation = half_stored_.begin()->second;
    half_stored_.erase(half_stored_.begin());
    EndUnasked(reservation);
  }
}

// One that was to be ended may have been, by a waiting Reserve that another let go on.
void StorePath::EndUnasked(ReservationId reservation) {
  const auto it = state_.fillings.find(reservation);
  if (it == state_.fillings.end()) return;
  const GroupId group = it->second.group;
  Abort(group, reservation, 0);
  if (state_.observer != nullptr) state_.observer->OnFillEnded(group, reservation);
}

size_t StorePath::AbortGroup(GroupId group, uint64_t done) {
  // Out of the queue first: what they give back may let others go on.
  auto ended = state_.TakeOut([&](const Waiter& waiter) { return waiter.group() == group; });
  for (std::unique_ptr<Waiter>& waiter : ended) {
    waiter->Cancel();
    waiter.reset();
  }
  auto it = state_.fillings_by_group.find(group);
  if (it == state_.fillings_by_group.end()) return 0;
  // In an order that is the same in every run: which slots are free next depends on it.
  std::vector<ReservationId> reservations(it->second.begin(), it->second.end());
  std::sort(reservations.begin(), reservations.end());
  TenantState& tenant = state_.TenantOf(state_.index.at(state_.fillings.at(reservations.front()).entry));
  for (const ReservationId reservation : reservations) Abort(group, reservation, done);
  space_.GiveBackEmpty(tenant);
  state_.Wake(tenant);
  return reservations.size();
}

}  // namespace kvartal::engine
