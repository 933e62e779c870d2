#include "daemon/engine/cache_engine.h"

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/engine/compaction.h"
#include "daemon/engine/engine_state.h"
#include "daemon/engine/erasure.h"
#include "daemon/engine/expiry.h"
#include "daemon/engine/invariants.h"
#include "daemon/engine/load_path.h"
#include "daemon/engine/movement.h"
#include "daemon/engine/pins.h"
#include "daemon/engine/receipts.h"
#include "daemon/engine/recovery.h"
#include "daemon/engine/removal.h"
#include "daemon/engine/residency.h"
#include "daemon/engine/shares.h"
#include "daemon/engine/space.h"
#include "daemon/engine/store_path.h"

namespace kvartal::engine {

// The parts, in the order they depend on each other.
class CacheEngine::Core {
 public:
  Core(const EngineOptions& options, const EngineDevices& devices, std::shared_ptr<const policy::PolicyTable> policy)
      : state(options, devices, std::move(policy)),
        residency(&state),
        receipts(&state),
        shares(&state),
        compaction(&state, &residency, &receipts),
        space(&state, &residency, &shares, &compaction),
        movement(&state, &residency, &space),
        load_path(&state, &residency, &space, &movement),
        store_path(&state, &residency, &space, &movement),
        pins(&state, &residency, &space, &movement),
        erasure(&state, &residency, &receipts),
        expiry(&state, &residency, &space, &movement, &pins, &erasure),
        removal(&state, &residency, &space, &pins, &erasure, &receipts),
        recovery(&state, &residency, &movement, &pins, &removal, &receipts) {}
  ~Core() {
    // What still waits refers to the parts below the state.
    for (auto& tenant : state.tenants) tenant->waiters.clear();
  }

  // Not for reads: they make nothing durable, and while anybody loads there is always one.
  void TryEndDrain() {
    if (!drain_done || state.writes_under_way > 0) return;
    auto done = std::exchange(drain_done, nullptr);
    if (state.devices.catalog == nullptr) return done(absl::OkStatus());
    state.devices.catalog->Flush(std::move(done));
  }

  EngineState state;
  Residency residency;
  Receipts receipts;
  Shares shares;
  Compaction compaction;
  Space space;
  Movement movement;
  LoadPath load_path;
  StorePath store_path;
  Pins pins;
  Erasure erasure;
  Expiry expiry;
  Removal removal;
  Recovery recovery;
  absl::AnyInvocable<void(absl::Status)> drain_done;
};

CacheEngine::CacheEngine(const EngineOptions& options, const EngineDevices& devices,
                         std::shared_ptr<const policy::PolicyTable> policy)
    : core_(std::make_unique<Core>(options, devices, std::move(policy))) {}
CacheEngine::~CacheEngine() = default;

void CacheEngine::SetObserver(EngineObserver* observer) {
  core_->state.observer = observer;
  core_->state.devices.dram->SetOnGranted([observer](DomainId domain, tier::GrantedRange range) {
    if (observer != nullptr) observer->OnGranted(domain, range.offset, range.bytes);
  });
}

void CacheEngine::ApplyPolicy(std::shared_ptr<const policy::PolicyTable> policy) {
  core_->state.ApplyPolicy(std::move(policy));
  core_->shares.Pour();
  core_->state.WakeAll();
}

const policy::PolicyTable& CacheEngine::policy() const { return *core_->state.policy; }

TenantId CacheEngine::FindTenant(std::string_view name) const {
  if (core_->state.policy->FindByName(name) == nullptr) return TenantId::None();
  return core_->state.tenant_by_name.at(std::string(name));
}

const policy::TenantRules* CacheEngine::RulesOf(TenantId tenant) const { return &core_->state.tenant(tenant).rules; }

DomainId CacheEngine::DomainOf(TenantId tenant) const { return core_->state.tenant(tenant).domain(); }

absl::StatusOr<DomainMemory> CacheEngine::OpenMemory(TenantId tenant_id) {
  TenantState& tenant = core_->state.tenant(tenant_id);
  KV_RETURN_IF_ERROR(core_->state.OpenMemory(tenant));
  const device::Arena& arena = *core_->state.devices.dram->arena(tenant.domain());
  DomainMemory memory;
  memory.arena_fd = arena.fd();
  memory.generation_fd = arena.generation_fd();
  memory.arena_bytes = arena.size_bytes();
  for (const tier::GrantedRange& range : core_->state.devices.dram->granted(tenant.domain())) {
    memory.granted.push_back({range.offset, range.bytes});
  }
  return memory;
}

absl::StatusOr<NamespaceId> CacheEngine::OpenNamespace(TenantId tenant, const NamespaceDigest& digest,
                                                       const ModelLayout& layout) {
  return core_->state.OpenNamespace(tenant, digest, layout);
}

void CacheEngine::CloseNamespace(NamespaceId ns) { core_->state.LeaveNamespace(ns); }

const ModelLayout& CacheEngine::LayoutOf(NamespaceId ns) const { return core_->state.ns(ns).layout; }

LookupResult CacheEngine::Lookup(NamespaceId ns, std::span<const BlockKey> keys, uint64_t prompt_tokens,
                                 uint64_t request, std::vector<BlockPlace>* places) {
  return core_->load_path.Lookup(ns, keys, prompt_tokens, request, places);
}

void CacheEngine::Load(LoadRequest request, LoadDone done) {
  core_->load_path.Load(std::move(request), std::move(done));
}

void CacheEngine::EndSession(SessionId session) { core_->load_path.EndSession(session); }

void CacheEngine::Release(std::span<const Hold> holds) { core_->load_path.Release(holds); }

bool CacheEngine::MayRenew(std::span<const Hold> holds) const { return core_->space.MayKeep(holds); }

void CacheEngine::Hint(std::span<const Hold> chain, policy::SessionHint hint) { core_->load_path.Hint(chain, hint); }

policy::Refusal CacheEngine::Pin(std::span<const Hold> blocks, int64_t until_wall_ms) {
  return core_->pins.Pin(blocks, until_wall_ms);
}

void CacheEngine::Reserve(const ReserveRequest& request, ReserveDone done) {
  core_->store_path.Reserve(request, std::move(done));
}

CommitOutcome CacheEngine::Commit(GroupId group, ReservationId reservation, uint32_t shard) {
  return core_->store_path.Commit(group, reservation, shard);
}

bool CacheEngine::Abort(GroupId group, ReservationId reservation, uint64_t done) {
  return core_->store_path.Abort(group, reservation, done);
}

size_t CacheEngine::AbortGroup(GroupId group, uint64_t done) { return core_->store_path.AbortGroup(group, done); }

void CacheEngine::EndRest(ReservationId reservation, uint64_t done) { core_->store_path.EndRest(reservation, done); }

void CacheEngine::DropTenant(TenantId tenant, absl::AnyInvocable<void(absl::StatusOr<uint64_t> bytes)> done) {
  core_->removal.Start(core_->state.tenant(tenant), std::move(done));
}

void CacheEngine::Tick() {
  core_->state.AdvanceLedger();
  core_->movement.Tick();
  core_->recovery.Tick();
  core_->compaction.Tick();
  core_->shares.Tick();
  core_->state.CountTakingTick();
  core_->space.Tick();
  core_->state.EndLateWaiters();
  core_->load_path.Tick();
  core_->store_path.Tick();
  core_->expiry.Tick();
  core_->removal.Tick();
  core_->receipts.Tick();
  core_->TryEndDrain();
}

bool CacheEngine::behind() const { return core_->state.timers.behind(); }
void CacheEngine::CatchUp() { core_->expiry.RunTimers(); }

void CacheEngine::Recover(absl::AnyInvocable<void(absl::Status)> done) { core_->recovery.Start(std::move(done)); }

void CacheEngine::Drain(absl::AnyInvocable<void(absl::Status)> done) {
  core_->state.draining = true;
  core_->drain_done = std::move(done);
  core_->TryEndDrain();
}

void CacheEngine::NoteRefusal(TenantId tenant, policy::Refusal reason) {
  core_->state.NoteRefusal(core_->state.tenant(tenant), TierKind::kDram, reason, 0);
}

EngineStats CacheEngine::stats() const { return core_->state.Stats(); }

void CacheEngine::CheckInvariants() const { kvartal::engine::CheckInvariants(core_->state); }

}  // namespace kvartal::engine
