// libkvartal with the token of a pod, against the real attach server on a loop thread of its own: the token is renewed
// from its file while the program works. Time is real here, so tokens live for seconds.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "client/libkvartal/kvartal.hpp"
#include "client/libkvartal/token_file.h"
#include "daemon/attach/attach_server.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/limits.h"
#include "daemon/device/host_memory.h"
#include "daemon/engine/cache_engine.h"
#include "daemon/tier/dram_tier.h"
#include "tests/support/daemon_process.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/token_issuer.h"

namespace kvartal::client {
namespace {

using testing::WriteFile;

constexpr uint32_t kPatient = 20'000;
constexpr uint32_t kShardBytes = 64 * kKiB;
constexpr int64_t kTokenMs = 3000;
constexpr auto kRewriteEvery = std::chrono::milliseconds(1000);

class ClientTokenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    loop_ = *EventLoop::Create(&clock_);
    memory_ = device::NewMemfdMemory(loop_.get());
    dram_ = std::make_unique<tier::DramTier>(memory_.get(), 64 * kMiB);
    policy::NodeCapacity capacity;
    capacity.bytes[TierIndex(TierKind::kDram)] = 64 * kMiB;
    policy::TenantRules rules;
    rules.name = rules.uid = "team/red";
    rules.tier(TierKind::kDram).limit_bytes = 64 * kMiB;
    rules.ttl_ms = {};
    rules.service_accounts = {"team/vllm"};
    engine_ = std::make_unique<engine::CacheEngine>(engine::EngineOptions{},
                                                    engine::EngineDevices{.clock = &clock_, .dram = dram_.get()},
                                                    policy::PolicyTable::FromRules({rules}, capacity));
    attach::AttachOptions options;
    options.attest_uid = false;
    options.shared_socket = dir_.File("attach.sock");
    options.tokens = {"kvartal", "node-1", false};
    server_ = std::make_unique<attach::AttachServer>(options, loop_.get(), &clock_, engine_.get());
    ASSERT_TRUE(server_->Start().ok());
    server_->SetTokenKeys(testing::kTestIssuer, *token::KeySet::Parse(issuer_.Jwks()));
    Tick();
    thread_ = std::thread([this] { loop_->Run(); });
  }
  void TearDown() override {
    loop_->Stop();
    thread_.join();
    server_.reset();
    engine_.reset();
  }
  void Tick() {
    engine_->Tick();
    server_->Tick();
    loop_->RunAfterMs(kTickMs, [this] { Tick(); });
  }
  attach::AttachStats Stats() {
    std::promise<attach::AttachStats> answer;
    loop_->Post([&] { answer.set_value(server_->stats()); });
    return answer.get_future().get();
  }

  std::string token_path() const { return dir_.File("token"); }
  // As kubelet does it: a new file takes the old one's place.
  void WriteToken(const std::string& pod = "chat-0") {
    const std::string part = dir_.File("token.part");
    WriteFile(part, issuer_.Token("team", "vllm", pod, clock_.WallMs() + kTokenMs) + "\n");
    ASSERT_EQ(::rename(part.c_str(), token_path().c_str()), 0);
  }
  kv_status AttachTo(Client* client, const std::string& path) {
    return client->Attach(dir_.File("attach.sock"), "test", nullptr, kPatient, path);
  }

  SystemClock clock_;
  const testing::ScratchDir dir_;
  testing::TokenIssuer issuer_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<device::HostMemory> memory_;
  std::unique_ptr<tier::DramTier> dram_;
  std::unique_ptr<engine::CacheEngine> engine_;
  std::unique_ptr<attach::AttachServer> server_;
  std::thread thread_;
};

TEST_F(ClientTokenTest, TheLibraryRenewsItsTokenWhileTheProgramFindsEverything) {
  WriteToken();
  Client client;
  ASSERT_EQ(AttachTo(&client, token_path()), KV_OK) << client.error();
  EXPECT_EQ(client.tenant(), "team/red");
  const Client::Opened opened = client.OpenNamespace(Digest{7}, {16, 1, kShardBytes}, kPatient);
  const std::vector<Key> keys = {Key{1}, Key{2}, Key{3}};
  std::vector<kv_slot> slots(keys.size());
  ASSERT_EQ(client.Reserve({.ns = opened.ns, .keys = keys}, slots, kPatient), KV_OK);
  ASSERT_EQ(client.Commit(slots, 0, kPatient).count, keys.size());

  const auto start = std::chrono::steady_clock::now();
  auto written = start;
  uint64_t lookups = 0;
  while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(2 * kTokenMs + 1000)) {
    if (std::chrono::steady_clock::now() - written >= kRewriteEvery) {
      WriteToken();
      written += kRewriteEvery;
    }
    const Client::Found found = client.Lookup(opened.ns, keys, 0, kPatient);
    ASSERT_EQ(found.status, KV_OK) << client.error();
    ASSERT_EQ(found.matched, keys.size()) << "after " << lookups << " lookups";
    ++lookups;
  }
  const attach::AttachStats stats = Stats();
  EXPECT_GE(stats.token_renewals, 2u);
  EXPECT_EQ(stats.accepted, 1u) << "one session all the while";
  EXPECT_GT(lookups, 100u);
}

TEST_F(ClientTokenTest, AnIdleClientRenewsToo) {
  WriteToken();
  Client client;
  ASSERT_EQ(AttachTo(&client, token_path()), KV_OK) << client.error();
  for (int i = 0; i < 600 && Stats().token_renewals < 3; ++i) {
    if (i % 100 == 0) WriteToken();
    ::usleep(10'000);
  }
  EXPECT_GE(Stats().token_renewals, 3u);
  EXPECT_EQ(Stats().accepted, 1u);
}

TEST_F(ClientTokenTest, AfterItsTokenHasExpiredAClientComesBackWithTheNextOne) {
  WriteToken();
  Client client;
  ASSERT_EQ(AttachTo(&client, token_path()), KV_OK) << client.error();
  const Client::Opened opened = client.OpenNamespace(Digest{7}, {16, 1, kShardBytes}, kPatient);
  const auto until = [&](kv_status wanted) {
    for (int i = 0; i < 20'000; ++i) {
      if (client.Lookup(opened.ns, {{Key{1}}}, 0, kPatient).status == wanted) return true;
      ::usleep(500);
    }
    return false;
  };
  EXPECT_TRUE(until(KV_DENIED)) << "the file still holds the token that has expired";
  EXPECT_NE(client.error().find("expired"), std::string::npos) << client.error();
  WriteToken();
  EXPECT_TRUE(until(KV_OK)) << client.error();
}

TEST_F(ClientTokenTest, ATokenFileThatIsNotThereYetIsWaitedFor) {
  Client client;
  EXPECT_EQ(AttachTo(&client, token_path()), KV_UNAVAILABLE);
  EXPECT_NE(client.error().find(token_path()), std::string::npos) << client.error();
  ASSERT_TRUE(client) << "a client all the same";
  WriteToken();
  kv_status status = KV_UNAVAILABLE;
  for (int i = 0; i < 20'000 && status != KV_OK; ++i) {
    status = client.OpenNamespace(Digest{7}, {16, 1, kShardBytes}, kPatient).status;
    ::usleep(500);
  }
  EXPECT_EQ(status, KV_OK) << client.error();
}

TEST_F(ClientTokenTest, TheEnvironmentNamesTheFileWhereTheProgramDoesNot) {
  WriteToken();
  ASSERT_EQ(::setenv("KVARTAL_TOKEN_FILE", token_path().c_str(), 1), 0);
  Client by_environment, by_option;
  EXPECT_EQ(AttachTo(&by_environment, ""), KV_OK) << by_environment.error();
  EXPECT_EQ(AttachTo(&by_option, dir_.File("elsewhere")), KV_UNAVAILABLE) << "the option comes first";
  ::unsetenv("KVARTAL_TOKEN_FILE");
}

TEST(TokenFileTest, ReadsATokenAndNothingElse) {
  const testing::ScratchDir dir;
  std::string token, error;
  WriteFile(dir.File("token"), "abc.def.ghi \r\n\n");
  EXPECT_TRUE(ReadTokenFile(dir.File("token"), &token, &error));
  EXPECT_EQ(token, "abc.def.ghi");
  WriteFile(dir.File("empty"), "\n");
  EXPECT_FALSE(ReadTokenFile(dir.File("empty"), &token, &error));
  WriteFile(dir.File("long"), std::string(kTokenBytesMax + 1, 'a'));
  EXPECT_FALSE(ReadTokenFile(dir.File("long"), &token, &error));
  EXPECT_NE(error.find("longer"), std::string::npos) << error;
  WriteFile(dir.File("longest"), std::string(kTokenBytesMax, 'a'));
  EXPECT_TRUE(ReadTokenFile(dir.File("longest"), &token, &error));
  EXPECT_FALSE(ReadTokenFile(dir.File("none"), &token, &error));
  EXPECT_FALSE(ReadTokenFile(dir.path(), &token, &error)) << "a folder";
}

}  // namespace
}  // namespace kvartal::client
