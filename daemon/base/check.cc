#include "daemon/base/check.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kvartal {
namespace {
std::atomic<uint64_t> bug_count{0};
}  // namespace

void CheckFailed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "kvartal: check failed at %s:%d: %s\n", file, line, what);
  std::abort();
}

void BugSeen(const char* file, int line, const char* what, bool first_here) {
  bug_count.fetch_add(1, std::memory_order_relaxed);
  if (first_here)
    std::fprintf(stderr, "kvartal: BUG at %s:%d: %s (further ones here are only counted)\n", file, line, what);
  const char* fatal = std::getenv("KVARTAL_BUGS_FATAL");
  if (fatal != nullptr && std::strcmp(fatal, "1") == 0) std::abort();
}

uint64_t BugCount() { return bug_count.load(std::memory_order_relaxed); }

}  // namespace kvartal
