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
    if (operation_->Submit(operation_) == Progress::kWait) return false;
    operation_->AnswerIfEnded();
    return true;
  }
  GroupId group() const override { return operation_->group_; }
  void Cancel() override {
    operation_->StopAt(Refusal::kGone);
    operation_->AnswerIfEnded();
  }

 private:
  const std::shared_ptr<LoadOperation> operation_;
};

void LoadOperation::Start(const std::shared_ptr<LoadOperation>& self) {
  // First come, first served: a later Load must not overtake those that wait already.
  const bool others_wait = !self->tenant_.waiters.empty();
  if (others_wait || self->Submit(self) == Progress::kWait) {
    if (self->path_.state_.Park(self->tenant_, std::make_unique<Parked>(self))) return;
    self->StopAt(Refusal::kQueueFull);
  }
  self->AnswerIfEnded();
}

void LoadOperation::StopAt(Refusal reason) {
  reason_ = reason;
  submitted_ = true;
}

LoadOperation::Progress LoadOperation::Submit(const std::shared_ptr<LoadOperation>& self) {
  EngineState& state = path_.state_;
  if (tenant_.dropping) {
    StopAt(Refusal::kDraining);
    return Progress::kSubmitted;
  }
  for (; next_ < entries_.size(); ++next_) {
    const EntryId id = entries_[next_];
    const Entry& entry = state.index.at(id);
    if (entry.state != BlockState::kCommitted) {  // lost meanwhile, and maybe being stored anew
      lost_ = std::min(lost_, next_);
      break;
    }
    if (entry.resident(TierKind::kDram)) {
      LeaseInPlace(next_);
      continue;
    }
    auto on_read = [self, position = next_](Movement::ReadOutcome outcome) {
      --self->reading_;
      if (outcome == Movement::ReadOutcome::kDone) {
        self->LeaseInPlace(position);
      } else {
        self->lost_ = std::min(self->lost_, position);
      }
      self->AnswerIfEnded();
    };
    if (entry.reading) {
      ++reading_;
      path_.movement_.JoinRead(id, std::move(on_read));
      continue;
    }
    const SpaceResult room =
        path_.space_.TakeDram(tenant_, state.SlotBytesOf(entry), 0, static_cast<uint32_t>(entries_.size() - next_));
    if (room.outcome == SpaceOutcome::kWait) return Progress::kWait;
    if (room.outcome == SpaceOutcome::kRefused) {
      state.NoteRefusal(tenant_, TierKind::kDram, room.reason, state.SlotBytesOf(entry));
      StopAt(room.reason);
      return Progress::kSubmitted;
    }
    if (!path_.movement_.StartRead(id, room.slot, std::move(on_read))) {
      state.devices.dram->Give(tenant_.domain(), room.slot);
      if (state.reads_under_way > 0 && reading_ > 0) return Progress::kWait;
      StopAt(state.NvmeReadable() ? Refusal::kQueueFull : Refusal::kTierSick);
      return Progress::kSubmitted;
    }
    ++reading_;
  }
  submitted_ = true;
  return Progress::kSubmitted;
}

void LoadOperation::LeaseInPlace(size_t position) {
  in_place_[position] = path_.TryKeep({entries_[position], true});
  if (in_place_[position] || reason_ != Refusal::kNone) return;
  reason_ = path_.NoteNotLeased(entries_[position]);
}

void LoadOperation::AnswerIfEnded() {
  if (!submitted_ || reading_ > 0 || answered_) return;
  answered_ = true;
  CacheEngine::LoadResult result;
  result.reason = reason_;
  size_t position = 0;
  for (; position < entries_.size() && in_place_[position]; ++position) {
    result.places.push_back(path_.PlaceInDram(entries_[position]));
  }
  result.read_failed = position == lost_;
  std::vector<Hold> own;
  own.reserve(entries_.size());
  for (const EntryId id : entries_) own.push_back({id, false});
  for (; position < entries_.size(); ++position) {
    if (in_place_[position]) own.push_back({entries_[position], true});
  }
  done_(std::move(result));
  path_.Release(own);
}

}  // namespace kvartal::engine
