#include "client/libkvartal/session_keeper.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <new>
#include <utility>

namespace kvartal::client {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

int64_t RenewalNs(const Session& session) { return std::max<int64_t>(1, session.lease_ms() / 3) * kNsPerMs; }

}  // namespace

SessionKeeper::SessionKeeper(std::shared_ptr<Bell> bell)
    : bell_(std::move(bell)), arenas_(std::make_shared<ArenaSet>(bell_)) {
  // The program's signals are the program's: none is ever delivered to this thread.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { RunGuarded(); });
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SessionKeeper::~SessionKeeper() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  bell_->Ring();
  thread_.join();
}

void SessionKeeper::Watch(std::shared_ptr<Session> session) {
  {
    const std::lock_guard lock(mutex_);
    watched_ = std::move(session);
  }
  bell_->Ring();
}

void SessionKeeper::RunGuarded() {
  ::pthread_setname_np(::pthread_self(), "kvartal-keeper");
  for (;;) {
    try {
      Run();
      return;
    } catch (const std::bad_alloc&) {
      // The program is out of memory: its session ends, it must not.
      if (session_ != nullptr) session_->End();
    }
  }
}

void SessionKeeper::Run() {
  while (TakeOrders()) {
    if (session_ != nullptr) TendSession();
    arenas_->EmptyUnused();
    pollfd waits[2] = {{bell_->fd(), POLLIN, 0}, {-1, POLLIN, 0}};
    if (session_ != nullptr && awaits_news_) waits[1].fd = session_->fd();
    ::poll(waits, 2, WaitMs());
    if (waits[0].revents != 0) {
      bell_->Silence();
      awaits_news_ = false;
    }
    if (waits[1].revents != 0) session_->Drain();
  }
}

bool SessionKeeper::TakeOrders() {
  const std::lock_guard lock(mutex_);
  if (stopping_) return false;
  if (session_ != watched_) {
    session_ = watched_;
    const int64_t now_ns = Deadline::NowNs();
    next_renewal_ns_ = session_ == nullptr ? 0 : now_ns + RenewalNs(*session_);
    next_identity_look_ns_ = session_ == nullptr ? 0 : now_ns + session_->NextIdentityLookNs();
    next_tick_ns_ = 0;
    awaits_news_ = false;
  }
  return true;
}

void SessionKeeper::TendSession() {
  if (session_->over()) {
    session_->LeaveArena();
    const std::lock_guard lock(mutex_);
    if (watched_ == session_) watched_ = nullptr;
    session_ = nullptr;
    return;
  }
  const int64_t now_ns = Deadline::NowNs();
  if (now_ns >= next_renewal_ns_) {
    session_->RenewLeases();
    next_renewal_ns_ = now_ns + RenewalNs(*session_);
  }
  if (now_ns >= next_identity_look_ns_) {
    session_->RenewIdentity();
    next_identity_look_ns_ = now_ns + session_->NextIdentityLookNs();
  }
  populating_ = session_->PopulatePart();
  if (now_ns < next_tick_ns_) return;
  next_tick_ns_ = now_ns + int64_t{kKeeperTickMs} * kNsPerMs;
  awaits_news_ = session_->Tick();
}

int SessionKeeper::WaitMs() const {
  if (session_ == nullptr) return -1;
  if (populating_) return 0;
  int64_t until_ns = std::min(next_renewal_ns_, next_identity_look_ns_);
  if (!awaits_news_) until_ns = std::min(until_ns, next_tick_ns_);
  return static_cast<int>(std::clamp<int64_t>((until_ns - Deadline::NowNs()) / kNsPerMs + 1, 0, INT32_MAX));
}

}  // namespace kvartal::client
