// Another process with memory of GPU 0. usage: gpu_peer LIBRARY SOCKET-FD BYTES VALUE
// Allocates, fills with VALUE, sends the descriptor over the socket, and stays until it is killed or the socket ends.
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "daemon/device/gpu_driver.h"
#include "daemon/device/gpu_stream.h"
#include "tests/support/fd_passing.h"

namespace kvartal::device {
namespace {

absl::Status Run(const char* library, int socket, uint64_t bytes, uint8_t value) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<GpuDriver> driver, GpuDriver::Load(library));
  KV_ASSIGN_OR_RETURN(const GpuMemory memory, driver->Allocate(0, bytes));
  KV_ASSIGN_OR_RETURN(const GpuContext context, GpuContext::Open(*driver, 0));
  KV_ASSIGN_OR_RETURN(const GpuMapping mapping, GpuMapping::Map(memory, 0, GpuAccess::kReadWrite));
  KV_ASSIGN_OR_RETURN(GpuStream stream, GpuStream::Open(context, GpuPriority::kDemand));
  KV_RETURN_IF_ERROR(stream.Fill(mapping.address(), value, bytes));
  KV_RETURN_IF_ERROR(stream.Wait());
  KV_ASSIGN_OR_RETURN(const UniqueFd fd, memory.Export());
  testing::SendFd(socket, fd.get());
  char end = 0;
  while (::read(socket, &end, 1) > 0) {
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace kvartal::device

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const absl::Status status = kvartal::device::Run(argv[1], std::atoi(argv[2]), std::strtoull(argv[3], nullptr, 10),
                                                   static_cast<uint8_t>(std::atoi(argv[4])));
  if (status.ok()) return 0;
  std::cerr << "gpu_peer: " << status << "\n";
  return 1;
}
