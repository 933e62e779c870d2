// The slabs or the arenas that one side of a mover knows, by id: what may be done with which bytes.
// Confined to the thread of its owner.
// Invariant: a Range lies within memory that is known and not to be forgotten.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/device/mover_limits.h"

namespace kvartal::device {

// Held: what the owner keeps of each.
template <typename Held>
class MemoryTable {
 public:
  struct Memory {
    uint64_t bytes = 0;
    Held held;
    bool leaving = false;  // to be forgotten
  };

  explicit MemoryTable(const char* noun) : noun_(noun) {}

  absl::Status MayAdd(uint64_t id, uint64_t bytes) const {
    if (bytes == 0) return absl::InvalidArgumentError(absl::StrCat(noun_, " ", id, " has no bytes"));
    if (memories_.contains(id)) return absl::AlreadyExistsError(absl::StrCat(noun_, " ", id, " is known already"));
    if (memories_.size() < kMoverMemoriesMax) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("a mover knows at most ", kMoverMemoriesMax, " ", noun_, "s"));
  }
  // REQUIRES: MayAdd.
  Memory& Add(uint64_t id, uint64_t bytes, Held held) {
    return memories_.emplace(id, Memory{bytes, std::move(held)}).first->second;
  }

  // What [offset, offset + bytes) lies in. It stays where it is until Erase.
  absl::StatusOr<Memory*> Range(uint64_t id, uint64_t offset, uint64_t bytes) {
    KV_ASSIGN_OR_RETURN(Memory * memory, Known(id));
    if (bytes > 0 && offset <= memory->bytes && bytes <= memory->bytes - offset) return memory;
    return absl::OutOfRangeError(
        absl::StrCat(bytes, " bytes at ", offset, " are not within ", noun_, " ", id, " of ", memory->bytes));
  }
  absl::StatusOr<Memory*> Known(uint64_t id) {
    Memory* const memory = Find(id);
    if (memory == nullptr || memory->leaving) {
      return absl::NotFoundError(
          absl::StrCat(noun_, " ", id, memory == nullptr ? " is not known" : " is being forgotten"));
    }
    return memory;
  }
  // nullptr: no such id.
  Memory* Find(uint64_t id) {
    const auto found = memories_.find(id);
    return found == memories_.end() ? nullptr : &found->second;
  }
  void Erase(uint64_t id) { memories_.erase(id); }
  const std::map<uint64_t, Memory>& all() const { return memories_; }

 private:
  const char* const noun_;
  std::map<uint64_t, Memory> memories_;  // in order, so that what is told is told in the same one each time
};

}  // namespace kvartal::device
