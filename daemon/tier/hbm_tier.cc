#include "daemon/tier/hbm_tier.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/tier/dram_extent.h"

namespace kvartal::tier {
namespace {

using device::kSlabAlignBytes;

// A SlotId counts kSlotAlignBytes of these; the last one means None.
constexpr uint64_t kSpaceBytes = RoundDown((uint64_t{1} << 32) * kSlotAlignBytes - 1, kSlabAlignBytes);
static_assert(16 * kHbmBytesMax <= kSpaceBytes + kSlabAlignBytes);
static_assert(kSlabMaxBytes >= kBlockBytesMax && kSlabMaxBytes % kSlabAlignBytes == 0);

uint32_t SlotBytes(uint32_t payload_bytes) { return static_cast<uint32_t>(RoundUp(payload_bytes, kSlotAlignBytes)); }
uint64_t OffsetOf(SlotId slot) { return uint64_t{slot.value()} * kSlotAlignBytes; }

bool WastesLittle(uint64_t slab_bytes, uint32_t slot_bytes) {
  return slab_bytes % slot_bytes * 100 < slab_bytes * kExtentWastePercentMax;
}

}  // namespace

uint64_t SlabBytesFor(uint32_t slot_bytes, uint64_t held_bytes, uint64_t at_most_bytes) {
  KV_CHECK(slot_bytes >= kSlotAlignBytes && slot_bytes <= kBlockBytesMax && slot_bytes % kSlotAlignBytes == 0);
  const uint64_t smallest = RoundUp(slot_bytes, kSlabAlignBytes);
  const uint64_t most = std::min(RoundDown(at_most_bytes, kSlabAlignBytes), kSlabMaxBytes);
  if (most < smallest) return 0;
  const uint64_t want = std::clamp(std::bit_floor(held_bytes), smallest, most);
  for (uint64_t bytes = want; bytes <= most; bytes += kSlabAlignBytes) {
    if (WastesLittle(bytes, slot_bytes)) return bytes;
  }
  for (uint64_t bytes = want; bytes > smallest; bytes -= kSlabAlignBytes) {
    if (WastesLittle(bytes, slot_bytes)) return bytes;
  }
  return smallest;
}

struct HbmTier::Domain {
  explicit Domain(DomainId domain_id) : id(domain_id) {}

  SlabRecord& SlabAt(uint64_t offset) const {
    auto it = by_offset.upper_bound(offset);
    KV_CHECK(it != by_offset.begin());
    return *std::prev(it)->second;  // that it reaches to `offset` the slab's slots know
  }

  const DomainId id;
  bool may_use = false;
  AddressRanges free{kSpaceBytes};
  std::map<uint64_t, SlabRecord*> by_offset;
  uint64_t granted_bytes = 0, growing_bytes = 0;
};

struct HbmTier::SlabRecord {
  SlabRecord(SlabId slab_id, Domain* slab_domain, DramExtent free_slots, std::unique_ptr<device::Slab> slab_memory)
      : id(slab_id), domain(slab_domain), slots(std::move(free_slots)), memory(std::move(slab_memory)) {}

  SlabInfo Info() const { return {id, domain->id, slots.range(), slots.slot_bytes(), state}; }
  uint64_t bytes() const { return slots.range().bytes; }
  void Step(SlabEvent event) { state = NextSlabState(state, event); }
  bool Empty() const { return state == SlabState::kActive && slots.empty(); }
  bool Returnable() const { return state == SlabState::kQuiesced && ended == nullptr; }
  // What was asked back is quiesced once nobody has it. True: now it is.
  bool LetGo() {
    const bool asked = state == SlabState::kDetaching || state == SlabState::kZombie;
    if (!asked || !peers.empty()) return false;
    Step(SlabEvent::kLetGo);
    return true;
  }

  const SlabId id;
  Domain* const domain;
  DramExtent slots;  // kept as those of an extent are
  std::unique_ptr<device::Slab> memory;
  SlabState state = SlabState::kActive;
  std::set<PeerId> peers;             // who was sent a descriptor and is not proven to be without
  int64_t due_ns = 0;                 // Detaching: the deadline. Quiesced: when to try the scrub again
  bool scrubbing = false;             // a request is under way
  std::shared_ptr<ShrinkDone> ended;  // of the Shrink that returned it; those share one, the last to be free runs it
};

struct HbmTier::Growth {
  Domain* domain;
  uint32_t slot_bytes;
  uint64_t bytes;
  GrowDone done;
  std::unique_ptr<device::Slab> memory;
};

HbmTier::HbmTier(device::SlabMemory* memory, int gpu, uint64_t capacity_bytes, const Clock* clock,
                 SlabObserver* observer)
    : memory_(memory), gpu_(gpu), clock_(clock), observer_(observer), self_(std::make_shared<HbmTier*>(this)) {
  KV_CHECK(capacity_bytes <= kHbmBytesMax);
  stats_.capacity_bytes = capacity_bytes;
}

HbmTier::~HbmTier() = default;

void HbmTier::OpenDomain(DomainId id, absl::Span<const int> gpus) {
  KV_CHECK(id.valid());
  std::unique_ptr<Domain>& domain = domains_[id];
  if (domain == nullptr) domain = std::make_unique<Domain>(id);
  domain->may_use = std::find(gpus.begin(), gpus.end(), gpu_) != gpus.end();
}

bool HbmTier::CloseDomain(DomainId id) {
  const auto it = domains_.find(id);
  if (it == domains_.end()) return true;
  if (!it->second->by_offset.empty() || it->second->growing_bytes > 0) return false;
  domains_.erase(it);
  return true;
}

HbmTier::Domain& HbmTier::Find(DomainId id) const {
  const auto it = domains_.find(id);
  KV_CHECK(it != domains_.end());
  return *it->second;
}

// ---- growing

uint64_t HbmTier::GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const {
  if (slot_bytes == 0 || slot_bytes > kBlockBytesMax) return 0;
  return SlabBytesFor(SlotBytes(slot_bytes), 0, at_most_bytes);
}

uint64_t HbmTier::GrowthBytes(DomainId id, uint32_t slot_bytes, uint64_t at_most_bytes) const {
  if (slot_bytes == 0 || slot_bytes > kBlockBytesMax) return 0;
  const Domain& domain = Find(id);
  return SlabBytesFor(SlotBytes(slot_bytes), domain.granted_bytes + domain.growing_bytes, at_most_bytes);
}

absl::Status HbmTier::MayGrow(const Domain& domain, uint64_t growth_bytes) const {
  if (!domain.may_use) {
    return absl::PermissionDeniedError(
        absl::StrCat("GPU ", gpu_, " is not in the GPU group of domain ", domain.id.value()));
  }
  if (stats_.granted_bytes + stats_.reclaiming_bytes + growing_bytes_ + growth_bytes <= stats_.capacity_bytes)
    return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "GPU ", gpu_, " is full: ", stats_.granted_bytes, " of ", stats_.capacity_bytes, " bytes are granted, ",
      BytesIn(SlabState::kZombie), " of them to pods that do not let go, and ",
      stats_.reclaiming_bytes + growing_bytes_, " on their way: raise hbmPerGpu or lower the tenants' limits"));
}

void HbmTier::Grow(DomainId id, uint32_t slot_bytes, uint64_t growth_bytes, GrowDone done) {
  Domain& domain = Find(id);
  const uint32_t slot = SlotBytes(slot_bytes);
  KV_CHECK(slot > 0 && growth_bytes >= slot && growth_bytes <= kSlabMaxBytes && growth_bytes % kSlabAlignBytes == 0);
  if (absl::Status refused = MayGrow(domain, growth_bytes); !refused.ok()) return done(std::move(refused));
  growing_bytes_ += growth_bytes;
  domain.growing_bytes += growth_bytes;
  auto growth = std::make_shared<Growth>(Growth{&domain, slot, growth_bytes, std::move(done), nullptr});
  absl::Status accepted = memory_->Create(
      gpu_, growth_bytes,
      [weak = std::weak_ptr<HbmTier*>(self_), growth](absl::StatusOr<std::unique_ptr<device::Slab>> made) {
        if (const std::shared_ptr<HbmTier*> self = weak.lock()) (*self)->EndCreate(growth, std::move(made));
      });
  if (!accepted.ok()) EndGrow(growth.get(), std::move(accepted));
}

void HbmTier::EndCreate(const std::shared_ptr<Growth>& growth, absl::StatusOr<std::unique_ptr<device::Slab>> made) {
  if (!made.ok()) return EndGrow(growth.get(), made.status());
  growth->memory = *std::move(made);
  KV_CHECK(growth->memory->gpu() == gpu_ && growth->memory->bytes() == growth->bytes);
  absl::Status accepted =
      memory_->Scrub(*growth->memory, [weak = std::weak_ptr<HbmTier*>(self_), growth](absl::Status status) {
        if (const std::shared_ptr<HbmTier*> self = weak.lock()) (*self)->EndGrow(growth.get(), std::move(status));
      });
  if (!accepted.ok()) EndGrow(growth.get(), std::move(accepted));
}

void HbmTier::EndGrow(Growth* growth, absl::Status status) {
  growing_bytes_ -= growth->bytes;
  growth->domain->growing_bytes -= growth->bytes;
  if (status.ok()) status = MayGrow(*growth->domain, growth->bytes);  // its group may have changed meanwhile
  if (status.ok()) {
    observer_->OnGranted(AddSlab(growth).Info());
  } else {
    growth->memory.reset();  // no tenant's bytes were ever in it
  }
  growth->done(std::move(status));
}

const HbmTier::SlabRecord& HbmTier::AddSlab(Growth* growth) {
  Domain& domain = *growth->domain;
  const std::optional<AddressRange> range = domain.free.Take(growth->bytes);
  KV_CHECK(range.has_value());
  const SlabId id(next_slab_++);
  auto slab =
      std::make_unique<SlabRecord>(id, &domain, DramExtent(*range, growth->slot_bytes), std::move(growth->memory));
  domain.by_offset.emplace(range->offset, slab.get());
  domain.granted_bytes += range->bytes;
  stats_.granted_bytes += range->bytes;
  return *slabs_.emplace(id, std::move(slab)).first->second;
}

// ---- slots

SlotId HbmTier::Take(DomainId id, uint32_t slot_bytes) {
  Domain& domain = Find(id);
  if (!domain.may_use) return SlotId::None();
  DramExtent* fullest = nullptr;  // so that empty slabs appear elsewhere
  for (const auto& [offset, slab] : domain.by_offset) {
    DramExtent& slots = slab->slots;
    const bool fits = slab->state == SlabState::kActive && slots.slot_bytes() == SlotBytes(slot_bytes);
    if (!fits || slots.free_count() == 0) continue;
    if (fullest == nullptr || slots.free_count() < fullest->free_count()) fullest = &slots;
  }
  if (fullest == nullptr) return SlotId::None();
  stats_.used_bytes += fullest->slot_bytes();
  ++stats_.slots_used;
  return SlotId(static_cast<uint32_t>(fullest->Take() / kSlotAlignBytes));
}

void HbmTier::Give(DomainId id, SlotId slot) {
  DramExtent& slots = Find(id).SlabAt(OffsetOf(slot)).slots;
  slots.Give(OffsetOf(slot));
  stats_.used_bytes -= slots.slot_bytes();
  --stats_.slots_used;
}

HbmTier::Place HbmTier::PlaceOf(DomainId id, SlotId slot) const {
  const SlabRecord& slab = Find(id).SlabAt(OffsetOf(slot));
  return {slab.id, OffsetOf(slot) - slab.slots.range().offset};
}

// ---- shrinking

uint64_t HbmTier::EmptyBytes(DomainId id) const {
  uint64_t bytes = 0;
  for (const auto& [offset, slab] : Find(id).by_offset) {
    if (slab->Empty() || slab->Returnable()) bytes += slab->bytes();
  }
  return bytes;
}

uint64_t HbmTier::Shrink(DomainId id, uint64_t keep_bytes, ShrinkDone done) {
  Domain& domain = Find(id);
  auto ended = std::make_shared<ShrinkDone>(std::move(done));
  std::vector<SlabInfo> recalled;
  uint64_t kept = 0, taken = 0;
  for (const auto& [offset, slab] : domain.by_offset) {
    if (slab->Empty()) {
      if (kept + slab->bytes() <= keep_bytes) {
        kept += slab->bytes();
        continue;
      }
      slab->Step(SlabEvent::kAskedBack);
      slab->due_ns = clock_->MonotonicNs() + kRecallNs;
      if (!slab->LetGo()) recalled.push_back(slab->Info());
    }
    if (!slab->Returnable()) continue;
    slab->ended = ended;
    taken += slab->bytes();
    StartScrub(slab);
  }
  domain.granted_bytes -= taken;
  stats_.granted_bytes -= taken;
  stats_.reclaiming_bytes += taken;
  if (taken == 0) (*ended)();
  ended.reset();
  for (const SlabInfo& slab : recalled) observer_->OnRecall(slab);
  return taken;
}

void HbmTier::StartScrub(SlabRecord* slab) {
  const absl::Status accepted =
      memory_->Scrub(*slab->memory, [weak = std::weak_ptr<HbmTier*>(self_), id = slab->id](const absl::Status& status) {
        if (const std::shared_ptr<HbmTier*> self = weak.lock()) (*self)->EndScrub(id, status);
      });
  slab->scrubbing = accepted.ok();
  if (!accepted.ok()) slab->due_ns = clock_->MonotonicNs() + kScrubRetryNs;
}

void HbmTier::EndScrub(SlabId id, const absl::Status& status) {
  SlabRecord* const slab = slabs_.at(id).get();
  slab->scrubbing = false;
  if (!status.ok()) {
    slab->due_ns = clock_->MonotonicNs() + kScrubRetryNs;
    return;
  }
  slab->Step(SlabEvent::kZeroed);
  Release(slab);
}

void HbmTier::Release(SlabRecord* slab) {
  slab->Step(SlabEvent::kReleased);
  stats_.reclaiming_bytes -= slab->bytes();
  slab->domain->free.Give(slab->slots.range());
  slab->domain->by_offset.erase(slab->slots.range().offset);
  const std::shared_ptr<ShrinkDone> ended = std::move(slab->ended);
  slabs_.erase(slab->id);
  if (ended.use_count() == 1) (*ended)();
}

uint64_t HbmTier::BytesIn(SlabState state) const {
  uint64_t bytes = 0;
  for (const auto& [id, slab] : slabs_) bytes += slab->state == state ? slab->bytes() : 0;
  return bytes;
}

// ---- peers

absl::StatusOr<UniqueFd> HbmTier::Grant(DomainId domain, SlabId id, PeerId peer) {
  const auto it = slabs_.find(id);
  if (it == slabs_.end() || it->second->domain->id != domain)
    return absl::NotFoundError(absl::StrCat("domain ", domain.value(), " has no slab ", id.value()));
  SlabRecord& slab = *it->second;
  if (!slab.domain->may_use) {
    return absl::PermissionDeniedError(
        absl::StrCat("GPU ", gpu_, " is not in the GPU group of domain ", domain.value()));
  }
  if (slab.state != SlabState::kActive)
    return absl::FailedPreconditionError(absl::StrCat("slab ", id.value(), " is asked back"));
  KV_ASSIGN_OR_RETURN(UniqueFd fd, slab.memory->Export());
  slab.peers.insert(peer);
  return fd;
}

bool HbmTier::PeerDetached(PeerId peer, SlabId id) {
  const auto it = slabs_.find(id);
  if (it == slabs_.end() || it->second->peers.erase(peer) == 0) return false;
  const DomainId domain = it->second->domain->id;
  if (it->second->LetGo()) observer_->OnLetGo(domain);
  return true;
}

void HbmTier::PeerGone(PeerId peer) {
  std::set<DomainId> let_go;
  for (const auto& [id, slab] : slabs_) {
    if (slab->peers.erase(peer) > 0 && slab->LetGo()) let_go.insert(slab->domain->id);
  }
  for (const DomainId domain : let_go) observer_->OnLetGo(domain);
}

void HbmTier::Tick() {
  const int64_t now_ns = clock_->MonotonicNs();
  for (const auto& [id, slab] : slabs_) {
    if (slab->state == SlabState::kDetaching && now_ns >= slab->due_ns) slab->Step(SlabEvent::kDeadline);
    const bool owed = slab->state == SlabState::kQuiesced && slab->ended != nullptr && !slab->scrubbing;
    if (owed && now_ns >= slab->due_ns) StartScrub(slab.get());
  }
}

std::vector<SlabInfo> HbmTier::slabs(DomainId id) const {
  std::vector<SlabInfo> infos;
  for (const auto& [offset, slab] : Find(id).by_offset) infos.push_back(slab->Info());
  return infos;
}

}  // namespace kvartal::tier
