#include "daemon/tier/nvme_slots.h"

#include <algorithm>

#include "daemon/base/check.h"

namespace kvartal::tier {

bool NvmeSlots::Grow(DomainId domain, uint32_t payload_bytes) {
  return Add(domain, payload_bytes, segments_->Reserve(payload_bytes));
}

bool NvmeSlots::GrowBehind(DomainId domain, uint32_t payload_bytes, SlotId after) {
  return Add(domain, payload_bytes, segments_->ReserveBehind(payload_bytes, after));
}

bool NvmeSlots::Add(DomainId domain, uint32_t payload_bytes, SlotId slot) {
  KV_CHECK(domain.valid());
  if (!slot.valid()) return false;
  KV_CHECK(slots_.try_emplace(slot, Slot{.domain = domain}).second);
  granted_bytes_ += ExtentBytes(payload_bytes);
  Domain& owner = domains_[domain];
  owner.empty[payload_bytes].push_back(slot);
  owner.empty_bytes += ExtentBytes(payload_bytes);
  return true;
}

SlotId NvmeSlots::Take(DomainId domain, uint32_t payload_bytes) {
  const auto owner = domains_.find(domain);
  if (owner == domains_.end()) return SlotId::None();
  const auto empty = owner->second.empty.find(payload_bytes);
  if (empty == owner->second.empty.end() || empty->second.empty()) return SlotId::None();
  const SlotId slot = empty->second.back();
  empty->second.pop_back();
  owner->second.empty_bytes -= ExtentBytes(payload_bytes);
  Slot& state = slots_.at(slot);
  KV_CHECK(!state.taken && state.domain == domain);
  state.taken = true;
  used_bytes_ += ExtentBytes(payload_bytes);
  ++slots_taken_;
  return slot;
}

NvmeSlots::Slot& NvmeSlots::Taken(SlotId slot) {
  const auto it = slots_.find(slot);
  KV_CHECK(it != slots_.end() && it->second.taken);
  return it->second;
}

uint32_t NvmeSlots::PayloadBytesOf(SlotId slot) const {
  const std::optional<uint32_t> segment = segments_->SegmentOf(slot);
  KV_CHECK(segment.has_value());
  return segments_->PayloadBytesOf(*segment);
}

void NvmeSlots::Give(DomainId domain, SlotId slot) {
  Slot& state = Taken(slot);
  KV_CHECK(state.domain == domain && !state.give_later);
  if (state.transfers > 0) {
    KV_BUG("an nvme slot was given back while a transfer of it was under way");
    state.give_later = true;
    return;
  }
  MakeEmpty(slot);
}

std::optional<uint64_t> NvmeSlots::RunBytesOf(SlotId slot) const {
  const auto it = slots_.find(slot);
  if (it == slots_.end()) return 0;
  return it->second.run_bytes == kGoesOn ? std::nullopt : std::optional<uint64_t>(it->second.run_bytes);
}

// One that was given up to make room for what goes behind it needs no note.
void NvmeSlots::GoOnBehind(SlotId slot) {
  const auto it = slots_.find(slot);
  if (it != slots_.end() && it->second.taken) it->second.run_bytes = kGoesOn;
}

void NvmeSlots::BeginTransfer(SlotId slot) {
  ++Taken(slot).transfers;
  transferring_bytes_ += ExtentBytes(PayloadBytesOf(slot));
}

void NvmeSlots::EndTransfer(SlotId slot) {
  Slot& state = Taken(slot);
  KV_CHECK(state.transfers > 0);
  transferring_bytes_ -= ExtentBytes(PayloadBytesOf(slot));
  if (--state.transfers == 0 && state.give_later) MakeEmpty(slot);
}

void NvmeSlots::MakeEmpty(SlotId slot) {
  Slot& state = Taken(slot);
  const uint32_t payload_bytes = PayloadBytesOf(slot);
  state.taken = false;
  state.give_later = false;
  state.generation = 0;
  state.key_id = 0;
  state.run_bytes = 0;
  state.holder = EntryId::None();
  used_bytes_ -= ExtentBytes(payload_bytes);
  --slots_taken_;
  Domain& owner = domains_[state.domain];
  owner.empty_bytes += ExtentBytes(payload_bytes);
  (state.transfer_failed ? owner.failed : owner.empty[payload_bytes]).push_back(slot);
}

uint64_t NvmeSlots::Shrink(DomainId domain, uint64_t keep_bytes) {
  const auto it = domains_.find(domain);
  if (it == domains_.end()) return 0;
  Domain& owner = it->second;
  const uint64_t before = owner.empty_bytes;
  const auto drop_last = [&](std::vector<SlotId>* slots) {
    const SlotId slot = slots->back();
    slots->pop_back();
    owner.empty_bytes -= ExtentBytes(PayloadBytesOf(slot));
    LeaveDomain(slot);
  };
  while (owner.empty_bytes > keep_bytes && !owner.failed.empty()) drop_last(&owner.failed);
  for (auto& [payload_bytes, slots] : owner.empty) {
    while (owner.empty_bytes > keep_bytes && !slots.empty()) drop_last(&slots);
  }
  return before - owner.empty_bytes;
}

void NvmeSlots::LeaveDomain(SlotId slot) {
  const auto it = slots_.find(slot);
  KV_CHECK(it != slots_.end() && !it->second.taken && it->second.transfers == 0);
  const bool failed = it->second.transfer_failed;
  granted_bytes_ -= ExtentBytes(PayloadBytesOf(slot));
  slots_.erase(it);
  if (failed) {
    Quarantine(slot);
  } else {
    segments_->Free(slot);
  }
}

// A slot that cannot be written must not be the first that the next writer gets, or one bad place would stop the whole
// disk.
void NvmeSlots::Quarantine(SlotId slot) {
  quarantine_.push_back(slot);
  if (quarantine_.size() <= kQuarantinedSlotsMax) return;
  segments_->Free(quarantine_.front());
  quarantine_.pop_front();
}

bool NvmeSlots::StartLeaving(uint32_t payload_bytes) {
  return segments_->StartLeaving(payload_bytes, [this](uint32_t segment) {
    return std::none_of(quarantine_.begin(), quarantine_.end(),
                        [&](SlotId slot) { return segments_->SegmentOf(slot) == segment; });
  });
}

std::vector<EntryId> NvmeSlots::LeavingHolders() const {
  std::vector<EntryId> holders;
  const std::optional<uint32_t> segment = segments_->leaving();
  if (!segment.has_value()) return holders;
  const uint32_t payload_bytes = segments_->PayloadBytesOf(*segment);
  for (uint32_t index = 0; index < segments_->SlotsOf(*segment, payload_bytes); ++index) {
    const auto slot = slots_.find(segments_->SlotAt(*segment, payload_bytes, index));
    if (slot != slots_.end() && slot->second.holder.valid()) holders.push_back(slot->second.holder);
  }
  return holders;
}

uint64_t NvmeSlots::EmptyBytes(DomainId domain) const {
  const auto it = domains_.find(domain);
  return it == domains_.end() ? 0 : it->second.empty_bytes;
}

bool NvmeSlots::Adopt(DomainId domain, SlotId slot, uint32_t payload_bytes, uint64_t generation, uint32_t key_id) {
  KV_CHECK(domain.valid());
  if (!segments_->Claim(slot, payload_bytes)) return false;
  KV_CHECK(
      slots_
          .try_emplace(
              slot, Slot{.domain = domain, .generation = generation, .key_id = key_id, .taken = true, .proven = false})
          .second);
  granted_bytes_ += ExtentBytes(payload_bytes);
  used_bytes_ += ExtentBytes(payload_bytes);
  ++slots_taken_;
  return true;
}

}  // namespace kvartal::tier
