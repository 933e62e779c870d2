#include "tools/kvartal-bench/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/support/scratch_dir.h"

namespace kvartal::bench {
namespace {

const std::string kTraces = std::string(KVARTAL_SOURCE_DIR) + "/tests/data/traces/";

TEST(Trace, ReadsALine) {
  const auto request =
      ParseTraceLine(R"({"timestamp": 1500, "input_length": 1030, "output_length": 5, "hash_ids": [0, 14, 46]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->arrival_s, 1.5);
  EXPECT_EQ(request->input_tokens, 1030u);
  EXPECT_EQ(request->blocks, (std::vector<uint64_t>{0, 14, 46}));
}

TEST(Trace, AnEmptyChainIsARequest) {
  const auto request = ParseTraceLine(R"({"input_length": 3, "hash_ids": []})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->blocks.empty());
}

TEST(Trace, SaysWhatIsMissing) {
  for (const auto& [line, what] :
       {std::pair{R"({"hash_ids": [1]})", "input_length"}, std::pair{R"({"input_length": 3})", "hash_ids"},
        std::pair{R"({"input_length": 3, "hash_ids": 4})", "not a list"},
        std::pair{R"({"input_length": 3, "hash_ids": [1, x]})", "not a number"},
        std::pair{R"({"input_length": 3, "hash_ids": [1, 2)", "not a number"}}) {
    const auto request = ParseTraceLine(line);
    ASSERT_FALSE(request.ok()) << line;
    EXPECT_NE(std::string(request.status().message()).find(what), std::string::npos) << request.status();
  }
}

// The counts of the published traces: a reader that drops or doubles a line would change every hit rate.
TEST(Trace, ReadsThePublishedTracesWhole) {
  const auto conversation = LoadTrace(kTraces + "mooncake_conversation_trace.jsonl.gz", 0);
  ASSERT_TRUE(conversation.ok()) << conversation.status();
  EXPECT_EQ(conversation->requests.size(), 12031u);
  EXPECT_EQ(conversation->BlockAccesses(), 288500u);
  EXPECT_EQ(conversation->UniqueBlocks(), 182790u);
  const auto synthetic = LoadTrace(kTraces + "mooncake_synthetic_trace.jsonl.gz", 0);
  ASSERT_TRUE(synthetic.ok()) << synthetic.status();
  EXPECT_EQ(synthetic->requests.size(), 3993u);
  EXPECT_EQ(synthetic->BlockAccesses(), 121877u);
  EXPECT_EQ(synthetic->UniqueBlocks(), 43924u);
}

TEST(Trace, StopsAfterTheAskedNumberOfRequests) {
  const auto trace = LoadTrace(kTraces + "mooncake_synthetic_trace.jsonl.gz", 10);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->requests.size(), 10u);
}

TEST(Trace, NamesFileAndLineOfABadOne) {
  const kvartal::testing::ScratchDir scratch;
  const std::string path = scratch.File("bad_trace.jsonl");
  std::ofstream(path) << "{\"input_length\": 1, \"hash_ids\": [0]}\n\n{\"input_length\": 1}\n";
  const auto trace = LoadTrace(path, 0);
  ASSERT_FALSE(trace.ok());
  EXPECT_NE(std::string(trace.status().message()).find("bad_trace.jsonl:3"), std::string::npos) << trace.status();
}

TEST(Trace, DamagedGzipIsAnErrorNotAShortTrace) {
  std::ifstream in(kTraces + "mooncake_synthetic_trace.jsonl.gz", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  ASSERT_GT(bytes.size(), 100000u);
  bytes[50000] = static_cast<char>(~bytes[50000]);
  const kvartal::testing::ScratchDir scratch;
  const std::string path = scratch.File("damaged.jsonl.gz");
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_FALSE(LoadTrace(path, 0).ok());
}

TEST(Trace, AMissingFileIsNamed) {
  const auto trace = LoadTrace("/nowhere/trace.jsonl", 0);
  EXPECT_TRUE(absl::IsNotFound(trace.status())) << trace.status();
}

}  // namespace
}  // namespace kvartal::bench
