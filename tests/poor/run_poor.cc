// Runs a program that may do less than this one: without io_uring, or with 64 KiB of locked memory, for itself and all
// it starts. usage: run_poor no-uring|little-memlock PROGRAM [ARGUMENT ...]
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "daemon/base/units.h"
#include "tests/support/deny.h"

int main(int argc, char** argv) {
  const std::string_view how = argc > 2 ? argv[1] : "";
  if (how == "no-uring") {
    kvartal::testing::DenyIoUring();
  } else if (how == "little-memlock") {
    kvartal::testing::LimitLockedMemory(64 * kvartal::kKiB);
  } else {
    std::fprintf(stderr, "usage: run_poor no-uring|little-memlock PROGRAM [ARGUMENT ...]\n");
    return 2;
  }
  ::execv(argv[2], argv + 2);
  std::perror(argv[2]);
  return 127;
}
