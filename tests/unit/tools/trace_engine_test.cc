#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/base/limits.h"
#include "daemon/base/units.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/trace_engine/simulation.h"
#include "tools/trace_engine/trace_client.h"
#include "tools/trace_engine/trace_split.h"
#include "tools/trace_engine/virtual_node.h"

namespace kvartal::trace_engine {
namespace {

constexpr uint32_t kBlockBytes = 256 * kKiB;
constexpr ModelLayout kLayout{.tokens_per_block = 512, .shard_count = 1, .shard_bytes = kBlockBytes};

policy::TenantRules Rules(const std::string& name, uint64_t dram_limit, uint64_t nvme_limit) {
  policy::TenantRules rules;
  rules.name = rules.uid = name;
  rules.tier(TierKind::kDram).limit_bytes = dram_limit;
  rules.tier(TierKind::kNvme).limit_bytes = nvme_limit;
  return rules;
}

std::shared_ptr<const policy::PolicyTable> Table(std::vector<policy::TenantRules> rules, uint64_t dram_bytes,
                                                 uint64_t nvme_bytes) {
  policy::NodeCapacity capacity;
  capacity.bytes[TierIndex(TierKind::kDram)] = dram_bytes;
  capacity.bytes[TierIndex(TierKind::kNvme)] = nvme_bytes;
  return policy::PolicyTable::FromRules(std::move(rules), capacity);
}

std::vector<BlockKey> Chain(uint64_t first, size_t blocks) {
  std::vector<BlockKey> keys;
  for (size_t i = 0; i < blocks; ++i) keys.push_back(bench::MakeKey("test", first + i));
  return keys;
}

struct Node {
  explicit Node(const policy::TenantRules& rules, uint64_t dram_bytes = 16 * kMiB, uint64_t nvme_bytes = 256 * kMiB)
      : node(*VirtualNode::Start(Table({rules}, dram_bytes, nvme_bytes), {})),
        client(*TraceClient::Attach(node.get(), rules.name, kLayout)) {}
  engine::TenantStats Stats() const { return node->engine().stats().tenants[0]; }

  std::unique_ptr<VirtualNode> node;
  TraceClient client;
};

TEST(VirtualNode, ServesFromDramWhatItHolds) {
  Node node(Rules("a", 16 * kMiB, 0), 16 * kMiB, 0);
  node.client.Serve(Chain(0, 10), 10 * 512);
  EXPECT_EQ(node.client.served().blocks_hit(), 0u);
  EXPECT_EQ(node.client.served().blocks_stored, 10u);
  node.client.Serve(Chain(0, 12), 11 * 512 + 100);
  EXPECT_EQ(node.client.served().blocks_from_dram, 10u);
  EXPECT_EQ(node.client.served().tokens_from_dram, 10u * 512);
  EXPECT_EQ(node.client.served().blocks_stored, 12u);
  EXPECT_EQ(node.Stats().tokens_hit, 10u * 512);
  EXPECT_EQ(node.node->engine().stats().leased_blocks, 0u) << "a request leaves no lease behind";
}

// A prompt that ends inside its last block has only so many tokens.
TEST(VirtualNode, APartialBlockCountsTheTokensOfThePrompt) {
  Node node(Rules("a", 16 * kMiB, 0), 16 * kMiB, 0);
  node.client.Serve(Chain(0, 3), 2 * 512 + 7);
  node.client.Serve(Chain(0, 3), 2 * 512 + 7);
  EXPECT_EQ(node.client.served().tokens_from_dram, 2u * 512 + 7);
}

// What DRAM has no room for goes to NVMe and is loaded back from there: through the real tier, with no byte moved.
TEST(VirtualNode, LoadsFromNvmeWhatDramCouldNotKeep) {
  Node node(Rules("a", 4 * kMiB, 256 * kMiB));
  node.client.Serve(Chain(0, 16), 16 * 512);    // 16 blocks of 256 KiB fill the 4 MiB
  node.client.Serve(Chain(100, 16), 16 * 512);  // and push those out
  const uint64_t stored = node.Stats().blocks_stored;
  EXPECT_EQ(stored, 32u);
  node.client.Serve(Chain(0, 16), 16 * 512);
  EXPECT_EQ(node.client.served().blocks_from_nvme, 16u);
  EXPECT_EQ(node.client.served().tokens_from_nvme, 16u * 512);
  EXPECT_EQ(node.Stats().blocks_loaded, 16u);
  EXPECT_EQ(node.Stats().load_failures, 0u);
  EXPECT_EQ(node.Stats().blocks_stored, stored) << "what was loaded is not stored again";
  EXPECT_EQ(node.node->used_bytes(TierKind::kDram), 4 * kMiB);
  node.node->engine().CheckInvariants();
}

TEST(VirtualNode, AWriteBudgetHoldsBackWhatNobodyUsedAgain) {
  const auto table = Table({Rules("a", 4 * kMiB, 256 * kMiB)}, 16 * kMiB, 256 * kMiB);
  const auto written = [&](uint64_t bytes_per_second) {
    const auto node = *VirtualNode::Start(table, {.nvme_write_bytes_per_second = bytes_per_second});
    TraceClient client = *TraceClient::Attach(node.get(), "a", kLayout);
    for (uint64_t first = 0; first < 1600; first += 16) client.Serve(Chain(first, 16), 16 * 512);
    return node->engine().stats().tenants[0].nvme_written_bytes;
  };
  EXPECT_GT(written(0), 256 * kMiB) << "all of it";
  EXPECT_GT(written(1), 0u);
  EXPECT_LT(written(1), 32 * kMiB);
}

// Time is the trace's: a block idle for its TTL in between is gone, one that was used is not.
TEST(VirtualNode, TimePassesWhenTold) {
  policy::TenantRules rules = Rules("a", 16 * kMiB, 0);
  rules.ttl_ms[TierIndex(TierKind::kDram)] = 10'000;
  Node node(rules, 16 * kMiB, 0);
  node.client.Serve(Chain(0, 2), 2 * 512);
  node.client.Serve(Chain(10, 2), 2 * 512);
  node.node->AdvanceToMs(9'000);
  node.client.Serve(Chain(0, 2), 2 * 512);
  EXPECT_EQ(node.client.served().blocks_hit(), 2u);
  node.node->AdvanceToMs(18'000);
  node.client.Serve(Chain(0, 2), 2 * 512);
  EXPECT_EQ(node.client.served().blocks_hit(), 4u);
  node.client.Serve(Chain(10, 2), 2 * 512);
  EXPECT_EQ(node.client.served().blocks_hit(), 4u);
  EXPECT_EQ(node.Stats().tiers[TierIndex(TierKind::kDram)].drop(policy::DropReason::kIdle).count, 2u);
}

TEST(VirtualNode, AChainLargerThanTheTenantIsRefusedInPart) {
  Node node(Rules("a", 4 * kMiB, 0), 16 * kMiB, 0);
  node.client.Serve(Chain(0, 20), 20 * 512);
  EXPECT_EQ(node.client.served().blocks_stored, 16u);
  EXPECT_EQ(node.client.served().blocks_refused, 4u);
  EXPECT_EQ(node.Stats().tiers[TierIndex(TierKind::kDram)].refusal(policy::Refusal::kTenantLimit).count, 4u);
}

TEST(VirtualNode, AnUnknownEvictionOrderIsAnError) {
  const auto node = VirtualNode::Start(Table({Rules("a", 4 * kMiB, 0)}, 4 * kMiB, 0), {.eviction = "random"});
  ASSERT_FALSE(node.ok());
  EXPECT_NE(std::string(node.status().message()).find("random"), std::string::npos) << node.status();
}

bench::TraceRequest Request(double at_s, std::vector<uint64_t> blocks) {
  bench::TraceRequest request;
  request.arrival_s = at_s;
  request.input_tokens = blocks.size() * 512;
  request.blocks = std::move(blocks);
  return request;
}

TEST(TraceSplit, AConversationStaysWithOneTenant) {
  const std::vector<double> shares = {1, 1, 1, 1};
  for (uint64_t head = 1; head < 200; ++head) {
    const size_t owner = OwnerOf(Request(0, {0, head}), shares);
    EXPECT_EQ(OwnerOf(Request(9, {0, head, head + 1000, head + 1001}), shares), owner);
  }
}

TEST(TraceSplit, FollowsTheShares) {
  std::vector<size_t> count(4);
  for (uint64_t head = 1; head <= 10'000; ++head) ++count[OwnerOf(Request(0, {0, head}), {40, 30, 0, 30})];
  EXPECT_NEAR(static_cast<double>(count[0]), 4000, 50);
  EXPECT_NEAR(static_cast<double>(count[1]), 3000, 50);
  EXPECT_EQ(count[2], 0u);
  EXPECT_NEAR(static_cast<double>(count[3]), 3000, 50);
}

// Two tenants never see each other's blocks, even of the same trace ids.
TEST(Simulation, TenantsHaveBlocksOfTheirOwn) {
  bench::Trace trace{"t", {Request(0, {0, 1}), Request(1, {0, 1}), Request(2, {0, 1})}};
  SimulationInput input;
  input.policy = Table({Rules("a", 8 * kMiB, 0), Rules("b", 8 * kMiB, 0)}, 16 * kMiB, 0);
  input.block_kib = 256;
  input.trace = &trace;
  input.owners = {0, 1, 1};
  const auto outcomes = Simulate(input);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  EXPECT_EQ((*outcomes)[0].served.blocks_hit(), 0u);
  EXPECT_EQ((*outcomes)[1].served.requests, 2u);
  EXPECT_EQ((*outcomes)[1].served.blocks_hit(), 2u);
  EXPECT_EQ((*outcomes)[1].stats.name, "b");
}

// The reference: an LRU over leaves of 1,000 entries finds .045413 of the tokens of the conversation trace.
TEST(Simulation, AgreesWithTheReferenceOfTheTrace) {
  const auto trace =
      bench::LoadTrace(std::string(KVARTAL_SOURCE_DIR) + "/tests/data/traces/mooncake_conversation_trace.jsonl.gz", 0);
  ASSERT_TRUE(trace.ok()) << trace.status();
  policy::TenantRules rules = Rules("a", 64 * kMiB, 0);
  rules.max_entries = 1000;
  SimulationInput input;
  input.policy = Table({rules}, 64 * kMiB, 0);
  input.block_kib = 4;
  input.trace = &*trace;
  input.owners.assign(trace->requests.size(), 0);
  input.keep_max = 1000;
  const auto outcomes = Simulate(input);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  const engine::TenantStats& stats = (*outcomes)[0].stats;
  EXPECT_NEAR(static_cast<double>(stats.tokens_hit) / static_cast<double>(stats.tokens_asked), 0.045413, 5e-7);
  EXPECT_EQ((*outcomes)[0].served.tokens_hit(), stats.tokens_hit) << "client and engine count alike";
}

}  // namespace
}  // namespace kvartal::trace_engine
