// One Load under way: promotes the blocks of a chain in order, many reads in flight, through as large a window as
// the tenant may hold, and answers once: when everything it started has ended, or when nobody waits for it any more.
// Confined to the engine loop. Owned by the load path's list of those without an answer, its reads and its place in the
// tenant's queue.
// Invariants: holds every block of its chain until it has answered; what it found or brought into DRAM it leases in
// place, and hands that lease over with the answer; answers exactly once; after its answer no read is done for it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "daemon/engine/engine_state.h"
#include "daemon/engine/load_path.h"

namespace kvartal::engine {

class LoadOperation {
 public:
  // `entries` are held by the caller for it. `cut_short`: why they are less than was asked for, or kNone.
  LoadOperation(LoadPath* path, LoadRequest request, policy::Refusal cut_short, CacheEngine::LoadDone done);

  // Goes as far as it can; parks itself with the tenant when it has to wait, unless it reads ahead.
  static void Start(const std::shared_ptr<LoadOperation>& self);
  // Answers with what there is by now.
  void GiveUp(policy::Refusal reason);

  SessionId session() const { return session_; }
  uint32_t due_tick() const { return due_tick_; }
  // It has kept its blocks for as long as a lease lasts, and a lease of them would not be renewed.
  bool MustLetGo(uint32_t now_tick) const;

 private:
  class Parked;
  enum class Progress : uint8_t { kSubmitted, kWait };
  bool ahead() const { return urgency_ == Movement::Urgency::kAhead; }
  // Submits reads until the end of the chain, a refusal, or a wait.
  Progress Submit(const std::shared_ptr<LoadOperation>& self);
  Movement::Reader ReaderOf(const std::shared_ptr<LoadOperation>& self, size_t position);
  // Counted, where somebody waits for it.
  void Refuse(policy::Refusal reason);
  void StopAt(policy::Refusal reason);
  // Nobody is served it any more: deleted meanwhile, and maybe being stored anew, or too old.
  bool IsGone(EntryId id) const;
  // False: it may not, or the block is gone.
  bool LeaseInPlace(size_t position);
  void AnswerIfEnded();
  void Answer();

  LoadPath& path_;
  TenantState& tenant_;
  const GroupId group_;      // whose it is; None: nobody's who could end
  const SessionId session_;  // who waits for the answer; None: not a session
  const uint32_t due_tick_;
  const int64_t arrived_ns_;
  const uint32_t began_tick_;
  const Movement::Urgency urgency_;
  std::vector<EntryId> entries_;
  CacheEngine::LoadDone done_;
  std::vector<bool> in_place_;  // by position: leased in place by this operation
  std::vector<bool> awaited_;   // by position: being read
  size_t next_ = 0;             // first block not yet looked at
  uint32_t reading_ = 0;        // reads it waits for
  size_t lost_ = SIZE_MAX;      // the first block that is not there any more
  bool submitted_ = false;      // nothing more will be started
  bool answered_ = false;
  policy::Refusal reason_;                                     // why it brings less than was asked
  std::list<std::shared_ptr<LoadOperation>>::iterator place_;  // in the load path's list
};

}  // namespace kvartal::engine
