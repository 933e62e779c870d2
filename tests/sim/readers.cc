// What clients do to read, and to keep what they read.
#include <algorithm>
#include <utility>

#include "tests/sim/say.h"
#include "tests/sim/stamp.h"

namespace kvartal::sim {
namespace {

constexpr uint64_t kHeldBlocksMax = 300;

}  // namespace

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
  coverage_.Note(Situation::kFound, result.matched);
  Lease lease{index, space, {}, Now()};
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
  if (node_.nvme_offline()) model_.NoteOffline(Now());
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
      const engine::EngineStats stats = node_.engine().stats();
      const engine::TenantTierStats& dram = StatsOf(stats, model_.life(ref.life).id)->tiers[TierIndex(TierKind::kDram)];
      const bool capped = stats.guarantee_waits[TierIndex(TierKind::kDram)] || dram.charged_bytes > dram.limit_bytes;
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
  if (!model_.life(lease.life).in_policy) return;
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
  ++model_.life(lease.life).loads;
  auto answered = std::make_shared<bool>(false);
  node_.engine().Load(
      {.ns = model_.life(lease.life).ns[lease.space],
       .entries = std::move(entries),
       .session = SessionId(lease.life + 1),
       .deadline_ms = count % 3 == 0 ? 2 * kTickMs : 0,
       .ahead = count % 5 == 4},
      [this, index = lease.life, space = lease.space, asked, answered](const engine::CacheEngine::LoadResult& result) {
        if (std::exchange(*answered, true)) Wrong("a load is answered twice");
        --loads_;
        --model_.life(index).loads;
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
  const bool may_be_lost = result.read_failed && (model_.MayHaveAged(asked[result.places.size()].block, Now()) ||
                                                  (!durable_read_ && ReadsMayFail(index)));
  if (result.read_failed && !may_be_lost) Wrong("a block was lost though the disk is sound");
  coverage_.Note(Situation::kLoaded, result.places.size());
  if (result.read_failed) {
    coverage_.Note(Situation::kLostInRead);
    const size_t at = result.places.size();
    lost_.push_back({asked[at].block, static_cast<uint32_t>(asked.size() - at)});
  }
  for (const Held& held : asked) model_.EndUse(held.block, Now());
  std::vector<engine::Hold> holds;
  for (const engine::BlockPlace& place : result.places) holds.push_back({place.entry, true});
  // Its sessions ended meanwhile: nobody is there to read it.
  const bool nobody = life.dropping || !life.in_policy || life.namespace_users[space] == 0;
  if (nobody) return node_.engine().Release(holds);
  Lease lease{index, space, {}, Now()};
  for (size_t i = 0; i < result.places.size(); ++i) {
    if (result.places[i].entry != asked[i].hold.entry) return Wrong("a load answers about another block");
    lease.blocks.push_back(TakeHold(asked[i].block, result.places[i], true, true));
    if (findings_.any()) return;
    if (!life.scribbles && model_.IsOverAge(lease.blocks.back().nonce, Now()))
      return Wrong(absl::StrCat(model_.NameOf(asked[i].block), " is loaded though it is older than maxAge"));
  }
  if (lease.blocks.empty()) return;
  leases_.push_back(std::move(lease));
  if (random_.Chance(60)) ReleaseLease(leases_.size() - 1, leases_.back().blocks.size());
}

void Simulation::StoreLost() {
  const Lost lost = random_.Pick(lost_);
  lost_.clear();
  const BlockRef& ref = lost.block;
  Life& life = model_.life(ref.life);
  if (!life.in_policy || life.dropping || !Open(ref.life, ref.space)) return;
  const GroupId group = random_.Pick(life.groups);
  for (uint32_t shard = 0; shard < plan_.layouts[ref.space].shard_count; ++shard) {
    Reserve(ref.life, ref.space, {ref.number, lost.count}, group, shard, kNoParent);
  }
  const bool filling = model_.at(ref).reservation != 0;
  for (const Lease& lease : leases_) {
    const auto holds = [&](const Held& held) { return held.block == ref && !held.hold.in_place; };
    if (std::none_of(lease.blocks.begin(), lease.blocks.end(), holds)) continue;
    if (filling) coverage_.Note(Situation::kStoredAnewWhileHeld);
    return Load(lease, lease.blocks.size());
  }
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

void Simulation::RenewLeases() {
  for (size_t at = 0; at < leases_.size() && !findings_.any();) {
    Lease& lease = leases_[at];
    std::vector<engine::Hold> holds;
    for (const Held& held : lease.blocks) holds.push_back(held.hold);
    if (node_.engine().MayRenew(holds)) lease.renewed_ms = Now();
    if (Now() - lease.renewed_ms < kLeaseMs) {
      ++at;
      continue;
    }
    Say("a lease from ", model_.NameOf(lease.blocks.front().block), " is renewed no more");
    coverage_.Note(Situation::kLeaseNotRenewed);
    ReleaseLease(at, lease.blocks.size());
  }
}

void Simulation::DoPin() {
  if (leases_.empty()) return;
  const Lease& lease = random_.Pick(leases_);
  const Life& life = model_.life(lease.life);
  if (!life.in_policy || life.dropping) return;
  const size_t count = random_.Between(1, std::min<size_t>(lease.blocks.size(), 8));
  Pin(lease, count, static_cast<int64_t>(random_.Below(30'000)));
}

void Simulation::DoHint() {
  if (leases_.empty()) return;
  const Lease& lease = random_.Pick(leases_);
  const bool waits = random_.Chance(50);
  std::vector<engine::Hold> holds;
  for (const Held& held : lease.blocks) {
    holds.push_back(held.hold);
    if (waits) model_.at(held.block).access_ms = Now();
  }
  Say("hint: ", holds.size(), " from ", model_.NameOf(lease.blocks.front().block), waits ? " wait" : " have ended");
  node_.engine().Hint(holds, waits ? policy::SessionHint::kWaiting : policy::SessionHint::kEnded);
  coverage_.Note(Situation::kHinted);
}

// Its end is said by the wall clock, and kept by the dates of blocks.
void Simulation::Pin(const Lease& lease, size_t count, int64_t for_ms) {
  const Life& life = model_.life(lease.life);
  std::vector<engine::Hold> holds;
  for (size_t i = 0; i < count; ++i) holds.push_back(lease.blocks[i].hold);
  const int64_t until_ms = Now() + for_ms;
  const policy::Refusal refused = node_.engine().Pin(holds, node_.clock().WallMs() + for_ms);
  Say("pin ", count, " from ", model_.NameOf(lease.blocks.front().block), " for ", for_ms,
      " ms: ", policy::RefusalName(refused));
  coverage_.Note(refused == policy::Refusal::kNone ? Situation::kPinned : Situation::kPinRefused);
  const bool may_be_too_long = life.rules.max_age_ms > 0;
  if (refused == policy::Refusal::kTooLong && !may_be_too_long)
    Wrong("a pin is called too long, and nothing ends before it");
  if (refused != policy::Refusal::kNone) return;
  for (size_t i = 0; i < count; ++i) model_.Pin(lease.blocks[i].block, until_ms, Now());
}

}  // namespace kvartal::sim
