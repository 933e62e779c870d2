#include "daemon/policy/ghost_list.h"

#include "daemon/base/limits.h"

namespace kvartal::policy {

void GhostList::SetBounds(uint64_t bytes_max, uint64_t keys_max) {
  bytes_max_ = bytes_max;
  keys_max_ = keys_max;
  Trim();
}

void GhostList::Add(uint64_t key, uint32_t bytes) {
  if (bytes > bytes_max_ || keys_max_ == 0) return;
  Remembered& ghost = remembered_[key];
  bytes_ += bytes;
  bytes_ -= ghost.bytes;
  ghost = {++last_serial_, bytes};
  order_.push_back({key, last_serial_});
  Trim();
}

bool GhostList::Miss(uint64_t key) {
  const auto ghost = remembered_.find(key);
  if (ghost == remembered_.end()) return false;
  missed_bytes_ += ghost->second.bytes;
  bytes_ -= ghost->second.bytes;
  remembered_.erase(ghost);
  return true;
}

void GhostList::Fade() { missed_bytes_ -= (missed_bytes_ + kGhostFadeSeconds - 1) / kGhostFadeSeconds; }

void GhostList::ForgetOldest() {
  const Lost oldest = order_.front();
  order_.pop_front();
  const auto ghost = remembered_.find(oldest.key);
  if (ghost == remembered_.end() || ghost->second.serial != oldest.serial) return;
  bytes_ -= ghost->second.bytes;
  remembered_.erase(ghost);
}

void GhostList::Trim() {
  while (!order_.empty() && (bytes_ > bytes_max_ || order_.size() > keys_max_)) ForgetOldest();
}

}  // namespace kvartal::policy
