// What clients do that they should not. It costs them, and nobody else.
#include <algorithm>

#include "tests/sim/say.h"
#include "tests/sim/stamp.h"

namespace kvartal::sim {

void Simulation::DoHostile() {
  switch (random_.Below(4)) {
    case 0:
    case 1:
      return CommitWrongly();
    case 2:
      return Scribble();
    default:
      return AskTooMuch();
  }
}

// Finished ones again, unknown ones, other groups', shards that there are not.
void Simulation::CommitWrongly() {
  ReservationId reservation(random_.Chance(50) ? last_operation_ + 1'000'000 : random_.Next());
  if (!finished_.empty() && random_.Chance(40)) reservation = random_.Pick(finished_);
  if (!unfinished_.empty() && random_.Chance(50)) reservation = random_.Pick(unfinished_).reservation;
  const GroupId group(random_.Chance(70) ? random_.Between(1, last_group_) : random_.Next());
  const bool real_shard = random_.Chance(50);
  const auto shard = static_cast<uint32_t>(real_shard ? random_.Below(2) : random_.Between(3, 70));
  if (random_.Chance(30)) {
    return Abort(group, reservation, random_.Next());
  }
  // Of a reserve that waits, only the engine knows what it has been given already.
  const auto waits = [&](const auto& reserve) { return reserve.second.group == group; };
  if (std::none_of(reserves_.begin(), reserves_.end(), waits)) Commit(group, reservation, shard);
}

// All over the memory it may map, and beyond what it was granted.
void Simulation::Scribble() {
  uint32_t index;
  if (!AnyLife(&index) || !model_.life(index).scribbles || model_.life(index).ns.empty()) return;
  const DomainId domain = node_.engine().DomainOf(model_.life(index).id);
  Say("scribble over the memory of ", model_.life(index).rules.uid);
  for (const tier::GrantedRange& range : node_.dram().granted(domain)) {
    const uint64_t offset = range.offset + random_.Below(range.bytes / kSlotAlignBytes) * kSlotAlignBytes;
    WriteStamp({const_cast<std::byte*>(BytesAt(index, offset)), kSlotAlignBytes}, UINT32_MAX, 0);
  }
  if (!random_.Chance(20) || plan_.planted != Planted::kNothing) return;
  device::Arena* const arena = node_.dram().arena(domain);
  const uint64_t hole = random_.Below(arena->size_bytes() / kExtentAlignBytes) * kExtentAlignBytes;
  testing::FakeMemory::TouchHole(arena, hole, kSlotAlignBytes);
}

// Chains as long as a frame can be, and a namespace in another shape than it has.
void Simulation::AskTooMuch() {
  uint32_t index;
  if (!AnyLife(&index) || !Open(index, 0)) return;
  Life& life = model_.life(index);
  if (random_.Chance(30)) {
    ModelLayout other = plan_.layouts[0];
    other.shard_bytes += kSlotAlignBytes;
    NamespaceDigest digest;
    digest.bytes.fill(1);
    Say("open a namespace of ", life.rules.uid, " with another layout");
    if (node_.engine().OpenNamespace(life.id, digest, other).ok()) Wrong("a namespace has two layouts");
    return;
  }
  const auto count = static_cast<uint32_t>(random_.Between(512, kNumbers - kScanStart));
  const Chain chain{kScanStart, count};
  if (random_.Chance(50)) return Lookup(index, 0, chain);
  Reserve(index, 0, chain, life.groups.front(), 0, kScanStart);
}

}  // namespace kvartal::sim
