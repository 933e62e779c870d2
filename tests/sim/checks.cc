// What is compared after every event, and from time to time.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "tests/sim/say.h"
#include "tests/sim/stamp.h"

namespace kvartal::sim {
namespace {

constexpr uint64_t kEventsBetweenFullChecks = 64;
// A lease lasts kLeaseMs, a fill and a Load that nobody waits for ten seconds; and blocks have to be written, dropped.
constexpr int64_t kDrainMsMax = kLeaseMs + int64_t{std::max(kFillTicksMax, kLoadTicksFree)} * kTickMs + 10'000;
constexpr uint32_t kSoundSpeed = 60;      // of devices that are not what a drain waits for
constexpr size_t kBacklogMax = 32;        // transfers that the disk, which does one after another, has before a drain's
constexpr uint32_t kDropSlackTicks = 40;  // of which a slot that somebody may be writing to rests for twenty

}  // namespace

void Simulation::CheckAfterEvent() {
  if (findings_.any()) return;
  model_.SetRecovering(!node_.recovered(), Now());
  NoteRecovered();
  CheckLedger();
  CheckLeases();
  if (event_ % kEventsBetweenFullChecks == 0) CheckEverything();
}

// Bytes charged are bytes in use, as the tiers and the memory thread count them.
void Simulation::CheckLedger() {
  const engine::EngineStats stats = node_.engine().stats();
  std::array<uint64_t, kTierCount> charged{};
  for (const engine::TenantStats& tenant : stats.tenants) {
    for (size_t tier = 0; tier < kTierCount; ++tier) charged[tier] += tenant.tiers[tier].charged_bytes;
  }
  for (const TierKind tier : kAllTiers) {
    const size_t at = TierIndex(tier);
    if (charged[at] != stats.charged_bytes[at]) Wrong("the charges of tenants do not add up");
    if (stats.charged_bytes[at] + stats.reclaiming_bytes[at] > stats.capacity_bytes[at])
      Wrong(absl::StrCat("more is charged than there is of ", TierName(tier)));
  }
  CheckMemory(stats);
  CheckZeroed(stats);
  CheckUnreadable(stats);
  CheckWriteBudget(stats);
  nvme_drops_ = NvmeDropsOf(stats);
  if (node_.nvme_offline()) model_.NoteOffline(Now());
  if (node_.nvme() != nullptr) {
    // A block that moves has two places, and is charged for one.
    const uint64_t nvme_charged =
        stats.charged_bytes[TierIndex(TierKind::kNvme)] + stats.reclaiming_bytes[TierIndex(TierKind::kNvme)];
    const uint64_t nvme_used = node_.nvme()->stats().granted_bytes;
    if (nvme_charged != nvme_used)
      Wrong(absl::StrCat("nvme: ", nvme_charged, " bytes are charged and ", nvme_used, " in use"));
  }
  ForgetGone(stats);
  // A wait ends with a tick alone: seen before and after what took no time, it was there all the while.
  const bool no_time = std::exchange(looked_ms_, Now()) == Now();
  std::array<bool, kTierCount> waited{};
  for (size_t tier = 0; tier < kTierCount; ++tier)
    waited[tier] = no_time && guarantee_waits_[tier] && stats.guarantee_waits[tier];
  guarantee_waits_ = stats.guarantee_waits;
  CheckTaking(stats, waited);
  for (uint32_t life = 0; life < model_.life_count(); ++life) {
    Life& known = model_.life(life);
    if (!known.id.valid()) continue;
    if (waited[TierIndex(TierKind::kDram)]) CheckLeaseCap(known, *StatsOf(stats, known.id));
    CheckTenant(&known, *StatsOf(stats, known.id));
  }
  was_recovering_ = !node_.recovered();
  // Loads hold what they bring.
  const uint64_t held = stats.leased_blocks;
  if (held < model_.held_blocks() || (loads_ == 0 && held != model_.held_blocks()))
    Wrong(absl::StrCat("the engine counts ", held, " holds, clients have ", model_.held_blocks()));
}

// Nothing is left of it, and its number may be another's from now on.
void Simulation::ForgetGone(const engine::EngineStats& stats) {
  for (uint32_t index = 0; index < model_.life_count(); ++index) {
    Life& life = model_.life(index);
    if (!life.id.valid() || StatsOf(stats, life.id) != nullptr) continue;
    if (life.in_policy) Wrong(life.name + " is in the policy, and is forgotten");
    life.id = TenantId::None();
    life.ns.clear();
    life.namespace_users.clear();
    life.slots.clear();  // its next arena begins anew, generations and all
    coverage_.Note(Situation::kTenantForgotten);
  }
}

// Extents that go back together are the ledger's until the last of them is punched; else the two agree to the byte.
void Simulation::CheckMemory(const engine::EngineStats& stats) {
  const uint64_t reclaiming = stats.reclaiming_bytes[TierIndex(TierKind::kDram)];
  const uint64_t charged = stats.charged_bytes[TierIndex(TierKind::kDram)] + reclaiming;
  const tier::TierStats dram = node_.dram().stats();
  const testing::FakeMemory::Counts memory = node_.memory().counts();
  const uint64_t used = dram.granted_bytes + dram.reclaiming_bytes + memory.populating_bytes;
  const uint64_t lag_max = memory.pending > 0 ? reclaiming : 0;
  if (charged < used || charged - used > lag_max)
    Wrong(absl::StrCat("dram: ", charged, " bytes are charged and ", used, " in use"));
}

uint64_t Simulation::OldestReserve(uint32_t life) const {
  for (const auto& [operation, reserve] : reserves_) {
    if (reserve.life == life) return operation;
  }
  return 0;
}

// What is taken from others for somebody short of its guarantee is for nobody else, above what he is entitled to: else
// who waits for it may wait for ever. On NVMe that is what was given up to empty a segment, too.
void Simulation::CheckTaking(const engine::EngineStats& stats, std::array<bool, kTierCount> waited) {
  waited[TierIndex(TierKind::kDram)] |= ShortSince(stats);
  for (uint32_t index = 0; index < model_.life_count(); ++index) {
    Life& life = model_.life(index);
    if (!life.id.valid()) continue;
    for (const TierKind tier : kAllTiers) {
      const size_t at = TierIndex(tier);
      const engine::TenantTierStats& now = StatsOf(stats, life.id)->tiers[at];
      const uint64_t entitled = std::max(now.guarantee_bytes, now.fair_share_bytes);
      const uint64_t most = std::max(entitled, life.entitled_bytes[at]);
      if (waited[at] && now.charged_bytes > most) {
        coverage_.Note(tier == TierKind::kDram ? Situation::kBorrowsWhileWaited : Situation::kBorrowsNvmeWhileWaited);
      }
      if (waited[at] && now.charged_bytes > life.charged_bytes[at] && now.charged_bytes > most) {
        Wrong(absl::StrCat(life.rules.uid, " grew to ", now.charged_bytes, " bytes of ", TierName(tier),
                           ", and is entitled to ", most, ", while another waits for what it is guaranteed"));
      }
      life.entitled_bytes[at] = entitled;
    }
  }
}

// Somebody has waited for memory that is guaranteed to it, and for nothing else, since the last look.
bool Simulation::ShortSince(const engine::EngineStats& stats) {
  const bool memory_refuses = plan_.populate_failures_percent > 0 || plan_.memory_queue_max > 0;
  // Who waits for its own memory asks nobody for theirs.
  const bool populating = node_.memory().counts().populating_bytes > 0 || tick_late_ || memory_refuses;
  bool short_since = false;
  for (uint32_t index = 0; index < model_.life_count(); ++index) {
    Life& life = model_.life(index);
    if (!life.id.valid()) continue;
    const engine::TenantTierStats& now = StatsOf(stats, life.id)->tiers[TierIndex(TierKind::kDram)];
    const uint64_t oldest = OldestReserve(index);
    const bool is_short = oldest != 0 && life.in_policy && !life.dropping && life.loads == 0 &&
                          now.charged_bytes + kExtentAlignBytes <= now.guarantee_bytes;
    if (is_short) coverage_.Note(Situation::kShortOfGuarantee);
    short_since |= is_short && life.short_reserve == oldest && !tick_late_;
    life.short_reserve = is_short && !populating ? oldest : 0;
  }
  return short_since;
}

// Segments have one slot size: what a guarantee may miss is less than one for each other size on each disk, since
// blocks are brought together on a disk, and the tails that no slot fits in.
uint64_t Simulation::NvmeBytesMissed() const {
  std::set<uint32_t> sizes;
  for (const ModelLayout& layout : plan_.layouts) sizes.insert(layout.SlotBytes());
  const uint64_t segments = plan_.nvme_bytes / kSegmentMinBytes + plan_.disks;
  return plan_.disks * (sizes.size() - 1) * kSegmentMinBytes + segments * (*sizes.rbegin() + kNvmeHeaderBytes);
}

// Nor is it refused.
void Simulation::CheckNvmeGuarantee(Life* life, const engine::TenantStats& stats) {
  const size_t at = TierIndex(TierKind::kNvme);
  const engine::TenantTierStats& now = stats.tiers[at];
  const uint64_t refused = now.refusal(policy::Refusal::kCapacity).count;
  const bool refused_now = std::exchange(life->nvme_refused, refused) < refused;
  if (!refused_now || plan_.disk_lies() || node_.absent_disks() > 0) return;
  const uint64_t missed = NvmeBytesMissed();
  const uint64_t most = std::max(now.charged_bytes, life->charged_bytes[at]);
  coverage_.Note(Situation::kNvmeRefused);
  // A disk of one segment may have less than what its file was made for.
  const uint64_t there = node_.engine().stats().capacity_bytes[at];
  if (most + missed <= std::min({now.guarantee_bytes, life->guarantee_bytes[at], there})) {
    Wrong(absl::StrCat(life->rules.uid, " is refused on nvme, though it has ", most, " of the ", now.guarantee_bytes,
                       " bytes it is guaranteed"));
  }
}

// While somebody waits for its guarantee, what is leased or pinned does not grow beyond one's own, but by a pin, which
// that has room for.
void Simulation::CheckLeaseCap(const Life& life, const engine::TenantStats& tenant) {
  const size_t dram = TierIndex(TierKind::kDram);
  const uint64_t cap = std::max(tenant.tiers[dram].guarantee_bytes, life.guarantee_bytes[dram]);
  if (tenant.leased_bytes >= cap) coverage_.Note(Situation::kLeasesCapped);
  const bool pinned = tenant.pinned_bytes > life.pinned_bytes;
  if (tenant.kept_bytes > cap && tenant.kept_bytes > life.kept_bytes && !pinned) {
    Wrong(absl::StrCat(life.rules.uid, " leases and pins ", tenant.kept_bytes,
                       " bytes while a guarantee waits; its own is ", cap));
  }
}

// What is deleted for its age is zeroed first, on the memory thread.
void Simulation::CheckZeroed(const engine::EngineStats& stats) {
  uint64_t aged_bytes = 0;
  for (const engine::TenantStats& tenant : stats.tenants) {
    aged_bytes += tenant.tiers[TierIndex(TierKind::kDram)].drop(policy::DropReason::kMaxAge).bytes;
  }
  const uint64_t zeroed_bytes = node_.memory().counts().zeroed_bytes;
  if (aged_bytes > zeroed_bytes)
    Wrong(absl::StrCat(aged_bytes, " bytes of memory were deleted for their age, ", zeroed_bytes, " were zeroed"));
}

// A read that failed says nothing of what is on the disk: one block is given up after several in a row.
void Simulation::CheckUnreadable(const engine::EngineStats& stats) {
  uint64_t given_up = 0;
  for (const engine::TenantStats& tenant : stats.tenants)
    given_up += tenant.tiers[TierIndex(TierKind::kNvme)].drop(policy::DropReason::kUnreadable).count;
  const uint64_t most = stats.nvme_mismatches + stats.nvme_read_errors / kReadErrorsPerBlockMax;
  if (given_up > most)
    Wrong(absl::StrCat(given_up, " blocks were given up as unreadable, of which ", most, " at most were"));
}

// But for what is pinned a boot writes no more than it began with, and what was earned since. Every block is at least
// of the smallest size.
void Simulation::CheckWriteBudget(const engine::EngineStats& stats) {
  if (plan_.write_budget == 0) return;
  uint64_t blocks = 0;
  for (const engine::TenantStats& tenant : stats.tenants) {
    blocks += tenant.write_throughs + tenant.demotions;
    pinned_in_boot_ |= tenant.pinned_bytes > 0;
  }
  if (pinned_in_boot_) return;
  uint32_t slot_bytes = UINT32_MAX;
  for (const ModelLayout& layout : plan_.layouts) slot_bytes = std::min(slot_bytes, layout.SlotBytes());
  const uint64_t written = blocks * (slot_bytes + kNvmeHeaderBytes);
  const uint64_t most = kBlockBytesMax + plan_.write_budget * (static_cast<uint64_t>(node_.up_ms()) / 1000 + 1);
  if (written > most) Wrong(absl::StrCat(written, " bytes at least were written, of a budget of ", most));
}

// What was counted since the last record went, or since the last look: copies without a record went, too.
std::vector<policy::DropReason> Simulation::WhyForgotten() {
  const NvmeDrops before = std::exchange(nvme_drops_, NvmeDropsOf(node_.engine().stats()));
  std::vector<policy::DropReason> reasons;
  for (size_t reason = 0; reason < before.size(); ++reason) {
    if (nvme_drops_[reason] > before[reason]) reasons.push_back(static_cast<policy::DropReason>(reason));
  }
  return reasons;
}

Simulation::NvmeDrops Simulation::NvmeDropsOf(const engine::EngineStats& stats) {
  NvmeDrops drops{};
  for (const engine::TenantStats& tenant : stats.tenants) {
    for (size_t reason = 0; reason < drops.size(); ++reason) {
      const auto which = static_cast<policy::DropReason>(reason);
      drops[reason] += tenant.tiers[TierIndex(TierKind::kNvme)].drop(which).count;
    }
  }
  return drops;
}

uint32_t Simulation::NonceOnNvme(SlotId slot) { return NonceAt(node_.BytesAt(slot).data() + kNvmeHeaderBytes); }

// No page of the disk has in the clear what was stored since its tenant's policy asked for encryption.
void Simulation::CheckSecrets() {
  if (!plan_.encrypts) return;
  for (const auto& disk : node_.disks()) {
    const std::span<const std::byte> bytes = disk->bytes();
    for (size_t at = 0; at < bytes.size(); at += kSlotAlignBytes) {
      const uint32_t nonce = NonceAt(bytes.data() + at);
      // A bit that a disk turned makes one word of a page look like another block's.
      if (!model_.IsSecret(nonce) || NonceAt(bytes.data() + at + sizeof(uint64_t)) != nonce) continue;
      return Wrong(absl::StrCat(model_.NameOf(model_.version(nonce).block),
                                " has to be encrypted, and is on the disk in the clear"));
    }
  }
}

// A header of a lost catalog that is too old goes without a record, and its place may be another block's by now.
bool Simulation::IsAnothersByNow(SlotId slot, uint32_t nonce) {
  const uint32_t there = NonceOnNvme(slot);
  if (!past_back_ || there == nonce) return false;
  if (there != 0) return true;
  // Zeroed for the age of what came there since. Only one whose own promise had lapsed can have made room: it was idle
  // too long, or a limit was lowered below it; and it was given no age to be erased for.
  const Life& life = model_.life(model_.version(nonce).block.life);
  const bool crowded = life.id.valid() && MayBeCrowdedOut(life);
  const bool idle = model_.MayBeForgotten(nonce, std::vector{policy::DropReason::kIdle}, Now(), latest_date_ms_);
  return life.shortest_age_ms == 0 && (crowded || idle);
}

// Over age, it is not given up before it is zeroed. Durable, it goes for a reason that was promised.
void Simulation::OnCatalogDelete(SlotId slot) {
  const std::vector<policy::DropReason> reasons = WhyForgotten();
  model_.SetRecovering(!node_.recovered(), Now());
  const auto name = [](std::string* out, policy::DropReason reason) { out->append(policy::DropReasonName(reason)); };
  const std::string why = reasons.empty() ? "for no reason" : absl::StrJoin(reasons, " or ", name);
  const auto it = model_.durable().find(slot);
  if (it != model_.durable().end() && !IsAnothersByNow(slot, it->second)) {
    const BlockRef& ref = model_.version(it->second).block;
    const Life& life = model_.life(ref.life);
    const bool crowds = !node_.recovered() && (!life.id.valid() || MayBeCrowdedOut(life));
    // A disk that is back brought it, too; or the crash came before a catalog had forgotten an older one.
    const bool twice = !node_.recovered() && reasons.empty() && plan_.disks > 1 && (past_back_ || TimesFound(ref) > 1);
    if (!crowds && !twice && !model_.MayBeForgotten(it->second, reasons, Now(), latest_date_ms_))
      Wrong(absl::StrCat(model_.NameOf(ref), " is durable, and its record is deleted (", why, ")"));
    const bool over_age = model_.IsOverAge(it->second, Now());
    if (over_age && node_.recovered() && !plan_.disk_lies() && !plan_.power_cuts) CheckZeroed(ref, slot, why);
  }
  model_.Forgotten(slot);
}

void Simulation::CheckZeroed(const BlockRef& ref, SlotId slot, const std::string& why) {
  coverage_.Note(Situation::kErasedOnDisk);
  const auto disk = node_.BytesAt(slot).first(plan_.layouts[ref.space].SlotBytes() + kNvmeHeaderBytes);
  if (std::any_of(disk.begin(), disk.end(), [](std::byte byte) { return byte != std::byte{0}; }))
    Wrong(absl::StrCat(model_.NameOf(ref), " is deleted for its age (", why, "), and can be read on disk"));
}

void Simulation::CheckDrain(Life* life, const engine::TenantStats& stats) {
  const bool slow = plan_.memory_speed < kSoundSpeed || plan_.disk_speed < kSoundSpeed;
  // One that came back may be on its way out still.
  const bool excused = slow || node_.disk_backlog() > kBacklogMax || in_trouble_ || catalog_failed_ ||
                       plan_.disk_lies() || !node_.recovered() || life->dropping || life->was_removed;
  for (const TierKind tier : kAllTiers) {
    const size_t at = TierIndex(tier);
    const uint64_t limit = life->rules.tier(tier).limit_bytes;
    const uint64_t charged = stats.tiers[at].charged_bytes;
    int64_t& since_ms = life->within_ms[at];
    const bool less = charged < life->charged_bytes[at] ||
                      stats.tiers[at].blocks < std::exchange(life->blocks[at], stats.tiers[at].blocks);
    if (charged <= limit || less || excused || !life->in_policy || since_ms < life->ruled_ms) since_ms = Now();
    if (charged > limit && !excused) coverage_.Note(Situation::kDrainWaits);
    if (Now() - since_ms <= kDrainMsMax) continue;
    Wrong(absl::StrCat(life->rules.uid, " has ", charged, " bytes of ", TierName(tier), ", its limit is ", limit,
                       " for ", Now() - since_ms, " ms"));
  }
}

// Whose tenant is dropped is shut out until that ends: not for as long as a device hangs.
void Simulation::CheckDropGoesOn(Life* life, const engine::TenantStats& stats) {
  uint64_t left = stats.entries + stats.reclaiming_bytes;
  // What is given back has come half of the way.
  for (const engine::TenantTierStats& tier : stats.tiers) left += 2 * tier.charged_bytes;
  if (!life->dropping || !node_.recovered() || std::exchange(life->drop_left, left) != left)
    life->drop_moved_ms = Now();
  if (Now() - life->drop_moved_ms > int64_t{kDropStuckTicks + kDropSlackTicks} * kTickMs)
    Wrong(absl::StrCat(life->rules.uid, " is shut out by a drop that does not get on"));
}

void Simulation::CheckTenant(Life* life, const engine::TenantStats& stats) {
  CheckDropGoesOn(life, stats);
  CheckNvmeGuarantee(life, stats);
  CheckDrain(life, stats);
  for (const TierKind tier : kAllTiers) {
    const size_t at = TierIndex(tier);
    const uint64_t charged = stats.tiers[at].charged_bytes;
    const uint64_t limit = life->in_policy ? life->rules.tier(tier).limit_bytes : life->removed_bytes[at];
    if (stats.tiers[at].taken_within_guarantee > 0)
      Wrong(absl::StrCat("what is guaranteed to ", life->rules.uid, " of ", TierName(tier), " was taken by another"));
    // Above a limit that was lowered, it only shrinks.
    const bool comes_back = !life->in_policy && was_recovering_;
    if (charged > limit && charged > life->charged_bytes[at] && !comes_back) {
      Wrong(absl::StrCat(life->rules.uid, " is charged ", charged, " bytes of ", TierName(tier), ", its limit is ",
                         limit));
    }
    life->charged_bytes[at] = charged;
    life->guarantee_bytes[at] = stats.tiers[at].guarantee_bytes;
  }
  life->kept_bytes = stats.kept_bytes;
  life->pinned_bytes = stats.pinned_bytes;
  const engine::TenantTierStats& dram = stats.tiers[TierIndex(TierKind::kDram)];
  const uint64_t evictions = dram.evictions();
  if (evictions > life->evictions && life->leases > 0) coverage_.Note(Situation::kEvictedBesideLease);
  life->evictions = evictions;
  const uint64_t retired = dram.drop(policy::DropReason::kRetired).count;
  const auto& users = life->namespace_users;
  const bool all_open = !users.empty() && std::count(users.begin(), users.end(), 0) == 0;
  const bool were_open = std::exchange(life->all_open, all_open);
  if (retired > life->retired_drops && all_open && were_open)
    Wrong(absl::StrCat("a block of ", life->rules.uid, " goes as one of a namespace that nobody has open"));
  life->retired_drops = retired;
  if (life->in_policy && stats.entries > life->rules.max_entries && !life->quota_lowered)
    Wrong(absl::StrCat(life->rules.uid, " has ", stats.entries, " entries, may have ", life->rules.max_entries));
}

void Simulation::CheckLeases() {
  for (const Lease& lease : leases_) {
    for (const Held& held : lease.blocks) {
      if (held.hold.in_place) CheckHeld(held, lease.space, false);
    }
  }
  if (leases_.empty()) return;
  const Lease& lease = leases_[lease_to_check_++ % leases_.size()];
  if (!lease.blocks.empty()) CheckHeld(lease.blocks[event_ % lease.blocks.size()], lease.space, true);
}

// A lease in place: the same slot, the same bytes, until it is given back.
void Simulation::CheckHeld(const Held& held, uint32_t space, bool every_byte) {
  const Life& life = model_.life(held.block.life);
  const bool rules_are_new = Now() - life.ruled_ms <= 2 * kLeaseMs;
  if (held.nonce != 0 && !life.scribbles && !rules_are_new && model_.IsOverAge(held.nonce, Now() - 2 * kLeaseMs))
    return Wrong(absl::StrCat(model_.NameOf(held.block), " is leased though it is older than maxAge, and was renewed"));
  if (!held.hold.in_place) return;
  if (GenerationAt(held.block.life, held.offset) != held.generation)
    return Wrong(absl::StrCat(model_.NameOf(held.block), " was taken away while it is leased"));
  if (!every_byte || model_.life(held.block.life).scribbles) return;
  if (!IsWhole(BytesAt(held.block.life, held.offset), plan_.layouts[space], held.nonce))
    Wrong(absl::StrCat(model_.NameOf(held.block), " changed while it is leased"));
}

void Simulation::CheckEverything() {
  node_.engine().CheckInvariants();
  CheckSecrets();
  for (const Lease& lease : leases_) {
    for (const Held& held : lease.blocks) CheckHeld(held, lease.space, true);
  }
  const engine::EngineStats stats = node_.engine().stats();
  for (uint32_t index = 0; index < model_.life_count(); ++index) {
    const Life& life = model_.life(index);
    if (!life.id.valid() || life.ns.empty()) continue;
    uint64_t granted = 0;
    uint64_t end = 0;
    for (const tier::GrantedRange& range : node_.dram().granted(node_.engine().DomainOf(life.id))) {
      if (range.offset < end) Wrong("granted ranges overlap");
      end = range.offset + range.bytes;
      granted += range.bytes;
    }
    if (granted > StatsOf(stats, life.id)->tiers[TierIndex(TierKind::kDram)].charged_bytes)
      Wrong(absl::StrCat(life.name, " has memory that it is not charged for"));
  }
}

}  // namespace kvartal::sim
