// Processes whose sessions have ended and that may still be writing to slots these were filling. The slots rest; when
// the process ends, they need not any longer.
// Confined to the engine loop.
// Invariants: a process is watched for no longer than slots rest, and kEndedGroupsMax at most are: the oldest makes
// room, and its slots rest their time.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "daemon/attach/engine_group.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/unique_fd.h"
#include "daemon/engine/cache_engine.h"

namespace kvartal::attach {

class LateWriters {
 public:
  LateWriters(EventLoop* loop, const Clock* clock, engine::CacheEngine* engine)
      : loop_(loop), clock_(clock), engine_(engine) {}
  ~LateWriters();
  LateWriters(const LateWriters&) = delete;
  LateWriters& operator=(const LateWriters&) = delete;

  // `fills`: aborted, and of a session of that process. Without a pidfd nobody tells: they rest their time.
  void Watch(UniqueFd peer_exit, std::vector<EngineGroup::Fill> fills);
  // Forgets those whose slots have rested.
  void Tick();

 private:
  struct Writer {
    UniqueFd peer_exit;
    std::vector<EngineGroup::Fill> fills;
    int64_t until_ns = 0;
  };
  void OnExit(std::list<Writer>::iterator writer);
  void Forget(std::list<Writer>::iterator writer);

  EventLoop* const loop_;
  const Clock* const clock_;
  engine::CacheEngine* const engine_;
  std::list<Writer> writers_;  // the oldest first
};

}  // namespace kvartal::attach
