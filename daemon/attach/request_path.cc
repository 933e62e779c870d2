#include "daemon/attach/request_path.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::attach {
namespace {

using Code = v1::Error;

template <typename Blocks, typename Offsets, typename Generations>
void FillPlaces(const Blocks& blocks, Offsets* offsets, Generations* generations) {
  offsets->Reserve(static_cast<int>(blocks.size()));
  generations->Reserve(static_cast<int>(blocks.size()));
  for (const auto& block : blocks) {
    offsets->AddAlreadyReserved(block.arena_offset);
    generations->AddAlreadyReserved(block.generation);
  }
}

}  // namespace

RequestPath::RequestPath(Parts parts) : parts_(std::move(parts)) { places_.reserve(kKeysPerFrameMax); }

void RequestPath::GiveBack(Session* session) {
  for (const uint64_t lease : parts_.codec->frame().released()) ReleaseLease(session, lease, 0);
  GiveBackOf(session->group, kGivenBackPerTurnMax);
}

void RequestPath::Handle(Session* session, Verb verb) {
  switch (verb) {
    case Verb::kLookup:
      return Lookup(session);
    case Verb::kRelease:
      return Release(session);
    case Verb::kLoad:
      return Load(session);
    case Verb::kReserve:
      return Reserve(session);
    case Verb::kCommit:
      return Commit(session);
    case Verb::kAbort:
      return Abort(session);
    case Verb::kRenew:
      return Renew(session);
    case Verb::kPin:
      return Pin(session);
    case Verb::kHint:
      return Hint(session);
    case Verb::kOpenNamespace:
      return OpenNamespace(session);
    case Verb::kCloseNamespace:
      return CloseNamespace(session);
    case Verb::kNone:
    case Verb::kAttach:
    case Verb::kDetach:
    case Verb::kGrantAck:
      KV_BUG("a verb of the session reached the request path");
  }
}

void RequestPath::SendError(Session* session, v1::Error::Code code, std::string_view message,
                            std::string_view refusal) {
  ++parts_.stats->errors;
  session->SendError(parts_.codec, request_id(), code, message, refusal);
}

void RequestPath::Refuse(Session* session, policy::Refusal reason, std::string_view message) {
  parts_.engine->NoteRefusal(session->group->tenant, reason);
  SendError(session, Code::REFUSED, message, RefusalName(reason));
}

Lease* RequestPath::LeaseOf(Session* session, uint64_t id) {
  Lease* lease = session->group->leases.Find(LeaseId(id));
  if (lease == nullptr) {
    ++parts_.stats->not_found;
    SendError(
        session, Code::NOT_FOUND,
        absl::StrCat("lease ", id,
                     " is not one of this group's: it was released, or expired for want of a Renew; look up again"));
  }
  return lease;
}

bool RequestPath::NamespaceIsOpen(Session* session, uint32_t ns) {
  if (session->namespaces.contains(ns)) return true;
  ++parts_.stats->not_found;
  SendError(session, Code::NOT_FOUND,
            absl::StrCat("namespace ", ns, " is not open in this session: send OpenNamespace first"));
  return false;
}

bool RequestPath::MayLease(Session* session, const Lease* lease, size_t blocks) {
  const LeaseTable& leases = session->group->leases;
  const bool group_may = (lease != nullptr || leases.MayCreate()) && leases.MayAppend(blocks);
  const uint64_t tenant_max = LeaseTable::OfTenantMax(parts_.engine->policy().tenants().size());
  if (group_may && leases.tenant_positions() + blocks <= tenant_max) return true;
  Refuse(session, policy::Refusal::kGroupLimit,
         group_may ? absl::StrCat("the engine groups of this tenant hold ", leases.tenant_positions(),
                                  " blocks of the ", tenant_max, " they may hold together: release some")
                   : absl::StrCat("this engine group holds ", leases.leases(), " leases with ", leases.leased_blocks(),
                                  " blocks, as many as it may: release some"));
  return false;
}

// What lies where another tenant is owed space ends at its time.
bool RequestPath::Judge(const Lease& lease) {
  Charge(lease.left().size());
  return parts_.engine->MayRenew(lease.left());
}

bool RequestPath::MayWait(Session* session) {
  if (session->pending_requests < kPendingPerSessionMax) return true;
  Refuse(session, policy::Refusal::kQueueFull,
         absl::StrCat(kPendingPerSessionMax,
                      " requests of this session wait for their answers already: await some first"));
  return false;
}

void RequestPath::OpenNamespace(Session* session) {
  const v1::OpenNamespace& in = parts_.codec->frame().open_namespace();
  NamespaceDigest digest;
  std::memcpy(digest.bytes.data(), in.digest().data(), digest.bytes.size());
  const ModelLayout layout{in.tokens_per_block(), in.shard_count(), in.shard_bytes()};
  const auto ns = parts_.engine->OpenNamespace(session->group->tenant, digest, layout);
  if (!ns.ok()) {
    const std::string_view message(ns.status().message().data(), ns.status().message().size());
    if (ns.status().code() != absl::StatusCode::kResourceExhausted)
      return SendError(session, Code::BAD_ARGUMENT, message);
    return Refuse(session, policy::Refusal::kTenantLimit, message);
  }
  // Counted once a session, however often it opens it.
  if (!session->namespaces.insert(ns->value()).second) parts_.engine->CloseNamespace(*ns);
  ServerFrame& reply = parts_.codec->NewReply(request_id());
  v1::NamespaceOpened* out = reply.mutable_namespace_opened();
  out->set_ns(ns->value());
  out->set_slot_bytes(layout.SlotBytes());
  out->set_shard_stride_bytes(layout.ShardStrideBytes());
  session->Send(parts_.codec, reply);
}

void RequestPath::CloseNamespace(Session* session) {
  const uint32_t ns = parts_.codec->frame().close_namespace().ns();
  if (session->namespaces.erase(ns) == 0) {
    ++parts_.stats->not_found;
    return;
  }
  parts_.engine->CloseNamespace(NamespaceId(ns));
}

void RequestPath::Lookup(Session* session) {
  const v1::Lookup& in = parts_.codec->frame().lookup();
  if (!NamespaceIsOpen(session, in.ns())) return;
  const NamespaceId ns(in.ns());
  const std::span<const BlockKey> keys = KeysOf(in.keys());
  LeaseTable& leases = session->group->leases;
  Lease* lease = nullptr;
  if (in.lease() != 0) {
    lease = LeaseOf(session, in.lease());
    if (lease == nullptr) return;
    if (lease->ns != ns) {
      return SendError(session, Code::BAD_ARGUMENT,
                       "the lease is of another namespace: a lease holds blocks of one chain");
    }
  }
  if (!MayLease(session, lease, keys.size())) return;

  Charge(keys.size());
  places_.clear();
  const engine::LookupResult result = parts_.engine->Lookup(ns, keys, in.prompt_tokens(), in.request(), &places_);
  KV_CHECK(result.matched == places_.size() && places_.size() <= keys.size());
  ServerFrame& reply = parts_.codec->NewReply(request_id());
  v1::LookedUp* out = reply.mutable_looked_up();
  out->set_matched(result.matched);
  out->set_request(result.request);
  if (!places_.empty()) {
    const int64_t now_ns = parts_.clock->MonotonicNs();
    if (lease == nullptr) lease = leases.Create(ns, now_ns);
    const auto judge = [this](const Lease& each) { return Judge(each); };
    const bool renew = !leases.IsFresh(*lease, now_ns) && leases.MayRenew(lease, now_ns, judge);
    leases.Append(lease, places_, now_ns, renew);
    out->set_lease(lease->id.value());
    std::string* tiers = out->mutable_tiers();
    tiers->resize(places_.size());
    for (size_t i = 0; i < places_.size(); ++i) (*tiers)[i] = static_cast<char>(places_[i].tier);
    FillPlaces(places_, out->mutable_offsets(), out->mutable_generations());
  }
  session->Send(parts_.codec, reply);
}

void RequestPath::Load(Session* session) {
  const v1::Load& in = parts_.codec->frame().load();
  if (request_id() == 0) return LoadAhead(session);
  const Lease* lease = LeaseOf(session, in.lease());
  if (lease == nullptr) return;
  const uint64_t end = uint64_t{in.first()} + in.count();
  if (in.first() < lease->front || end > lease->blocks.size()) {
    return SendError(session, Code::BAD_ARGUMENT,
                     absl::StrCat("blocks ", in.first(), " to ", end, " are not all in the lease: it holds ",
                                  lease->front, " to ", lease->blocks.size()));
  }
  if (!MayWait(session)) return;
  StartLoad(session, *lease, in,
            [this, id = session->id(), request = request_id(), first = in.first()](
                const engine::CacheEngine::LoadResult& result) { OnLoaded(id, request, first, result); });
}

// What cannot be is left to the Load that will ask for it: that one has an answer.
void RequestPath::LoadAhead(Session* session) {
  const v1::Load& in = parts_.codec->frame().load();
  const Lease* lease = session->group->leases.Find(LeaseId(in.lease()));
  if (lease == nullptr || in.first() < lease->front) return;
  if (uint64_t{in.first()} + in.count() > lease->blocks.size()) return;
  if (session->pending_requests >= kPendingPerSessionMax) return;
  StartLoad(session, *lease, in, [this, id = session->id()](const engine::CacheEngine::LoadResult&) {
    if (Session* waiting = parts_.sessions->Find(id)) --waiting->pending_requests;
  });
}

void RequestPath::StartLoad(Session* session, const Lease& lease, const v1::Load& in,
                            std::function<void(const engine::CacheEngine::LoadResult&)> done) {
  engine::LoadRequest request;
  request.ns = lease.ns;
  const GroupId group = session->group->id;
  request.group = group;
  request.session = session->id();
  request.deadline_ms = in.deadline_ms();
  request.ahead = request_id() == 0;
  Charge(in.count());
  for (uint32_t i = in.first(); i < in.first() + in.count(); ++i) request.entries.push_back(lease.blocks[i].entry);
  ++session->pending_requests;
  parts_.engine->Load(std::move(request), [this, alive = parts_.alive, group, lease_id = lease.id, first = in.first(),
                                           done = std::move(done)](const engine::CacheEngine::LoadResult& result) {
    if (alive.expired()) return;
    TakeOver(group, lease_id, first, result.places);
    done(result);
  });
}

void RequestPath::TakeOver(GroupId group_id, LeaseId lease_id, uint32_t first,
                           std::span<const engine::BlockPlace> places) {
  const auto give_back = [this](std::span<const engine::Hold> blocks) { parts_.engine->Release(blocks); };
  EngineGroup* group = parts_.groups->Find(group_id);
  Lease* lease = group == nullptr ? nullptr : group->leases.Find(lease_id);
  if (lease != nullptr) return group->leases.PutInPlace(lease, first, places, give_back);
  std::vector<engine::Hold> unwanted;
  for (const engine::BlockPlace& place : places) unwanted.push_back(engine::HoldOf(place));
  give_back(unwanted);
}

void RequestPath::OnLoaded(SessionId id, uint64_t request_id, uint32_t first,
                           const engine::CacheEngine::LoadResult& result) {
  Session* session = parts_.sessions->Find(id);
  if (session == nullptr) return;
  --session->pending_requests;
  session->TellHeld(parts_.codec);
  ServerFrame& reply = parts_.codec->NewReply(request_id);
  v1::Loaded* out = reply.mutable_loaded();
  out->set_first(first);
  out->set_count(static_cast<uint32_t>(result.places.size()));
  out->set_lost(result.read_failed);
  if (result.reason != policy::Refusal::kNone) out->set_refusal(RefusalName(result.reason));
  FillPlaces(result.places, out->mutable_offsets(), out->mutable_generations());
  session->Send(parts_.codec, reply);
  parts_.touch(session);
}

void RequestPath::Release(Session* session) {
  const v1::Release& in = parts_.codec->frame().release();
  ReleaseLease(session, in.lease(), in.count());
  GiveBackOf(session->group, kGivenBackPerTurnMax);
}

void RequestPath::ReleaseLease(Session* session, uint64_t id, uint32_t count) {
  Lease* lease = session->group->leases.Find(LeaseId(id));
  if (lease == nullptr) {
    // Has no answer; a lease that expired while its Release was on the way is no mistake.
    ++parts_.stats->not_found;
    return;
  }
  session->group->leases.Release(lease, count);
}

// A frame may release a million blocks: so many at once, the others in later turns.
uint32_t RequestPath::GiveBackOf(EngineGroup* group, uint32_t blocks_max) {
  const uint32_t given = group->leases.GiveBack(
      blocks_max, [this](std::span<const engine::Hold> blocks) { parts_.engine->Release(blocks); });
  Charge(given);
  if (group->leases.owes() && !std::exchange(owing_, true)) parts_.unfinished();
  return given;
}

void RequestPath::GiveBackOwed() {
  if (!std::exchange(owing_, false)) return;
  uint32_t left = kGivenBackPerTurnMax;
  for (const auto& [id, group] : parts_.groups->all()) left -= GiveBackOf(group.get(), left);
}

void RequestPath::Reserve(Session* session) {
  const v1::Reserve& in = parts_.codec->frame().reserve();
  if (!NamespaceIsOpen(session, in.ns())) return;
  EngineGroup* group = session->group;
  const std::span<const BlockKey> keys = KeysOf(in.keys());
  const uint32_t shard_count = parts_.engine->LayoutOf(NamespaceId(in.ns())).shard_count;
  if (in.shard() >= shard_count) {
    return SendError(session, Code::BAD_ARGUMENT,
                     absl::StrCat("shard ", in.shard(), " is not below the namespace's shard_count ", shard_count));
  }
  if (!group->MayFill(keys.size())) {
    return Refuse(session, policy::Refusal::kGroupLimit,
                  absl::StrCat("this engine group is filling ", group->filling.size() + group->reserving_blocks,
                               " blocks, and may fill ", kFillingBlocksPerGroupMax, ": commit or abort some"));
  }
  if (!MayWait(session)) return;
  Charge(keys.size());
  engine::ReserveRequest request;
  request.group = group->id;
  request.ns = NamespaceId(in.ns());
  request.shard = in.shard();
  request.request = in.request();
  request.keys = keys;
  request.parent = in.parent().empty() ? nullptr : &KeysOf(in.parent())[0];
  request.first_depth = in.first_depth();
  request.deadline_ms = in.deadline_ms();
  ++session->pending_requests;
  group->reserving_blocks += keys.size();
  const Asked asked{session->id(), group->id, request_id(), in.shard(), keys.size()};
  parts_.engine->Reserve(request, [this, alive = parts_.alive, asked](std::vector<engine::ReservedBlock> blocks) {
    if (!alive.expired()) OnReserved(asked, std::move(blocks));
  });
}

void RequestPath::OnReserved(const Asked& asked, std::vector<engine::ReservedBlock> blocks) {
  EngineGroup* group = parts_.groups->Find(asked.group);
  if (group == nullptr) return;  // the engine aborted all that the group was filling
  group->reserving_blocks -= asked.blocks;
  Session* session = parts_.sessions->Find(asked.session);
  if (session == nullptr || !session->alive()) {
    for (const engine::ReservedBlock& block : blocks) {
      if (block.outcome == engine::ReserveOutcome::kGranted)
        orphans_.push_back({asked.group, block.reservation, asked.shard});
    }
    if (!orphans_.empty()) parts_.unfinished();
    return;
  }
  --session->pending_requests;
  session->TellHeld(parts_.codec);  // ranges granted for this very Reserve are told before it is answered
  ServerFrame& reply = parts_.codec->NewReply(asked.request_id);
  v1::Reserved* out = reply.mutable_reserved();
  std::string* outcomes = out->mutable_outcomes();
  outcomes->resize(blocks.size());
  out->mutable_reservations()->Reserve(static_cast<int>(blocks.size()));
  policy::Refusal reason = policy::Refusal::kNone;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const engine::ReservedBlock& block = blocks[i];
    const bool granted = block.outcome == engine::ReserveOutcome::kGranted;
    (*outcomes)[i] = static_cast<char>(block.outcome);
    if (granted) group->filling[block.reservation.value()].push_back({asked.session, asked.shard});
    if (reason == policy::Refusal::kNone) reason = block.reason;
    out->mutable_reservations()->AddAlreadyReserved(granted ? block.reservation.value() : 0);
  }
  FillPlaces(blocks, out->mutable_offsets(), out->mutable_generations());
  if (reason != policy::Refusal::kNone) out->set_refusal(RefusalName(reason));
  session->Send(parts_.codec, reply);
  parts_.touch(session);
}

void RequestPath::Commit(Session* session) {
  const v1::Commit& in = parts_.codec->frame().commit();
  EngineGroup* group = session->group;
  Charge(static_cast<size_t>(in.reservations_size()));
  // Not straight into the reply: a commit may let a waiting Reserve go on, whose answer uses the codec's one reply.
  outcomes_.clear();
  for (const uint64_t reservation : in.reservations()) {
    const engine::CommitOutcome outcome = parts_.engine->Commit(group->id, ReservationId(reservation), in.shard());
    outcomes_.push_back(static_cast<char>(outcome));
    // Not at kNotFilling: a shard that was not reserved, or is there already, leaves the block filling.
    if (outcome == engine::CommitOutcome::kVisible) group->filling.erase(reservation);
    if (outcome == engine::CommitOutcome::kShardStored) {
      EngineGroup::Writers& writers = group->filling[reservation];
      const auto wrote = [&](const EngineGroup::Writer& writer) { return writer.shard == in.shard(); };
      writers.erase(std::remove_if(writers.begin(), writers.end(), wrote), writers.end());
    }
    if (outcome == engine::CommitOutcome::kNotFilling) ++parts_.stats->not_found;
    if (outcome == engine::CommitOutcome::kNotYours) ++parts_.stats->not_yours;
  }
  ServerFrame& reply = parts_.codec->NewReply(request_id());
  reply.mutable_committed()->set_outcomes(outcomes_);
  session->Send(parts_.codec, reply);
}

void RequestPath::Abort(Session* session) {
  const v1::Abort& in = parts_.codec->frame().abort();
  EngineGroup* group = session->group;
  Charge(static_cast<size_t>(in.reservations_size()));
  uint32_t aborted = 0;
  for (const uint64_t reservation : in.reservations()) {
    const uint64_t done = group->ShardsOf(session->id(), reservation);
    if (parts_.engine->Abort(group->id, ReservationId(reservation), done))
      ++aborted;
    else
      ++parts_.stats->not_found;
    group->filling.erase(reservation);
  }
  ServerFrame& reply = parts_.codec->NewReply(request_id());
  reply.mutable_aborted()->set_count(aborted);
  session->Send(parts_.codec, reply);
}

void RequestPath::Renew(Session* session) {
  const v1::Renew& in = parts_.codec->frame().renew();
  LeaseTable& leases = session->group->leases;
  const int64_t now_ns = parts_.clock->MonotonicNs();
  const auto judge = [this](const Lease& lease) { return Judge(lease); };
  uint32_t renewed = 0;
  if (in.leases().empty() && in.token().empty()) {
    renewed = leases.RenewAll(now_ns, judge);
  }
  // Each is looked through once, however often it is named.
  std::vector<uint64_t> named(in.leases().begin(), in.leases().end());
  std::sort(named.begin(), named.end());
  named.erase(std::unique(named.begin(), named.end()), named.end());
  for (const uint64_t id : named) {
    Lease* lease = leases.Find(LeaseId(id));
    if (lease == nullptr || !leases.MayRenew(lease, now_ns, judge)) continue;
    leases.Renew(lease, now_ns);
    ++renewed;
  }
  ServerFrame& reply = parts_.codec->NewReply(request_id());
  reply.mutable_renewed()->set_count(renewed);
  reply.mutable_renewed()->set_identity_ms(session->IdentityMs(now_ns));
  session->Send(parts_.codec, reply);
}

void RequestPath::Pin(Session* session) {
  const v1::Pin& in = parts_.codec->frame().pin();
  const Lease* lease = LeaseOf(session, in.lease());
  if (lease == nullptr) return;
  if (lease->left().size() > kPositionsPerWakeMax) {
    return Refuse(session, policy::Refusal::kGroupLimit,
                  absl::StrCat("the lease holds ", lease->left().size(), " blocks, and a pin may be of ",
                               kPositionsPerWakeMax, ": pin fewer"));
  }
  Charge(lease->left().size());
  const int64_t until_ms = static_cast<int64_t>(std::min<uint64_t>(in.until_wall_ms(), INT64_MAX));
  const policy::Refusal refusal = parts_.engine->Pin(lease->left(), until_ms);
  if (refusal != policy::Refusal::kNone) {
    const char* why = "the pin is above what the tenant's guarantee covers: pin fewer blocks";
    if (refusal == policy::Refusal::kTooLong) why = "nothing of the tenant may be kept for so long: pin it for less";
    if (refusal == policy::Refusal::kParentUnpinned) why = "the block before is not pinned as long: pin from the front";
    if (refusal == policy::Refusal::kGone) why = "a block of the lease has left the cache: look it up again";
    return SendError(session, Code::REFUSED, why, RefusalName(refusal));
  }
  ServerFrame& reply = parts_.codec->NewReply(request_id());
  reply.mutable_pinned();
  session->Send(parts_.codec, reply);
}

void RequestPath::Hint(Session* session) {
  const v1::Hint& in = parts_.codec->frame().hint();
  const Lease* lease = session->group->leases.Find(LeaseId(in.lease()));
  if (lease == nullptr) {
    ++parts_.stats->not_found;  // as with a Release
    return;
  }
  if (lease->left().size() > kPositionsPerWakeMax) {
    return parts_.engine->NoteRefusal(session->group->tenant, policy::Refusal::kGroupLimit);
  }
  Charge(lease->left().size());
  if (in.what() == v1::Hint::ENDED) parts_.engine->Hint(lease->left(), policy::SessionHint::kEnded);
  if (in.what() == v1::Hint::WAITING) parts_.engine->Hint(lease->left(), policy::SessionHint::kWaiting);
}

void RequestPath::AbortFills(EngineGroup* group, std::span<const EngineGroup::Fill> fills, bool left) {
  // Other ranks may have their shards there: they will be told that nothing is being filled.
  for (const auto& [reservation, shards] : fills) {
    group->filling.erase(reservation.value());
    parts_.engine->Abort(group->id, reservation, left ? shards : 0);
  }
}

void RequestPath::AbortOrphans() {
  std::vector<Orphan> orphans;
  orphans.swap(orphans_);
  for (const auto& [group_id, reservation, shard] : orphans) {
    EngineGroup* group = parts_.groups->Find(group_id);
    if (group == nullptr) continue;
    // Another rank may have been granted a shard of the same block.
    group->filling.erase(reservation.value());
    parts_.engine->Abort(group_id, reservation, uint64_t{1} << shard);
  }
}

}  // namespace kvartal::attach
