// The library's one background thread: renews leases, populates granted ranges, reads for a program that makes no
// calls, and empties the arenas of dead daemons. It never touches block bytes and runs none of the program's code.
// Watch, TakeOver: the calling thread. Guarded by mutex_: what it hands to the thread.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "client/libkvartal/arena_map.h"
#include "client/libkvartal/session.h"

namespace kvartal::client {

class SessionKeeper {
 public:
  SessionKeeper();
  ~SessionKeeper();
  SessionKeeper(const SessionKeeper&) = delete;
  SessionKeeper& operator=(const SessionKeeper&) = delete;

  const std::shared_ptr<Bell>& bell() const { return bell_; }
  // From now on this session (nullptr: none).
  void Watch(std::shared_ptr<Session> session);
  // An arena that no lease reads any more: its memory goes back to the system, its addresses stay until the client
  // ends, or until kEmptiedArenasMax later ones have come.
  void TakeOver(std::shared_ptr<ArenaMap> arena);

 private:
  void RunGuarded();
  void Run();
  // False when it is time to end.
  bool TakeOrders();
  void TendSession();
  int WaitMs() const;

  const std::shared_ptr<Bell> bell_;

  std::mutex mutex_;
  std::shared_ptr<Session> watched_;               // Guarded by mutex_
  std::vector<std::shared_ptr<ArenaMap>> arenas_;  // Guarded by mutex_
  bool stopping_ = false;                          // Guarded by mutex_

  // The thread's own.
  std::shared_ptr<Session> session_;
  std::deque<std::shared_ptr<ArenaMap>> emptied_;
  int64_t next_renewal_ns_ = 0;
  int64_t next_identity_look_ns_ = 0;
  int64_t next_tick_ns_ = 0;
  bool program_is_quiet_ = false;
  bool populating_ = false;

  std::thread thread_;
};

}  // namespace kvartal::client
