#include "daemon/tier/nvme_tier.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/tier/all_of.h"
#include "daemon/tier/nvme_disk.h"

namespace kvartal::tier {
namespace {

std::vector<uint64_t> SizesOf(const std::vector<std::shared_ptr<NvmeDisk>>& disks) {
  std::vector<uint64_t> sizes;
  sizes.reserve(disks.size());
  for (const auto& disk : disks) sizes.push_back(disk->size_bytes());
  return sizes;
}

}  // namespace

uint64_t SegmentBytesFor(uint64_t file_bytes) {
  return std::clamp(std::bit_floor(std::max<uint64_t>(file_bytes / 64, 1)), kSegmentMinBytes, kSegmentMaxBytes);
}

absl::StatusOr<std::unique_ptr<NvmeTier>> NvmeTier::Open(device::BlockFile* file, const Clock* clock) {
  KV_ASSIGN_OR_RETURN(std::shared_ptr<NvmeDisk> disk, NvmeDisk::Open(file, clock));
  std::vector<std::shared_ptr<NvmeDisk>> one;
  one.push_back(std::move(disk));
  return std::make_unique<NvmeTier>(std::move(one));
}

NvmeTier::NvmeTier(std::vector<std::shared_ptr<NvmeDisk>> disks) : disks_(std::move(disks)), map_(SizesOf(disks_)) {
  KV_CHECK(!disks_.empty() && disks_.size() <= kDisksMax);
}

NvmeTier::~NvmeTier() {
  for (const auto& disk : disks_) disk->Close();
}

NvmeTier::Place NvmeTier::At(SlotId slot) const {
  const std::optional<DiskMap::Place> place = map_.Find(slot);
  KV_CHECK(place.has_value());
  return {disks_[place->disk], place->slot};
}

// --- what the disks are

const std::string& NvmeTier::device_id(size_t disk) const { return disks_[disk]->device_id(); }

DeviceState NvmeTier::device_state() const {
  DeviceState best = DeviceState::kOffline;
  for (const auto& disk : disks_) best = std::min(best, disk->device_state());
  return best;
}

bool NvmeTier::all_healthy() const {
  return std::all_of(disks_.begin(), disks_.end(), [](const auto& disk) { return disk->Healthy(); });
}

DiskSet NvmeTier::hanging() const {
  DiskSet hanging = kNoDisk;
  for (size_t i = 0; i < disks_.size(); ++i) {
    if (disks_[i]->Hangs()) hanging |= SetOfDisk(i);
  }
  return hanging;
}

size_t NvmeTier::DiskOf(SlotId slot) const {
  const std::optional<DiskMap::Place> place = map_.Find(slot);
  KV_CHECK(place.has_value());
  return place->disk;
}

DeviceState NvmeTier::DeviceStateOf(SlotId slot) const { return At(slot).disk->device_state(); }

std::vector<DiskStats> NvmeTier::disk_stats() const {
  std::vector<DiskStats> stats;
  stats.reserve(disks_.size());
  for (const auto& disk : disks_) stats.push_back(disk->Stats());
  return stats;
}

NvmeCounters NvmeTier::counters() const {
  NvmeCounters sum;
  for (const auto& disk : disks_) sum += disk->Stats().counters;
  return sum;
}

TierStats NvmeTier::stats() const {
  TierStats stats;
  for (const auto& disk : disks_) {
    const NvmeSlots& slots = disk->slots();
    stats.capacity_bytes += disk->capacity_bytes();
    stats.granted_bytes += slots.granted_bytes();
    stats.used_bytes += slots.used_bytes();
    stats.slots_used += slots.slots_taken();
  }
  stats.healthy = device_state() == DeviceState::kHealthy;
  return stats;
}

// --- slots

std::optional<size_t> NvmeTier::Choose(uint32_t slot_bytes, const std::optional<ChainRun>& run) const {
  std::array<DiskLoad, kDisksMax> loads;
  for (size_t i = 0; i < disks_.size(); ++i) loads[i] = disks_[i]->LoadFor(slot_bytes);
  return ChooseDisk({loads.data(), disks_.size()}, run);
}

uint64_t NvmeTier::GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const {
  uint64_t bytes = 0;
  for (const auto& disk : disks_) bytes = std::max(bytes, disk->GrowthBytes(slot_bytes, at_most_bytes));
  return bytes;
}

// What leaves a segment stays on its disk where it can: nothing else grows without saying what it goes behind.
void NvmeTier::Grow(DomainId domain, uint32_t slot_bytes, uint64_t growth_bytes, GrowDone done) {
  KV_CHECK(slot_bytes > 0 && growth_bytes == NvmeSlots::ExtentBytes(PayloadOf(slot_bytes)));
  const auto grow_on = [&](std::optional<size_t> disk) {
    return disk.has_value() && disks_[*disk]->Healthy() && disks_[*disk]->slots().Grow(domain, PayloadOf(slot_bytes));
  };
  const bool grown = grow_on(LeavingDisk()) || grow_on(Choose(slot_bytes, std::nullopt));
  done(grown ? absl::OkStatus()
             : absl::ResourceExhaustedError(absl::StrCat("no free nvme slot for ", slot_bytes, " bytes")));
}

SlotId NvmeTier::TakeOn(size_t disk, DomainId domain, uint32_t slot_bytes) {
  const SlotId slot = disks_[disk]->slots().Take(domain, PayloadOf(slot_bytes));
  return slot.valid() ? *map_.SlotAt(disk, slot) : SlotId::None();
}

// One block goes on with its parent's run. Of a prompt that many conversations share each other one begins its own, or
// all of them would lie on that prompt's disk.
SlotId NvmeTier::TakeBehind(DomainId domain, uint32_t slot_bytes, SlotId after) {
  const std::optional<DiskMap::Place> parent = map_.Find(after);
  std::optional<ChainRun> run;
  if (parent.has_value()) {
    const std::optional<uint64_t> bytes = disks_[parent->disk]->slots().RunBytesOf(parent->slot);
    if (bytes.has_value()) run = ChainRun{parent->disk, *bytes};
  }
  const std::optional<size_t> disk = Choose(slot_bytes, run);
  if (!disk.has_value()) return SlotId::None();
  const bool same_disk = parent.has_value() && parent->disk == *disk;
  NvmeSlots& slots = disks_[*disk]->slots();
  if (!slots.GrowBehind(domain, PayloadOf(slot_bytes), same_disk ? parent->slot : SlotId::None()))
    return SlotId::None();
  const SlotId slot = TakeOn(*disk, domain, slot_bytes);
  const uint64_t before = same_disk && run.has_value() && run->bytes < kDiskRunBytes ? run->bytes : 0;
  slots.SetRunBytes(At(slot).slot, before + NvmeSlots::ExtentBytes(PayloadOf(slot_bytes)));
  return slot;
}

void NvmeTier::GoOnBehind(SlotId parent) {
  const Place at = At(parent);
  at.disk->slots().GoOnBehind(at.slot);
}

SlotId NvmeTier::Take(DomainId domain, uint32_t slot_bytes) {
  SlotId slot;
  for (size_t disk = 0; disk < disks_.size() && !slot.valid(); ++disk) slot = TakeOn(disk, domain, slot_bytes);
  return slot;
}

void NvmeTier::Give(DomainId domain, SlotId slot) {
  const Place at = At(slot);
  at.disk->slots().Give(domain, at.slot);
}

uint64_t NvmeTier::Shrink(DomainId domain, uint64_t keep_bytes, ShrinkDone done) {
  uint64_t bytes = 0, kept = 0;
  for (const auto& disk : disks_) {
    bytes += disk->slots().Shrink(domain, keep_bytes - kept);
    kept += disk->slots().EmptyBytes(domain);
  }
  done();
  return bytes;
}

uint64_t NvmeTier::EmptyBytes(DomainId domain) const {
  uint64_t bytes = 0;
  for (const auto& disk : disks_) bytes += disk->slots().EmptyBytes(domain);
  return bytes;
}

DiskSet NvmeTier::DisksThatTake(uint32_t slot_bytes) const {
  DiskSet taking = kNoDisk;
  for (size_t i = 0; i < disks_.size(); ++i) {
    if (disks_[i]->MayTake(slot_bytes)) taking |= SetOfDisk(i);
  }
  return taking;
}

uint64_t NvmeTier::FreeInOtherSizes(uint32_t slot_bytes) const {
  uint64_t bytes = 0;
  for (const auto& disk : disks_) {
    if (disk->MayTake(slot_bytes)) bytes += disk->segments().FreeInOtherSizes(PayloadOf(slot_bytes));
  }
  return bytes;
}

void NvmeTier::SetHolder(SlotId slot, EntryId holder) {
  const Place at = At(slot);
  at.disk->slots().SetHolder(at.slot, holder);
}

bool NvmeTier::Adopt(DomainId domain, SlotId slot, uint32_t slot_bytes, uint64_t generation, uint32_t key_id) {
  const std::optional<DiskMap::Place> place = map_.Find(slot);
  if (!place.has_value() || slot_bytes == 0 || slot_bytes > kBlockBytesMax) return false;
  return disks_[place->disk]->slots().Adopt(domain, place->slot, PayloadOf(slot_bytes), generation, key_id);
}

bool NvmeTier::LearnKey(SlotId slot, uint64_t generation, uint32_t key_id) {
  const Place at = At(slot);
  NvmeSlots& slots = at.disk->slots();
  if (key_id == 0 || slots.KeyIdOf(at.slot) == key_id || slots.GenerationOf(at.slot) != generation) return false;
  slots.SetKeyId(at.slot, key_id);
  return true;
}

// --- transfers

bool NvmeTier::Write(SlotId slot, const BlockIdentity& identity, int64_t first_commit_ms, int64_t last_access_ms,
                     std::span<const std::byte> payload, WriteDone done) {
  const Place at = At(slot);
  return at.disk->Write(at.slot, identity, first_commit_ms, last_access_ms, payload, std::move(done));
}

bool NvmeTier::Read(SlotId slot, const BlockIdentity& identity, std::span<std::byte> payload, Done done) {
  const Place at = At(slot);
  return at.disk->Read(at.slot, identity, payload, device::IoClass::kDemandRead, std::move(done));
}

bool NvmeTier::ReadAhead(SlotId slot, const BlockIdentity& identity, std::span<std::byte> payload, Done done) {
  const Place at = At(slot);
  return at.disk->Read(at.slot, identity, payload, device::IoClass::kPromotion, std::move(done));
}

void NvmeTier::Hasten(SlotId slot) {
  const Place at = At(slot);
  at.disk->Hasten(at.slot);
}

bool NvmeTier::TakeBack(SlotId slot) {
  const Place at = At(slot);
  return at.disk->TakeBack(at.slot);
}

void NvmeTier::Copy(SlotId from, SlotId to, const BlockIdentity& identity, int64_t first_commit_ms,
                    int64_t last_access_ms, WriteDone done) {
  const Place source = At(from), target = At(to);
  source.disk->Copy(source.slot, target.disk, target.slot, identity, first_commit_ms, last_access_ms, std::move(done));
}

bool NvmeTier::Erase(SlotId slot, Done done) {
  const Place at = At(slot);
  return at.disk->Erase(at.slot, std::move(done));
}

void NvmeTier::SetWeight(DomainId domain, uint32_t weight) {
  for (const auto& disk : disks_) disk->SetWeight(domain, weight);
}

void NvmeTier::SetCipher(DomainId domain, const std::shared_ptr<const cipher::TenantCipher>& cipher, bool required) {
  for (const auto& disk : disks_) disk->SetCipher(domain, {cipher, required});
}

bool NvmeTier::MayWrite(DomainId domain) const { return disks_.front()->MayWrite(domain); }

Secrecy NvmeTier::SecrecyOf(SlotId slot) const {
  const Place at = At(slot);
  return at.disk->SecrecyOf(at.slot);
}

// --- emptying a segment

std::optional<size_t> NvmeTier::LeavingDisk() const {
  for (size_t i = 0; i < disks_.size(); ++i) {
    if (disks_[i]->segments().leaving().has_value()) return i;
  }
  return std::nullopt;
}

bool NvmeTier::StartLeaving(uint32_t slot_bytes) {
  KV_CHECK(!leaving());
  return std::any_of(disks_.begin(), disks_.end(), [&](const auto& disk) {
    return disk->Healthy() && disk->slots().StartLeaving(PayloadOf(slot_bytes));
  });
}

void NvmeTier::StopLeaving() {
  for (const auto& disk : disks_) disk->segments().StopLeaving();
}

bool NvmeTier::leaving() const { return LeavingDisk().has_value(); }

bool NvmeTier::LeavesSize(uint32_t slot_bytes) const {
  const std::optional<size_t> disk = LeavingDisk();
  if (!disk.has_value()) return false;
  const SegmentTable& segments = disks_[*disk]->segments();
  return segments.PayloadBytesOf(*segments.leaving()) == PayloadOf(slot_bytes);
}

bool NvmeTier::LeavingHealthy() const { return disks_[*LeavingDisk()]->Healthy(); }

bool NvmeTier::IsLeaving(SlotId slot) const {
  const Place at = At(slot);
  const std::optional<uint32_t> leaving = at.disk->segments().leaving();
  return leaving.has_value() && at.disk->segments().SegmentOf(at.slot) == leaving;
}

std::vector<EntryId> NvmeTier::LeavingHolders() const {
  const std::optional<size_t> disk = LeavingDisk();
  return disk.has_value() ? disks_[*disk]->slots().LeavingHolders() : std::vector<EntryId>();
}

// --- reading headers back

void NvmeTier::ScanHeaders(absl::AnyInvocable<void(std::vector<CatalogRecord>)> batch, Done done, DiskSet which) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < disks_.size(); ++i) {
    if ((which & SetOfDisk(i)) != kNoDisk) chosen.push_back(i);
  }
  KV_CHECK(!chosen.empty());
  const auto shared = std::make_shared<absl::AnyInvocable<void(std::vector<CatalogRecord>)>>(std::move(batch));
  const auto end = AllOf(chosen.size(), std::move(done));
  for (const size_t disk : chosen) {
    disks_[disk]->Scan(
        [this, shared, disk](std::vector<CatalogRecord> records) {
          for (CatalogRecord& record : records) record.slot = *map_.SlotAt(disk, record.slot);
          (*shared)(std::move(records));
        },
        end);
  }
}

}  // namespace kvartal::tier
