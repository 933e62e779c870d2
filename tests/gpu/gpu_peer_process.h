// Starts gpu_peer, takes the descriptor it sends, and kills it.
// Confined to the thread of the test.
// Invariant: the process does not outlive this object.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "daemon/base/check.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/support/fd_passing.h"

namespace kvartal::device {

class GpuPeer {
 public:
  GpuPeer(uint64_t bytes, uint8_t value) {
    std::array<int, 2> pair{};
    KV_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0);
    ours_ = UniqueFd(pair[0]);
    UniqueFd theirs(pair[1]);
    const std::array<std::string, 5> words = {KVARTAL_GPU_PEER, GpuLibrary(), std::to_string(theirs.get()),
                                              std::to_string(bytes), std::to_string(value)};
    pid_ = ::fork();
    KV_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      ::close(ours_.get());
      ::execl(words[0].c_str(), words[0].c_str(), words[1].c_str(), words[2].c_str(), words[3].c_str(),
              words[4].c_str(), nullptr);
      ::_exit(127);
    }
    theirs.reset();
    memory_ = testing::ReceiveFd(ours_.get());
  }
  ~GpuPeer() { Kill(); }
  GpuPeer(const GpuPeer&) = delete;
  GpuPeer& operator=(const GpuPeer&) = delete;

  UniqueFd& memory() { return memory_; }  // invalid: the process failed, and said why
  // SIGKILL, and waits until the process is no more.
  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd ours_, memory_;
};

}  // namespace kvartal::device
