#include "tests/kube/operator_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/unique_fd.h"
#include "tests/support/daemon_process.h"

namespace kvartal::testing {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kPoll = std::chrono::milliseconds(20);

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

// Below the range the kernel gives out by itself: still free when a process that used it is started again.
int TakeFreePort() {
  static int next = 10000 + ::getpid() % 8000;
  for (; next < 20000; ++next) {
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = Loopback(next);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return next++;
  }
  return 0;
}

OperatorProcess::OperatorProcess(std::string kubeconfig, std::vector<std::string> more_flags, int64_t lease_ms)
    : kubeconfig_(std::move(kubeconfig)),
      more_flags_(std::move(more_flags)),
      lease_ms_(lease_ms),
      port_(TakeFreePort()),
      health_port_(TakeFreePort()) {}

OperatorProcess::~OperatorProcess() {
  if (pid_ > 0) Kill();
}

void OperatorProcess::Start() {
  KV_CHECK(pid_ < 0);
  std::vector<std::string> argv = {std::string(KVARTAL_BIN_DIR) + "/kvartal-operator",
                                   "--kubeconfig",
                                   kubeconfig_,
                                   "--namespace",
                                   "default",
                                   "--listen",
                                   address(),
                                   "--health",
                                   absl::StrCat("127.0.0.1:", health_port_),
                                   "--lease-ms",
                                   std::to_string(lease_ms_)};
  argv.insert(argv.end(), more_flags_.begin(), more_flags_.end());
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const UniqueFd out(::open(dir_.File("log").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  KV_CHECK(pid_ >= 0);
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(out.get(), STDOUT_FILENO);
  ::dup2(out.get(), STDERR_FILENO);
  if (::getppid() != parent) ::_exit(126);
  ::execv(words[0], words.data());
  ::_exit(127);
}

bool OperatorProcess::WaitUntilItLeads() {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (log().find("listens for nodes") == std::string::npos) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

void OperatorProcess::Kill() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int OperatorProcess::Stop() {
  ::kill(pid_, SIGTERM);
  return WaitForEnd();
}

int OperatorProcess::WaitForEnd() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string OperatorProcess::log() const { return ReadFile(dir_.File("log")); }

std::string OperatorProcess::Get(const std::string& path) const {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(health_port_);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return "";
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
  if (::write(fd.get(), request.data(), request.size()) < 0) return "";
  std::string answer;
  char buffer[4096];
  for (ssize_t got; (got = ::read(fd.get(), buffer, sizeof(buffer))) > 0;)
    answer.append(buffer, static_cast<size_t>(got));
  return answer;
}

double OperatorProcess::Metric(const std::string& name) const {
  const std::string text = Get("/metrics"), line = absl::StrCat("\n", name, " ");
  const size_t at = text.find(line);
  return at == std::string::npos ? -1 : std::atof(text.c_str() + at + line.size());
}

double OperatorProcess::MetricSum(const std::string& name,
                                  const std::function<bool(const std::string& labels)>& counts) const {
  const std::string text = Get("/metrics"), begin = absl::StrCat("\n", name, "{");
  double sum = -1;
  for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
    const size_t labels = at + begin.size(), end = text.find("} ", labels);
    if (end == std::string::npos) break;
    if (sum < 0) sum = 0;
    if (!counts || counts(text.substr(labels, end - labels))) sum += std::atof(text.c_str() + end + 2);
  }
  return sum;
}

int OperatorProcess::Health(const std::string& path) const {
  const std::string answer = Get(path);
  return answer.size() < 12 ? 0 : std::atoi(answer.c_str() + 9);
}

}  // namespace kvartal::testing
