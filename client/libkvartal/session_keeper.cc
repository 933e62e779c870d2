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

SessionKeeper::SessionKeeper() : bell_(std::make_shared<Bell>()) {
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

void SessionKeeper::TakeOver(std::shared_ptr<ArenaMap> arena) {
  arena->Retire();
  {
    const std::lock_guard lock(mutex_);
    arenas_.push_back(std::move(arena));
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
    pollfd waits[2] = {{bell_->fd(), POLLIN, 0}, {-1, POLLIN, 0}};
    if (session_ != nullptr && program_is_quiet_) waits[1].fd = session_->fd();
    ::poll(waits, 2, WaitMs());
    if (waits[0].revents != 0) {
      bell_->Silence();
      program_is_quiet_ = false;
    }
    if (waits[1].revents != 0) session_->Drain();
  }
}

bool SessionKeeper::TakeOrders() {
  std::vector<std::shared_ptr<ArenaMap>> arenas;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    arenas.swap(arenas_);
    if (session_ != watched_) {
      session_ = watched_;
      const int64_t now_ns = Deadline::NowNs();
      next_renewal_ns_ = session_ == nullptr ? 0 : now_ns + RenewalNs(*session_);
      next_identity_look_ns_ = session_ == nullptr ? 0 : now_ns + session_->NextIdentityLookNs();
      next_tick_ns_ = 0;
      program_is_quiet_ = false;
    }
  }
  for (std::shared_ptr<ArenaMap>& arena : arenas) {
    arena->Empty();
    emptied_.push_back(std::move(arena));
    if (emptied_.size() > kEmptiedArenasMax) emptied_.pop_front();
  }
  return true;
}

void SessionKeeper::TendSession() {
  if (session_->over()) {
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
  program_is_quiet_ = session_->Tick();
  if (program_is_quiet_) session_->Drain();
}

int SessionKeeper::WaitMs() const {
  if (session_ == nullptr) return -1;
  if (populating_) return 0;
  int64_t until_ns = std::min(next_renewal_ns_, next_identity_look_ns_);
  if (!program_is_quiet_) until_ns = std::min(until_ns, next_tick_ns_);
  return static_cast<int>(std::clamp<int64_t>((until_ns - Deadline::NowNs()) / kNsPerMs + 1, 0, INT32_MAX));
}

}  // namespace kvartal::client
