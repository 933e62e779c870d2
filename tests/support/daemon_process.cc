#include "tests/support/daemon_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace kvartal::testing {
namespace {

// Only a broken daemon takes this long; a slow machine under sanitizers does not.
constexpr int kPatienceMs = 60'000;
constexpr int kSignalledBase = 128;
constexpr int kExecFailed = 127;

std::string ProgramPath(const std::string& name) {
  return name.find('/') == std::string::npos ? absl::StrCat(KVARTAL_BIN_DIR, "/", name) : name;
}

// In the child, after fork.
[[noreturn]] void Exec(const std::vector<std::string>& argv, int out_fd, int err_fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(out_fd, STDOUT_FILENO);
  ::dup2(err_fd, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  std::vector<char*> pointers;
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  ::execv(pointers[0], pointers.data());
  ::_exit(kExecFailed);
}

UniqueFd OpenForWriting(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
}

bool WaitReadable(int fd, int timeout_ms) {
  pollfd watched{fd, POLLIN, 0};
  int result;
  do {
    result = ::poll(&watched, 1, timeout_ms);
  } while (result < 0 && errno == EINTR);
  return result > 0;
}

ExitState WaitForPid(pid_t pid) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!WaitReadable(pidfd.get(), kPatienceMs)) ::kill(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFEXITED(status)) return {true, WEXITSTATUS(status)};
  return {false, WTERMSIG(status)};
}

std::string MakeFolder() {
  char folder[] = "/tmp/kvartal-test-XXXXXX";
  KV_CHECK(::mkdtemp(folder) != nullptr);
  // Tests run clients under other users, too.
  KV_CHECK(::chmod(folder, 0755) == 0);
  return folder;
}

}  // namespace

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::trunc);
  file << content;
  file.close();
  KV_CHECK(file.good());
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

CommandResult RunCommand(const std::vector<std::string>& argv) {
  std::vector<std::string> full = argv;
  full[0] = ProgramPath(argv[0]);
  const std::string folder = MakeFolder();
  const std::string out_path = folder + "/out", err_path = folder + "/err";
  const UniqueFd out = OpenForWriting(out_path), err = OpenForWriting(err_path);
  const pid_t pid = ::fork();
  KV_CHECK(pid >= 0);
  if (pid == 0) Exec(full, out.get(), err.get());
  const ExitState state = WaitForPid(pid);
  CommandResult result{state.exited ? state.code : kSignalledBase + state.code, ReadFile(out_path), ReadFile(err_path)};
  std::filesystem::remove_all(folder);
  return result;
}

std::string TenantManifest(const std::string& name, const std::string& subject, const std::string& dram_limit,
                           const std::string& nvme_limit) {
  std::string tiers;
  if (!dram_limit.empty()) absl::StrAppend(&tiers, "dram: {limit: ", dram_limit, "}");
  if (!nvme_limit.empty()) absl::StrAppend(&tiers, tiers.empty() ? "" : ", ", "nvme: {limit: ", nvme_limit, "}");
  return absl::StrCat(
      "---\napiVersion: kvartal.dev/v1alpha1\nkind: TenantKVPolicy\nmetadata: {namespace: test, name: ", name,
      "}\nspec:\n  subjects: [{", subject, "}]\n  pools: [{poolRef: local, perNode: {", tiers, "}}]\n");
}

DaemonProcess::DaemonProcess(DaemonOptions options) : options_(std::move(options)), folder_(MakeFolder()) {
  WriteFiles();
}

DaemonProcess::~DaemonProcess() {
  if (running()) Kill();
  std::filesystem::remove_all(folder_);
}

void DaemonProcess::WriteFiles() const {
  std::filesystem::create_directories(policy_dir());
  const std::string own = absl::StrCat("uid: ", ::getuid());
  WriteFile(manifest_path(), options_.manifests.empty()
                                 ? TenantManifest("own", own, "32Mi", options_.nvme_size.empty() ? "" : "32Mi")
                                 : options_.manifests);
  std::string config = absl::StrCat("runDir: run\ndram: {size: ", options_.dram_size, "}\n");
  absl::StrAppend(&config,
                  options_.policy_stream.empty()
                      ? "policyDir: policy\n"
                      : absl::StrCat("policyStream: {operator: \"", options_.policy_stream, "\", keepIn: kept}\n"));
  absl::StrAppend(&config, "metricsAddress: \"", options_.metrics_address, "\"\n");
  if (!options_.nvme_size.empty()) {
    absl::StrAppend(&config, "nvme: [{path: ", nvme_path(), ", size: ", options_.nvme_size, ", io: ", options_.nvme_io,
                    "}]\n");
  }
  if (!options_.doors.empty()) absl::StrAppend(&config, "doors:\n");
  for (const std::string& door : options_.doors) absl::StrAppend(&config, "- {name: ", door, ", mode: \"0666\"}\n");
  WriteFile(config_path(), config + options_.more_config);
}

void DaemonProcess::Spawn(int ready_fd) {
  KV_CHECK(!running());
  const UniqueFd out = OpenForWriting(folder_ + "/out"), err = OpenForWriting(folder_ + "/log");
  std::vector<std::string> argv = {ProgramPath("kvartald"), "--config", config_path()};
  if (!options_.node.empty()) {
    argv.push_back("--node");
    argv.push_back(options_.node);
  }
  if (ready_fd >= 0) {
    argv.push_back("--ready-fd");
    argv.push_back(absl::StrCat(ready_fd));
  }
  pid_ = ::fork();
  KV_CHECK(pid_ >= 0);
  if (pid_ != 0) return;
  if (ready_fd >= 0) ::fcntl(ready_fd, F_SETFD, 0);
  if (options_.in_child) options_.in_child();
  Exec(argv, out.get(), err.get());
}

absl::Status DaemonProcess::Start() {
  int ends[2];
  KV_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  Spawn(writer.get());
  writer.reset();
  char byte;
  if (!WaitReadable(reader.get(), kPatienceMs)) {
    Kill();
    return absl::DeadlineExceededError(absl::StrCat("kvartald was not ready in time: ", log()));
  }
  if (::read(reader.get(), &byte, 1) == 1) return absl::OkStatus();
  const ExitState state = WaitForEnd();
  return absl::InternalError(
      absl::StrCat("kvartald ended by ", state.exited ? "exit " : "signal ", state.code, ": ", log()));
}

ExitState DaemonProcess::StartAndWaitForEnd() {
  Spawn(-1);
  return WaitForEnd();
}

void DaemonProcess::Signal(int signal) {
  KV_CHECK(running());
  ::kill(pid_, signal);
}

ExitState DaemonProcess::WaitForEnd() {
  KV_CHECK(running());
  const ExitState state = WaitForPid(pid_);
  pid_ = -1;
  return state;
}

void DaemonProcess::Kill() {
  Signal(SIGKILL);
  WaitForEnd();
}

bool DaemonProcess::WaitForLog(const std::string& text) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  const UniqueFd notify(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ::inotify_add_watch(notify.get(), (folder_ + "/log").c_str(), IN_MODIFY);
  while (log().find(text) == std::string::npos) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0 || !WaitReadable(notify.get(), static_cast<int>(left.count()))) return false;
    char events[4096];
    while (::read(notify.get(), events, sizeof(events)) > 0) {
    }
  }
  return true;
}

std::string DaemonProcess::out() const { return ReadFile(folder_ + "/out"); }

std::string DaemonProcess::log() const { return ReadFile(folder_ + "/log"); }

std::string DaemonProcess::ReadyWord(const std::string& key) const {
  const std::string text = out();
  const size_t at = text.find(absl::StrCat(" ", key, "="));
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size() + 2;
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

CommandResult DaemonProcess::Ctl(const std::vector<std::string>& arguments) const {
  std::vector<std::string> argv = {"kvartalctl", "--socket", admin_socket()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return RunCommand(argv);
}

}  // namespace kvartal::testing
