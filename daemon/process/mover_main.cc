// kvartal-mover: the command line around one Mover.
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <string>

#include "daemon/base/log.h"
#include "daemon/device/mover_wire.h"
#include "daemon/mover/daemon_channel.h"
#include "daemon/mover/mover.h"

namespace kvartal::process {
namespace {

// Tells the daemon, and whoever reads stderr, why this ends. Nothing is taken down: a driver that hangs would hang
// there as well, and the kernel takes all of it.
[[noreturn]] void End(mover::DaemonChannel* channel, const absl::Status& why, int status) {
  if (!why.ok()) {
    Log(LogLevel::kError, "mover", why.message());
    channel->Answer(0, why);
    (void)channel->Flush();  // a daemon that is gone need not know
  }
  std::_Exit(status);
}

[[noreturn]] void Serve(const std::string& library, const std::string& gpu_uuid) {
  mover::DaemonChannel channel((UniqueFd(device::kMoverSocketFd)));
  const absl::Status check = channel.Check();
  if (!check.ok()) End(&channel, check, device::kMoverExitRefused);
  const absl::StatusOr<std::unique_ptr<mover::Mover>> mover = mover::Mover::Open(library, gpu_uuid, &channel);
  if (!mover.ok()) End(&channel, mover.status(), device::kMoverExitRefused);
  const absl::Status end = (*mover)->Run();
  End(&channel, end, end.ok() ? 0 : absl::IsAborted(end) ? device::kMoverExitContextLost : device::kMoverExitFailed);
}

int Main(int argc, char** argv) {
  // The daemon's end ends this even where the driver does not return.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  CLI::App app{
      "kvartal-mover: copies between the memory of one GPU and host memory, for the kvartald that starts it.\n\n"
      "Exit codes: 0 the daemon is gone, 2 cannot begin, 3 the CUDA context is lost, 4 another error."};
  std::string library = "libcuda.so.1";
  std::string gpu_uuid;
  app.add_option("--library", library, "library of the GPU driver")->type_name("FILE");
  app.add_option("--gpu", gpu_uuid, "the GPU, as nvidia-smi -L names it")->type_name("UUID")->required();
  CLI11_PARSE(app, argc, argv);
  Serve(library, gpu_uuid);
}

}  // namespace
}  // namespace kvartal::process

int main(int argc, char** argv) { return kvartal::process::Main(argc, argv); }
