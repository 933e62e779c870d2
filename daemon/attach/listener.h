// One door: a listening Unix socket and the connections it takes in.
// Confined to the engine loop.
// Invariants: the file at `path` is replaced only when nobody answers on it, and removed only while it is still ours; a
// process without a free fd turns connections away instead of spinning on them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::attach {

struct Door {
  std::string name;  // "" for the shared door, else the `socket` subject it stands for
  std::string path;
  uint32_t mode = 0660;  // of the socket file: who may connect
};

class Listener {
 public:
  using OnAccepted = std::function<void(UniqueFd, const Door&)>;

  // FailedPrecondition when another daemon answers at the path, or when something that is not a socket lies there.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const Door& door, EventLoop* loop, OnAccepted on_accepted);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const Door& door() const { return door_; }
  // After a wake that could not even turn connections away, the door rests until this.
  void Resume();
  uint64_t out_of_fds() const { return out_of_fds_; }

 private:
  Listener(const Door& door, EventLoop* loop, OnAccepted on_accepted, UniqueFd socket);
  void AcceptSome();
  // False when nothing could be accepted at all.
  bool TurnOneAway();

  const Door door_;
  EventLoop* const loop_;
  const OnAccepted on_accepted_;
  const UniqueFd socket_;
  UniqueFd spare_;    // closed to make room for the one accept that turns a connection away
  dev_t device_ = 0;  // of the file we made
  ino_t inode_ = 0;
  bool resting_ = false;
  uint64_t out_of_fds_ = 0;
};

}  // namespace kvartal::attach
