// One Load under way: promotes the blocks of a chain in order, many reads in flight, through as large a window as
// the tenant may hold, and answers once when everything it started has ended.
// Confined to the engine loop. Owned by its reads, its place in the tenant's queue, or the call that started it.
// Invariants: holds every block of its chain until it has answered; what it found or brought into DRAM it leases in
// place, and hands that lease over with the answer; answers exactly once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/engine/engine_state.h"
#include "daemon/engine/load_path.h"

namespace kvartal::engine {

class LoadOperation {
 public:
  // `cut_short`: why `entries` is less than was asked for, or kNone.
  LoadOperation(LoadPath* path, TenantState* tenant, GroupId group, std::vector<EntryId> entries,
                policy::Refusal cut_short, CacheEngine::LoadDone done)
      : path_(*path),
        tenant_(*tenant),
        group_(group),
        entries_(std::move(entries)),
        done_(std::move(done)),
        in_place_(entries_.size()),
        reason_(cut_short) {}

  // Goes as far as it can; parks itself with the tenant when it has to wait.
  static void Start(const std::shared_ptr<LoadOperation>& self);

 private:
  class Parked;
  enum class Progress : uint8_t { kSubmitted, kWait };
  // Submits reads until the end of the chain, a refusal, or a wait.
  Progress Submit(const std::shared_ptr<LoadOperation>& self);
  void StopAt(policy::Refusal reason);
  // False: it may not.
  bool LeaseInPlace(size_t position);
  void AnswerIfEnded();

  LoadPath& path_;
  TenantState& tenant_;
  const GroupId group_;  // whose it is; None: nobody's who could end
  std::vector<EntryId> entries_;
  CacheEngine::LoadDone done_;
  std::vector<bool> in_place_;  // by position: leased in place by this operation
  size_t next_ = 0;             // first block not yet looked at
  uint32_t reading_ = 0;        // reads it waits for
  size_t lost_ = SIZE_MAX;      // the first block that is not there any more
  bool submitted_ = false;      // nothing more will be started
  bool answered_ = false;
  policy::Refusal reason_;  // why it brings less than was asked
};

}  // namespace kvartal::engine
