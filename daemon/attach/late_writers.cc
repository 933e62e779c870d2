#include "daemon/attach/late_writers.h"

#include <sys/epoll.h>

#include <iterator>
#include <utility>

#include "daemon/base/limits.h"

namespace kvartal::attach {
namespace {

constexpr int64_t kWatchedNs = int64_t{kSlotRestTicks + 1} * kTickMs * kNsPerMs;

}  // namespace

LateWriters::~LateWriters() {
  while (!writers_.empty()) Forget(writers_.begin());
}

void LateWriters::Watch(UniqueFd peer_exit, std::vector<EngineGroup::Fill> fills) {
  if (!peer_exit.valid() || fills.empty()) return;
  if (writers_.size() == kEndedGroupsMax) Forget(writers_.begin());
  writers_.push_back({std::move(peer_exit), std::move(fills), clock_->MonotonicNs() + kWatchedNs});
  const auto writer = std::prev(writers_.end());
  const absl::Status watched =
      loop_->Add(writer->peer_exit.get(), EPOLLIN, [this, writer](uint32_t) { OnExit(writer); });
  if (!watched.ok()) writers_.erase(writer);
}

void LateWriters::Tick() {
  while (!writers_.empty() && writers_.front().until_ns <= clock_->MonotonicNs()) Forget(writers_.begin());
}

void LateWriters::OnExit(std::list<Writer>::iterator writer) {
  for (const auto& [reservation, shards] : writer->fills) engine_->EndRest(reservation, shards);
  Forget(writer);
}

void LateWriters::Forget(std::list<Writer>::iterator writer) {
  loop_->Remove(writer->peer_exit.get());
  writers_.erase(writer);
}

}  // namespace kvartal::attach
