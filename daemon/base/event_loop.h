// One epoll loop: fds, timers and callbacks posted from other threads. The engine and the sockets of a daemon live on
// it. Confined to the thread that calls Run, except Post and Stop, which any thread may call. Invariant: callbacks run
// one at a time, posted ones in order; a callback may add or remove any fd, its own included.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "daemon/base/clock.h"
#include "daemon/base/mutex.h"
#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"

namespace kvartal {

// Where slow work returns to: the loop in the daemon, a hand-pumped queue in tests and the simulator.
class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `callback` later on the owning thread. Any thread.
  virtual void Post(absl::AnyInvocable<void()> callback) = 0;
};

class EventLoop : public Executor {
 public:
  using FdCallback = std::function<void(uint32_t epoll_events)>;
  using Callback = absl::AnyInvocable<void()>;
  using TimerId = uint64_t;

  static absl::StatusOr<std::unique_ptr<EventLoop>> Create(const Clock* clock);
  ~EventLoop() override;

  // `events`: EPOLLIN | EPOLLOUT | ... The loop does not own `fd`; Remove it before closing it.
  absl::Status Add(int fd, uint32_t events, FdCallback callback);
  absl::Status Modify(int fd, uint32_t events);
  void Remove(int fd);

  TimerId RunAfterMs(int64_t delay_ms, Callback callback);
  void CancelTimer(TimerId id);

  void Post(Callback callback) override;
  // Runs until Stop. A Stop that comes first makes Run return at once.
  void Run();
  // Waits at most `timeout_ms` (0: only what is ready, -1: until something happens) and handles one round.
  void RunOnce(int timeout_ms);
  void Stop();

 private:
  struct Watch {
    FdCallback callback;
    uint64_t serial;
  };
  EventLoop(const Clock* clock, UniqueFd epoll_fd, UniqueFd wake_fd);
  int TimeoutMs(int limit_ms) const;
  void RunDueTimers();
  void RunPosted();

  const Clock* const clock_;
  UniqueFd epoll_fd_;
  UniqueFd wake_fd_;
  absl::flat_hash_map<int, std::shared_ptr<Watch>> watches_;
  std::map<std::pair<int64_t, TimerId>, Callback> timers_;  // by due time
  absl::flat_hash_map<TimerId, int64_t> timer_due_;
  TimerId next_timer_ = 1;
  uint64_t next_serial_ = 1;

  Mutex mutex_;
  std::vector<Callback> posted_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvartal
