// Fills that are given up, and the slots of writers that were cut off.
#include <algorithm>

#include "tests/sim/model.h"

namespace kvartal::sim {
namespace {

constexpr size_t kCutOffKept = 64;
constexpr int64_t kWriterMs = 1'800;  // that somebody who was cut off goes on writing

}  // namespace

bool Model::Abort(GroupId group, ReservationId reservation, uint64_t done, int64_t now_ms) {
  const auto it = fillings_.find(reservation.value());
  if (it == fillings_.end() || it->second.group != group) return false;
  Rest(reservation, done, now_ms);
  EndFilling(reservation.value(), Version::Fate::kAborted);
  return true;
}

// Who has not committed a shard that it reserved, and is not done with it, may be writing to it.
void Model::Rest(ReservationId reservation, uint64_t done, int64_t now_ms) {
  const Filling& filling = fillings_.at(reservation.value());
  const uint64_t writing = filling.taken & filling.missing & ~done;
  if (writing == 0 || MayBeEnded(reservation, now_ms)) return;
  lives_[filling.block.life].resting[filling.offset] = {reservation, now_ms + kWriterMs};
  cut_off_.push_back({reservation, filling.block.life, filling.offset, writing});
  if (cut_off_.size() > kCutOffKept) cut_off_.erase(cut_off_.begin());
}

bool Model::EndRest(size_t at, uint64_t done, int64_t now_ms) {
  CutOff& writer = cut_off_[at];
  writer.writing &= ~done;
  if (writer.writing != 0) return false;
  auto& resting = lives_[writer.life].resting;
  const auto it = resting.find(writer.offset);
  const bool early =
      it != resting.end() && it->second.reservation == writer.reservation && now_ms < it->second.until_ms;
  if (early) resting.erase(it);
  cut_off_.erase(cut_off_.begin() + static_cast<ptrdiff_t>(at));
  return early;
}

size_t Model::AbortGroup(GroupId group, uint64_t done, int64_t now_ms) {
  std::vector<uint64_t> ended;
  for (const auto& [reservation, filling] : fillings_) {
    if (filling.group == group) ended.push_back(reservation);
  }
  std::sort(ended.begin(), ended.end());  // a hash map has an order of its own in every process
  for (const uint64_t reservation : ended) {
    Rest(ReservationId(reservation), done, now_ms);
    EndFilling(reservation, Version::Fate::kAborted);
  }
  return ended.size();
}

}  // namespace kvartal::sim
