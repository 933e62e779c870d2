// The engine gives its eviction order what it needs to know: every use, what went on, what left and came back.
#include <algorithm>

#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/policy/replay_cache.h"
#include "tools/kvartal-bench/trace.h"

namespace kvartal::engine {
namespace {

constexpr size_t kCapacity = 5000;
constexpr uint64_t kRequests = 6000;

class LhdTest : public EngineTest {
 protected:
  // One request as a client makes it: look up, store the rest. Returns the blocks it found.
  size_t Serve(NamespaceId ns, const std::vector<BlockKey>& keys) {
    std::vector<BlockPlace> places;
    const LookupResult found = engine_->Lookup(ns, keys, 0, 0, &places);
    const size_t stored_up_to = std::min(keys.size(), kCapacity);
    if (found.matched < stored_up_to) {
      const std::vector<BlockKey> rest(keys.begin() + found.matched, keys.begin() + stored_up_to);
      for (const ReservedBlock& block :
           Reserve(kGroup, ns, rest, found.request, found.matched > 0 ? &keys[found.matched - 1] : nullptr,
                   found.matched)) {
        EXPECT_EQ(engine_->Commit(kGroup, block.reservation, 0), CommitOutcome::kVisible);
      }
    }
    engine_->Release(Holds(places));
    return found.matched;
  }
};

TEST_F(LhdTest, HitsOfARecordedTraceAreThoseOfTheOrderAlone) {
  const auto trace =
      bench::LoadTrace(KVARTAL_SOURCE_DIR "/tests/data/traces/mooncake_conversation_trace.jsonl.gz", kRequests);
  ASSERT_TRUE(trace.ok()) << trace.status();
  options_.eviction = "lhd";
  auto rules = Rules("a/p", 64 * kMiB);
  rules.max_entries = kCapacity;
  Start({rules}, 0);
  const TenantId tenant = engine_->FindTenant("a/p");
  ASSERT_TRUE(engine_->OpenMemory(tenant).ok());
  const auto ns = engine_->OpenNamespace(
      tenant, {}, {.tokens_per_block = policy::kReplayBlockTokens, .shard_count = 1, .shard_bytes = 4 * kKiB});
  ASSERT_TRUE(ns.ok()) << ns.status();
  policy::ReplayCache lhd("lhd", kCapacity);
  policy::ReplayCache lru("lru", kCapacity);
  uint64_t asked = 0, engine_hits = 0, lhd_hits = 0, lru_hits = 0;
  double now_s = 0;
  for (const bench::TraceRequest& request : trace->requests) {
    clock_.AdvanceMs(static_cast<int64_t>((request.arrival_s - now_s) * 1000));
    now_s = request.arrival_s;
    const auto tick = static_cast<uint32_t>(request.arrival_s * 1000 / kTickMs);
    asked += request.blocks.size();
    engine_hits += Serve(*ns, trace->Chain(request));
    lhd_hits += lhd.Serve((1u << 30) + tick, request.blocks);
    lru_hits += lru.Serve((1u << 30) + tick, request.blocks);
  }
  engine_->CheckInvariants();
  // The engine makes room block by block, the replay request by request: near, not equal.
  EXPECT_NEAR(static_cast<double>(engine_hits), static_cast<double>(lhd_hits), 0.02 * static_cast<double>(lhd_hits));
  EXPECT_GT(engine_hits, lru_hits * 5 / 4) << "of " << asked;
  EXPECT_EQ(StatsOf("a/p").entries, kCapacity);
}

}  // namespace
}  // namespace kvartal::engine
