#include "daemon/process/self_check.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::process {
namespace {

// In the copy. What the check prints goes to `output_fd`.
[[noreturn]] void CheckInCopy(const std::function<void()>& check, int output_fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::dup2(output_fd, STDERR_FILENO);
  ::alarm(kSelfCheckSeconds);
  check();
  ::_exit(0);
}

// The end of the pipe is the end of the copy.
struct RunningCheck {
  pid_t pid = -1;
  UniqueFd output;
  std::string text;
  absl::AnyInvocable<void(absl::Status)> done;
};

absl::Status Verdict(const RunningCheck& running) {
  int state = 0;
  if (::waitpid(running.pid, &state, 0) != running.pid) return absl::ErrnoToStatus(errno, "waiting for the self-check");
  if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return absl::OkStatus();
  if (WIFSIGNALED(state) && WTERMSIG(state) == SIGALRM) {
    return absl::DeadlineExceededError(absl::StrCat("the self-check took longer than ", kSelfCheckSeconds, " s"));
  }
  return absl::InternalError(
      absl::StrCat("the books do not add up: ", running.text.empty() ? "no reason was printed" : running.text));
}

void OnOutput(EventLoop* loop, const std::shared_ptr<RunningCheck>& running) {
  char part[1024];
  ssize_t got;
  while ((got = ::read(running->output.get(), part, sizeof(part))) > 0) {
    const size_t room = kSelfCheckTextMax - running->text.size();
    running->text.append(part, std::min(static_cast<size_t>(got), room));
  }
  if (got < 0) return;  // EAGAIN: it runs on
  loop->Remove(running->output.get());
  while (!running->text.empty() && running->text.back() == '\n') running->text.pop_back();
  running->done(Verdict(*running));
}

}  // namespace

void RunSelfCheck(EventLoop* loop, const std::function<void()>& check, absl::AnyInvocable<void(absl::Status)> done) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    done(absl::ErrnoToStatus(errno, "making a pipe for the self-check"));
    return;
  }
  auto running = std::make_shared<RunningCheck>();
  running->output = UniqueFd(ends[0]);
  const UniqueFd input(ends[1]);
  running->done = std::move(done);
  running->pid = ::fork();
  if (running->pid == 0) CheckInCopy(check, input.get());
  if (running->pid < 0) {
    running->done(absl::ErrnoToStatus(errno, "copying the process for the self-check"));
    return;
  }
  const absl::Status watched =
      loop->Add(running->output.get(), EPOLLIN, [loop, running](uint32_t) { OnOutput(loop, running); });
  if (!watched.ok()) running->done(watched);
}

}  // namespace kvartal::process
