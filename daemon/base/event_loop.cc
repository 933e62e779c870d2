#include "daemon/base/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal {
namespace {
constexpr int kEventsPerWait = 256;
}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Create(const Clock* clock) {
  UniqueFd epoll_fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_fd.valid()) return absl::ErrnoToStatus(errno, "epoll_create1");
  UniqueFd wake_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd.valid()) return absl::ErrnoToStatus(errno, "eventfd");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wake_fd.get();
  if (::epoll_ctl(epoll_fd.get(), EPOLL_CTL_ADD, wake_fd.get(), &event) != 0) {
    return absl::ErrnoToStatus(errno, "epoll_ctl of the wake fd");
  }
  return std::unique_ptr<EventLoop>(new EventLoop(clock, std::move(epoll_fd), std::move(wake_fd)));
}

EventLoop::EventLoop(const Clock* clock, UniqueFd epoll_fd, UniqueFd wake_fd)
    : clock_(clock), epoll_fd_(std::move(epoll_fd)), wake_fd_(std::move(wake_fd)) {}

EventLoop::~EventLoop() = default;

absl::Status EventLoop::Add(int fd, uint32_t events, FdCallback callback) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("watching fd ", fd));
  }
  watches_[fd] = std::make_shared<Watch>(Watch{std::move(callback), next_serial_++});
  return absl::OkStatus();
}

absl::Status EventLoop::Modify(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("changing the watch of fd ", fd));
  }
  return absl::OkStatus();
}

void EventLoop::Remove(int fd) {
  if (watches_.erase(fd) == 0) return;
  ::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::RunAfterMs(int64_t delay_ms, Callback callback) {
  const TimerId id = next_timer_++;
  const int64_t due_ns = clock_->MonotonicNs() + delay_ms * kNsPerMs;
  timers_.emplace(std::make_pair(due_ns, id), std::move(callback));
  timer_due_[id] = due_ns;
  return id;
}

void EventLoop::CancelTimer(TimerId id) {
  auto it = timer_due_.find(id);
  if (it == timer_due_.end()) return;
  timers_.erase({it->second, id});
  timer_due_.erase(it);
}

void EventLoop::Post(Callback callback) {
  bool wake;
  {
    MutexLock lock(mutex_);
    KV_CHECK(posted_.size() < kLoopPostMax);
    wake = posted_.empty();
    posted_.push_back(std::move(callback));
  }
  if (wake) {
    const uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(wake_fd_.get(), &one, sizeof(one));
  }
}

void EventLoop::Stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(wake_fd_.get(), &one, sizeof(one));
}

void EventLoop::Run() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (stopped_) return;
    }
    RunOnce(-1);
  }
}

int EventLoop::TimeoutMs(int limit_ms) const {
  if (timers_.empty()) return limit_ms;
  const int64_t left_ns = timers_.begin()->first.first - clock_->MonotonicNs();
  const int64_t left_ms = std::clamp<int64_t>((left_ns + kNsPerMs - 1) / kNsPerMs, 0, 60'000);
  return limit_ms < 0 ? static_cast<int>(left_ms) : std::min<int>(limit_ms, static_cast<int>(left_ms));
}

void EventLoop::RunOnce(int timeout_ms) {
  epoll_event events[kEventsPerWait];
  const int count = ::epoll_wait(epoll_fd_.get(), events, kEventsPerWait, TimeoutMs(timeout_ms));
  // A callback may close an fd that a later event of this round names, and a new fd may take its number: what was
  // watched when the round began is what its events are for.
  const uint64_t round_serial = next_serial_;
  for (int i = 0; i < count; ++i) {
    const int fd = events[i].data.fd;
    if (fd == wake_fd_.get()) {
      uint64_t drained;
      [[maybe_unused]] ssize_t got = ::read(fd, &drained, sizeof(drained));
      continue;
    }
    auto it = watches_.find(fd);
    if (it == watches_.end() || it->second->serial >= round_serial) continue;
    const std::shared_ptr<Watch> watch = it->second;
    watch->callback(events[i].events);
  }
  RunPosted();
  RunDueTimers();
}

void EventLoop::RunPosted() {
  std::vector<Callback> ready;
  {
    MutexLock lock(mutex_);
    ready.swap(posted_);
  }
  for (Callback& callback : ready) callback();
}

void EventLoop::RunDueTimers() {
  const int64_t now_ns = clock_->MonotonicNs();
  while (!timers_.empty() && timers_.begin()->first.first <= now_ns) {
    auto node = timers_.extract(timers_.begin());
    timer_due_.erase(node.key().second);
    node.mapped()();
  }
}

}  // namespace kvartal
