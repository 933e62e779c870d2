#include "tests/kube/api_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "daemon/base/check.h"
#include "daemon/base/unique_fd.h"
#include "tests/kube/kube_session.h"
#include "tests/support/daemon_process.h"

namespace kvartal::testing {
namespace {

constexpr auto kReadyDeadline = std::chrono::seconds(120);  // 4 s on an idle machine
constexpr auto kPoll = std::chrono::milliseconds(100);
constexpr const char* kHosts = "IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc";

// Below the range the kernel gives out by itself: still free when the server is started again.
int FreePort() {
  for (int port = 20000 + ::getpid() % 10000; port < 32000; ++port) {
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return port;
  }
  return 0;
}

absl::Status Run(const std::vector<std::string>& argv) {
  const CommandResult result = RunCommand(argv);
  if (result.exit_code == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(absl::StrJoin(argv, " "), ": ", result.exit_code, ": ", result.err));
}

// What the build script of the environment prints: it has built it by the time tests run.
std::string TestenvBinary() {
  static const std::string path = [] {
    CommandResult result = RunCommand({std::string(KVARTAL_SOURCE_DIR) + "/tests/kube/testenv/build"});
    KV_CHECK(result.exit_code == 0);
    while (!result.out.empty() && result.out.back() == '\n') result.out.pop_back();
    return result.out;
  }();
  return path;
}

void End(pid_t* pid, int signal) {
  if (*pid <= 0) return;
  ::kill(*pid, SIGCONT);
  ::kill(*pid, signal);
  ::waitpid(*pid, nullptr, 0);
  *pid = -1;
}

std::string Tail(const std::string& path) {
  const std::string text = ReadFile(path);
  return text.size() > 3000 ? text.substr(text.size() - 3000) : text;
}

}  // namespace

ApiServer::ApiServer(ApiServerOptions options) : options_(options), port_(FreePort()) {}

ApiServer::~ApiServer() {
  // A clean end would take seconds and keep nothing: the state goes with the folder.
  End(&apiserver_, SIGKILL);
  End(&etcd_, SIGKILL);
}

absl::Status ApiServer::MakeCertificates() {
  const std::string ca_key = dir_.File("ca.key"), ca = dir_.File("ca.crt");
  const std::vector<std::string> key = {"-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"};
  const auto request = [&](std::vector<std::string> rest) {
    std::vector<std::string> argv = {"/usr/bin/openssl", "req", "-new"};
    argv.insert(argv.end(), key.begin(), key.end());
    argv.insert(argv.end(), rest.begin(), rest.end());
    return Run(argv);
  };
  KV_RETURN_IF_ERROR(request({"-x509", "-days", "30", "-keyout", ca_key, "-out", ca, "-subj", "/CN=kvartal-test-ca",
                              "-addext", "keyUsage=critical,keyCertSign,cRLSign"}));
  const std::vector<std::vector<std::string>> leaves = {
      {"apiserver", "/CN=kube-apiserver", absl::StrCat("extendedKeyUsage=serverAuth\nsubjectAltName=", kHosts, "\n")},
      {"admin", "/O=system:masters/CN=admin", "extendedKeyUsage=clientAuth\n"}};
  for (const auto& leaf : leaves) {
    const std::string base = dir_.File(leaf[0]);
    WriteFile(base + ".ext", leaf[2]);
    KV_RETURN_IF_ERROR(request({"-keyout", base + ".key", "-out", base + ".csr", "-subj", leaf[1]}));
    KV_RETURN_IF_ERROR(Run({"/usr/bin/openssl", "x509", "-req", "-in", base + ".csr", "-CA", ca, "-CAkey", ca_key,
                            "-CAcreateserial", "-days", "30", "-extfile", base + ".ext", "-out", base + ".crt"}));
  }
  // What signs the tokens of service accounts: RSA, as most clusters have it.
  KV_RETURN_IF_ERROR(Run({"/usr/bin/openssl", "genrsa", "-out", dir_.File("sa.key"), "2048"}));
  return Run({"/usr/bin/openssl", "rsa", "-in", dir_.File("sa.key"), "-pubout", "-out", dir_.File("sa.pub")});
}

void ApiServer::WriteKubeconfig() const {
  WriteFile(kubeconfig_path(),
            absl::StrCat("apiVersion: v1\nkind: Config\ncurrent-context: test\n",
                         "clusters:\n- name: test\n  cluster:\n    server: ", server(),
                         "\n    certificate-authority: ca.crt\n", "users:\n- name: admin\n  user:\n",
                         "    client-certificate: admin.crt\n    client-key: admin.key\n",
                         "contexts:\n- name: test\n  context:\n    cluster: test\n    user: admin\n"));
}

pid_t ApiServer::Spawn(const std::vector<std::string>& argv, const std::string& log) const {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  KV_CHECK(pid >= 0);
  if (pid > 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int out = ::open(dir_.File(log).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(out, STDERR_FILENO);
  if (::getppid() != parent || ::chdir(dir_.path().c_str()) != 0) ::_exit(126);
  ::execv(words[0], words.data());
  ::_exit(127);
}

std::vector<std::string> ApiServer::ApiServerFlags() const {
  std::vector<std::string> flags = {
      TestenvBinary(), "apiserver", "--etcd-servers=unix://etcd.sock", "--bind-address=127.0.0.1",
      absl::StrCat("--secure-port=", port_), "--advertise-address=127.0.0.1", "--cert-dir=.",
      "--tls-cert-file=apiserver.crt", "--tls-private-key-file=apiserver.key", "--client-ca-file=ca.crt",
      "--anonymous-auth=false", "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
      "--endpoint-reconciler-type=none", "--service-account-key-file=sa.pub",
      "--service-account-signing-key-file=sa.key", absl::StrCat("--service-account-issuer=", server()),
      absl::StrCat("--api-audiences=", server()),
      absl::StrCat("--service-account-jwks-uri=", server(), "/openid/v1/jwks"), "--allow-privileged=true",
      // No controllers run: nobody makes the default service accounts this plugin asks for.
      "--disable-admission-plugins=ServiceAccount"};
  if (!options_.watch_cache) flags.push_back("--watch-cache=false");
  return flags;
}

absl::Status ApiServer::Start() {
  if (!std::filesystem::exists(ca_path())) {
    KV_RETURN_IF_ERROR(MakeCertificates());
    WriteKubeconfig();
  }
  if (etcd_ < 0) etcd_ = Spawn({TestenvBinary(), "etcd", "--dir", dir_.path()}, "etcd.log");
  if (apiserver_ < 0) apiserver_ = Spawn(ApiServerFlags(), "apiserver.log");
  return WaitUntilReady();
}

absl::Status ApiServer::CheckAlive() {
  for (const auto& [pid, name] : {std::pair(&etcd_, "etcd"), std::pair(&apiserver_, "apiserver")}) {
    if (::waitpid(*pid, nullptr, WNOHANG) == 0) continue;
    *pid = -1;
    return absl::InternalError(absl::StrCat(name, " ended:\n", Tail(dir_.File(absl::StrCat(name, ".log")))));
  }
  return absl::OkStatus();
}

absl::Status ApiServer::WaitUntilReady() {
  const auto deadline = std::chrono::steady_clock::now() + kReadyDeadline;
  while (std::chrono::steady_clock::now() < deadline) {
    KV_RETURN_IF_ERROR(CheckAlive());
    KubeSession session(admin());
    session.Call("GET", "/readyz");  // its "ok" is no JSON: the code tells
    if (session.client()->stats().requests.contains({"GET", 200})) return absl::OkStatus();
    std::this_thread::sleep_for(kPoll);
  }
  return absl::DeadlineExceededError(absl::StrCat("not ready:\n", Tail(dir_.File("apiserver.log"))));
}

void ApiServer::KillApiServer() { End(&apiserver_, SIGKILL); }
void ApiServer::Freeze() { KV_CHECK(::kill(apiserver_, SIGSTOP) == 0); }
void ApiServer::Thaw() { KV_CHECK(::kill(apiserver_, SIGCONT) == 0); }

absl::Status ApiServer::Compact() { return Run({TestenvBinary(), "compact", "--dir", dir_.path()}); }

kube::ClusterAccess ApiServer::admin() const {
  const absl::StatusOr<kube::ClusterAccess> access = kube::ReadKubeconfig(kubeconfig_path());
  KV_CHECK(access.ok());
  return *access;
}

kube::ClusterAccess ApiServer::ByTokenFile(const std::string& path) const {
  kube::ClusterAccess access;
  access.server = server();
  access.authorities.path = ca_path();
  access.token.path = path;
  return access;
}

}  // namespace kvartal::testing
