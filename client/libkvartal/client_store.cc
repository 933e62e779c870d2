// The store path of a client: Reserve, Commit, Abort.
#include <algorithm>

#include "client/libkvartal/client_core.h"

namespace kvartal::client {
namespace {

// Outcomes of attach.proto.
constexpr char kVisible = 0;
constexpr char kShardStored = 1;

}  // namespace

kv_status ClientCore::Reserve(const kv_reserve_args& args, kv_slot* slots, const Deadline& deadline) {
  if (IsOpen(args.ns) && args.shard >= At(args.ns).layout.shard_count) {
    return Fail(KV_INVALID_ARGUMENT, "shard " + std::to_string(args.shard) + " of a namespace with " +
                                         std::to_string(At(args.ns).layout.shard_count) + " shards");
  }
  Namespace* found;
  if (const kv_status status = Ready(args.ns, deadline, &found); status != KV_OK) return status;
  wire::Reserve* reserve = session_->NewRequest()->mutable_reserve();
  reserve->set_ns(found->remote);
  reserve->set_shard(args.shard);
  reserve->mutable_keys()->assign(reinterpret_cast<const char*>(args.keys), size_t{args.count} * KV_KEY_BYTES);
  if (args.parent_key != nullptr) reserve->set_parent(args.parent_key, KV_KEY_BYTES);
  reserve->set_first_depth(args.first_depth);
  reserve->set_request(args.request);
  reserve->set_deadline_ms(AnswerWithinMs(deadline));
  const kv_status status = Exchange(deadline);
  if (status == KV_NOT_FOUND) found->session_serial = 0;
  if (status != KV_OK) return status;
  const kv_status taken = TakeReserved(args, *found, slots);
  // A lie in the middle takes the believable slots before it along.
  if (!connected()) std::fill_n(slots, args.count, kNoSlot);
  return taken;
}

kv_status ClientCore::TakeReserved(const kv_reserve_args& args, const Namespace& ns, kv_slot* slots) {
  const wire::ServerFrame& answer = session_->answer();
  const wire::Reserved& reserved = answer.reserved();
  const int count = static_cast<int>(args.count);
  if (!answer.has_reserved() || reserved.outcomes().size() != args.count || reserved.reservations_size() != count ||
      reserved.offsets_size() != count || reserved.generations_size() != count) {
    return Violation("the counts in its answer to Reserve do not agree");
  }
  last_refusal_ = reserved.refusal();
  bool any = false;
  for (int i = 0; i < count; ++i) {
    const auto outcome = static_cast<uint8_t>(reserved.outcomes()[static_cast<size_t>(i)]);
    if (outcome > KV_SLOT_REFUSED) return Violation("its answer to Reserve has an unknown outcome");
    slots[i].outcome = static_cast<kv_reserve_outcome>(outcome);
    any = any || outcome != KV_SLOT_REFUSED;
    if (outcome != KV_GRANTED) continue;
    const std::shared_ptr<ArenaMap> arena = session_->arena();
    slots[i].reservation = reserved.reservations(i);
    slots[i].data = arena == nullptr ? nullptr : arena->At(reserved.offsets(i), ns.layout.shard_bytes);
    if (slots[i].data == nullptr || slots[i].reservation == 0) {
      return Violation("its answer to Reserve names a place outside the arena");
    }
  }
  if (any) return KV_OK;
  return Fail(KV_REFUSED,
              "no slot was granted: " + (last_refusal_.empty() ? "the daemon gives no reason" : last_refusal_));
}

// A daemon that restarted counts reservations from the start, but its arena is another.
bool ClientCore::IsOfThisSession(const kv_slot& slot) const {
  const std::shared_ptr<ArenaMap> arena = connected() ? session_->arena() : nullptr;
  return arena != nullptr && arena->Contains(slot.data);
}

kv_status ClientCore::AbortUnheard(std::span<const kv_slot> slots, kv_status status) {
  if (status != KV_UNAVAILABLE) return status;
  std::vector<uint64_t> reservations;
  const auto tell = [&] {
    if (!reservations.empty()) session_->AbortSurely(reservations);
    reservations.clear();
  };
  for (const kv_slot& slot : slots) {
    if (slot.outcome != KV_GRANTED || !IsOfThisSession(slot)) continue;
    reservations.push_back(slot.reservation);
    if (reservations.size() == kReservePerFrameMax) tell();
  }
  tell();
  return status;
}

kv_status ClientCore::Commit(const kv_slot* slots, uint32_t count, uint32_t shard, uint32_t* committed,
                             const Deadline& deadline) {
  uint32_t granted = 0;
  for (uint32_t next = 0; next < count;) {
    if (const kv_status status = Connect(deadline); status != KV_OK) return status;
    const uint32_t first = next;
    wire::Commit* commit = session_->NewRequest()->mutable_commit();
    commit->set_shard(shard);
    for (; next < count && commit->reservations_size() < static_cast<int>(kReservePerFrameMax); ++next) {
      if (slots[next].outcome != KV_GRANTED) continue;
      ++granted;
      if (IsOfThisSession(slots[next])) commit->add_reservations(slots[next].reservation);
    }
    const auto sent = static_cast<size_t>(commit->reservations_size());
    if (sent == 0) continue;
    if (const kv_status status = Exchange(deadline); status != KV_OK) {
      const uint32_t unheard = session_->sent() ? next : first;
      return AbortUnheard({slots + unheard, count - unheard}, status);
    }
    const wire::ServerFrame& answer = session_->answer();
    const std::string& outcomes = answer.committed().outcomes();
    if (!answer.has_committed() || outcomes.size() != sent) {
      return Violation("the counts in its answer to Commit do not agree");
    }
    *committed += static_cast<uint32_t>(
        std::count_if(outcomes.begin(), outcomes.end(), [](char o) { return o == kVisible || o == kShardStored; }));
  }
  if (*committed == granted) return KV_OK;
  return Fail(
      KV_NOT_FOUND,
      std::to_string(granted - *committed) + " of " + std::to_string(granted) +
          " reservations had ended (committed before, aborted, or of an earlier session), or are not of shard " +
          std::to_string(shard));
}

kv_status ClientCore::Abort(const kv_slot* slots, uint32_t count, const Deadline& deadline) {
  uint32_t granted = 0;
  uint32_t aborted = 0;
  for (uint32_t next = 0; next < count;) {
    if (const kv_status status = Connect(deadline); status != KV_OK) return status;
    const uint32_t first = next;
    wire::Abort* abort = session_->NewRequest()->mutable_abort();
    for (; next < count && abort->reservations_size() < static_cast<int>(kReservePerFrameMax); ++next) {
      if (slots[next].outcome != KV_GRANTED) continue;
      ++granted;
      if (IsOfThisSession(slots[next])) abort->add_reservations(slots[next].reservation);
    }
    const auto sent = static_cast<uint32_t>(abort->reservations_size());
    if (sent == 0) continue;
    if (const kv_status status = Exchange(deadline); status != KV_OK) {
      const uint32_t unheard = session_->sent() ? next : first;
      return AbortUnheard({slots + unheard, count - unheard}, status);
    }
    const wire::ServerFrame& answer = session_->answer();
    if (!answer.has_aborted() || answer.aborted().count() > sent) {
      return Violation("the counts in its answer to Abort do not agree");
    }
    aborted += answer.aborted().count();
  }
  if (aborted == granted) return KV_OK;
  return Fail(KV_NOT_FOUND,
              std::to_string(granted - aborted) + " of " + std::to_string(granted) + " reservations had ended before");
}

}  // namespace kvartal::client
