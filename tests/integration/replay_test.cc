// The short form of `kvartal-bench replay`: a real trace through the real daemon, block for block what an LRU of that
// size does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "tools/kvartal-bench/trace.h"

namespace kvartal::bench {
namespace {

constexpr uint64_t kRequests = 1500;
const std::string kTracePath = std::string(KVARTAL_SOURCE_DIR) + "/tests/data/traces/mooncake_synthetic_trace.jsonl.gz";

struct Expected {
  uint64_t blocks = 0, blocks_hit = 0, tokens = 0, tokens_hit = 0;
  uint64_t stored = 0, evictions = 0;
};

// LRU, tail first: ordered by the last request that touched a block, then the deepest first. A request touches its
// first min(length, capacity) blocks, which stay while room is made for the others. `capacity` 0: no limit.
class ReferenceLru {
 public:
  explicit ReferenceLru(uint64_t capacity) : capacity_(capacity == 0 ? UINT64_MAX : capacity) {}

  void Serve(const TraceRequest& request) {
    ++now_;
    uint64_t matched = 0;
    while (matched < request.blocks.size() && resident_.contains(request.blocks[matched])) ++matched;
    result_.blocks += request.blocks.size();
    result_.blocks_hit += matched;
    result_.tokens += request.input_tokens;
    result_.tokens_hit += std::min(matched * kTraceBlockTokens, request.input_tokens);
    const uint64_t keep = std::min<uint64_t>(request.blocks.size(), capacity_);
    for (uint64_t depth = 0; depth < keep; ++depth) Touch(request.blocks[depth], depth);
    while (resident_.size() > capacity_ && std::get<0>(*order_.begin()) != now_) {
      resident_.erase(std::get<2>(*order_.begin()));
      order_.erase(order_.begin());
      ++result_.evictions;
    }
  }
  const Expected& result() const { return result_; }

 private:
  using Place = std::tuple<uint64_t, int64_t, uint64_t>;  // last request, minus depth, block

  void Touch(uint64_t block, uint64_t depth) {
    const auto known = resident_.find(block);
    if (known == resident_.end()) {
      ++result_.stored;
    } else {
      order_.erase(known->second);
    }
    const Place place{now_, -static_cast<int64_t>(depth), block};
    resident_[block] = place;
    order_.insert(place);
  }

  const uint64_t capacity_;
  uint64_t now_ = 0;
  std::unordered_map<uint64_t, Place> resident_;
  std::set<Place> order_;
  Expected result_;
};

// The JSON object on the last line of the benchmark's output.
nlohmann::json Replay(const std::string& more_arguments) {
  const std::string command = std::string(KVARTAL_BIN_DIR) + "/kvartal-bench replay --json --trace " + kTracePath +
                              " --requests " + std::to_string(kRequests) + " " + more_arguments;
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string last, line;
  for (int c; (c = std::fgetc(pipe)) != EOF;) {
    line += static_cast<char>(c);
    if (c == '\n') last = std::exchange(line, "");
  }
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return nlohmann::json::parse(last, nullptr, false);
}

class ReplayTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ReplayTest, HitsStoresAndEvictionsAreThoseOfTheReference) {
  const uint64_t capacity = GetParam();
  const absl::StatusOr<Trace> trace = LoadTrace(kTracePath, kRequests);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ReferenceLru reference(capacity);
  for (const TraceRequest& request : trace->requests) reference.Serve(request);
  const Expected& expected = reference.result();

  const nlohmann::json got =
      Replay("--capacity-blocks " + (capacity == 0 ? std::string("inf") : std::to_string(capacity)));
  ASSERT_TRUE(got.is_object());
  EXPECT_EQ(got["requests"], kRequests);
  EXPECT_EQ(got["clock"], "wall");
  EXPECT_EQ(got["eviction"], "lru");
  EXPECT_NEAR(got["block_hit"].get<double>(), static_cast<double>(expected.blocks_hit) / expected.blocks, 1e-6);
  EXPECT_NEAR(got["token_hit"].get<double>(), static_cast<double>(expected.tokens_hit) / expected.tokens, 1e-6);
  EXPECT_EQ(got["stored_blocks"], expected.stored);
  EXPECT_EQ(got["evictions"], expected.evictions);
  EXPECT_EQ(got["loaded_bytes"], expected.blocks_hit * 4096);
  EXPECT_EQ(got["wrong_bytes"], 0);
  EXPECT_EQ(got["refusals"], 0);
  EXPECT_GT(expected.blocks_hit, 1000u) << "nothing would have been compared";
  EXPECT_EQ(expected.evictions > 0, capacity != 0);
}

INSTANTIATE_TEST_SUITE_P(Capacities, ReplayTest, ::testing::Values(0, 2000, 8000));

TEST(ReplayOnTheTraceClock, SaysItsClockAndItsEvictionOrder) {
  for (const char* const eviction : {"lru", "lhd"}) {
    const nlohmann::json got = Replay(std::string("--capacity-blocks 2000 --clock trace --eviction ") + eviction);
    ASSERT_TRUE(got.is_object());
    EXPECT_EQ(got["clock"], "trace");
    EXPECT_EQ(got["eviction"], eviction);
  }
}

TEST(ReplayControl, AFlippedBitIsSeen) {
  const nlohmann::json got = Replay("--capacity-blocks inf --inject-flip");
  ASSERT_TRUE(got.is_object());
  EXPECT_GT(got["wrong_bytes"].get<uint64_t>(), 0u);
}

}  // namespace
}  // namespace kvartal::bench
