// A limit that is lowered below what a tenant holds, while it holds it: told, drained, and told again.
#include <cstring>

#include "tests/kube/pod_fixture.h"

namespace kvartal::testing {
namespace {

constexpr uint64_t kMiBytes = 1 << 20;
constexpr uint32_t kBlockBytes = 256 << 10;
constexpr size_t kBlocks = 96;  // 24 MiB of the 32 it may have

class LoweredLimitTest : public PodFixture {
 protected:
  uint64_t Held() const {
    const nlohmann::json all = nlohmann::json::parse(daemons_[0]->Ctl({"tenants", "--output", "json"}).out);
    for (const nlohmann::json& tenant : all["tenants"]) {
      for (const nlohmann::json& tier : tenant["tiers"]) {
        if (tenant["name"] == "red/a" && tier["name"] == "dram") return tier["charged_bytes"].get<uint64_t>();
      }
    }
    return 0;
  }
};

TEST_F(LoweredLimitTest, UnderLoadItIsSaidToBeAboveDrainsAsLeasesEndAndIsWithinAgain) {
  const std::string token = MakePod("chat-0");
  client::Client client;
  ASSERT_TRUE(session_->Wait([&] { return AttachBy(token, &client) == KV_OK; })) << daemons_[0]->log();
  const client::Client::Opened opened = client.OpenNamespace(client::Digest{7}, {16, 1, kBlockBytes}, kPatient);
  ASSERT_EQ(opened.status, KV_OK) << client.error();
  std::vector<client::Key> keys(kBlocks);
  for (uint64_t i = 0; i < kBlocks; ++i) {
    const uint64_t word = i + 1;
    std::memcpy(keys[i].data(), &word, sizeof(word));
  }
  std::vector<kv_slot> slots(kBlocks);
  ASSERT_EQ(client.Reserve({.ns = opened.ns, .keys = keys}, slots, kPatient), KV_OK) << client.error();
  ASSERT_EQ(client.Commit(slots, 0, kPatient).count, kBlocks) << client.error();
  client::Client::Found found = client.Lookup(opened.ns, keys, 0, kPatient);
  ASSERT_EQ(found.matched, kBlocks) << "and a lease on each";
  ASSERT_TRUE(Becomes("a", "WithinQuota", "True/WithinLimits")) << Get("a").dump(1);

  Apply("a", "limit: 8Mi", "vllm");
  const auto told = [&](const std::string& what) {
    return session_->Wait([&] {
      EXPECT_EQ(client.Renew(kPatient), KV_OK) << client.error();
      return Told(Get("a"), "WithinQuota") == what;
    });
  };
  ASSERT_TRUE(told("False/AboveLimit")) << Get("a").dump(1);
  EXPECT_EQ(LimitOn(*daemons_[0], "a"), static_cast<int64_t>(8 * kMiBytes)) << "the limit itself is in force at once";
  EXPECT_GT(Held(), 8 * kMiBytes) << "what is being read stays where it is";
  EXPECT_EQ(Told(Get("a"), "Programmed"), "True/Programmed");
  const nlohmann::json object = Get("a");
  const nlohmann::json* quota = nullptr;
  for (const nlohmann::json& condition : object["status"]["conditions"]) {
    if (condition["type"] == "WithinQuota") quota = &condition;
  }
  ASSERT_NE(quota, nullptr);
  EXPECT_THAT((*quota)["message"].get<std::string>(), ::testing::HasSubstr("n0")) << "and says where";

  found.lease.Release();
  EXPECT_TRUE(session_->Wait([&] { return Held() <= 8 * kMiBytes; })) << Held();
  EXPECT_TRUE(told("True/WithinLimits")) << Get("a").dump(1);
}

}  // namespace
}  // namespace kvartal::testing
