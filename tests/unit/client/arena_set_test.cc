// Built with the sources of the library, whose own symbols it hides.
#include "client/libkvartal/arena_set.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/limits.h"

namespace kvartal::client {
namespace {

// A node of two terabytes: twenty such arenas are more than a process has addresses for.
TEST(ArenaSetTest, ASessionThatEndsOverAndOverDoesNotUseUpTheAddresses) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer leaves no room for a mapping of this size";
#endif
  constexpr uint64_t kBytes = uint64_t{1} << 43;
  const UniqueFd arena(::memfd_create("arena", MFD_CLOEXEC)), generations(::memfd_create("generations", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(arena.get(), kBytes), 0);
  ASSERT_EQ(::ftruncate(generations.get(), kBytes / kSlotAlignBytes * sizeof(uint32_t)), 0);
  ArenaSet arenas(std::make_shared<Bell>());
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
