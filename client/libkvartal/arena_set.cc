#include "client/libkvartal/arena_set.h"

#include <algorithm>
#include <utility>

#include "client/libkvartal/client_limits.h"

namespace kvartal::client {

std::shared_ptr<ArenaMap> ArenaSet::Use(const UniqueFd& arena_fd, const UniqueFd& generation_fd, uint64_t arena_bytes,
                                        std::string* error) {
  const std::lock_guard lock(mutex_);
  // A session that came back to the daemon it had.
  for (auto known = whole_.begin(); known != whole_.end(); ++known) {
    std::shared_ptr<ArenaMap> use = known->use.lock();
    if (use == nullptr || !use->IsMemoryOf(arena_fd, generation_fd, arena_bytes)) continue;
    std::rotate(known, known + 1, whole_.end());
    return use;
  }
  std::shared_ptr<ArenaMap> map = ArenaMap::Map(arena_fd, generation_fd, arena_bytes, error);
  if (map == nullptr) return nullptr;
  std::shared_ptr<ArenaMap> use(map.get(), [map, bell = bell_](ArenaMap*) { bell->Ring(); });
  whole_.push_back({std::move(map), use});
  return use;
}

std::vector<std::shared_ptr<ArenaMap>> ArenaSet::TakeUnused() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<ArenaMap>> taken;
  size_t used = 0;
  for (size_t i = whole_.size(); i-- > 0;) {
    const bool stays = !whole_[i].use.expired() && used < kUsedArenasMax;
    if (stays) {
      ++used;
      continue;
    }
    whole_[i].map->Retire();
    taken.push_back(std::move(whole_[i].map));
    whole_.erase(whole_.begin() + static_cast<ptrdiff_t>(i));
  }
  return taken;
}

void ArenaSet::EmptyUnused() {
  for (std::shared_ptr<ArenaMap>& arena : TakeUnused()) {
    arena->Empty();
    emptied_bytes_ += arena->bytes();
    emptied_.push_back(std::move(arena));
    while (emptied_.size() > kEmptiedArenasMax ||
           (emptied_.size() > kEmptiedArenasMin && emptied_bytes_ > kEmptiedBytesMax)) {
      emptied_bytes_ -= emptied_.front()->bytes();
      emptied_.pop_front();
    }
  }
}

}  // namespace kvartal::client
