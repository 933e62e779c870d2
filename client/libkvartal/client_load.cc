// The load path of a client: Lookup, Load, Release, Pin, Hint, Renew.
#include <algorithm>
#include <utility>

#include "client/libkvartal/client_core.h"
#include "client/libkvartal/client_limits.h"

namespace kvartal::client {

uint32_t AnswerWithinMs(const Deadline& deadline) {
  const uint32_t left_ms = deadline.RemainingMs();
  return std::max(left_ms > 2 * kAnswerMarginMs ? left_ms - kAnswerMarginMs : left_ms / 2, 1u);
}

kv_status ClientCore::Lookup(kv_namespace ns, const uint8_t* keys, uint32_t count, uint64_t prompt_tokens,
                             kv_lease** lease, uint32_t* matched, uint64_t* request, const Deadline& deadline) {
  Namespace* found;
  if (const kv_status status = Ready(ns, deadline, &found); status != KV_OK) return status;
  if (prompt_tokens == 0) prompt_tokens = uint64_t{count} * found->layout.tokens_per_block;
  kv_lease* taken = nullptr;
  uint64_t request_number = 0;
  for (uint32_t first = 0; first < count;) {
    const uint32_t asked = std::min(count - first, kKeysPerFrameMax);
    uint32_t part = 0;
    const kv_status status = LookupPart(found, {keys + size_t{first} * KV_KEY_BYTES, size_t{asked} * KV_KEY_BYTES},
                                        prompt_tokens, &request_number, &taken, &part, deadline);
    if (status != KV_OK) {
      // What matched before the deadline is leased and good: a shorter match. Without a session nothing is.
      if (taken != nullptr && connected()) break;
      if (taken != nullptr) FreeLease(taken);
      return status;
    }
    first += part;
    if (part < asked) break;
  }
  *lease = taken;
  *matched = taken == nullptr ? 0 : static_cast<uint32_t>(taken->blocks.size());
  if (request != nullptr) *request = request_number;
  return KV_OK;
}

kv_status ClientCore::LookupPart(Namespace* ns, std::span<const uint8_t> keys, uint64_t prompt_tokens,
                                 uint64_t* request, kv_lease** lease, uint32_t* matched, const Deadline& deadline) {
  wire::Lookup* lookup = session_->NewRequest()->mutable_lookup();
  lookup->set_ns(ns->remote);
  // Not set_keys, which would make a string of its own first.
  lookup->mutable_keys()->assign(reinterpret_cast<const char*>(keys.data()), keys.size());
  lookup->set_prompt_tokens(prompt_tokens);
  lookup->set_request(*request);
  lookup->set_lease(*lease == nullptr ? 0 : (*lease)->id);
  const kv_status status = Exchange(deadline);
  // The daemon has forgotten the namespace: the next call opens it again.
  if (status == KV_NOT_FOUND) ns->session_serial = 0;
  if (status != KV_OK) return status;
  const size_t before = *lease == nullptr ? 0 : (*lease)->blocks.size();
  const kv_status taken = TakeLookedUp(*ns, static_cast<uint32_t>(keys.size() / KV_KEY_BYTES), request, lease);
  *matched = *lease == nullptr ? 0 : static_cast<uint32_t>((*lease)->blocks.size() - before);
  return taken;
}

kv_status ClientCore::TakeLookedUp(const Namespace& ns, uint32_t asked, uint64_t* request, kv_lease** lease) {
  const wire::ServerFrame& answer = session_->answer();
  const wire::LookedUp& found = answer.looked_up();
  const uint32_t matched = found.matched();
  if (!answer.has_looked_up() || matched > asked || found.tiers().size() != matched ||
      found.offsets_size() != static_cast<int>(matched) || found.generations_size() != static_cast<int>(matched)) {
    return Violation("the counts in its answer to Lookup do not agree");
  }
  *request = found.request();
  if (matched == 0) return KV_OK;
  if (found.lease() == 0 || (*lease != nullptr && found.lease() != (*lease)->id)) {
    return Violation("its answer to Lookup names no lease, or another one");
  }
  if (*lease == nullptr) *lease = NewLease(ns, found.lease());
  const auto first = static_cast<uint32_t>((*lease)->blocks.size());
  (*lease)->blocks.resize(first + matched);
  (*lease)->offsets.resize(first + matched);
  for (uint32_t i = 0; i < matched; ++i) {
    const int at = static_cast<int>(i);
    if (!Place(*lease, first + i, found.tiers()[i], found.offsets(at), found.generations(at))) {
      return Violation("its answer to Lookup names a place outside the arena");
    }
  }
  return KV_OK;
}

bool ClientCore::Place(kv_lease* lease, uint32_t i, int tier, uint64_t offset, uint32_t generation) {
  kv_block& block = lease->blocks[i];
  block = {nullptr, KV_TIER_NVME, generation};
  lease->offsets[i] = offset;
  if (tier == KV_TIER_DRAM) {
    if (lease->arena == nullptr) lease->arena = session_->arena();
    if (lease->arena == nullptr) return false;
    block.data = lease->arena->At(offset, lease->slot_bytes);
    block.tier = KV_TIER_DRAM;
    return block.data != nullptr;
  }
  if (tier == KV_TIER_HBM) block.tier = KV_TIER_HBM;
  return tier == KV_TIER_HBM || tier == KV_TIER_NVME;
}

kv_status ClientCore::CheckRange(const kv_lease* lease, uint32_t first, uint32_t count) {
  if (first < lease->front || first > lease->blocks.size() || count > lease->blocks.size() - first) {
    return Fail(KV_INVALID_ARGUMENT, "blocks [" + std::to_string(first) + ", +" + std::to_string(count) +
                                         ") are not in the lease, which holds [" + std::to_string(lease->front) + ", " +
                                         std::to_string(lease->blocks.size()) + ")");
  }
  return CheckLease(lease);
}

kv_status ClientCore::Prefetch(kv_lease* lease, uint32_t first, uint32_t count) {
  if (const kv_status status = CheckRange(lease, first, count); status != KV_OK) return status;
  for (uint32_t told = 0; told < count;) {
    const uint32_t part = std::min(count - told, kKeysPerFrameMax);
    wire::Load* load = session_->NewRequest()->mutable_load();
    load->set_lease(lease->id);
    load->set_first(first + told);
    load->set_count(part);
    if (!session_->Tell()) return Fail(KV_UNAVAILABLE, "the daemon takes no more requests now");
    told += part;
  }
  return KV_OK;
}

kv_status ClientCore::Load(kv_lease* lease, uint32_t first, uint32_t count, uint32_t* loaded,
                           const Deadline& deadline) {
  if (const kv_status status = CheckRange(lease, first, count); status != KV_OK) return status;
  while (*loaded < count) {
    const uint32_t asked = std::min(count - *loaded, kKeysPerFrameMax);
    uint32_t part = 0;
    const kv_status status = LoadPart(lease, first + *loaded, asked, &part, deadline);
    *loaded += part;
    if (status == KV_REFUSED && *loaded > 0) return KV_OK;
    if (status != KV_OK || part < asked) return status;
  }
  return KV_OK;
}

kv_status ClientCore::LoadPart(kv_lease* lease, uint32_t first, uint32_t count, uint32_t* loaded,
                               const Deadline& deadline) {
  wire::Load* load = session_->NewRequest()->mutable_load();
  load->set_lease(lease->id);
  load->set_first(first);
  load->set_count(count);
  load->set_deadline_ms(AnswerWithinMs(deadline));
  if (const kv_status status = Exchange(deadline); status != KV_OK) return status;
  const wire::ServerFrame& answer = session_->answer();
  const wire::Loaded& found = answer.loaded();
  const uint32_t got = found.count();
  if (!answer.has_loaded() || got > count || found.offsets_size() != static_cast<int>(got) ||
      found.generations_size() != static_cast<int>(got)) {
    return Violation("the counts in its answer to Load do not agree");
  }
  for (uint32_t i = 0; i < got; ++i) {
    const int at = static_cast<int>(i);
    if (!Place(lease, first + i, KV_TIER_DRAM, found.offsets(at), found.generations(at))) {
      return Violation("its answer to Load names a place outside the arena");
    }
  }
  *loaded = got;
  if (found.lost())
    return Fail(KV_LOST, "block " + std::to_string(first + got) + " of the lease was lost: recompute from there");
  if (got == count) return KV_OK;
  last_refusal_ = found.refusal();
  if (last_refusal_ == "late") {
    return Fail(KV_UNAVAILABLE, "the disk had not brought block " + std::to_string(first + got) +
                                    " of the lease before the deadline: recompute from there");
  }
  return Fail(KV_REFUSED, "no room in DRAM for more of this chain (" + last_refusal_ +
                              "): release the front of the lease, then ask for the rest");
}

kv_status ClientCore::CheckLease(const kv_lease* lease) {
  if (lease->session_serial != session_serial_) {
    return Fail(KV_NOT_FOUND, "the lease ended with the session it was given in: look the chain up again");
  }
  if (connected()) return KV_OK;
  return Fail(KV_UNAVAILABLE, "the daemon is gone, and the lease with it");
}

kv_status ClientCore::Borrow(kv_namespace ns, uint64_t id, uint32_t first, uint32_t count, kv_lease** lease,
                             const Deadline& deadline) {
  Namespace* found;
  if (const kv_status status = Ready(ns, deadline, &found); status != KV_OK) return status;
  *lease = NewLease(*found, id);
  (*lease)->borrowed = true;
  (*lease)->front = first;
  (*lease)->blocks.assign(first + count, {nullptr, KV_TIER_NVME, 0});
  (*lease)->offsets.assign(first + count, 0);
  return KV_OK;
}

void ClientCore::Release(kv_lease* lease, uint32_t count) {
  const auto left = static_cast<uint32_t>(lease->blocks.size() - lease->front);
  const bool all = count == 0 || count >= left;
  const bool lives = lease->session_serial == session_serial_ && connected() && !lease->borrowed;
  if (all) {
    if (lives) session_->GiveBack(lease->id);
    FreeLease(lease);
    return;
  }
  if (lives) {
    wire::Release* release = session_->NewRequest()->mutable_release();
    release->set_lease(lease->id);
    release->set_count(count);
    session_->TellSurely();
  }
  for (uint32_t i = 0; i < count; ++i) lease->blocks[lease->front + i].data = nullptr;
  lease->front += count;
}

kv_status ClientCore::Pin(const kv_lease* lease, uint64_t until_wall_ms, const Deadline& deadline) {
  if (const kv_status status = CheckLease(lease); status != KV_OK) return status;
  wire::Pin* pin = session_->NewRequest()->mutable_pin();
  pin->set_lease(lease->id);
  pin->set_until_wall_ms(until_wall_ms);
  if (const kv_status status = Exchange(deadline); status != KV_OK) return status;
  return session_->answer().has_pinned() ? KV_OK : Violation("it answered something else to Pin");
}

kv_status ClientCore::Hint(const kv_lease* lease, kv_hint_what what) {
  if (const kv_status status = CheckLease(lease); status != KV_OK) return status;
  wire::Hint* hint = session_->NewRequest()->mutable_hint();
  hint->set_lease(lease->id);
  hint->set_what(what == KV_HINT_ENDED ? wire::Hint::ENDED : wire::Hint::WAITING);
  return session_->Tell() ? KV_OK : Fail(KV_UNAVAILABLE, "the daemon takes no more requests now");
}

kv_status ClientCore::Renew(const Deadline& deadline) {
  if (const kv_status status = Connect(deadline); status != KV_OK) return status;
  session_->NewRequest()->mutable_renew();
  if (const kv_status status = Exchange(deadline); status != KV_OK) return status;
  return session_->answer().has_renewed() ? KV_OK : Violation("it answered something else to Renew");
}

kv_lease* ClientCore::NewLease(const Namespace& ns, uint64_t id) {
  if (spare_leases_.empty()) spare_leases_.push_back(std::make_unique<kv_lease>());
  leases_.push_back(std::move(spare_leases_.back()));
  spare_leases_.pop_back();
  kv_lease* lease = leases_.back().get();
  lease->id = id;
  lease->session_serial = session_serial_;
  lease->front = 0;
  lease->borrowed = false;
  lease->shard_stride_bytes = ns.shard_stride_bytes;
  lease->shard_count = ns.layout.shard_count;
  lease->slot_bytes = ns.slot_bytes;
  lease->position = leases_.size() - 1;
  session_->AddLease(id);
  return lease;
}

void ClientCore::FreeLease(kv_lease* lease) {
  if (session_ != nullptr && lease->session_serial == session_serial_) session_->DropLease(lease->id);
  const size_t position = lease->position;
  std::unique_ptr<kv_lease> freed = std::exchange(leases_[position], std::move(leases_.back()));
  leases_.pop_back();
  if (position < leases_.size()) leases_[position]->position = position;
  freed->blocks.clear();
  freed->offsets.clear();
  freed->arena = nullptr;
  if (spare_leases_.size() < kSpareLeasesMax) spare_leases_.push_back(std::move(freed));
}

}  // namespace kvartal::client
