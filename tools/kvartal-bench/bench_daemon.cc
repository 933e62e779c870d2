#include "tools/kvartal-bench/bench_daemon.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/unique_fd.h"
#include "tools/kvartal-bench/trace.h"

namespace kvartal::bench {
namespace {

constexpr int kReadyFd = 3;               // what the started daemon writes to
constexpr int kReadyTimeoutMs = 120'000;  // a large file is preallocated at the first start
constexpr int64_t kRecoveryPollMs = 5;
constexpr size_t kLogTailBytes = 2000;

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.close();
  if (!out) return absl::InternalError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  return absl::OkStatus();
}

// In the child, between fork and exec: async-signal-safe calls only.
[[noreturn]] void ExecDaemon(const char* binary, const char* config, int log_fd, int ready_fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ForgetInterrupts();
  ::dup2(log_fd, STDOUT_FILENO);
  ::dup2(log_fd, STDERR_FILENO);
  if (ready_fd == kReadyFd) {
    ::fcntl(ready_fd, F_SETFD, 0);
  } else {
    ::dup2(ready_fd, kReadyFd);
  }
  ::execl(binary, binary, "--config", config, "--ready-fd", "3", nullptr);
  const char* const problem = std::strerror(errno);
  [[maybe_unused]] const ssize_t told = ::write(STDERR_FILENO, problem, std::strlen(problem));
  ::_exit(127);
}

// Whether a daemon takes connections at `path`, now.
absl::Status CheckAnswered(const std::string& path, int type, const char* option) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(option, " ", path, " is too long for a Unix socket"));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "making a Unix socket");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("no daemon answers on ", option, " ", path, " (", std::strerror(errno),
                                          "): start one, or leave --socket out and one is started"));
}

}  // namespace

DaemonSetup OneTenant(uint64_t dram_bytes, uint64_t nvme_bytes) {
  DaemonSetup setup;
  setup.dram_bytes = dram_bytes;
  setup.nvme_bytes = nvme_bytes;
  TenantSetup tenant;
  tenant.uid = ::geteuid();
  setup.tenants.push_back(tenant);
  return setup;
}

absl::StatusOr<std::unique_ptr<BenchDaemon>> BenchDaemon::Prepare(const Common& common, const DaemonSetup& setup) {
  std::unique_ptr<BenchDaemon> daemon(new BenchDaemon);
  daemon->binary_ = !common.kvartald.empty() ? common.kvartald : OwnFolder() + "/kvartald";
  if (::access(daemon->binary_.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("cannot execute ", daemon->binary_, ": ", std::strerror(errno),
                                            ": build it (make build) or name it with --kvartald"));
  }
  KV_ASSIGN_OR_RETURN(daemon->folder_, TempFolder::Make(common.folder));
  KV_RETURN_IF_ERROR(daemon->WriteConfiguration(setup));
  return daemon;
}

absl::StatusOr<std::unique_ptr<BenchDaemon>> BenchDaemon::Start(const Common& common, const DaemonSetup& setup) {
  if (common.socket.empty()) {
    KV_ASSIGN_OR_RETURN(std::unique_ptr<BenchDaemon> daemon, Prepare(common, setup));
    KV_RETURN_IF_ERROR(daemon->Launch());
    return daemon;
  }
  std::unique_ptr<BenchDaemon> daemon(new BenchDaemon);
  daemon->external_socket_ = common.socket;
  const std::string beside = std::filesystem::path(common.socket).parent_path() / "admin.sock";
  const std::string admin_socket = common.admin_socket.empty() ? beside : common.admin_socket;
  // The admin client waits for a daemon that restarts; one that was named has to be there.
  KV_RETURN_IF_ERROR(CheckAnswered(common.socket, SOCK_SEQPACKET, "--socket"));
  KV_RETURN_IF_ERROR(CheckAnswered(admin_socket, SOCK_STREAM, "--admin-socket"));
  daemon->admin_ = std::make_unique<admin::AdminClient>(admin::AdminClient::WaitingFor(admin_socket));
  KV_ASSIGN_OR_RETURN(const admin::v1::StatusReply status, daemon->admin_->GetStatus());
  daemon->pid_ = static_cast<pid_t>(status.pid());
  return daemon;
}

absl::Status BenchDaemon::WriteConfiguration(const DaemonSetup& setup) {
  std::error_code error;
  std::filesystem::create_directories(folder() + "/policies", error);
  if (setup.encrypted) {
    const std::string keys = folder() + "/nvme.keys";
    KV_RETURN_IF_ERROR(WriteFile(keys, KeyText()));
    std::filesystem::permissions(keys, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write, error);
  }
  KV_RETURN_IF_ERROR(WriteFile(folder() + "/policies/tenants.yaml", ManifestText(setup)));
  return WriteFile(folder() + "/kvartal.yaml", ConfigurationText(setup, folder()));
}

absl::Status BenchDaemon::ChangePolicy(const DaemonSetup& setup) {
  KV_RETURN_IF_ERROR(WriteFile(folder() + "/policies/tenants.yaml", ManifestText(setup)));
  return admin_->ReloadPolicy().status();
}

absl::Status BenchDaemon::Launch(const DaemonSetup& setup) {
  KV_RETURN_IF_ERROR(WriteConfiguration(setup));
  return Launch();
}

absl::Status BenchDaemon::Launch() {
  const std::string config = folder() + "/kvartal.yaml";
  const std::string log = folder() + "/daemon.log";
  const UniqueFd log_fd(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  int ends[2];
  if (!log_fd.valid() || ::pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("cannot open ", log, ": ", std::strerror(errno)));
  }
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  pid_ = ::fork();
  if (pid_ < 0) return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  if (pid_ == 0) ExecDaemon(binary_.c_str(), config.c_str(), log_fd.get(), write_end.get());
  write_end.reset();
  if (absl::Status ready = WaitReady(read_end.get()); !ready.ok()) {
    Kill();
    return ready;
  }
  // A new one each time: the channel to a daemon that is gone fails its first call.
  admin_ = std::make_unique<admin::AdminClient>(admin::AdminClient::WaitingFor(folder() + "/admin.sock"));
  return absl::OkStatus();
}

absl::Status BenchDaemon::WaitReady(int ready_fd) {
  pollfd wait{ready_fd, POLLIN, 0};
  const int events = ::poll(&wait, 1, kReadyTimeoutMs);
  char byte = 0;
  if (events == 1 && ::read(ready_fd, &byte, 1) == 1) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(binary_,
                                             events == 1 ? " ended at its start" : " did not get ready in time",
                                             ". Its log ends with:\n", LogTail()));
}

absl::Status BenchDaemon::WaitRecovered() {
  for (int64_t waited_ms = 0; waited_ms < kReadyTimeoutMs; waited_ms += kRecoveryPollMs) {
    KV_ASSIGN_OR_RETURN(const admin::v1::StatusReply status, admin_->GetStatus());
    if (!status.recovering()) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(kRecoveryPollMs));
  }
  return absl::DeadlineExceededError(absl::StrCat("still recovering. The log ends with:\n", LogTail()));
}

std::string BenchDaemon::LogTail() const {
  std::ifstream in(folder() + "/daemon.log");
  std::stringstream text;
  text << in.rdbuf();
  const std::string all = text.str();
  return all.size() <= kLogTailBytes ? all : all.substr(all.size() - kLogTailBytes);
}

absl::Status BenchDaemon::Stop() {
  if (!owned() || pid_ < 0) return absl::OkStatus();
  ::kill(pid_, SIGTERM);
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("kvartald did not end well (wait status ", status, "). Its log ends with:\n", LogTail()));
}

void BenchDaemon::Kill() {
  if (!owned() || pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
}

BenchDaemon::~BenchDaemon() { Kill(); }

std::string BenchDaemon::folder() const { return folder_ == nullptr ? "" : folder_->path(); }

std::string BenchDaemon::attach_socket() const { return owned() ? folder() + "/kvartal.sock" : external_socket_; }

std::string BenchDaemon::door_socket(const std::string& door) const { return folder() + "/" + door + ".sock"; }

std::string BenchDaemon::nvme_file() const { return folder() + "/nvme.dat"; }

std::vector<int> UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

absl::Status PinProcess(pid_t pid, const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  DIR* const folder = ::opendir(tasks.c_str());
  if (folder == nullptr) return absl::NotFoundError(absl::StrCat(tasks, ": ", std::strerror(errno)));
  while (const dirent* const entry = ::readdir(folder)) {
    int task = 0;
    // A thread that has just ended is no failure.
    if (absl::SimpleAtoi(entry->d_name, &task)) ::sched_setaffinity(task, sizeof(set), &set);
  }
  ::closedir(folder);
  return absl::OkStatus();
}

absl::StatusOr<double> CpuSecondsOf(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/stat");
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  // The name in parentheses may hold anything; the fields after it are numbers, user and system time the 14th and 15th.
  constexpr int kFieldsBefore = 11;
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string ignored;
  for (int i = 0; i < kFieldsBefore; ++i) fields >> ignored;
  uint64_t user = 0, system = 0;
  if (!(fields >> user >> system)) return absl::InternalError(absl::StrCat("cannot read ", path));
  return static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace kvartal::bench
