// A real kvartald in a folder of its own: its configuration is written, it is started, waited for by events, signalled,
// killed and started again, always by its process id.
// Confined to the test that owns it.
// Invariant: nothing it started outlives it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::testing {

// How a process ended.
struct ExitState {
  bool exited = false;  // false: by a signal
  int code = 0;         // exit code or signal number
};

struct CommandResult {
  int exit_code = -1;  // 128 + signal when it was killed
  std::string out, err;
};
// Runs a program to its end and keeps what it printed. A name without '/' is looked up in the folder of built programs.
CommandResult RunCommand(const std::vector<std::string>& argv);

// A TenantKVPolicy of pool "local". `subject` is "uid: 1001" or "socket: red"; an empty limit leaves the tier out.
std::string TenantManifest(const std::string& name, const std::string& subject, const std::string& dram_limit,
                           const std::string& nvme_limit = "");

struct DaemonOptions {
  std::string dram_size = "64Mi";
  std::string nvme_size;  // "": no NVMe tier
  std::string nvme_path;  // "": <folder>/nvme.dat
  std::string nvme_io = "auto";
  std::string manifests;           // "": one tenant test/own of this user, 32Mi of DRAM and of NVMe
  std::vector<std::string> doors;  // names; sockets are <folder>/run/<name>.sock
  std::string metrics_address = "127.0.0.1:0";
  std::string policy_stream;       // address of an operator: policy comes from there instead of the manifests
  std::string node;                // name of this node; "": the host's
  std::string more_config;         // lines appended to the configuration
  std::function<void()> in_child;  // runs before the program starts: limits, environment
};

class DaemonProcess {
 public:
  explicit DaemonProcess(DaemonOptions options = {});
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // Writes configuration and manifests, starts the daemon and waits until it serves. Not OK: it ended or hung, with
  // what it printed. Also starts it again after its end, over the same files.
  absl::Status Start();
  // Starts it where it is expected to refuse; waits for its end.
  ExitState StartAndWaitForEnd();
  void Signal(int signal);
  // Kills it when it does not end in time.
  ExitState WaitForEnd();
  // kill -9 and wait.
  void Kill();
  // False when the daemon did not print `text` on stderr in time.
  bool WaitForLog(const std::string& text);

  pid_t pid() const { return pid_; }
  bool running() const { return pid_ > 0; }
  const std::string& folder() const { return folder_; }
  std::string config_path() const { return folder_ + "/kvartald.yaml"; }
  std::string policy_dir() const { return folder_ + "/policy"; }
  std::string manifest_path() const { return policy_dir() + "/tenants.yaml"; }
  std::string attach_socket() const { return folder_ + "/run/kvartal.sock"; }
  std::string admin_socket() const { return folder_ + "/run/admin.sock"; }
  std::string door(const std::string& name) const { return folder_ + "/run/" + name + ".sock"; }
  std::string nvme_path() const { return options_.nvme_path.empty() ? folder_ + "/nvme.dat" : options_.nvme_path; }
  // All it printed since the last start.
  std::string out() const;
  std::string log() const;
  // The value of `key=` in its ready line, "" when there is none.
  std::string ReadyWord(const std::string& key) const;
  // kvartalctl against this daemon.
  CommandResult Ctl(const std::vector<std::string>& arguments) const;
  DaemonOptions& options() { return options_; }

 private:
  void WriteFiles() const;
  void Spawn(int ready_fd);

  DaemonOptions options_;
  std::string folder_;
  pid_t pid_ = -1;
};

void WriteFile(const std::string& path, const std::string& content);
std::string ReadFile(const std::string& path);

}  // namespace kvartal::testing
