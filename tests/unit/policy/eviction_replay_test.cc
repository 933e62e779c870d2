// Hit rates of the eviction orders on the recorded traces, against the columns of the reference simulator.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "daemon/base/limits.h"
#include "tests/unit/policy/replay_cache.h"
#include "tools/kvartal-bench/trace.h"

namespace kvartal::policy {
namespace {

constexpr uint32_t kFirstTick = 1u << 30;  // as the engine's clock: far from 0

const bench::Trace& TraceOf(const std::string& name) {
  static std::map<std::string, bench::Trace> loaded;
  auto [it, is_new] = loaded.try_emplace(name);
  if (is_new) {
    auto trace = bench::LoadTrace(KVARTAL_SOURCE_DIR "/tests/data/traces/mooncake_" + name + "_trace.jsonl.gz", 0);
    EXPECT_TRUE(trace.ok()) << trace.status();
    if (trace.ok()) it->second = *std::move(trace);
  }
  return it->second;
}

// Of all prompt tokens, those found in the cache.
double TokenHit(const std::string& trace_name, const std::string& eviction, size_t capacity) {
  const bench::Trace& trace = TraceOf(trace_name);
  ReplayCache cache(eviction, capacity);
  uint64_t asked = 0;
  uint64_t hit = 0;
  for (const bench::TraceRequest& request : trace.requests) {
    const auto tick = static_cast<uint32_t>(std::llround(request.arrival_s * 1000 / kTickMs));
    const size_t matched = cache.Serve(kFirstTick + tick, request.blocks);
    asked += request.input_tokens;
    hit += std::min<uint64_t>(matched * kReplayBlockTokens, request.input_tokens);
  }
  EXPECT_LE(cache.resident(), capacity);
  return asked == 0 ? 0 : static_cast<double>(hit) / static_cast<double>(asked);
}

struct LruColumn {
  const char* trace;
  size_t capacity;
  double token_hit;  // four digits
};

TEST(EvictionReplay, LruMeetsTheReferenceDigitByDigit) {
  for (const LruColumn& column : {LruColumn{"conversation", 1000, .0454}, LruColumn{"conversation", 5000, .1140},
                                  LruColumn{"conversation", 20000, .2935}, LruColumn{"synthetic", 1000, .0857},
                                  LruColumn{"synthetic", 5000, .2845}, LruColumn{"synthetic", 20000, .5822}}) {
    EXPECT_NEAR(TokenHit(column.trace, "lru", column.capacity), column.token_hit, .00005)
        << column.trace << " " << column.capacity;
  }
}

TEST(EvictionReplay, HitDensityIsAThirdAboveLruWhereSpaceIsShortAndNeverBelowIt) {
  EXPECT_GE(TokenHit("conversation", "lhd", 5000), 1.30 * TokenHit("conversation", "lru", 5000));
  for (const size_t capacity : {10000, 20000, 50000, 100000}) {
    EXPECT_GE(TokenHit("conversation", "lhd", capacity), TokenHit("conversation", "lru", capacity)) << capacity;
  }
}

TEST(EvictionReplay, HitDensityKeepsUpWithLruOnUnrelatedPrompts) {
  for (const size_t capacity : {500, 1000, 2000, 5000, 10000, 20000, 30000}) {
    EXPECT_GE(TokenHit("synthetic", "lhd", capacity), .97 * TokenHit("synthetic", "lru", capacity)) << capacity;
  }
}

}  // namespace
}  // namespace kvartal::policy
