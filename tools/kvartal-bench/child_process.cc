#include "tools/kvartal-bench/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/kvartal-bench/interrupt.h"

namespace kvartal::bench {

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const std::vector<std::string>& arguments) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  std::vector<std::string> copies = arguments;
  std::string name = "kvartal-bench";
  std::vector<char*> argv{name.data()};
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ForgetInterrupts();
    ::dup2(write_end.get(), STDOUT_FILENO);
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, std::move(read_end)));
}

ChildProcess::~ChildProcess() { Kill(); }

absl::StatusOr<std::string> ChildProcess::ReadLine() {
  for (;;) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    std::array<char, 65536> buffer;
    const ssize_t count = ::read(out_.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return absl::OutOfRangeError(absl::StrCat("process ", pid_, " said nothing more"));
    pending_.append(buffer.data(), static_cast<size_t>(count));
  }
}

void ChildProcess::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
}

absl::Status ChildProcess::Wait() {
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("a client process ended with wait status ", status));
}

}  // namespace kvartal::bench
