// The queues of EngineState: what waits for room, and what wakes it.
#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/engine/engine_state.h"

namespace kvartal::engine {

bool EngineState::MayPark(const TenantState& tenant) const {
  return waiting < kWaitingMax && tenant.waiters.size() < kWaitingPerTenantMax;
}

bool EngineState::Park(TenantState& tenant, std::unique_ptr<Waiter> waiter) {
  if (!MayPark(tenant)) return false;
  ++waiting;
  tenant.waiters.push_back(std::move(waiter));
  return true;
}

void EngineState::Wake(TenantState& tenant) {
  const bool listed = std::find(to_wake_.begin(), to_wake_.end(), &tenant) != to_wake_.end();
  if (tenant.waiters.empty() || listed) return;
  to_wake_.push_back(&tenant);
  if (to_wake_.size() > 1) return;
  // The front one is at work.
  for (; !to_wake_.empty(); to_wake_.pop_front()) RetryWaiters(*to_wake_.front());
}

void EngineState::RetryWaiters(TenantState& tenant) {
  while (!tenant.waiters.empty()) {
    // Out of the queue while it runs: a finished waiter may call out and queue new ones.
    std::unique_ptr<Waiter> waiter = std::move(tenant.waiters.front());
    tenant.waiters.pop_front();
    if (!waiter->Retry()) {
      tenant.waiters.push_front(std::move(waiter));
      return;
    }
    --waiting;
  }
}

std::vector<std::unique_ptr<Waiter>> EngineState::TakeOut(absl::FunctionRef<bool(const Waiter&)> is_it) {
  std::vector<std::unique_ptr<Waiter>> out;
  for (auto& tenant : tenants) {
    auto& queue = tenant->waiters;
    const auto gone = std::stable_partition(queue.begin(), queue.end(),
                                            [&](const std::unique_ptr<Waiter>& waiter) { return !is_it(*waiter); });
    std::move(gone, queue.end(), std::back_inserter(out));
    queue.erase(gone, queue.end());
  }
  waiting -= out.size();
  return out;
}

void EngineState::EndLateWaiters() {
  if (waiting == 0) return;
  const uint32_t now_tick = NowTick();
  auto late = TakeOut([&](const Waiter& waiter) { return waiter.due_tick() <= now_tick; });
  for (std::unique_ptr<Waiter>& waiter : late) waiter->Late();
  if (!late.empty()) WakeAll();
}

void EngineState::WakeAll() {
  for (auto& tenant : tenants) Wake(*tenant);
}

}  // namespace kvartal::engine
