// The library's one background thread: renews leases, populates granted ranges, reads for a program that makes no
// calls, and empties arenas that nobody uses any more. It never touches block bytes and runs none of the program's
// code. Watch: the calling thread. Guarded by mutex_: what it hands to the thread.
#pragma once

#include <memory>
#include <mutex>
#include <thread>

#include "client/libkvartal/arena_set.h"
#include "client/libkvartal/bell.h"
#include "client/libkvartal/session.h"

namespace kvartal::client {

class SessionKeeper {
 public:
  explicit SessionKeeper(std::shared_ptr<Bell> bell);
  ~SessionKeeper();
  SessionKeeper(const SessionKeeper&) = delete;
  SessionKeeper& operator=(const SessionKeeper&) = delete;

  const std::shared_ptr<Bell>& bell() const { return bell_; }
  const std::shared_ptr<ArenaSet>& arenas() const { return arenas_; }
  // From now on this session (nullptr: none).
  void Watch(std::shared_ptr<Session> session);

 private:
  void RunGuarded();
  void Run();
  // False when it is time to end.
  bool TakeOrders();
  void TendSession();
  int WaitMs() const;

  const std::shared_ptr<Bell> bell_;
  const std::shared_ptr<ArenaSet> arenas_;

  std::mutex mutex_;
  std::shared_ptr<Session> watched_;  // Guarded by mutex_
  bool stopping_ = false;             // Guarded by mutex_

  // The thread's own.
  std::shared_ptr<Session> session_;
  int64_t next_renewal_ns_ = 0;
  int64_t next_identity_look_ns_ = 0;
  int64_t next_tick_ns_ = 0;
  bool awaits_news_ = false;  // nothing is to be done until the daemon says something or the bell rings
  bool populating_ = false;

  std::thread thread_;
};

}  // namespace kvartal::client
