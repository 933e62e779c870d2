#include "daemon/process/signal_watch.h"

#include <sys/epoll.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <csignal>
#include <utility>

namespace kvartal::process {
namespace {

sigset_t WatchedSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  return set;
}

}  // namespace

void BlockSignals() {
  const sigset_t set = WatchedSignals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

absl::StatusOr<std::unique_ptr<SignalWatch>> SignalWatch::Create(EventLoop* loop, std::function<void(int)> on_signal) {
  const sigset_t set = WatchedSignals();
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "signalfd");
  const int raw = fd.get();
  std::unique_ptr<SignalWatch> watch(new SignalWatch(loop, std::move(fd)));
  KV_RETURN_IF_ERROR(loop->Add(raw, EPOLLIN, [raw, on_signal = std::move(on_signal)](uint32_t) {
    signalfd_siginfo info;
    while (::read(raw, &info, sizeof(info)) == sizeof(info)) on_signal(static_cast<int>(info.ssi_signo));
  }));
  return watch;
}

SignalWatch::~SignalWatch() { loop_->Remove(fd_.get()); }

}  // namespace kvartal::process
