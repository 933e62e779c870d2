#include "daemon/engine/load_operation.h"

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"

namespace kvartal::engine {

using index::Entry;
using policy::Refusal;

class LoadOperation::Parked : public Waiter {
 public:
  explicit Parked(std::shared_ptr<LoadOperation> operation) : operation_(std::move(operation)) {}
  bool Retry() override {
    if (operation_->answered_) return true;
    if (operation_->Submit(operation_) == Progress::kWait) return false;
    operation_->AnswerIfEnded();
    return true;
  }
  GroupId group() const override { return operation_->group_; }
  uint32_t due_tick() const override { return operation_->due_tick_; }
  void Cancel() override { operation_->GiveUp(Refusal::kGone); }
  void Late() override { operation_->GiveUp(Refusal::kLate); }

 private:
  const std::shared_ptr<LoadOperation> operation_;
};

LoadOperation::LoadOperation(LoadPath* path, LoadRequest request, Refusal cut_short, CacheEngine::LoadDone done)
    : path_(*path),
      tenant_(path->state_.tenant(path->state_.ns(request.ns).tenant)),
      group_(request.group),
      session_(request.session),
      due_tick_(path->state_.DueTick(request.deadline_ms)),
      arrived_ns_(path->state_.devices.clock->MonotonicNs()),
      began_tick_(path->state_.NowTick()),
      urgency_(request.ahead ? Movement::Urgency::kAhead : Movement::Urgency::kDemand),
      entries_(std::move(request.entries)),
      done_(std::move(done)),
      in_place_(entries_.size()),
      awaited_(entries_.size()),
      reason_(cut_short) {}

void LoadOperation::Start(const std::shared_ptr<LoadOperation>& self) {
  auto& unanswered = self->path_.unanswered_;
  self->place_ = unanswered.insert(unanswered.end(), self);
  // First come, first served: a later Load must not overtake those that wait already.
  const bool others_wait = !self->tenant_.waiters.empty();
  if (others_wait || self->Submit(self) == Progress::kWait) {
    // Room that somebody waits for is not what is read ahead into.
    if (self->ahead()) self->tenant_.ahead_waited_tick = self->path_.state_.NowTick();
    const bool parked = !self->ahead() && self->path_.state_.Park(self->tenant_, std::make_unique<Parked>(self));
    if (parked) return;
    self->Refuse(Refusal::kQueueFull);
  }
  self->AnswerIfEnded();
}

void LoadOperation::GiveUp(Refusal reason) {
  if (answered_) return;
  StopAt(reason);
  if (reason == Refusal::kLate) {
    const uint64_t missing =
        entries_.size() - static_cast<uint64_t>(std::count(in_place_.begin(), in_place_.end(), true));
    const uint64_t slot_bytes =
        entries_.empty() ? 0 : path_.state_.SlotBytesOf(path_.state_.index.at(entries_.front()));
    path_.state_.NoteRefusal(tenant_, TierKind::kDram, reason, missing * slot_bytes);
  }
  Answer();
}

void LoadOperation::Refuse(Refusal reason) {
  EngineState& state = path_.state_;
  const uint64_t slot_bytes = entries_.empty() ? 0 : state.SlotBytesOf(state.index.at(entries_.front()));
  if (!ahead()) state.NoteRefusal(tenant_, TierKind::kDram, reason, slot_bytes);
  StopAt(reason);
}

void LoadOperation::StopAt(Refusal reason) {
  reason_ = reason;
  submitted_ = true;
}

LoadOperation::Progress LoadOperation::Submit(const std::shared_ptr<LoadOperation>& self) {
  EngineState& state = path_.state_;
  if (tenant_.dropping) {
    Refuse(Refusal::kDraining);
    return Progress::kSubmitted;
  }
  for (; next_ < entries_.size(); ++next_) {
    const EntryId id = entries_[next_];
    const Entry& entry = state.index.at(id);
    // Being stored anew beside a copy that could not be read.
    if (entry.state != BlockState::kCommitted && entry.resident(TierKind::kNvme)) {
      Refuse(Refusal::kBusy);
      return Progress::kSubmitted;
    }
    if (IsGone(id)) {
      lost_ = std::min(lost_, next_);
      break;
    }
    if (entry.resident(TierKind::kDram)) {
      if (!LeaseInPlace(next_)) break;
      continue;
    }
    if (entry.reading) {
      path_.movement_.JoinRead(id, ReaderOf(self, next_));
      continue;
    }
    const uint32_t slot_bytes = state.SlotBytesOf(entry);
    // Read it might be, and given to nobody: neither by itself nor after those that are on their way.
    if (path_.residency_.LeasesCapped(tenant_, uint64_t{tenant_.reads_under_way + 1} * slot_bytes)) {
      Refuse(state.GuaranteeWaits(TierKind::kDram) ? Refusal::kOwed : Refusal::kTenantLimit);
      return Progress::kSubmitted;
    }
    const SpaceResult room =
        path_.space_.TakeDram(tenant_, slot_bytes, 0, static_cast<uint32_t>(entries_.size() - next_));
    if (room.outcome == SpaceOutcome::kWait) return Progress::kWait;
    if (room.outcome == SpaceOutcome::kRefused) {
      Refuse(room.reason);
      return Progress::kSubmitted;
    }
    if (!path_.movement_.StartRead(id, room.slot, ReaderOf(self, next_))) {
      --reading_;
      awaited_[next_] = false;
      state.devices.dram->Give(tenant_.domain(), room.slot);
      if (state.reads_under_way > 0 && reading_ > 0) return Progress::kWait;
      Refuse(state.NvmeReadable(id) ? Refusal::kQueueFull : Refusal::kTierSick);
      return Progress::kSubmitted;
    }
  }
  submitted_ = true;
  return Progress::kSubmitted;
}

Movement::Reader LoadOperation::ReaderOf(const std::shared_ptr<LoadOperation>& self, size_t position) {
  ++reading_;
  awaited_[position] = true;
  return {this, urgency_, [self, position](Movement::ReadOutcome outcome) {
            // Another reader of the block was told before, and that may have ended this.
            if (self->answered_) return;
            --self->reading_;
            self->awaited_[position] = false;
            if (outcome == Movement::ReadOutcome::kDone) {
              self->LeaseInPlace(position);
            } else {
              self->lost_ = std::min(self->lost_, position);
            }
            self->AnswerIfEnded();
          }};
}

bool LoadOperation::IsGone(EntryId id) const {
  const Entry& entry = path_.state_.index.at(id);
  if (entry.state != BlockState::kCommitted || entry.erasing) return true;
  return tenant_.rules.max_age_ms > 0 && path_.state_.OverAge(id, path_.state_.NowTick());
}

bool LoadOperation::MustLetGo(uint32_t now_tick) const {
  if (now_tick - began_tick_ < kLoadTicksFree) return false;
  std::vector<Hold> holds;
  holds.reserve(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) holds.push_back({entries_[i], in_place_[i]});
  return !path_.space_.MayKeep(holds);
}

bool LoadOperation::LeaseInPlace(size_t position) {
  if (IsGone(entries_[position])) {
    lost_ = std::min(lost_, position);
    return false;
  }
  in_place_[position] = path_.TryKeep({entries_[position], true});
  if (!in_place_[position] && reason_ == Refusal::kNone) reason_ = path_.NoteNotLeased(entries_[position]);
  return in_place_[position];
}

void LoadOperation::AnswerIfEnded() {
  if (submitted_ && reading_ == 0 && !answered_) Answer();
}

void LoadOperation::Answer() {
  answered_ = true;
  const std::shared_ptr<LoadOperation> self = std::move(*place_);
  path_.unanswered_.erase(place_);
  EngineState& state = path_.state_;
  if (!ahead()) state.LatencyOf(tenant_).load.AddNs(state.devices.clock->MonotonicNs() - arrived_ns_);
  CacheEngine::LoadResult result;
  result.reason = reason_;
  size_t position = 0;
  // What it brought first may have become too old since.
  for (; position < entries_.size() && in_place_[position] && !IsGone(entries_[position]); ++position) {
    result.places.push_back(path_.PlaceInDram(entries_[position]));
  }
  result.read_failed = position == lost_ || (position < entries_.size() && in_place_[position]);
  std::vector<Hold> own;
  own.reserve(entries_.size());
  for (const EntryId id : entries_) own.push_back({id, false});
  for (; position < entries_.size(); ++position) {
    if (in_place_[position]) own.push_back({entries_[position], true});
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (awaited_[i]) path_.movement_.LeaveRead(entries_[i], this);
  }
  done_(std::move(result));
  path_.Release(own);
}

}  // namespace kvartal::engine
