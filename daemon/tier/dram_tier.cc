#include "daemon/tier/dram_tier.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"

namespace kvartal::tier {
namespace {

// Slot ids are 32 bits of kSlotAlignBytes each; the last one means None.
constexpr uint64_t kArenaBytesMax = RoundDown((uint64_t{1} << 32) * kSlotAlignBytes - 1, kExtentAlignBytes);

uint64_t WastedBytes(uint64_t extent_bytes, uint32_t slot_bytes) { return extent_bytes % slot_bytes; }

bool WastesLittle(uint64_t extent_bytes, uint32_t slot_bytes) {
  return WastedBytes(extent_bytes, slot_bytes) * 100 < extent_bytes * kExtentWastePercentMax;
}

uint32_t SlotBytes(uint32_t payload_bytes) { return static_cast<uint32_t>(RoundUp(payload_bytes, kSlotAlignBytes)); }

}  // namespace

uint64_t ExtentBytesFor(uint32_t slot_bytes, uint64_t want_bytes) {
  KV_CHECK(slot_bytes >= kSlotAlignBytes && slot_bytes <= kBlockBytesMax && slot_bytes % kSlotAlignBytes == 0);
  const uint64_t smallest = RoundUp(slot_bytes, kExtentAlignBytes);
  const uint64_t want = std::clamp(RoundUp(want_bytes, kExtentAlignBytes), smallest, kExtentMaxBytes);
  for (uint64_t bytes = want; bytes <= kExtentMaxBytes; bytes += kExtentAlignBytes) {
    if (WastesLittle(bytes, slot_bytes)) return bytes;
  }
  uint64_t best = smallest;
  for (uint64_t bytes = smallest; bytes <= kExtentMaxBytes; bytes += kExtentAlignBytes) {
    if (WastedBytes(bytes, slot_bytes) * best < WastedBytes(best, slot_bytes) * bytes) best = bytes;
  }
  return best;
}

struct DramTier::Domain {
  Domain(DomainId domain_id, std::unique_ptr<device::Arena> domain_arena)
      : id(domain_id), arena(std::move(domain_arena)), free(arena->size_bytes()) {}

  // Fullest first, so that empty extents appear elsewhere; among equals the lowest address.
  struct Fuller {
    bool operator()(const DramExtent* a, const DramExtent* b) const {
      if (a->free_count() != b->free_count()) return a->free_count() < b->free_count();
      return a->range().offset < b->range().offset;
    }
  };
  using OpenExtents = std::set<DramExtent*, Fuller>;

  DramExtent* ExtentAt(uint64_t offset) const {
    const uint64_t unit = offset / kExtentAlignBytes;
    return unit < by_unit.size() ? by_unit[unit] : nullptr;
  }

  const DomainId id;
  const std::unique_ptr<device::Arena> arena;
  AddressRanges free;
  std::map<uint64_t, DramExtent> extents;  // by offset
  std::vector<DramExtent*> by_unit;        // by offset / kExtentAlignBytes
  std::map<uint32_t, OpenExtents> open;    // by slot size: extents with a free slot
  std::map<uint64_t, DramExtent*> empty;   // by offset
  DramExtent* leaving = nullptr;           // being emptied, and not open meanwhile
  uint64_t leaving_cursor = 0;             // where the next search among full extents begins
  uint64_t granted_bytes = 0, empty_bytes = 0;
  uint64_t growing_bytes = 0, reclaiming_bytes = 0;
  uint64_t stray_seen_bytes = 0;  // at the last look
  uint64_t stray_cursor = 0;      // where the next search begins
  bool stray_punch_under_way = false;
};

struct DramTier::Growth {
  Domain* domain;
  AddressRange range;
  uint32_t slot_bytes;
  GrowDone done;
};

DramTier::DramTier(device::HostMemory* memory, uint64_t capacity_bytes)
    : memory_(memory),
      arena_bytes_(std::min(RoundUp(capacity_bytes * kArenaOverCapacity, kExtentAlignBytes), kArenaBytesMax)),
      self_(std::make_shared<DramTier*>(this)) {
  stats_.capacity_bytes = capacity_bytes;
}

DramTier::~DramTier() = default;

absl::Status DramTier::OpenDomain(DomainId id) {
  KV_CHECK(id.valid());
  if (id.value() >= domains_.size()) domains_.resize(id.value() + 1);
  std::unique_ptr<Domain>& domain = domains_[id.value()];
  if (domain != nullptr) return absl::OkStatus();
  if (arena_bytes_ == 0)
    return absl::FailedPreconditionError("the DRAM tier has a capacity of 0: there is no memory to map");
  const std::string name = absl::StrCat("kvartal-arena-", id.value());
  KV_ASSIGN_OR_RETURN(std::unique_ptr<device::Arena> made, memory_->CreateArena(name.c_str(), arena_bytes_));
  domain = std::make_unique<Domain>(id, std::move(made));
  return absl::OkStatus();
}

bool DramTier::CloseDomain(DomainId id) {
  if (arena(id) == nullptr) return true;
  const Domain& domain = Find(id);
  const auto of_domain = [&](const Reclaim& reclaim) { return reclaim.domain == &domain; };
  const bool busy = domain.granted_bytes + domain.growing_bytes + domain.reclaiming_bytes > 0 ||
                    domain.stray_punch_under_way || std::any_of(reclaims_.begin(), reclaims_.end(), of_domain) ||
                    std::any_of(failed_reclaims_.begin(), failed_reclaims_.end(), of_domain);
  if (busy) return false;
  domains_[id.value()].reset();
  return true;
}

DramTier::Domain& DramTier::Find(DomainId id) const {
  KV_CHECK(id.valid() && id.value() < domains_.size() && domains_[id.value()] != nullptr);
  return *domains_[id.value()];
}

device::Arena* DramTier::arena(DomainId id) const {
  const bool known = id.valid() && id.value() < domains_.size() && domains_[id.value()] != nullptr;
  return known ? domains_[id.value()]->arena.get() : nullptr;
}

std::vector<GrantedRange> DramTier::granted(DomainId id) const {
  std::vector<GrantedRange> ranges;
  for (const auto& [offset, extent] : Find(id).extents) {
    const bool extends = !ranges.empty() && ranges.back().offset + ranges.back().bytes == offset;
    if (extends) {
      ranges.back().bytes += extent.range().bytes;
    } else {
      ranges.push_back({offset, extent.range().bytes});
    }
  }
  return ranges;
}

uint64_t DramTier::GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const {
  if (slot_bytes == 0 || slot_bytes > kBlockBytesMax) return 0;
  const uint32_t slot = SlotBytes(slot_bytes);
  const uint64_t wanted = ExtentBytesFor(slot, slot < kSmallSlotBytes ? kExtentWantSmallBytes : kExtentWantBytes);
  // Then the smallest that wastes little, then the smallest that holds one.
  for (const uint64_t bytes : {wanted, ExtentBytesFor(slot, slot), RoundUp(slot, kExtentAlignBytes)}) {
    if (bytes <= at_most_bytes) return bytes;
  }
  return 0;
}

void DramTier::Grow(DomainId id, uint32_t slot_bytes, uint64_t growth_bytes, GrowDone done) {
  Domain& domain = Find(id);
  const uint32_t slot = SlotBytes(slot_bytes);
  KV_CHECK(slot > 0 && growth_bytes >= slot && growth_bytes <= kExtentMaxBytes &&
           growth_bytes % kExtentAlignBytes == 0);
  if (stats_.granted_bytes + stats_.reclaiming_bytes + growing_bytes_ + growth_bytes > stats_.capacity_bytes) {
    done(absl::ResourceExhaustedError(
        absl::StrCat("DRAM is full: ", stats_.granted_bytes, " of ", stats_.capacity_bytes, " bytes are granted and ",
                     stats_.reclaiming_bytes + growing_bytes_,
                     " on their way: raise the DRAM capacity or lower the tenants' limits")));
    return;
  }
  const std::optional<AddressRange> range = domain.free.Take(growth_bytes);
  if (!range.has_value()) {
    done(absl::ResourceExhaustedError(absl::StrCat("the arena of domain ", id.value(), " has no range of ",
                                                   growth_bytes, " bytes among ", domain.free.range_count(),
                                                   " free ones: it is fragmented until extents are given back")));
    return;
  }
  growing_bytes_ += growth_bytes;
  domain.growing_bytes += growth_bytes;
  auto growth = std::make_shared<Growth>(Growth{&domain, *range, slot, std::move(done)});
  absl::Status accepted = domain.arena->Populate(range->offset, range->bytes,
                                                 [weak = std::weak_ptr<DramTier*>(self_), growth](absl::Status status) {
                                                   if (const std::shared_ptr<DramTier*> self = weak.lock())
                                                     (*self)->EndGrow(growth.get(), std::move(status));
                                                 });
  if (accepted.ok()) return;
  growing_bytes_ -= growth_bytes;
  domain.growing_bytes -= growth_bytes;
  domain.free.Give(*range);
  growth->done(std::move(accepted));
}

void DramTier::EndGrow(Growth* growth, absl::Status status) {
  growing_bytes_ -= growth->range.bytes;
  growth->domain->growing_bytes -= growth->range.bytes;
  if (status.ok()) {
    AddExtent(growth->domain, growth->range, growth->slot_bytes);
    if (on_granted_ != nullptr) on_granted_(growth->domain->id, {growth->range.offset, growth->range.bytes});
    growth->done(absl::OkStatus());
    return;
  }
  // Part of it may be present. The caller refunds when that has gone, not before.
  auto ended = std::make_shared<absl::AnyInvocable<void()>>(
      [done = std::move(growth->done), failure = std::move(status)]() mutable { done(std::move(failure)); });
  Queue({growth->domain, growth->range, true, std::move(ended)});
  StartReclaims();
}

void DramTier::AddExtent(Domain* domain, const AddressRange& range, uint32_t slot_bytes) {
  const auto [it, fresh] = domain->extents.try_emplace(range.offset, range, slot_bytes);
  KV_CHECK(fresh);
  DramExtent* const extent = &it->second;
  const uint64_t first = range.offset / kExtentAlignBytes;
  const uint64_t end = first + range.bytes / kExtentAlignBytes;
  if (end > domain->by_unit.size()) domain->by_unit.resize(end);
  for (uint64_t unit = first; unit < end; ++unit) {
    KV_CHECK(domain->by_unit[unit] == nullptr);
    domain->by_unit[unit] = extent;
  }
  domain->open[slot_bytes].insert(extent);
  domain->empty.emplace(range.offset, extent);
  domain->empty_bytes += range.bytes;
  domain->granted_bytes += range.bytes;
  stats_.granted_bytes += range.bytes;
}

void DramTier::RemoveExtent(Domain* domain, DramExtent* extent) {
  KV_CHECK(extent->empty());
  const AddressRange range = extent->range();
  for (uint64_t at = range.offset; at < range.offset + range.bytes; at += kExtentAlignBytes) {
    domain->by_unit[at / kExtentAlignBytes] = nullptr;
  }
  if (domain->leaving == extent) domain->leaving = nullptr;
  if (auto open = domain->open.find(extent->slot_bytes()); open != domain->open.end()) {
    open->second.erase(extent);
    if (open->second.empty()) domain->open.erase(open);
  }
  domain->empty.erase(range.offset);
  domain->empty_bytes -= range.bytes;
  domain->granted_bytes -= range.bytes;
  stats_.granted_bytes -= range.bytes;
  domain->extents.erase(range.offset);
}

SlotId DramTier::Take(DomainId id, uint32_t slot_bytes) {
  Domain& domain = Find(id);
  auto open = domain.open.find(SlotBytes(slot_bytes));
  if (open == domain.open.end() || open->second.empty()) return SlotId::None();
  Domain::OpenExtents& extents = open->second;
  DramExtent* const extent = *extents.begin();
  if (extent->empty()) {
    domain.empty.erase(extent->range().offset);
    domain.empty_bytes -= extent->range().bytes;
  }
  // The fullest stays the fullest with one slot less, so its place in the order holds while it has a free slot.
  const uint64_t offset = extent->Take();
  if (extent->free_count() == 0) extents.erase(extents.begin());
  stats_.used_bytes += extent->slot_bytes();
  ++stats_.slots_used;
  return SlotId(static_cast<uint32_t>(offset / kSlotAlignBytes));
}

void DramTier::Give(DomainId id, SlotId slot) {
  Domain& domain = Find(id);
  DramExtent* const extent = domain.ExtentAt(OffsetOf(slot));
  KV_CHECK(extent != nullptr);
  // First of all: from here on a reader that copied this slot finds that its copy does not count.
  domain.arena->generations()[slot.value()].fetch_add(1, std::memory_order_seq_cst);
  if (extent == domain.leaving) {
    extent->Give(OffsetOf(slot));
  } else {
    Domain::OpenExtents& extents = domain.open[extent->slot_bytes()];
    auto place = extent->free_count() > 0 ? extents.extract(extent) : Domain::OpenExtents::node_type();
    extent->Give(OffsetOf(slot));
    if (place.empty()) {
      extents.insert(extent);
    } else {
      extents.insert(std::move(place));
    }
  }
  if (extent->empty()) {
    domain.empty.emplace(extent->range().offset, extent);
    domain.empty_bytes += extent->range().bytes;
  }
  stats_.used_bytes -= extent->slot_bytes();
  --stats_.slots_used;
}

uint64_t DramTier::Shrink(DomainId id, uint64_t keep_bytes, ShrinkDone done) {
  Domain& domain = Find(id);
  uint64_t kept = 0;
  std::vector<DramExtent*> leaving;  // the lowest stay: an arena that stays compact
  for (const auto& [offset, extent] : domain.empty) {
    if (kept + extent->range().bytes <= keep_bytes) {
      kept += extent->range().bytes;
    } else {
      leaving.push_back(extent);
    }
  }
  if (leaving.empty()) {
    done();
    return 0;
  }
  uint64_t taken = 0;
  auto ended = std::make_shared<absl::AnyInvocable<void()>>(std::move(done));
  for (DramExtent* extent : leaving) {
    const AddressRange range = extent->range();
    RemoveExtent(&domain, extent);
    taken += range.bytes;
    Queue({&domain, range, true, ended});
  }
  ended.reset();
  StartReclaims();
  return taken;
}

void DramTier::Queue(Reclaim reclaim) {
  if (reclaim.counted) {
    reclaim.domain->reclaiming_bytes += reclaim.range.bytes;
    stats_.reclaiming_bytes += reclaim.range.bytes;
  }
  reclaims_.push_back(std::move(reclaim));
}

void DramTier::StartReclaims() {
  while (!reclaims_.empty()) {
    auto reclaim = std::make_shared<Reclaim>(std::move(reclaims_.front()));
    reclaims_.pop_front();
    const absl::Status accepted =
        reclaim->domain->arena->Punch(reclaim->range.offset, reclaim->range.bytes,
                                      [weak = std::weak_ptr<DramTier*>(self_), reclaim](absl::Status status) {
                                        if (const std::shared_ptr<DramTier*> self = weak.lock())
                                          (*self)->EndReclaim(reclaim.get(), status);
                                      });
    if (accepted.ok()) continue;
    // The memory thread is busy: the next punch that ends, or the next tick, goes on.
    reclaims_.push_front(std::move(*reclaim));
    return;
  }
}

void DramTier::EndReclaim(Reclaim* reclaim, const absl::Status& status) {
  if (!status.ok()) {
    KV_BUG("memory could not be punched; its range stays out of use until a later try succeeds");
    failed_reclaims_.push_back(std::move(*reclaim));
    StartReclaims();
    return;
  }
  reclaim->domain->free.Give(reclaim->range);
  if (reclaim->counted) {
    reclaim->domain->reclaiming_bytes -= reclaim->range.bytes;
    stats_.reclaiming_bytes -= reclaim->range.bytes;
  }
  const std::shared_ptr<absl::AnyInvocable<void()>> ended = std::move(reclaim->ended);
  StartReclaims();
  if (ended.use_count() == 1) (*ended)();
}

void DramTier::SetHolder(DomainId id, SlotId slot, EntryId holder) {
  Find(id).ExtentAt(OffsetOf(slot))->SetHolder(OffsetOf(slot), holder);
}

// A bounded look around: where `near` lies, the emptiest of its slot size, else of each, and full ones in turn.
std::vector<DramExtent*> DramTier::LeavingCandidates(Domain* domain, SlotId near) {
  std::vector<DramExtent*> candidates;
  if (near.valid()) candidates.push_back(domain->ExtentAt(OffsetOf(near)));
  const uint32_t of_size = near.valid() ? candidates.front()->slot_bytes() : 0;
  for (const auto& [slot_bytes, extents] : domain->open) {
    if (of_size != 0 && slot_bytes != of_size) continue;
    for (auto it = extents.rbegin(); it != extents.rend() && candidates.size() < kLeavingProbesMax; ++it) {
      candidates.push_back(*it);
    }
  }
  auto it = domain->extents.lower_bound(domain->leaving_cursor);
  for (size_t looked = 0; looked < std::min(domain->extents.size(), kLeavingProbesMax); ++looked) {
    if (it == domain->extents.end()) it = domain->extents.begin();
    if (of_size == 0 || it->second.slot_bytes() == of_size) candidates.push_back(&it->second);
    domain->leaving_cursor = (it++)->first + 1;
  }
  return candidates;
}

bool DramTier::StartLeaving(DomainId id, uint64_t at_most_bytes, SlotId near, LeaveCost cost_of) {
  Domain& domain = Find(id);
  KV_CHECK(domain.leaving == nullptr);
  DramExtent* best = nullptr;
  std::pair<size_t, size_t> best_cost;
  for (DramExtent* extent : LeavingCandidates(&domain, near)) {
    if (extent->range().bytes > at_most_bytes) continue;
    const auto taken = extent->Taken();
    std::pair<size_t, size_t> cost(0, taken.size());
    for (const auto& [offset, holder] : taken) cost.first += cost_of(holder);
    if (best == nullptr || cost < best_cost) {
      best = extent;
      best_cost = cost;
    }
  }
  if (best == nullptr) return false;
  if (auto open = domain.open.find(best->slot_bytes()); open != domain.open.end()) {
    open->second.erase(best);
    if (open->second.empty()) domain.open.erase(open);
  }
  domain.leaving = best;
  return true;
}

void DramTier::StopLeaving(DomainId id) {
  Domain& domain = Find(id);
  DramExtent* const extent = std::exchange(domain.leaving, nullptr);
  if (extent != nullptr && extent->free_count() > 0) domain.open[extent->slot_bytes()].insert(extent);
}

uint32_t DramTier::LeavingSlots(DomainId id) const {
  const DramExtent* const extent = Find(id).leaving;
  return extent == nullptr ? 0 : extent->slot_count() - extent->free_count();
}

std::vector<EntryId> DramTier::LeavingHolders(DomainId id) const {
  std::vector<EntryId> holders;
  const DramExtent* const extent = Find(id).leaving;
  if (extent == nullptr) return holders;
  for (const auto& [offset, holder] : extent->Taken()) holders.push_back(holder);
  return holders;
}

bool DramTier::IsLeaving(DomainId id, SlotId slot) const {
  const Domain& domain = Find(id);
  return domain.leaving != nullptr && domain.ExtentAt(OffsetOf(slot)) == domain.leaving;
}

uint32_t DramTier::MoveOut(DomainId id, MayMove may_move, absl::FunctionRef<void(EntryId, SlotId to)> moved) {
  Domain& domain = Find(id);
  DramExtent* const extent = domain.leaving;
  if (extent == nullptr) return 0;
  for (const auto& [offset, holder] : extent->Taken()) {
    if (!may_move(holder)) continue;
    const SlotId to = Take(id, extent->slot_bytes());
    if (!to.valid()) return extent->slot_bytes();
    domain.arena->Copy(offset, OffsetOf(to), extent->slot_bytes());
    SetHolder(id, to, holder);
    moved(holder, to);
    Give(id, SlotId(static_cast<uint32_t>(offset / kSlotAlignBytes)));
  }
  return 0;
}

bool DramTier::Zero(DomainId id, SlotId slot, absl::AnyInvocable<void()> done) {
  Domain& domain = Find(id);
  const DramExtent* const extent = domain.ExtentAt(OffsetOf(slot));
  KV_CHECK(extent != nullptr);
  // A reader whose lease has ended must not take the zeros for the block.
  domain.arena->generations()[slot.value()].fetch_add(1, std::memory_order_seq_cst);
  return domain.arena
      ->Zero(OffsetOf(slot), extent->slot_bytes(),
             [weak = std::weak_ptr<DramTier*>(self_), zeroed = std::move(done)](const absl::Status& status) mutable {
               KV_CHECK(status.ok());  // memory that is there takes zeros
               if (!weak.expired()) zeroed();
             })
      .ok();
}

uint64_t DramTier::EmptyBytes(DomainId id) const { return Find(id).empty_bytes; }

TierStats DramTier::stats() const { return stats_; }

uint64_t DramTier::OffsetOf(SlotId slot) { return uint64_t{slot.value()} * kSlotAlignBytes; }

std::byte* DramTier::DataOf(DomainId id, SlotId slot) const { return Find(id).arena->data() + OffsetOf(slot); }

uint32_t DramTier::GenerationOf(DomainId id, SlotId slot) const {
  return Find(id).arena->generations()[slot.value()].load(std::memory_order_acquire);
}

uint64_t DramTier::PunchStrayPages() {
  for (Reclaim& reclaim : failed_reclaims_) reclaims_.push_back(std::move(reclaim));
  failed_reclaims_.clear();
  uint64_t seen = 0;
  for (const std::unique_ptr<Domain>& domain : domains_) {
    if (domain != nullptr) seen += PunchStrayPages(domain.get());
  }
  StartReclaims();
  return seen;
}

uint64_t DramTier::PunchStrayPages(Domain* domain) {
  const uint64_t expected = domain->granted_bytes + domain->growing_bytes + domain->reclaiming_bytes;
  const uint64_t allocated = domain->arena->AllocatedBytes();
  const uint64_t stray = allocated > expected ? allocated - expected : 0;
  const uint64_t fresh = stray > domain->stray_seen_bytes ? stray - domain->stray_seen_bytes : 0;
  domain->stray_seen_bytes = stray;
  if (stray == 0 || domain->stray_punch_under_way) return fresh;
  // A part only: addresses being punched cannot be granted meanwhile.
  const uint64_t part_bytes =
      std::max(RoundDown(arena_bytes_ / kStrayPunchParts, kExtentAlignBytes), kExtentAlignBytes);
  std::optional<AddressRange> hole = domain->free.TakeFrom(domain->stray_cursor, part_bytes);
  if (!hole.has_value()) hole = domain->free.TakeFrom(0, part_bytes);
  if (!hole.has_value()) return fresh;
  domain->stray_cursor = hole->offset + hole->bytes;
  domain->stray_punch_under_way = true;
  Queue({domain, *hole, false,
         std::make_shared<absl::AnyInvocable<void()>>([domain] { domain->stray_punch_under_way = false; })});
  return fresh;
}

}  // namespace kvartal::tier
