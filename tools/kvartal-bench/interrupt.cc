#include "tools/kvartal-bench/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace kvartal::bench {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<int, std::function<void()>> undo;  // Guarded by mutex
  int next_key = 0;                           // Guarded by mutex
};

Registry& TheRegistry() {
  static Registry& registry = *new Registry;
  return registry;
}

sigset_t Watched() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

[[noreturn]] void WaitAndUndo() {
  const sigset_t set = Watched();
  int signal_number = 0;
  while (sigwait(&set, &signal_number) != 0) {
  }
  Registry& registry = TheRegistry();
  // Kept until the end: nothing is registered or forgotten while the process goes down.
  registry.mutex.lock();
  for (auto it = registry.undo.rbegin(); it != registry.undo.rend(); ++it) it->second();
  _exit(130);
}

}  // namespace

void WatchInterrupts() {
  const sigset_t set = Watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread(WaitAndUndo).detach();
}

void ForgetInterrupts() {
  const sigset_t set = Watched();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

UndoOnInterrupt::UndoOnInterrupt(std::function<void()> undo) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  key_ = registry.next_key++;
  registry.undo.emplace(key_, std::move(undo));
}

UndoOnInterrupt::~UndoOnInterrupt() {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  registry.undo.erase(key_);
}

}  // namespace kvartal::bench
