#include "daemon/attach/lease_table.h"

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"

namespace kvartal::attach {

LeaseTable::LeaseTable(uint64_t* last_serial, int64_t lease_ns, std::shared_ptr<uint64_t> of_tenant)
    : last_serial_(last_serial),
      lease_ns_(lease_ns),
      of_tenant_(of_tenant != nullptr ? std::move(of_tenant) : std::make_shared<uint64_t>(0)) {}

LeaseTable::~LeaseTable() { *of_tenant_ -= positions_; }

Lease* LeaseTable::Create(NamespaceId ns, int64_t now_ns) {
  KV_CHECK(MayCreate());
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  Lease& lease = slots_[slot];
  lease.id = LeaseId(++*last_serial_ << kSlotBits | slot);
  lease.ns = ns;
  lease.front = 0;
  lease.given_back = 0;
  lease.ended = false;
  lease.expires_ns = now_ns + lease_ns_;
  lease.judged_ns = INT64_MIN;
  ++leases_;
  LinkNewest(slot);
  return &lease;
}

Lease* LeaseTable::Find(LeaseId id) {
  const uint64_t slot = id.value() & ((1u << kSlotBits) - 1);
  if (slot >= slots_.size()) return nullptr;
  Lease& lease = slots_[slot];
  return lease.id == id && !lease.ended ? &lease : nullptr;
}

void LeaseTable::Append(Lease* lease, std::span<const engine::BlockPlace> places, int64_t now_ns, bool renew) {
  KV_CHECK(MayAppend(places.size()));
  for (const engine::BlockPlace& place : places) lease->blocks.push_back(engine::HoldOf(place));
  leased_blocks_ += static_cast<uint32_t>(places.size());
  positions_ += places.size();
  *of_tenant_ += places.size();
  if (renew) Renew(lease, now_ns);
}

void LeaseTable::Release(Lease* lease, uint32_t count) {
  const auto left = static_cast<uint32_t>(lease->left().size());
  if (count == 0 || count > left) count = left;
  if (count > 0 && lease->given_back == lease->front) owing_.push_back(SlotOf(lease));
  lease->front += count;
  if (count < left) return;
  lease->ended = true;
  Unlink(SlotOf(lease));
}

void LeaseTable::ReleaseAll() {
  while (oldest_ != kNowhere) Release(&slots_[oldest_], 0);
}

uint32_t LeaseTable::GiveBack(uint32_t blocks_max, Sink sink) {
  uint32_t given = 0;
  while (!owing_.empty() && given < blocks_max) {
    Lease* lease = &slots_[owing_.back()];
    const uint32_t count = std::min(lease->front - lease->given_back, blocks_max - given);
    const std::span<const engine::Hold> blocks = std::span(lease->blocks).subspan(lease->given_back, count);
    lease->given_back += count;
    leased_blocks_ -= count;
    given += count;
    const bool all = lease->given_back == lease->front;
    if (all) owing_.pop_back();
    // The space it makes may end a Load, which looks at this lease.
    sink(blocks);
    if (all && lease->ended) Free(lease);
  }
  return given;
}

void LeaseTable::PutInPlace(Lease* lease, uint32_t first, std::span<const engine::BlockPlace> loaded, Sink sink) {
  std::vector<engine::Hold> old;
  for (uint32_t i = 0; i < loaded.size(); ++i) {
    const uint32_t position = first + i;
    if (position < lease->front) {
      old.push_back(engine::HoldOf(loaded[i]));
      continue;
    }
    KV_CHECK(lease->blocks[position].entry == loaded[i].entry);
    old.push_back(lease->blocks[position]);
    lease->blocks[position].in_place = true;
  }
  sink(old);
}

void LeaseTable::Renew(Lease* lease, int64_t now_ns) {
  lease->expires_ns = now_ns + lease_ns_;
  const uint32_t slot = SlotOf(lease);
  if (newest_ == slot) return;
  Unlink(slot);
  LinkNewest(slot);
}

bool LeaseTable::MayRenew(Lease* lease, int64_t now_ns, Judge judge) const {
  if (lease->judged_ns == INT64_MIN || now_ns - lease->judged_ns >= lease_ns_ / kLeaseFreshParts) {
    lease->may_renew = judge(*lease);
    lease->judged_ns = now_ns;
  }
  return lease->may_renew;
}

uint32_t LeaseTable::RenewAll(int64_t now_ns, Judge judge) {
  std::vector<uint32_t> renewed;
  for (uint32_t slot = oldest_; slot != kNowhere; slot = slots_[slot].newer) {
    if (MayRenew(&slots_[slot], now_ns, judge)) renewed.push_back(slot);
  }
  for (const uint32_t slot : renewed) Renew(&slots_[slot], now_ns);
  return static_cast<uint32_t>(renewed.size());
}

uint32_t LeaseTable::Expire(int64_t now_ns) {
  uint32_t expired = 0;
  for (; oldest_ != kNowhere && slots_[oldest_].expires_ns <= now_ns; ++expired) Release(&slots_[oldest_], 0);
  return expired;
}

void LeaseTable::LinkNewest(uint32_t slot) {
  Lease& lease = slots_[slot];
  lease.newer = kNowhere;
  lease.older = newest_;
  if (newest_ != kNowhere)
    slots_[newest_].newer = slot;
  else
    oldest_ = slot;
  newest_ = slot;
}

void LeaseTable::Unlink(uint32_t slot) {
  const Lease& lease = slots_[slot];
  if (lease.older != kNowhere)
    slots_[lease.older].newer = lease.newer;
  else
    oldest_ = lease.newer;
  if (lease.newer != kNowhere)
    slots_[lease.newer].older = lease.older;
  else
    newest_ = lease.older;
}

void LeaseTable::Free(Lease* lease) {
  const uint32_t slot = SlotOf(lease);
  positions_ -= lease->blocks.size();
  *of_tenant_ -= lease->blocks.size();
  --leases_;
  lease->id = LeaseId::None();
  // A warm slot keeps room for one frame's worth of keys; a long chain's memory goes back.
  if (lease->blocks.capacity() > kKeysPerFrameMax)
    lease->blocks = {};
  else
    lease->blocks.clear();
  free_.push_back(slot);
}

}  // namespace kvartal::attach
