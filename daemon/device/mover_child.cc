#include "daemon/device/mover_child.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace kvartal::device {
namespace {

// What posix_spawn is told: `socket` as kMoverSocketFd and nothing above it, and signals as a new process has them (the
// daemon blocks those it waits for).
class SpawnSettings {
 public:
  explicit SpawnSettings(int socket) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_adddup2(&actions_, socket, kMoverSocketFd);
    ::posix_spawn_file_actions_addclosefrom_np(&actions_, kMoverSocketFd + 1);
    ::posix_spawnattr_init(&attributes_);
    sigset_t signals;
    ::sigemptyset(&signals);
    ::posix_spawnattr_setsigmask(&attributes_, &signals);
    ::sigfillset(&signals);
    ::posix_spawnattr_setsigdefault(&attributes_, &signals);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnSettings() {
    ::posix_spawnattr_destroy(&attributes_);
    ::posix_spawn_file_actions_destroy(&actions_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  // An error number.
  int Spawn(const std::vector<std::string>& argv, pid_t* pid) {
    std::vector<char*> words;
    words.reserve(argv.size() + 1);
    for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    return ::posix_spawn(pid, words[0], &actions_, &attributes_, words.data(), environ);
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

absl::StatusOr<MoverChild> MoverChild::Spawn(const std::vector<std::string>& argv) {
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return absl::ErrnoToStatus(errno, "making the socket of a mover");
  }
  UniqueFd ours(pair[0]);
  const UniqueFd theirs(pair[1]);
  pid_t pid = 0;
  if (const int error = SpawnSettings(theirs.get()).Spawn(argv, &pid); error != 0) {
    return absl::ErrnoToStatus(error, absl::StrCat("starting the mover ", argv[0]));
  }
  // It cannot be another process's: ours is not reaped yet.
  UniqueFd exit(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  MoverChild child(pid, std::move(exit), std::move(ours));
  if (!child.exit_.valid()) return absl::ErrnoToStatus(errno, "pidfd_open of a mover");
  return child;
}

MoverChild::~MoverChild() {
  Kill();
  if (pid_ != 0) Reap();
}

MoverChild::Sent MoverChild::Send(const MoverRequest& request, int fd) {
  iovec part{const_cast<MoverRequest*>(&request), sizeof(request)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  while (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM ? Sent::kFull : Sent::kBroken;
  }
  return Sent::kSent;
}

MoverChild::Received MoverChild::Receive(std::span<std::byte> buffer, size_t* bytes) {
  ssize_t got;
  do {
    got = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == ENOMEM)) return Received::kNothing;
  if (got <= 0) return Received::kEnded;
  *bytes = static_cast<size_t>(got);
  return Received::kPacket;
}

void MoverChild::Kill() {
  if (pid_ != 0) ::kill(pid_, SIGKILL);
}

std::string MoverChild::Reap() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0) KV_CHECK(errno == EINTR);
  pid_ = 0;
  if (WIFSIGNALED(status)) return absl::StrCat("it was ended by signal ", WTERMSIG(status));
  switch (WEXITSTATUS(status)) {
    case kMoverExitRefused:
      return "it could not begin";
    case kMoverExitContextLost:
      return "its CUDA context was lost";
    case kMoverExitFailed:
      return "it failed";
    default:
      return absl::StrCat("it ended with status ", WEXITSTATUS(status));
  }
}

}  // namespace kvartal::device
