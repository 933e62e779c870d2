// What clients do.
#include <algorithm>
#include <utility>

#include "tests/sim/say.h"
#include "tests/sim/stamp.h"

namespace kvartal::sim {
namespace {

constexpr uint32_t kNoParent = UINT32_MAX;
constexpr size_t kUnfinishedMax = 600;
constexpr size_t kFinishedKept = 64;
constexpr uint64_t kHeldBlocksMax = 300;
constexpr size_t kWaitingReservesMax = 64;

}  // namespace

// --- storing

void Simulation::DoReserve() {
  uint32_t index;
  if (!AnyLife(&index) || reserves_.size() > kWaitingReservesMax) return;
  const auto space = static_cast<uint32_t>(random_.Below(plan_.layouts.size()));
  if (!Open(index, space)) return;
  const Chain chain = AnyChain();
  const GroupId group = random_.Pick(model_.life(index).groups);
  uint32_t parent = kNoParent;
  if (random_.Chance(40)) {
    const bool true_parent = chain.first > 0 && random_.Chance(70);
    parent = true_parent ? chain.first - 1 : static_cast<uint32_t>(random_.Below(kNumbers));
  }
  for (uint32_t shard = 0; shard < plan_.layouts[space].shard_count; ++shard) {
    if (shard > 0 && random_.Chance(10)) break;  // that rank died
    Reserve(index, space, chain, group, shard, parent);
  }
}

void Simulation::Reserve(uint32_t index, uint32_t space, const Chain& chain, GroupId group, uint32_t shard,
                         uint32_t parent) {
  Life& life = model_.life(index);
  Say("reserve ", life.rules.uid, "/s", space, " [", chain.first, " +", chain.count, "] group ", group.value(),
      " shard ", shard, parent == kNoParent ? "" : absl::StrCat(" under ", parent));
  const std::vector<BlockKey> keys = KeysOf(chain);
  engine::ReserveRequest request{.group = group, .ns = life.ns[space], .shard = shard, .keys = keys};
  if (random_.Chance(60)) request.request = life.last_request;
  if (parent != kNoParent) {
    request.parent = &KeyOf(parent);
    request.first_depth = parent % kChainLength + 1;
    model_.at({index, space, parent}).access_ms = Now();
  }
  const uint64_t operation = ++last_operation_;
  const int64_t asked_ms = Now();
  reserves_[operation] = {index, space, chain, group, asked_ms};
  for (uint32_t i = 0; i < chain.count; ++i) model_.StartUse({index, space, chain.first + i});
  auto at_once = std::make_shared<bool>(true);
  node_.engine().Reserve(request, [=, this](const std::vector<engine::ReservedBlock>& blocks) {
    const auto it = reserves_.find(operation);
    if (it == reserves_.end()) return Wrong("a reserve is answered twice, or after its group ended");
    EndReserve(it);
    OnReserved(index, space, chain, group, shard, *at_once, asked_ms, blocks);
  });
  *at_once = false;
}

std::map<uint64_t, Simulation::Waiting>::iterator Simulation::EndReserve(
    std::map<uint64_t, Waiting>::iterator reserve) {
  const auto& [life, space, chain, group, asked_ms] = reserve->second;
  for (uint32_t i = 0; i < chain.count; ++i) model_.EndUse({life, space, chain.first + i}, Now());
  return reserves_.erase(reserve);
}

void Simulation::OnReserved(uint32_t index, uint32_t space, const Chain& chain, GroupId group, uint32_t shard,
                            bool at_once, int64_t asked_ms, const std::vector<engine::ReservedBlock>& blocks) {
  if (blocks.size() != chain.count) return Wrong("a reserve is not answered for every key");
  uint32_t granted = 0, exist = 0;
  policy::Refusal reason = policy::Refusal::kNone;
  for (uint32_t i = 0; i < chain.count; ++i) {
    const BlockRef ref{index, space, chain.first + i};
    switch (blocks[i].outcome) {
      case engine::ReserveOutcome::kGranted:
        ++granted;
        OnGranted(ref, group, shard, asked_ms, blocks[i]);
        break;
      case engine::ReserveOutcome::kExists:
        ++exist;
        // Decided when its turn came: what was true then may have changed since.
        if (at_once) model_.Found(ref, /*in_place=*/false, Now());
        model_.at(ref).access_ms = Now();
        break;
      case engine::ReserveOutcome::kRefused:
        reason = blocks[i].reason;
        OnRefused(index, reason);
        break;
    }
  }
  counts_.granted += granted;
  counts_.refused += chain.count - granted - exist;
  Say("  ", model_.life(index).rules.uid, " group ", group.value(), " shard ", shard, ": granted ", granted,
      ", there already ", exist, ", refused ", chain.count - granted - exist,
      reason == policy::Refusal::kNone ? "" : absl::StrCat(" (", policy::RefusalName(reason), ")"));
}

void Simulation::OnGranted(const BlockRef& ref, GroupId group, uint32_t shard, int64_t asked_ms,
                           const engine::ReservedBlock& block) {
  const ModelLayout& layout = plan_.layouts[ref.space];
  const Life& life = model_.life(ref.life);
  // While this rank waited for its answer, another of its group gave the block up.
  if (model_.HasEnded(block.reservation)) return;
  const uint64_t offset = block.arena_offset - layout.ShardOffset(shard);
  bool inside = false;
  for (const tier::GrantedRange& range : node_.dram().granted(node_.engine().DomainOf(life.id))) {
    inside |= offset >= range.offset && offset + layout.SlotBytes() <= range.offset + range.bytes;
  }
  if (!inside || offset % kSlotAlignBytes != 0)
    return Wrong(absl::StrCat(model_.NameOf(ref), " is given a slot outside the memory of its domain"));
  if (GenerationAt(ref.life, offset) != block.generation)
    return Wrong(absl::StrCat(model_.NameOf(ref), " is given a slot with another generation than it has"));
  const uint32_t nonce = model_.Grant(ref, group, shard, offset, block, asked_ms, Now());
  auto* const bytes = const_cast<std::byte*>(BytesAt(ref.life, block.arena_offset));
  WriteStamp({bytes, layout.shard_bytes}, nonce, shard);
  unfinished_.push_back({ref.life, group, block.reservation, shard});
}

void Simulation::OnRefused(uint32_t index, policy::Refusal reason) {
  if (reason == policy::Refusal::kNone) return Wrong("a refusal has no reason");
  if (reason != policy::Refusal::kCapacity) return;
  const Life& life = model_.life(index);
  const uint64_t guarantee = life.rules.tier(TierKind::kDram).guarantee_bytes;
  const engine::EngineStats stats = node_.engine().stats();
  const uint64_t charged = StatsOf(stats, life.id)->tiers[TierIndex(TierKind::kDram)].charged_bytes;
  if (life.in_policy && charged + kExtentAlignBytes <= guarantee) {
    Wrong(absl::StrCat(life.name, " is refused for want of capacity, though it has ", charged, " of the ", guarantee,
                       " bytes it is guaranteed"));
  }
}

void Simulation::DoFinish() {
  const size_t count = unfinished_.size() > kUnfinishedMax ? 64 : random_.Between(4, 64);
  for (size_t i = 0; i < count && !unfinished_.empty(); ++i) {
    // Mostly in order, as clients do.
    const size_t at = random_.Chance(90) ? 0 : random_.Below(unfinished_.size());
    const Unfinished item = unfinished_[at];
    const bool abandons = plan_.tenants[model_.life(item.life).tenant].abandons;
    if (abandons && unfinished_.size() <= kUnfinishedMax && random_.Chance(90)) continue;
    unfinished_.erase(unfinished_.begin() + static_cast<ptrdiff_t>(at));
    FinishOne(item);
  }
}

void Simulation::FinishOne(const Unfinished& item) {
  finished_.push_back(item.reservation);
  if (finished_.size() > kFinishedKept) finished_.erase(finished_.begin());
  if (random_.Chance(10)) {
    return Abort(item.group, item.reservation);
  }
  Commit(item.group, item.reservation, item.shard);
}

void Simulation::Abort(GroupId group, ReservationId reservation) {
  const bool may_be_ended = model_.MayBeEnded(reservation, Now());
  const bool expected = model_.Abort(group, reservation);
  const bool aborted = node_.engine().Abort(group, reservation);
  Say("group ", group.value(), " aborts ", reservation.value(), aborted ? "" : ": there is none of its own");
  if (aborted != expected && !(expected && may_be_ended)) Wrong("an abort came out otherwise than it must");
}

void Simulation::Commit(GroupId group, ReservationId reservation, uint32_t shard) {
  using engine::CommitOutcome;
  const CommitOutcome expected = model_.OutcomeOf(group, reservation, shard);
  // Only the engine knows whether it ended one whose time was up.
  const bool may_be_ended = model_.MayBeEnded(reservation, Now());
  if (!may_be_ended) model_.Commit(group, reservation, shard, Now());
  const CommitOutcome outcome = node_.engine().Commit(group, reservation, shard);
  if (may_be_ended && outcome == CommitOutcome::kNotFilling && expected != CommitOutcome::kNotFilling) {
    Say("group ", group.value(), " commits ", reservation.value(), ", which was ended");
    return model_.EndOverdue(reservation);
  }
  if (may_be_ended) model_.Commit(group, reservation, shard, Now());
  if (outcome == CommitOutcome::kVisible) ++counts_.committed;
  Say("group ", group.value(), " commits ", reservation.value(), " shard ", shard, ": ", static_cast<int>(outcome));
  if (outcome != expected) Wrong(absl::StrCat("a commit must come out as ", static_cast<int>(expected)));
}

// --- loading

void Simulation::DoLookup() {
  uint32_t index;
  if (!AnyLife(&index)) return;
  const auto space = static_cast<uint32_t>(random_.Below(plan_.layouts.size()));
  if (!Open(index, space)) return;
  Lookup(index, space, AnyChain());
  while (model_.held_blocks() > kHeldBlocksMax && !leases_.empty()) {
    const size_t at = random_.Below(leases_.size());
    ReleaseLease(at, leases_[at].blocks.size());
  }
}

void Simulation::Lookup(uint32_t index, uint32_t space, const Chain& chain) {
  Life& life = model_.life(index);
  std::vector<engine::BlockPlace> places;
  const uint64_t request = random_.Chance(20) ? life.last_request : 0;
  const engine::LookupResult result = node_.engine().Lookup(life.ns[space], KeysOf(chain), 0, request, &places);
  Say("lookup ", life.rules.uid, "/s", space, " [", chain.first, " +", chain.count, "]: found ", result.matched);
  life.last_request = result.request;
  if (places.size() != result.matched || result.matched > chain.count)
    return Wrong("a lookup found what was not asked");
  counts_.found += result.matched;
  Lease lease{index, space, {}};
  bool in_place = true;
  const uint64_t every_byte_of = random_.Below(chain.count);
  for (uint32_t i = 0; i < result.matched; ++i) {
    const BlockRef ref{index, space, chain.first + i};
    in_place = in_place && places[i].tier == TierKind::kDram;
    model_.Found(ref, in_place, Now());
    lease.blocks.push_back(TakeHold(ref, places[i], in_place, i == every_byte_of));
    Life::Block& block = model_.at(ref);
    block.access_ms = Now();
    // One request uses a block once, however often it asks.
    if (request == 0) block.used_ms = Now();
  }
  if (result.matched < chain.count) {
    const BlockRef missed{index, space, chain.first + result.matched};
    if (model_.HasRightTo(missed, Now()) && !IsOwed(missed))
      Wrong(absl::StrCat(model_.NameOf(missed), " is not found though it is held"));
  }
  if (lease.blocks.empty()) return;
  leases_.push_back(std::move(lease));
  if (random_.Chance(30)) ReleaseLease(leases_.size() - 1, leases_.back().blocks.size());
}

bool Simulation::IsOwed(const BlockRef& ref) {
  for (const Lease& lease : leases_) {
    for (const Held& held : lease.blocks) {
      if (!(held.block == ref)) continue;
      const engine::Hold in_place{held.hold.entry, true};
      // Or so is that of somebody else: no lease is new then.
      const bool capped = node_.engine().stats().guarantee_waits[TierIndex(TierKind::kDram)];
      return capped || !node_.engine().MayRenew({&in_place, 1});
    }
  }
  return false;
}

Simulation::Held Simulation::TakeHold(const BlockRef& ref, const engine::BlockPlace& place, bool in_place,
                                      bool every_byte) {
  Held held{ref, {place.entry, in_place}, place.arena_offset, place.generation, 0};
  if (in_place) {
    if (GenerationAt(ref.life, place.arena_offset) != place.generation)
      Wrong(absl::StrCat(model_.NameOf(ref), " is served with another generation than its slot has"));
    held.nonce = NonceAt(BytesAt(ref.life, place.arena_offset));
    model_.Read(ref, held.nonce);
    model_.NoteSlot(ref, place.arena_offset, place.generation, held.nonce);
    if (!findings_.any()) CheckHeld(held, ref.space, every_byte);
  }
  model_.AddHold(ref, in_place, place.arena_offset);
  return held;
}

void Simulation::DoLoad() {
  if (leases_.empty()) return DoLookup();
  const Lease& lease = random_.Pick(leases_);
  if (!model_.life(lease.life).in_policy || !Open(lease.life, lease.space)) return;
  Load(lease, random_.Chance(70) ? lease.blocks.size() : random_.Between(1, lease.blocks.size()));
}

void Simulation::Load(const Lease& lease, size_t count) {
  const std::vector<Held> asked(lease.blocks.begin(), lease.blocks.begin() + static_cast<ptrdiff_t>(count));
  std::vector<EntryId> entries;
  for (const Held& held : asked) {
    entries.push_back(held.hold.entry);
    model_.StartUse(held.block);
  }
  Say("load ", count, " from ", model_.NameOf(asked.front().block));
  ++loads_;
  auto answered = std::make_shared<bool>(false);
  node_.engine().Load(
      model_.life(lease.life).ns[lease.space], std::move(entries),
      [this, index = lease.life, space = lease.space, asked, answered](const engine::CacheEngine::LoadResult& result) {
        if (std::exchange(*answered, true)) Wrong("a load is answered twice");
        --loads_;
        OnLoaded(index, space, asked, result);
      });
}

void Simulation::OnLoaded(uint32_t index, uint32_t space, const std::vector<Held>& asked,
                          const engine::CacheEngine::LoadResult& result) {
  const Life& life = model_.life(index);
  Say("  ", life.rules.uid, ": loaded ", result.places.size(), " of ", asked.size(), result.read_failed ? ", lost" : "",
      result.reason == policy::Refusal::kNone ? "" : absl::StrCat(" (", policy::RefusalName(result.reason), ")"));
  if (result.places.size() > asked.size()) return Wrong("a load brought what was not asked");
  const bool short_of = result.places.size() < asked.size();
  if (short_of && result.reason == policy::Refusal::kNone && !result.read_failed)
    Wrong("a load brought less than was asked, and no reason");
  if (result.read_failed && (durable_read_ || !ReadsMayFail(index))) Wrong("a block was lost though the disk is sound");
  counts_.loaded += result.places.size();
  for (const Held& held : asked) model_.EndUse(held.block, Now());
  std::vector<engine::Hold> holds;
  for (const engine::BlockPlace& place : result.places) holds.push_back({place.entry, true});
  // Its sessions ended meanwhile: nobody is there to read it.
  if (life.dropping || !life.in_policy) return node_.engine().Release(holds);
  Lease lease{index, space, {}};
  for (size_t i = 0; i < result.places.size(); ++i) {
    if (result.places[i].entry != asked[i].hold.entry) return Wrong("a load answers about another block");
    lease.blocks.push_back(TakeHold(asked[i].block, result.places[i], true, true));
  }
  if (lease.blocks.empty()) return;
  leases_.push_back(std::move(lease));
  if (random_.Chance(60)) ReleaseLease(leases_.size() - 1, leases_.back().blocks.size());
}

void Simulation::DoRelease() {
  if (leases_.empty()) return;
  const size_t at = random_.Below(leases_.size());
  if (plan_.tenants[model_.life(leases_[at].life).tenant].hoards && random_.Chance(90)) return;
  const size_t all = leases_[at].blocks.size();
  const size_t count = random_.Chance(80) ? all : random_.Between(1, all);
  Say("release ", count, " from ", model_.NameOf(leases_[at].blocks.front().block));
  ReleaseLease(at, count);
}

void Simulation::ReleaseLease(size_t at, size_t count) {
  Lease& lease = leases_[at];
  std::vector<engine::Hold> holds;
  for (size_t i = 0; i < count; ++i) {
    const Held& held = lease.blocks[i];
    CheckHeld(held, lease.space, true);
    holds.push_back(held.hold);
    model_.EndHold(held.block, held.hold.in_place, held.offset, Now());
  }
  lease.blocks.erase(lease.blocks.begin(), lease.blocks.begin() + static_cast<ptrdiff_t>(count));
  if (lease.blocks.empty()) leases_.erase(leases_.begin() + static_cast<ptrdiff_t>(at));
  // Last: it may answer others, and they may take leases.
  node_.engine().Release(holds);
}

void Simulation::DoPin() {
  if (leases_.empty()) return;
  const Lease& lease = random_.Pick(leases_);
  const Life& life = model_.life(lease.life);
  if (!life.in_policy || life.dropping) return;
  const size_t count = random_.Between(1, std::min<size_t>(lease.blocks.size(), 8));
  std::vector<engine::Hold> holds;
  for (size_t i = 0; i < count; ++i) holds.push_back(lease.blocks[i].hold);
  const int64_t until_ms = Now() + static_cast<int64_t>(random_.Below(30'000));
  const policy::Refusal refused = node_.engine().Pin(holds, until_ms);
  Say("pin ", count, " from ", model_.NameOf(lease.blocks.front().block), " for ", until_ms - Now(),
      " ms: ", policy::RefusalName(refused));
  const bool may_be_too_long = life.rules.max_age_ms > 0;
  if (refused == policy::Refusal::kTooLong && !may_be_too_long)
    Wrong("a pin is called too long, and nothing ends before it");
  if (refused != policy::Refusal::kNone) return;
  for (size_t i = 0; i < count; ++i) model_.Pin(lease.blocks[i].block, until_ms, Now());
}

// --- leaving

void Simulation::DoGroupEnd() {
  uint32_t index;
  if (!AnyLife(&index)) return;
  EndGroup(index, random_.Below(model_.life(index).groups.size()));
}

// The last session of an engine group is gone; another group starts.
void Simulation::EndGroup(uint32_t index, size_t at) {
  GroupId& group = model_.life(index).groups[at];
  size_t waiting = 0;
  for (auto it = reserves_.begin(); it != reserves_.end();) {
    const bool of_group = it->second.group == group;
    waiting += of_group ? 1 : 0;
    it = of_group ? EndReserve(it) : std::next(it);
  }
  const size_t may_be_ended = model_.CountMayBeEnded(group, Now());
  const size_t expected = model_.AbortGroup(group);
  const size_t aborted = node_.engine().AbortGroup(group);
  Say("group ", group.value(), " ends: ", aborted, " blocks aborted");
  if (aborted + may_be_ended < expected || (aborted > expected && waiting == 0))
    Wrong(absl::StrCat("must be ", expected));
  std::erase_if(unfinished_, [&](const Unfinished& item) { return item.group == group; });
  group = GroupId(++last_group_);
}

}  // namespace kvartal::sim
