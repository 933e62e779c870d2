// kvartalctl drop against a real kvartald with tenants that are at work: what is erased, for whom, and for how long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "client/libkvartal/kvartal.hpp"
#include "daemon/base/units.h"
#include "tests/support/daemon_process.h"
#include "tests/support/stopped_threads.h"

namespace kvartal::testing {
namespace {

using client::Client;
using client::Digest;
using client::Key;

constexpr uint32_t kPatient = 20'000;
constexpr uint32_t kBlocks = 32;
constexpr uint32_t kShardBytes = 64 * kKiB;
constexpr kv_layout kLayout = {16, 1, kShardBytes};

std::vector<Key> Chain(uint32_t count, uint8_t salt) {
  std::vector<Key> keys(count);
  for (uint32_t i = 0; i < count; ++i) {
    keys[i].fill(salt);
    std::memcpy(keys[i].data(), &i, sizeof(i));
  }
  return keys;
}

class DaemonDropTest : public ::testing::Test {
 protected:
  // A client of one tenant, attached, with its namespace.
  struct Tenant {
    Client client;
    kv_namespace ns = 0;
  };

  void SetUp() override { ASSERT_TRUE(daemon_.Start().ok()) << daemon_.log(); }

  static DaemonOptions TwoTenants() {
    DaemonOptions options;
    options.nvme_size = "64Mi";
    options.nvme_io = "pool";
    options.more_config = "auditLog: audit.jsonl\n";
    options.doors = {"red", "blue"};
    options.manifests =
        TenantManifest("red", "socket: red", "16Mi", "32Mi") + TenantManifest("blue", "socket: blue", "16Mi", "32Mi");
    return options;
  }
  Tenant Join(const std::string& door) {
    Tenant tenant;
    EXPECT_EQ(tenant.client.Attach(daemon_.door(door), "test", nullptr, kPatient), KV_OK) << tenant.client.error();
    const Client::Opened opened = tenant.client.OpenNamespace(Digest{7}, kLayout, kPatient);
    EXPECT_EQ(opened.status, KV_OK) << tenant.client.error();
    tenant.ns = opened.ns;
    return tenant;
  }
  // Stored and durable: in DRAM and on NVMe.
  static void Store(Tenant& tenant, const std::vector<Key>& keys, int fill) {
    std::vector<kv_slot> slots(keys.size());
    ASSERT_EQ(tenant.client.Reserve({.ns = tenant.ns, .keys = keys}, slots, kPatient), KV_OK) << tenant.client.error();
    for (const kv_slot& slot : slots) {
      ASSERT_EQ(slot.outcome, KV_GRANTED);
      std::memset(slot.data, fill, kShardBytes);
    }
    ASSERT_EQ(tenant.client.Commit(slots, 0, kPatient).count, keys.size()) << tenant.client.error();
    uint64_t durable = 0;
    while (durable < keys.size()) {
      const Client::Polled polled = tenant.client.Poll(kPatient);
      ASSERT_EQ(polled.status, KV_OK) << tenant.client.error();
      ASSERT_GT(polled.durable, durable) << "nothing in time";
      durable = polled.durable;
    }
  }
  static void ExpectStored(Tenant& tenant, const std::vector<Key>& keys, int fill) {
    Client::Found found = tenant.client.Lookup(tenant.ns, keys, 0, kPatient);
    ASSERT_EQ(found.matched, keys.size()) << tenant.client.error();
    ASSERT_EQ(found.lease.Load(0, found.matched, kPatient).count, keys.size()) << tenant.client.error();
    const std::vector<uint8_t> expected(kShardBytes, static_cast<uint8_t>(fill));
    for (const kv_block& block : found.lease.blocks()) {
      EXPECT_EQ(std::memcmp(block.data, expected.data(), kShardBytes), 0);
    }
  }
  uint32_t Matched(Tenant& tenant, const std::vector<Key>& keys) {
    const Client::Found found = tenant.client.Lookup(tenant.ns, keys, 0, kPatient);
    EXPECT_EQ(found.status, KV_OK) << tenant.client.error();
    return found.matched;
  }
  nlohmann::json Ask(const std::vector<std::string>& arguments) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--output", "json"});
    const CommandResult result = daemon_.Ctl(all);
    EXPECT_EQ(result.exit_code, 0) << result.err << daemon_.log();
    return nlohmann::json::parse(result.out, nullptr, false);
  }

  // The last event of that name in the audit log; null when there is none.
  nlohmann::json LastOf(const std::string& event) {
    nlohmann::json last;
    std::istringstream lines(ReadFile(daemon_.folder() + "/audit.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
      if (!parsed.is_discarded() && parsed["event"] == event) last = std::move(parsed);
    }
    return last;
  }
  static bool Await(const std::function<bool()>& reached) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatient);
    while (!reached()) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  DaemonProcess daemon_{TwoTenants()};
};

TEST_F(DaemonDropTest, ADropThatKill9CutsShortIsFinishedByTheNextDaemon) {
  const std::vector<Key> keys = Chain(kBlocks, 1);
  int cut_short = 0;
  for (int round = 0; round < 5; ++round) {
    const int fill = 'A' + round;
    const std::string page(4096, static_cast<char>(fill));
    Tenant red = Join("red"), blue = Join("blue");
    if (round == 0) Store(blue, keys, 'b');
    Store(red, keys, fill);
    const auto asked = LastOf("drop"), receipt = LastOf("deletion");
    std::thread drop([this] { (void)daemon_.Ctl({"drop", "--tenant", "test/red", "--yes"}); });
    EXPECT_TRUE(Await([&] { return LastOf("drop") != asked; }));
    daemon_.Kill();
    drop.join();
    const bool had_ended = LastOf("deletion") != receipt;

    ASSERT_TRUE(daemon_.Start().ok()) << daemon_.log();
    ASSERT_TRUE(daemon_.WaitForLog("nvme has been read back")) << daemon_.log();
    Tenant late_red = Join("red"), late_blue = Join("blue");
    const uint32_t matched = Matched(late_red, keys);
    ExpectStored(late_blue, keys, 'b');
    if (matched == 0) {
      cut_short += had_ended ? 0 : 1;
      EXPECT_TRUE(Await([&] { return LastOf("deletion") != receipt; })) << daemon_.log();
      EXPECT_EQ(LastOf("deletion")["tenant"], "test/red");
      EXPECT_EQ(LastOf("deletion")["outcome"], "erased");
      EXPECT_EQ(ReadFile(daemon_.nvme_path()).find(page), std::string::npos) << "certified, and to be read";
    } else {
      EXPECT_EQ(matched, kBlocks) << "asked for and not begun: nothing of it was promised";
      EXPECT_EQ(LastOf("deletion"), receipt);
      EXPECT_EQ(daemon_.Ctl({"drop", "--tenant", "test/red", "--yes"}).exit_code, 0);
    }
  }
  RecordProperty("cut_short", cut_short);
}

TEST_F(DaemonDropTest, ErasesATenantAtWorkAndNobodyElse) {
  const std::vector<Key> keys = Chain(kBlocks, 1), unfinished_keys = Chain(4, 2);
  Tenant red = Join("red"), blue = Join("blue");
  Store(red, keys, 'r');
  Store(blue, keys, 'b');
  Client::Found held = red.client.Lookup(red.ns, keys, 0, kPatient);
  ASSERT_EQ(held.matched, kBlocks);
  std::vector<kv_slot> unfinished(unfinished_keys.size());
  ASSERT_EQ(red.client.Reserve({.ns = red.ns, .keys = unfinished_keys}, unfinished, kPatient), KV_OK);

  const nlohmann::json dropped = Ask({"drop", "--tenant", "test/red", "--yes"});
  EXPECT_GE(dropped["bytes"].get<uint64_t>(), uint64_t{2} * kBlocks * kShardBytes) << "of DRAM and of NVMe";
  const nlohmann::json sessions = Ask({"sessions"})["sessions"];
  ASSERT_EQ(sessions.size(), 1u) << sessions;
  EXPECT_EQ(sessions[0]["tenant"], "test/blue");
  EXPECT_EQ(red.client.Commit(unfinished, 0, kPatient).count, 0u) << "it ended with its session";
  held.lease.Release();
  ExpectStored(blue, keys, 'b');

  // It may come back, and finds nothing of what it was.
  Tenant again = Join("red");
  EXPECT_EQ(Matched(again, keys), 0u);
  EXPECT_EQ(Matched(again, unfinished_keys), 0u);

  daemon_.Kill();
  ASSERT_TRUE(daemon_.Start().ok()) << daemon_.log();
  ASSERT_TRUE(daemon_.WaitForLog("nvme has been read back")) << daemon_.log();
  Tenant late_red = Join("red"), late_blue = Join("blue");
  EXPECT_EQ(Matched(late_red, keys), 0u);
  ExpectStored(late_blue, keys, 'b');
  Store(late_red, keys, 'n');
  ExpectStored(late_red, keys, 'n');
  EXPECT_EQ(daemon_.Ctl({"doctor"}).exit_code, 0);
}

// What is being erased is owed: a daemon that is told to end does not wait for the disk, and the next one erases it.
TEST_F(DaemonDropTest, AnErasureThatHangsDoesNotHoldUpTheEndAndIsFinishedByTheNextDaemon) {
  Tenant red = Join("red");
  Store(red, Chain(kBlocks, 1), 'r');
  {
    const StoppedThreads disk(daemon_.pid(), "disk");
    if (!disk.stopped()) GTEST_SKIP() << "this system lets nobody stop a thread";
    std::thread drop([this] { EXPECT_NE(daemon_.Ctl({"drop", "--tenant", "test/red", "--yes"}).exit_code, 0); });
    EXPECT_TRUE(Await([&] { return Ask({"status"})["disks"][0]["queued_bytes"] != 0; })) << "nothing is being erased";
    daemon_.Signal(SIGTERM);
    drop.join();
    ASSERT_TRUE(daemon_.WaitForLog("going down without")) << daemon_.log();
    EXPECT_THAT(daemon_.log(), ::testing::HasSubstr("the disk " + daemon_.nvme_path()));
  }
  const ExitState state = daemon_.WaitForEnd();
  EXPECT_TRUE(state.exited);
  EXPECT_EQ(state.code, 0) << daemon_.log();
  EXPECT_EQ(LastOf("deletion"), nullptr);

  ASSERT_TRUE(daemon_.Start().ok()) << daemon_.log();
  EXPECT_TRUE(Await([&] { return LastOf("deletion")["outcome"] == "erased"; })) << daemon_.log();
  EXPECT_EQ(LastOf("deletion")["tenant"], "test/red");
}

}  // namespace
}  // namespace kvartal::testing
