// A domain's arena in this process: the shared memory itself, mapped once and whole, and the read-only generation
// table. Pointers and generations: any thread. Populate and Empty: the keeper's thread. Invariants: no pointer is made
// from an offset that was not checked; an address handed out stays readable while the object lives, also after Empty
// has replaced the memory of a dead daemon by zeros.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "daemon/base/unique_fd.h"

namespace kvartal::client {

class ArenaMap {
 public:
  // nullptr when the fds are not what the daemon said they are, or cannot be mapped; `error` says which.
  static std::shared_ptr<ArenaMap> Map(const UniqueFd& arena_fd, const UniqueFd& generation_fd, uint64_t arena_bytes,
                                       std::string* error);
  ~ArenaMap();
  ArenaMap(const ArenaMap&) = delete;
  ArenaMap& operator=(const ArenaMap&) = delete;

  // The fds lead to the memory that is mapped here already: a session that came back to the same daemon.
  bool IsMemoryOf(const UniqueFd& arena_fd, const UniqueFd& generation_fd, uint64_t arena_bytes) const;

  uint64_t bytes() const { return bytes_; }
  // nullptr unless [offset, offset + bytes) lies in the arena and a slot may begin there.
  std::byte* At(uint64_t offset, uint64_t bytes) const;
  bool Contains(const void* pointer) const;
  // The slot at `offset` still holds what it held when the daemon told `generation`, and held it during every read that
  // came before this call. REQUIRES: At accepted the offset.
  bool Unchanged(uint64_t offset, uint32_t generation) const;

  // The range belongs to the domain now. False when it does not lie in the arena.
  bool AddGranted(uint64_t offset, uint64_t bytes);
  // Maps what is there of a part of the granted ranges. False when nothing is left to do.
  bool PopulatePart();

  // Every later Unchanged is false. Comes before Empty.
  void Retire() { retired_.store(true, std::memory_order_seq_cst); }
  // Lets go of the memory; the addresses read as zeros from now on.
  void Empty();

 private:
  struct Range {
    uint64_t offset;
    uint64_t bytes;
  };
  struct FileIdentity {
    uint64_t device = 0;
    uint64_t inode = 0;
    uint64_t bytes = 0;
  };
  ArenaMap() = default;
  static bool IsSealed(const UniqueFd& fd);
  static bool Identify(const UniqueFd& fd, FileIdentity* identity);
  bool InArena(uint64_t offset, uint64_t bytes) const { return offset <= bytes_ && bytes <= bytes_ - offset; }

  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  std::atomic<uint32_t>* generations_ = nullptr;
  uint64_t generation_bytes_ = 0;
  FileIdentity arena_file_, generation_file_;
  std::atomic<bool> retired_{false};
  std::mutex mutex_;
  std::deque<Range> to_populate_;  // Guarded by mutex_
};

}  // namespace kvartal::client
