// The assert ladder.
//   KV_CHECK   always on: memory and tenants are at stake; failing ends the process.
//   KV_DCHECK  inner loops; on in Debug and sanitizer builds only.
//   KV_BUG     a broken expectation the process survives: counted, logged once a place, fatal under
//   KVARTAL_BUGS_FATAL=1 (tests).
#pragma once

#include <cstdint>

namespace kvartal {

[[noreturn]] void CheckFailed(const char* file, int line, const char* what);
void BugSeen(const char* file, int line, const char* what, bool first_here);
// How often any KV_BUG was seen in this process. Any thread.
uint64_t BugCount();

}  // namespace kvartal

#define KV_CHECK(cond) (static_cast<bool>(cond) ? void(0) : ::kvartal::CheckFailed(__FILE__, __LINE__, #cond))

#ifdef NDEBUG
#define KV_DCHECK(cond) void(sizeof(!(cond)))
#else
#define KV_DCHECK(cond) KV_CHECK(cond)
#endif

#define KV_BUG(what)                                          \
  do {                                                        \
    static bool kv_seen = false;                              \
    ::kvartal::BugSeen(__FILE__, __LINE__, (what), !kv_seen); \
    kv_seen = true;                                           \
  } while (0)
