// The arenas that a client has mapped. A session until it is over, and each lease, *use* one; what nobody uses any more
// is emptied, and so is the oldest when leases use too many. Thread-safe. Invariants: memory is mapped once while it is
// used; the addresses of an arena stay readable while somebody uses it, and until some later ones were emptied
// (kEmptiedArenasMax, of large ones kEmptiedArenasMin).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/libkvartal/arena_map.h"
#include "client/libkvartal/bell.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::client {

class ArenaSet {
 public:
  explicit ArenaSet(std::shared_ptr<Bell> bell) : bell_(std::move(bell)) {}

  // The arena behind the fds. It is used while a copy of the pointer lives; the end of the last one rings the bell.
  // nullptr as ArenaMap::Map.
  std::shared_ptr<ArenaMap> Use(const UniqueFd& arena_fd, const UniqueFd& generation_fd, uint64_t arena_bytes,
                                std::string* error);
  // Keeper's thread.
  void EmptyUnused();

 private:
  struct Whole {
    std::shared_ptr<ArenaMap> map;
    std::weak_ptr<ArenaMap> use;
  };
  std::vector<std::shared_ptr<ArenaMap>> TakeUnused();

  const std::shared_ptr<Bell> bell_;
  std::mutex mutex_;
  std::vector<Whole> whole_;                       // Guarded by mutex_; the last used last
  std::deque<std::shared_ptr<ArenaMap>> emptied_;  // the keeper's; the first emptied first
  uint64_t emptied_bytes_ = 0;                     // of their addresses
};

}  // namespace kvartal::client
