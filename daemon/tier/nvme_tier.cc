#include "daemon/tier/nvme_tier.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"
#include "daemon/tier/nvme_superblock.h"
#include "daemon/tier/nvme_tier_state.h"

namespace kvartal::tier {
namespace {

uint32_t PayloadOf(uint32_t slot_bytes) { return static_cast<uint32_t>(RoundUp(slot_bytes, kSlotAlignBytes)); }

}  // namespace

uint64_t SegmentBytesFor(uint64_t file_bytes) {
  return std::clamp(std::bit_floor(std::max<uint64_t>(file_bytes / 64, 1)), kSegmentMinBytes, kSegmentMaxBytes);
}

NvmeTier::NvmeTier(std::shared_ptr<State> state) : state_(std::move(state)) {}
NvmeTier::~NvmeTier() { state_->Close(); }

absl::StatusOr<std::unique_ptr<NvmeTier>> NvmeTier::Open(device::BlockFile* file, const Clock* clock) {
  KV_ASSIGN_OR_RETURN(const Superblock superblock, OpenSuperblock(file));
  return std::unique_ptr<NvmeTier>(new NvmeTier(std::make_shared<State>(file, clock, superblock)));
}

const std::string& NvmeTier::device_id() const { return state_->device_id(); }
DeviceState NvmeTier::device_state() const { return state_->device_state(); }
const NvmeCounters& NvmeTier::counters() const { return state_->counters(); }

uint64_t NvmeTier::GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const {
  return state_->GrowthBytes(slot_bytes, at_most_bytes);
}
void NvmeTier::Grow(DomainId domain, uint32_t slot_bytes, uint64_t growth_bytes, GrowDone done) {
  KV_CHECK(slot_bytes > 0 && growth_bytes == NvmeSlots::ExtentBytes(PayloadOf(slot_bytes)));
  const bool grown = state_->slots().Grow(domain, PayloadOf(slot_bytes));
  done(grown ? absl::OkStatus()
             : absl::ResourceExhaustedError(absl::StrCat("no free nvme slot for ", slot_bytes, " bytes")));
}
SlotId NvmeTier::TakeBehind(DomainId domain, uint32_t slot_bytes, SlotId after) {
  if (!state_->slots().GrowBehind(domain, PayloadOf(slot_bytes), after)) return SlotId::None();
  return state_->slots().Take(domain, PayloadOf(slot_bytes));
}
SlotId NvmeTier::Take(DomainId domain, uint32_t slot_bytes) {
  return state_->slots().Take(domain, PayloadOf(slot_bytes));
}
void NvmeTier::Give(DomainId domain, SlotId slot) { state_->slots().Give(domain, slot); }
uint64_t NvmeTier::Shrink(DomainId domain, uint64_t keep_bytes, ShrinkDone done) {
  const uint64_t bytes = state_->slots().Shrink(domain, keep_bytes);
  done();
  return bytes;
}
uint64_t NvmeTier::EmptyBytes(DomainId domain) const { return state_->slots().EmptyBytes(domain); }
TierStats NvmeTier::stats() const { return state_->Stats(); }

bool NvmeTier::Write(SlotId slot, const BlockIdentity& identity, int64_t first_commit_ms, int64_t last_access_ms,
                     std::span<const std::byte> payload, WriteDone done) {
  return state_->Write(slot, identity, first_commit_ms, last_access_ms, payload, std::move(done));
}
bool NvmeTier::Read(SlotId slot, const BlockIdentity& identity, std::span<std::byte> payload, Done done) {
  return state_->Read(slot, identity, payload, device::IoClass::kDemandRead, std::move(done));
}
bool NvmeTier::ReadAhead(SlotId slot, const BlockIdentity& identity, std::span<std::byte> payload, Done done) {
  return state_->Read(slot, identity, payload, device::IoClass::kPromotion, std::move(done));
}
void NvmeTier::Hasten(SlotId slot) { state_->Hasten(slot); }
bool NvmeTier::TakeBack(SlotId slot) { return state_->TakeBack(slot); }
void NvmeTier::Copy(SlotId from, SlotId to, const BlockIdentity& identity, int64_t first_commit_ms,
                    int64_t last_access_ms, WriteDone done) {
  state_->Copy(from, to, identity, first_commit_ms, last_access_ms, std::move(done));
}
bool NvmeTier::Erase(SlotId slot, Done done) { return state_->Erase(slot, std::move(done)); }
void NvmeTier::SetWeight(DomainId domain, uint32_t weight) { state_->SetWeight(domain, weight); }
void NvmeTier::SetCipher(DomainId domain, std::shared_ptr<const cipher::TenantCipher> cipher, bool required) {
  state_->SetCipher(domain, {std::move(cipher), required});
}
bool NvmeTier::MayWrite(DomainId domain) const { return state_->MayWrite(domain); }
Secrecy NvmeTier::SecrecyOf(SlotId slot) const { return state_->SecrecyOf(slot); }
bool NvmeTier::Fits(uint32_t slot_bytes) const {
  const SegmentTable& segments = state_->segments();
  return segments.segment_count() > 0 && segments.SlotsOf(0, PayloadOf(slot_bytes)) > 0;
}
void NvmeTier::SetHolder(SlotId slot, EntryId holder) { state_->slots().SetHolder(slot, holder); }
bool NvmeTier::StartLeaving(uint32_t slot_bytes) { return state_->slots().StartLeaving(PayloadOf(slot_bytes)); }
void NvmeTier::StopLeaving() { state_->segments().StopLeaving(); }
bool NvmeTier::leaving() const { return state_->segments().leaving().has_value(); }
bool NvmeTier::IsLeaving(SlotId slot) const {
  return leaving() && state_->segments().SegmentOf(slot) == state_->segments().leaving();
}
std::vector<EntryId> NvmeTier::LeavingHolders() const { return state_->slots().LeavingHolders(); }
bool NvmeTier::Adopt(DomainId domain, SlotId slot, uint32_t slot_bytes, uint64_t generation, uint32_t key_id) {
  if (slot_bytes == 0 || slot_bytes > kBlockBytesMax) return false;
  return state_->slots().Adopt(domain, slot, PayloadOf(slot_bytes), generation, key_id);
}
void NvmeTier::ScanHeaders(absl::AnyInvocable<void(std::vector<CatalogRecord>)> batch, Done done) {
  state_->Scan(std::move(batch), std::move(done));
}

}  // namespace kvartal::tier
