// Built with the sources of the library, whose own symbols it hides.
#include "client/libkvartal/arena_set.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/limits.h"

namespace kvartal::client {
namespace {

UniqueFd Sealed(uint64_t bytes) {
  UniqueFd fd(::memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  return fd;
}

// A node of two terabytes: twenty such arenas are more than a process has addresses for.
TEST(ArenaSetTest, ASessionThatEndsOverAndOverDoesNotUseUpTheAddresses) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer leaves no room for a mapping of this size";
#endif
  constexpr uint64_t kBytes = uint64_t{1} << 43;
  const UniqueFd arena = Sealed(kBytes), generations = Sealed(kBytes / kSlotAlignBytes * sizeof(uint32_t));
  std::string said;
  ArenaSet arenas(Bell::Make(&said));
  for (int ended = 0; ended < 20; ++ended) {
    std::string error;
    std::shared_ptr<ArenaMap> use = arenas.Use(arena, generations, kBytes, &error);
    ASSERT_NE(use, nullptr) << "after " << ended << ": " << error;
    use.reset();
    arenas.EmptyUnused();
  }
}

}  // namespace
}  // namespace kvartal::client
