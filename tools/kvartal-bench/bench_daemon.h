// A kvartald of the benchmark's own: configuration, manifests and sockets in a temporary folder, started from the
// binary beside this one; or a running one that the user named.
// Confined to one thread.
// Invariants: only processes started here are ever signalled; the folder goes when the object goes.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "tools/admin/admin_client.h"
#include "tools/kvartal-bench/daemon_files.h"
#include "tools/kvartal-bench/temp_folder.h"

namespace kvartal::bench {

// Options every benchmark has.
struct Common {
  std::string socket;        // of a running daemon; empty: start one
  std::string admin_socket;  // beside `socket`
  std::string folder;        // parent of the temporary folder
  std::string kvartald;      // the binary to start; empty: the one beside this
};

// One tenant named "bench" for whoever runs this process, with idle expiry off.
DaemonSetup OneTenant(uint64_t dram_bytes, uint64_t nvme_bytes = 0);

class BenchDaemon {
 public:
  // Writes the configuration and starts the daemon; or connects to the running one that `common` names.
  static absl::StatusOr<std::unique_ptr<BenchDaemon>> Start(const Common& common, const DaemonSetup& setup);
  // Writes the configuration only; Launch starts it.
  static absl::StatusOr<std::unique_ptr<BenchDaemon>> Prepare(const Common& common, const DaemonSetup& setup);
  ~BenchDaemon();

  // Starts the process and waits until it serves. `setup` replaces the configuration first.
  absl::Status Launch();
  absl::Status Launch(const DaemonSetup& setup);
  // Puts the tenants of `setup` in force.
  absl::Status ChangePolicy(const DaemonSetup& setup);
  // Returns once accounting is exact again after a start.
  absl::Status WaitRecovered();
  // SIGTERM and wait. Aborted when it did not end well.
  absl::Status Stop();
  // SIGKILL and wait.
  void Kill();

  bool owned() const { return external_socket_.empty(); }
  pid_t pid() const { return pid_; }
  std::string folder() const;
  std::string attach_socket() const;
  std::string door_socket(const std::string& door) const;
  std::string nvme_file() const;
  admin::AdminClient& admin() { return *admin_; }

 private:
  BenchDaemon() = default;
  absl::Status WriteConfiguration(const DaemonSetup& setup);
  absl::Status WaitReady(int ready_fd);
  std::string LogTail() const;

  std::string external_socket_;
  std::string binary_;
  std::unique_ptr<TempFolder> folder_;
  std::unique_ptr<admin::AdminClient> admin_;
  pid_t pid_ = -1;
};

// Every process and thread of `pid` on one CPU (or, empty, on all): placement is part of what is measured.
absl::Status PinProcess(pid_t pid, const std::vector<int>& cpus);
std::vector<int> UsableCpus();
// What `pid` has used so far, user and system, all its threads.
absl::StatusOr<double> CpuSecondsOf(pid_t pid);

}  // namespace kvartal::bench
