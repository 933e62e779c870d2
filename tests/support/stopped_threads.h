// Threads of another process, by the name the kernel shows for them, stopped until the end of this object: what a disk
// does to them that does not answer.
// Confined to the thread that made it. Invariant: afterwards none of them is traced, also when the process has ended.
#pragma once

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/daemon_process.h"

namespace kvartal::testing {

class StoppedThreads {
 public:
  StoppedThreads(pid_t process, const std::string& name) {
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
      if (ReadFile(task.path() / "comm") == name + "\n") threads_.push_back(Stop(std::stoi(task.path().filename())));
    }
    EXPECT_FALSE(threads_.empty()) << "no thread " << name;
  }
  ~StoppedThreads() {
    for (const Thread& thread : threads_) {
      // One that was killed meanwhile is only let go by who traces it: until then its process has not ended.
      if (thread.traced && ::ptrace(PTRACE_DETACH, thread.id, nullptr, nullptr) != 0)
        ::waitpid(thread.id, nullptr, __WALL);
    }
  }
  StoppedThreads(const StoppedThreads&) = delete;
  StoppedThreads& operator=(const StoppedThreads&) = delete;

  bool stopped() const {
    return !threads_.empty() &&
           std::all_of(threads_.begin(), threads_.end(), [](const Thread& thread) { return thread.stopped; });
  }

 private:
  struct Thread {
    pid_t id;
    bool traced, stopped;
  };
  static Thread Stop(pid_t id) {
    Thread thread{.id = id, .traced = ::ptrace(PTRACE_SEIZE, id, nullptr, nullptr) == 0, .stopped = false};
    thread.stopped =
        thread.traced && ::ptrace(PTRACE_INTERRUPT, id, nullptr, nullptr) == 0 && ::waitpid(id, nullptr, __WALL) == id;
    return thread;
  }

  std::vector<Thread> threads_;
};

}  // namespace kvartal::testing
