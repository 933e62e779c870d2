#include "operator/reconcile/object_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvartal::reconcile {
namespace {

using ::testing::HasSubstr;

nlohmann::json Policy(const std::string& spec) {
  return nlohmann::json::parse(R"({"apiVersion":"kvartal.dev/v1alpha1","kind":"TenantKVPolicy",
    "metadata":{"name":"a","namespace":"red","uid":"0b5e2a7e-1c1d-4d0e-9f39-7d2b7c1e6f10",
      "creationTimestamp":"2026-01-01T00:00:00Z","generation":3,"aFieldOfTheFuture":{"x":1}},
    "status":{"anything":["goes"]},"spec":)" +
                               spec + "}");
}

TEST(ObjectReaderTest, APolicyIsReadAsFromAFile) {
  const PolicyObject object = ReadPolicy(Policy(R"({"subjects":[{"serviceAccountName":"vllm"}],"slaTier":"Premium",
    "weight":300,"pools":[{"poolRef":"h200","perNode":{"dram":{"guarantee":"1Gi","limit":"25%"},
    "nvme":{"limit":4096}}}],"isolation":{"dedicatedMover":true,"gpuGroup":""}})"));
  ASSERT_TRUE(object.wanted.has_value()) << object.why_unreadable;
  EXPECT_EQ(object.ns, "red");
  EXPECT_EQ(object.created, "2026-01-01T00:00:00Z");
  EXPECT_EQ(object.wanted->uid, "0b5e2a7e-1c1d-4d0e-9f39-7d2b7c1e6f10");
  EXPECT_EQ(object.wanted->weight, 300);
  EXPECT_TRUE(object.wanted->dedicated_mover);
  EXPECT_EQ(object.wanted->pools[0].dram.guarantee->bytes, 1u << 30);
  EXPECT_EQ(object.wanted->pools[0].dram.limit->percent, 25u);
  EXPECT_EQ(object.wanted->pools[0].nvme.limit->bytes, 4096u);
}

// A newer definition may have been installed: what we do not know we must not pretend to enforce.
TEST(ObjectReaderTest, AFieldOfSpecThatWeDoNotKnowMakesItUnreadable) {
  const PolicyObject object = ReadPolicy(Policy(R"({"subjects":[],"quarantine":true})"));
  EXPECT_FALSE(object.wanted.has_value());
  EXPECT_THAT(object.why_unreadable, HasSubstr("quarantine"));
  EXPECT_THAT(object.why_unreadable, HasSubstr("TenantKVPolicy a"));
  EXPECT_EQ(object.uid, "0b5e2a7e-1c1d-4d0e-9f39-7d2b7c1e6f10");  // and it is still told from others of its name
}

TEST(ObjectReaderTest, AnyObjectIsSafe) {
  for (const char* text : {"null", "[]", "7", "{}", R"({"metadata":7,"spec":[]})", R"({"metadata":{"name":{}}})"}) {
    const nlohmann::json object = nlohmann::json::parse(text);
    EXPECT_FALSE(ReadPolicy(object).wanted.has_value()) << text;
    EXPECT_NE(ReadPool(object).why_unreadable, "") << text;
    EXPECT_EQ(ReadNode(object).name, "") << text;
    EXPECT_TRUE(ReadNamespace(object).labels.empty()) << text;
  }
}

TEST(ObjectReaderTest, PoolsNodesAndNamespaces) {
  const PoolObject pool = ReadPool(nlohmann::json::parse(R"({"apiVersion":"kvartal.dev/v1alpha1","kind":"KVNodePool",
    "metadata":{"name":"h200","creationTimestamp":"2026-01-01T00:00:00Z"},
    "spec":{"nodeSelector":{"gpu":"h200"},"capacity":{"dram":"512Gi","hbmPerGpu":0}}})"));
  ASSERT_EQ(pool.why_unreadable, "");
  EXPECT_EQ(pool.pool.node_labels.at("gpu"), "h200");
  EXPECT_EQ(pool.pool.dram.bytes, uint64_t{512} << 30);
  const nlohmann::json object =
      nlohmann::json::parse(R"({"metadata":{"name":"n","uid":"u","labels":{"a":"b","broken":7}}})");
  EXPECT_EQ(ReadNode(object).labels, (Labels{{"a", "b"}}));
  EXPECT_EQ(ReadNamespace(object).uid, "u");
}

// Of a pool that a newer definition made unreadable, which nodes are its own is still known.
TEST(ObjectReaderTest, APoolThatCannotBeReadKeepsItsNameItsAgeAndItsSelector) {
  const PoolObject pool = ReadPool(nlohmann::json::parse(R"({"apiVersion":"kvartal.dev/v1alpha1","kind":"KVNodePool",
    "metadata":{"name":"h200","creationTimestamp":"2026-01-01T00:00:00Z"},
    "spec":{"nodeSelector":{"gpu":"h200"},"capacity":{"dram":"512Gi"},"laterField":1}})"));
  EXPECT_THAT(pool.why_unreadable, HasSubstr("laterField"));
  EXPECT_EQ(pool.pool.name, "h200");
  EXPECT_EQ(pool.created, "2026-01-01T00:00:00Z");
  EXPECT_EQ(pool.pool.node_labels, (Labels{{"gpu", "h200"}}));
  EXPECT_FALSE(pool.pool.has_dram);
}

}  // namespace
}  // namespace kvartal::reconcile
