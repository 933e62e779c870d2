#include "tests/sim/model.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"

namespace kvartal::sim {
namespace {

// The end of a pin is kept in ticks here and in seconds on disk.
constexpr int64_t kPinEndMs = 1000 + 2 * int64_t{kTickMs};

std::vector<BlockKey> MakeKeys() {
  std::vector<BlockKey> keys(kNumbers);
  for (uint32_t number = 0; number < kNumbers; ++number) {
    Random random(number + 1);
    for (size_t word = 0; word < 4; ++word) {
      const uint64_t value = random.Next();
      std::memcpy(keys[number].bytes.data() + word * 8, &value, sizeof(value));
    }
  }
  return keys;
}

}  // namespace

const BlockKey& KeyOf(uint32_t number) {
  static const std::vector<BlockKey> kKeys = MakeKeys();
  return kKeys[number];
}

Model::Model(const Plan& plan, Findings* findings) : plan_(plan), findings_(*findings), versions_(1) {}

uint32_t Model::AddLife(uint32_t tenant, uint32_t uid, const policy::TenantRules& rules) {
  Life life;
  life.name = rules.name;
  life.tenant = tenant;
  life.uid = uid;
  life.in_policy = true;
  life.scribbles = plan_.tenants[tenant].scribbles;
  life.spaces.assign(plan_.layouts.size(), std::vector<Life::Block>(kNumbers));
  lives_.push_back(std::move(life));
  lives_.back().least_nvme_guarantee = UINT64_MAX;
  SetRules(life_count() - 1, rules);
  return life_count() - 1;
}

void Model::SetRules(uint32_t index, const policy::TenantRules& rules) {
  Life& life = lives_[index];
  if (rules.encrypt_nvme && !life.rules.encrypt_nvme) life.clear_below = next_nonce();
  life.rules = rules;
  life.least_nvme_guarantee = std::min(life.least_nvme_guarantee, rules.tier(TierKind::kNvme).guarantee_bytes);
  const uint64_t age_ms = rules.max_age_ms;
  if (age_ms > 0) life.shortest_age_ms = life.shortest_age_ms == 0 ? age_ms : std::min(life.shortest_age_ms, age_ms);
}

void Model::Retire(uint32_t index) {
  Life& life = lives_[index];
  life.in_policy = false;
  life.spaces.clear();
  life.slots.clear();
  life.pins.clear();
  life.dead_below = next_nonce();
  ForgetPromises(index);
}

std::string Model::NameOf(const BlockRef& ref) const {
  return absl::StrCat(lives_[ref.life].rules.uid, "/s", ref.space, "/", ref.number);
}

int64_t Model::SlackMs() const { return boots_ > 1 ? 3 * kTickMs : kTickMs; }

bool Model::TooOld(const Life& life, int64_t commit_ms, int64_t now_ms) const {
  const auto max_age_ms = static_cast<int64_t>(life.rules.max_age_ms);
  return max_age_ms > 0 && now_ms - commit_ms >= max_age_ms + SlackMs();
}

bool Model::MayHaveAged(const Version& version, int64_t now_ms) const {
  const auto shortest_ms = static_cast<int64_t>(lives_[version.block.life].shortest_age_ms);
  return shortest_ms > 0 && now_ms - version.commit_ms + 3 * kTickMs >= shortest_ms;
}

bool Model::Pinned(const Life::Block& block, int64_t now_ms) const {
  return block.ever_pinned_until_ms > 0 && now_ms < block.ever_pinned_until_ms + kPinEndMs;
}

// --- storing

uint32_t Model::Grant(const BlockRef& ref, GroupId group, uint32_t shard, uint64_t offset,
                      const engine::ReservedBlock& reserved, int64_t asked_ms, int64_t now_ms) {
  Life& life = lives_[ref.life];
  Life::Block& block = at(ref);
  const uint64_t bit = uint64_t{1} << shard;
  const auto known = fillings_.find(reserved.reservation.value());
  if (known != fillings_.end()) {
    Filling& filling = known->second;
    const bool same = filling.block == ref && filling.group == group && filling.offset == offset;
    if (!same || (filling.taken & bit) != 0) findings_.Add(absl::StrCat(NameOf(ref), ": a reservation is given twice"));
    filling.taken |= bit;
    return filling.nonce;
  }
  EndOverdueAt(ref, offset, now_ms);
  const uint32_t nonce = next_nonce();
  versions_.push_back({ref, Version::Fate::kFilling, 0});
  if (block.leases > 0) findings_.Add(absl::StrCat(NameOf(ref), " is stored anew while it is leased"));
  if (block.reservation != 0) findings_.Add(absl::StrCat(NameOf(ref), " is stored anew while it is being filled"));
  if (life.dropping) findings_.Add(absl::StrCat(NameOf(ref), " is stored while its tenant is being erased"));
  const bool beside_older = recovering_ || recovering_ms_ >= asked_ms || offline_ms_ >= asked_ms;
  const bool kept = !beside_older && block.pinned_until_ms > now_ms && block.maybe && !plan_.disk_lies() &&
                    boots_ == 1 && !MayHaveAged(ref, now_ms) && !life.quota_lowered;
  if (kept) findings_.Add(absl::StrCat(NameOf(ref), " is gone though it is pinned"));
  block.maybe = false;
  block.nonce = 0;
  block.beside_older = beside_older;
  block.pinned_until_ms = 0;
  block.reservation = reserved.reservation.value();
  const auto resting = life.resting.find(offset);
  if (resting != life.resting.end() && now_ms < resting->second.until_ms)
    findings_.Add(absl::StrCat(NameOf(ref), " is given a slot that somebody who was cut off may be writing to"));
  if (life.slots[offset].users > 0)
    findings_.Add(absl::StrCat(NameOf(ref), " is given a slot that is in use, at ", offset));
  NoteSlot(ref, offset, reserved.generation, nonce);
  ++life.slots[offset].users;
  const uint32_t shards = plan_.layouts[ref.space].shard_count;
  fillings_[reserved.reservation.value()] = {ref, group, nonce, offset, (uint64_t{1} << shards) - 1, bit, asked_ms};
  return nonce;
}

engine::CommitOutcome Model::OutcomeOf(GroupId group, ReservationId reservation, uint32_t shard) const {
  using engine::CommitOutcome;
  const auto it = fillings_.find(reservation.value());
  if (it == fillings_.end()) return CommitOutcome::kNotFilling;
  const Filling& filling = it->second;
  if (filling.group != group) return CommitOutcome::kNotYours;
  const uint64_t bit = shard < kShardsMax ? uint64_t{1} << shard : 0;
  if ((filling.taken & filling.missing & bit) == 0) return CommitOutcome::kNotFilling;
  return filling.missing == bit ? CommitOutcome::kVisible : CommitOutcome::kShardStored;
}

void Model::Commit(GroupId group, ReservationId reservation, uint32_t shard, int64_t now_ms) {
  const engine::CommitOutcome outcome = OutcomeOf(group, reservation, shard);
  if (outcome != engine::CommitOutcome::kVisible && outcome != engine::CommitOutcome::kShardStored) return;
  Filling& filling = fillings_.at(reservation.value());
  filling.missing &= ~(uint64_t{1} << shard);
  if (filling.missing != 0) return;
  const uint32_t nonce = filling.nonce;
  Life::Block& block = at(filling.block);
  block.maybe = true;
  block.nonce = block.last_committed = nonce;
  block.used_ms = block.access_ms = now_ms;
  block.latest_commit_ms = std::max(block.latest_commit_ms, now_ms);
  versions_[nonce].commit_ms = now_ms;
  if (plan_.nvme_bytes > 0) awaits_durable_[reservation.value()] = nonce;
  EndFilling(reservation.value(), Version::Fate::kCommitted);
}

bool Model::MayBeEnded(ReservationId reservation, int64_t now_ms) const {
  const auto it = fillings_.find(reservation.value());
  return it != fillings_.end() && now_ms - it->second.asked_ms + 2 * kTickMs >= int64_t{kFillTicksMax} * kTickMs;
}

size_t Model::CountMayBeEnded(GroupId group, int64_t now_ms) const {
  size_t count = 0;
  for (const auto& [reservation, filling] : fillings_) {
    if (filling.group == group && MayBeEnded(ReservationId(reservation), now_ms)) ++count;
  }
  return count;
}

// What is given to somebody again was ended before.
void Model::EndOverdueAt(const BlockRef& ref, uint64_t offset, int64_t now_ms) {
  std::vector<ReservationId> ended;
  for (const auto& [reservation, filling] : fillings_) {
    const bool in_the_way = filling.block == ref || (filling.block.life == ref.life && filling.offset == offset);
    if (in_the_way && MayBeEnded(ReservationId(reservation), now_ms)) ended.emplace_back(reservation);
  }
  for (const ReservationId reservation : ended) EndOverdue(reservation);
}

void Model::EndFilling(uint64_t reservation, Version::Fate fate) {
  const Filling& filling = fillings_.at(reservation);
  versions_[filling.nonce].fate = fate;
  ended_.insert(reservation);
  Life::Block& block = at(filling.block);
  block.reservation = 0;
  const bool older = block.last_committed >= std::max(1u, lives_[filling.block.life].dead_below);
  if (fate == Version::Fate::kAborted && block.beside_older) block.maybe = older;
  --lives_[filling.block.life].slots[filling.offset].users;
  fillings_.erase(reservation);
}

// --- serving

void Model::Found(const BlockRef& ref, bool in_place, int64_t now_ms) {
  const Life& life = lives_[ref.life];
  const Life::Block& block = at(ref);
  const auto wrong = [&](const char* what) { findings_.Add(absl::StrCat(NameOf(ref), what)); };
  // A fill beside an older copy that has had its time: the older one is found again.
  const ReservationId fill(block.reservation);
  if (!block.maybe && block.beside_older && MayBeEnded(fill, now_ms)) EndOverdue(fill);
  if (life.dropping) return wrong(" is served while its tenant is being erased");
  if (!life.in_policy) return wrong(" is served though its tenant is gone");
  if (!block.maybe) {
    return wrong(block.reservation != 0 ? " is served before its commit" : " is served though it is not there");
  }
  const bool known = block.nonce != 0 && !block.beside_older;
  const int64_t commit_ms = known ? versions_[block.nonce].commit_ms : block.latest_commit_ms;
  if (TooOld(life, commit_ms, now_ms)) return wrong(" is served though it is older than maxAge");
  const auto dram_ttl = static_cast<int64_t>(life.rules.ttl_ms[TierIndex(TierKind::kDram)]);
  const auto nvme_ttl = static_cast<int64_t>(life.rules.ttl_ms[TierIndex(TierKind::kNvme)]);
  const int64_t ttl_ms = in_place ? dram_ttl : dram_ttl == 0 || nvme_ttl == 0 ? 0 : std::max(dram_ttl, nvme_ttl);
  // What is held is in use all the time.
  const bool in_use = block.leases + block.holds + block.uses > 0;
  if (ttl_ms > 0 && !in_use && !Pinned(block, now_ms) && now_ms - block.access_ms >= ttl_ms + SlackMs()) {
    return wrong(" is served though it was idle for longer than its TTL");
  }
}

bool Model::HasRightTo(const BlockRef& ref, int64_t now_ms) {
  const Life& life = lives_[ref.life];
  const Life::Block& block = at(ref);
  if (life.dropping || !life.in_policy || !block.maybe || life.rules.max_age_ms > 0) return false;
  if (block.leases > 0) return true;
  if (MayHaveAged(ref, now_ms)) return false;
  // Of what is not durable nobody was told whether it lies in the clear.
  const bool in_the_clear = life.rules.encrypt_nvme && block.nonce < life.clear_below;
  if (plan_.encrypts && (block.nonce == 0 || in_the_clear || MayBeUnreadable(block.nonce))) return false;
  // On a disk that is offline it is a miss, and a reserve under way may be storing it anew.
  if (offline_ms_ == now_ms || (offline_ms_ != INT64_MIN && block.uses > 0)) return false;
  const bool held = block.holds > 0 && !plan_.disk_lies() && boots_ == 1;
  const auto longer_ms = [&](TierKind tier) {
    const auto ttl_ms = static_cast<int64_t>(life.rules.ttl_ms[TierIndex(tier)]);
    return ttl_ms == 0 || now_ms - block.used_ms + kTickMs < ttl_ms;
  };
  return held && longer_ms(TierKind::kDram) && longer_ms(TierKind::kNvme);
}

bool Model::MayHaveAged(const BlockRef& ref, int64_t now_ms) {
  // Beside an older copy its age counts from that one.
  const Life::Block& block = at(ref);
  const bool unknown = block.nonce == 0 || block.beside_older;
  return unknown ? lives_[ref.life].shortest_age_ms > 0 : MayHaveAged(versions_[block.nonce], now_ms);
}

bool Model::IsOverAge(uint32_t nonce, int64_t now_ms) const {
  const Version& version = versions_[nonce];
  const Life& life = lives_[version.block.life];
  return life.in_policy && TooOld(life, version.commit_ms, now_ms);
}

void Model::Read(const BlockRef& ref, uint32_t nonce) {
  const Life& life = lives_[ref.life];
  if (life.scribbles) return;
  const auto wrong = [&](const std::string& what) { findings_.Add(absl::StrCat(NameOf(ref), what)); };
  if (nonce == 0 || nonce >= next_nonce()) return wrong(" has bytes that nobody wrote");
  const Version& version = versions_[nonce];
  if (!(version.block == ref)) return wrong(absl::StrCat(" has the bytes of ", NameOf(version.block)));
  if (version.fate != Version::Fate::kCommitted) return wrong(" has bytes that were never committed");
  if (nonce < life.dead_below) return wrong(" is served after its deletion was reported");
  Life::Block& block = at(ref);
  if (block.nonce != 0 && block.nonce != nonce && !block.beside_older)
    return wrong(" has the bytes of an earlier commit");
  block.nonce = nonce;
}

void Model::NoteSlot(const BlockRef& ref, uint64_t offset, uint32_t generation, uint32_t nonce) {
  Life& life = lives_[ref.life];
  if (life.scribbles) return;
  Life::Slot& slot = life.slots[offset];
  if (slot.nonce != 0 && slot.nonce != nonce && slot.generation == generation) {
    findings_.Add(absl::StrCat(NameOf(ref),
                               " has a slot that was another block's, and its generation is the same: ", generation));
  }
  slot.generation = generation;
  slot.nonce = nonce;
}

void Model::AddHold(const BlockRef& ref, bool in_place, uint64_t offset) {
  Life::Block& block = at(ref);
  ++held_blocks_;
  if (in_place) {
    ++block.leases;
    ++lives_[ref.life].leases;
    ++lives_[ref.life].slots[offset].users;
  } else {
    ++block.holds;
  }
}

void Model::EndHold(const BlockRef& ref, bool in_place, uint64_t offset, int64_t now_ms) {
  Life::Block& block = at(ref);
  --held_blocks_;
  block.access_ms = now_ms;
  if (in_place) {
    --block.leases;
    --lives_[ref.life].leases;
    --lives_[ref.life].slots[offset].users;
  } else {
    --block.holds;
  }
}

void Model::EndUse(const BlockRef& ref, int64_t now_ms) {
  if (lives_[ref.life].spaces.empty()) return;
  --at(ref).uses;
  at(ref).access_ms = now_ms;
}

void Model::StartDrop(uint32_t index) {
  Life& life = lives_[index];
  life.dropping = true;
  life.dropped_below = next_nonce();
  for (auto& space : life.spaces) {
    for (Life::Block& block : space) {
      block.maybe = false;
      block.pinned_until_ms = 0;
    }
  }
  life.pins.clear();
  ForgetPromises(index);
  std::erase_if(awaits_durable_, [&](const auto& item) { return versions_[item.second].block.life == index; });
}

void Model::MoveOn(uint32_t index, TenantId id) {
  Life& life = lives_[index];
  life.id = id;
  life.slots.clear();
  life.resting.clear();
  life.pins.clear();
  life.charged_bytes = life.guarantee_bytes = life.entitled_bytes = life.removed_bytes = {};
  life.leases = life.loads = life.evictions = life.retired_drops = life.short_reserve = 0;
  life.nvme_refused = life.kept_bytes = life.pinned_bytes = 0;
  life.least_nvme_guarantee = life.rules.tier(TierKind::kNvme).guarantee_bytes;
  life.ns.clear();
  life.namespace_users.clear();
  life.last_request = 0;
}

void Model::EndDrop(uint32_t index, uint32_t nonces_below, bool reported) {
  Life& life = lives_[index];
  life.dropping = false;
  if (reported) life.dead_below = nonces_below;
}

// --- what survives

// What the guarantee of NVMe covers is kept there, and outlives a crash; the rest is kept in DRAM.
bool Model::IsSecret(uint32_t nonce) const {
  if (nonce == 0 || nonce >= next_nonce()) return false;
  const Life& life = lives_[versions_[nonce].block.life];
  return life.rules.encrypt_nvme && nonce >= life.clear_below;
}

bool Model::MayBeUnreadable(uint32_t nonce) const {
  if (!plan_.encrypts) return false;
  const Version& version = versions_[nonce];
  const Life& life = lives_[version.block.life];
  const bool clear = life.rules.encrypt_nvme || nonce < life.clear_below;
  const bool sealed = nonce < sealed_below_;
  // What a bad disk holds says nothing.
  if (plan_.disk_lies()) return clear || sealed;
  return version.clear ? clear : sealed;
}

void Model::Durable(ReservationId reservation, SlotId slot, uint32_t in_the_clear) {
  const auto it = awaits_durable_.find(reservation.value());
  if (it == awaits_durable_.end()) return;
  const BlockRef& ref = versions_[it->second].block;
  const Life& life = lives_[ref.life];
  // A torn write leaves what was there before: another block, or this one from when nobody asked for encryption.
  const bool clear = plan_.disk_lies() ? in_the_clear == it->second : in_the_clear != 0;
  versions_[it->second].clear = clear;
  const bool torn = plan_.disk_lies() && it->second < life.clear_below;
  if (clear && life.rules.encrypt_nvme && !torn)
    findings_.Add(absl::StrCat(NameOf(ref), " is called durable, and lies in the clear"));
  // What is there may be the older one, and then it is as durable as it was.
  if (!lives_[ref.life].spaces.empty() && !at(ref).beside_older) durable_[slot] = it->second;
  awaits_durable_.erase(it);
}

std::optional<BlockRef> Model::EndAwaitDurable(ReservationId reservation) {
  const auto node = awaits_durable_.extract(reservation.value());
  if (node.empty()) return std::nullopt;
  return versions_[node.mapped()].block;
}

void Model::Forgotten(SlotId slot) {
  durable_.erase(slot);
  durable_synced_.erase(slot);
}

void Model::ForgetPromises(uint32_t index) {
  std::erase_if(durable_, [&](const auto& item) { return versions_[item.second].block.life == index; });
}

bool Model::MayBeForgotten(uint32_t nonce, const std::vector<policy::DropReason>& reasons, int64_t now_ms,
                           int64_t latest_ms) const {
  // Or it has another place by now.
  if (reasons.empty()) return !recovering_ || !MustHaveSurvived(nonce, now_ms, latest_ms);
  return std::any_of(reasons.begin(), reasons.end(),
                     [&](policy::DropReason reason) { return MayBeForgotten(nonce, reason, now_ms, latest_ms); });
}

bool Model::MayBeForgotten(uint32_t nonce, policy::DropReason reason, int64_t now_ms, int64_t latest_ms) const {
  const Version& version = versions_[nonce];
  const Life& life = lives_[version.block.life];
  switch (reason) {
    case policy::DropReason::kIdle: {
      const auto ttl_ms = static_cast<int64_t>(life.rules.ttl_ms[TierIndex(TierKind::kNvme)]);
      return ttl_ms > 0 && now_ms - version.commit_ms + 3 * kTickMs >= ttl_ms;
    }
    case policy::DropReason::kMaxAge:
      return MayHaveAged(version, std::max(now_ms, latest_ms));
    case policy::DropReason::kRemoved:
      return nonce < life.dropped_below || life.dropping || life.was_removed || !life.in_policy;
    case policy::DropReason::kInTheClear:
    case policy::DropReason::kKeyMissing:
      return MayBeUnreadable(nonce) || !life.in_policy;
    default:
      return true;  // space; and what could not be read is counted
  }
}

void Model::Crash(bool power_cut, bool loses_catalog, bool forgets_deletions) {
  if (power_cut) {
    std::erase_if(durable_, [this](const auto& item) {
      const auto synced = durable_synced_.find(item.first);
      return synced == durable_synced_.end() || synced->second != item.second;
    });
  }
  // Who was removed may be on its way out, whoever has it back since: a crash ends what its grace promised.
  std::erase_if(durable_, [this](const auto& item) {
    const Life& life = lives_[versions_[item.second].block.life];
    return !life.in_policy || life.was_removed;
  });
  // The headers of the disk say so, unless they are damaged.
  if (loses_catalog && (plan_.disk_lies() || plan_.power_cuts)) durable_.clear();
  durable_synced_.clear();
  awaits_durable_.clear();
  for (const auto& [reservation, filling] : fillings_) versions_[filling.nonce].fate = Version::Fate::kAborted;
  fillings_.clear();
  ended_.clear();
  held_blocks_ = 0;
  for (uint32_t index = 0; index < life_count(); ++index) {
    Life& life = lives_[index];
    life.dropping = life.was_removed = life.all_open = false;
    MoveOn(index, TenantId::None());
    if (forgets_deletions) life.dead_below = 0;
    for (auto& space : life.spaces) {
      for (Life::Block& block : space) {
        block.nonce = block.leases = block.holds = block.uses = 0;
        block.reservation = 0;
        block.pinned_until_ms = 0;
        block.beside_older = false;
        block.maybe = plan_.nvme_bytes > 0 && block.last_committed >= std::max(1u, life.dead_below);
      }
    }
  }
}

}  // namespace kvartal::sim
