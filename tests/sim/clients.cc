// What clients do to store, and how they leave.
#include <algorithm>
#include <utility>

#include "tests/sim/say.h"
#include "tests/sim/stamp.h"

namespace kvartal::sim {
namespace {

constexpr size_t kUnfinishedMax = 600;
constexpr size_t kFinishedKept = 64;
constexpr size_t kWaitingRequestsMax = 64;

}  // namespace

// --- storing

void Simulation::DoReserve() {
  uint32_t index;
  if (!AnyLife(&index) || reserves_.size() > kWaitingRequestsMax) return;
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
                         uint32_t parent, uint32_t deadline_ms) {
  Life& life = model_.life(index);
  Say("reserve ", life.rules.uid, "/s", space, " [", chain.first, " +", chain.count, "] group ", group.value(),
      " shard ", shard, parent == kNoParent ? "" : absl::StrCat(" under ", parent));
  const std::vector<BlockKey> keys = KeysOf(chain);
  engine::ReserveRequest request{
      .group = group, .ns = life.ns[space], .shard = shard, .keys = keys, .deadline_ms = deadline_ms};
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
  coverage_.Note(Situation::kGranted, granted);
  coverage_.Note(Situation::kRefused, chain.count - granted - exist);
  if (granted > 0 && !node_.recovered()) coverage_.Note(Situation::kStoredWhileRecovering);
  if (granted > 0 && node_.nvme_offline()) coverage_.Note(Situation::kStoredWhileOffline);
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
  if (node_.nvme_offline()) model_.NoteOffline(Now());
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
  if (random_.Chance(30)) EndRest();
}

void Simulation::Store(uint32_t index, uint32_t space, const Chain& chain) {
  const GroupId group = model_.life(index).groups.front();
  for (uint32_t shard = 0; shard < plan_.layouts[space].shard_count; ++shard) {
    Reserve(index, space, chain, group, shard, kNoParent);
  }
  node_.CompleteAll();
  const std::vector<Unfinished> left = unfinished_;
  for (const Unfinished& item : left) {
    if (item.life == index) FinishOne(item);
  }
  std::erase_if(unfinished_, [&](const Unfinished& item) { return item.life == index; });
  node_.CompleteAll();
}

void Simulation::FinishOne(const Unfinished& item) {
  finished_.push_back(item.reservation);
  if (finished_.size() > kFinishedKept) finished_.erase(finished_.begin());
  if (random_.Chance(10)) {
    return Abort(item.group, item.reservation, uint64_t{1} << item.shard);
  }
  Commit(item.group, item.reservation, item.shard);
}

// By somebody who writes no more to the shards `done`.
void Simulation::Abort(GroupId group, ReservationId reservation, uint64_t done) {
  const bool may_be_ended = model_.MayBeEnded(reservation, Now());
  const bool expected = model_.Abort(group, reservation, done, Now());
  const bool aborted = node_.engine().Abort(group, reservation, done);
  Say("group ", group.value(), " aborts ", reservation.value(), aborted ? "" : ": there is none of its own");
  if (aborted != expected && !(expected && may_be_ended)) Wrong("an abort came out otherwise than it must");
}

// Somebody who was cut off is heard of: it writes no more, to some shards or to all.
void Simulation::EndRest() {
  if (model_.cut_off().empty()) return;
  const size_t at = random_.Below(model_.cut_off().size());
  const ReservationId reservation = model_.cut_off()[at].reservation;
  const uint64_t done = random_.Chance(50) ? kAllShards : random_.Next();
  Say("nobody writes to ", reservation.value(), " any more", done == kAllShards ? "" : ", to some of its shards");
  if (model_.EndRest(at, done, Now())) coverage_.Note(Situation::kRestEnded);
  node_.engine().EndRest(reservation, done);
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
    coverage_.Note(Situation::kFillEnded);
    return model_.EndOverdue(reservation);
  }
  if (may_be_ended) model_.Commit(group, reservation, shard, Now());
  if (outcome == CommitOutcome::kVisible) coverage_.Note(Situation::kCommitted);
  Say("group ", group.value(), " commits ", reservation.value(), " shard ", shard, ": ", static_cast<int>(outcome));
  if (outcome != expected) Wrong(absl::StrCat("a commit must come out as ", static_cast<int>(expected)));
}

// --- leaving

void Simulation::DoGroupEnd() {
  uint32_t index;
  if (!AnyLife(&index)) return;
  EndGroup(index, random_.Below(model_.life(index).groups.size()));
}

// The last session of an engine group is gone; another group starts.
void Simulation::EndGroup(uint32_t index, size_t at) {
  node_.engine().EndSession(SessionId(index + 1));
  GroupId& group = model_.life(index).groups[at];
  size_t waiting = 0;
  for (auto it = reserves_.begin(); it != reserves_.end();) {
    const bool of_group = it->second.group == group;
    waiting += of_group ? 1 : 0;
    it = of_group ? EndReserve(it) : std::next(it);
  }
  const size_t may_be_ended = model_.CountMayBeEnded(group, Now());
  const uint64_t done = event_ % 2 == 0 ? kAllShards : 0;
  const size_t expected = model_.AbortGroup(group, done, Now());
  const size_t aborted = node_.engine().AbortGroup(group, done);
  Say("group ", group.value(), " ends: ", aborted, " blocks aborted");
  if (aborted > 0) coverage_.Note(Situation::kGroupEnded);
  if (aborted + may_be_ended < expected || (aborted > expected && waiting == 0))
    Wrong(absl::StrCat("must be ", expected));
  std::erase_if(unfinished_, [&](const Unfinished& item) { return item.group == group; });
  group = GroupId(++last_group_);
}

// A group opens a namespace that another one has open, or one of those that have it open ends.
void Simulation::DoNamespace() {
  uint32_t index;
  if (!AnyLife(&index)) return;
  const auto space = static_cast<uint32_t>(random_.Below(plan_.layouts.size()));
  if (!Open(index, space)) return;
  Life& life = model_.life(index);
  if (random_.Chance(20)) {
    Say("open ", life.rules.uid, "/s", space, " once more");
    OpenNamespace(&life, space);
    return;
  }
  CloseNamespace(index, space);
}

// With the last one everybody who used it has left before.
void Simulation::CloseNamespace(uint32_t index, uint32_t space) {
  Life& life = model_.life(index);
  if (life.namespace_users[space] == 1) {
    for (size_t at = 0; at < life.groups.size(); ++at) EndGroup(index, at);
    for (size_t at = 0; at < leases_.size();) {
      const bool of_it = leases_[at].life == index && leases_[at].space == space;
      if (of_it) ReleaseLease(at, leases_[at].blocks.size());
      at = of_it ? 0 : at + 1;  // it may have answered others
    }
    coverage_.Note(Situation::kNamespaceClosed);
  }
  Say("close ", life.rules.uid, "/s", space);
  node_.engine().CloseNamespace(life.ns[space]);
  --life.namespace_users[space];
}

}  // namespace kvartal::sim
