// This very binary, started again as another process with a subcommand of its own; its stdout is read through a pipe.
// Confined to one thread. The process is SIGKILLed and waited for when the object goes.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::bench {

class ChildProcess {
 public:
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  int out_fd() const { return out_.get(); }
  // The next line, without its end. OutOfRange at the end of the output.
  absl::StatusOr<std::string> ReadLine();
  void Kill();
  // Waits for its end; Aborted when its status is not 0.
  absl::Status Wait();

 private:
  ChildProcess(pid_t pid, UniqueFd out) : pid_(pid), out_(std::move(out)) {}
  pid_t pid_;
  const UniqueFd out_;
  std::string pending_;
};

}  // namespace kvartal::bench
