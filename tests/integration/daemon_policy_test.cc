// A real kvartald whose policy folder changes under it, what it explains of a tenant, and what its audit log keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "client/libkvartal/kvartal.hpp"
#include "daemon/base/units.h"
#include "tests/support/daemon_process.h"

namespace kvartal::testing {
namespace {

using client::Client;
using client::Digest;
using client::Key;
using ::testing::HasSubstr;

constexpr uint32_t kPatient = 20'000;

class DaemonPolicyTest : public ::testing::Test {
 protected:
  static DaemonOptions Options() {
    DaemonOptions options;
    options.doors = {"red", "blue"};
    options.manifests = TenantManifest("red", "socket: red", "16Mi");
    options.more_config = "auditLog: audit.jsonl\n";
    return options;
  }
  void SetUp() override { ASSERT_TRUE(daemon_.Start().ok()) << daemon_.log(); }

  nlohmann::json Status() {
    return nlohmann::json::parse(daemon_.Ctl({"status", "--output", "json"}).out, nullptr, false);
  }
  uint64_t DramLimit() {
    const CommandResult tenants = daemon_.Ctl({"tenants", "--output", "json"});
    return nlohmann::json::parse(tenants.out)["tenants"][0]["tiers"][1]["limit_bytes"];
  }
  size_t LogLines(const std::string& text) {
    const std::string log = daemon_.log();
    size_t count = 0;
    for (size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++count;
    return count;
  }
  std::vector<nlohmann::json> Audit(const std::string& name = "audit.jsonl") {
    std::vector<nlohmann::json> events;
    std::istringstream lines(ReadFile(daemon_.folder() + "/" + name));
    for (std::string line; std::getline(lines, line);) events.push_back(nlohmann::json::parse(line, nullptr, false));
    return events;
  }
  // The last event of that name; null when there is none.
  nlohmann::json LastOf(const std::string& event, const std::string& file = "audit.jsonl") {
    nlohmann::json last;
    for (const nlohmann::json& one : Audit(file)) {
      if (one["event"] == event) last = one;
    }
    return last;
  }
  void Stop() {
    daemon_.Signal(SIGTERM);
    EXPECT_EQ(daemon_.WaitForEnd().code, 0) << daemon_.log();
  }

  DaemonProcess daemon_{Options()};
};

TEST_F(DaemonPolicyTest, AnEditedFileIsInForceWithoutAWord) {
  WriteFile(daemon_.manifest_path(), TenantManifest("red", "socket: red", "8Mi"));
  ASSERT_TRUE(daemon_.WaitForLog("in force")) << daemon_.log();
  EXPECT_EQ(DramLimit(), 8 * kMiB);
}

TEST_F(DaemonPolicyTest, ASwappedConfigMapIsInForceAsAWhole) {
  const std::string folder = daemon_.policy_dir();
  for (const char* limit : {"6Mi", "4Mi"}) {
    std::filesystem::create_directory(folder + "/..of_" + limit);
    WriteFile(folder + "/..of_" + limit + "/tenants.yaml", TenantManifest("red", "socket: red", limit));
  }
  std::filesystem::create_directory_symlink("..of_6Mi", folder + "/..data");
  std::filesystem::create_symlink("..data/tenants.yaml", folder + "/tenants.new");
  std::filesystem::rename(folder + "/tenants.new", daemon_.manifest_path());
  ASSERT_TRUE(daemon_.WaitForLog("in force")) << daemon_.log();
  EXPECT_EQ(DramLimit(), 6 * kMiB);
  std::filesystem::create_directory_symlink("..of_4Mi", folder + "/..next");
  std::filesystem::rename(folder + "/..next", folder + "/..data");
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (DramLimit() != 4 * kMiB && std::chrono::steady_clock::now() < until) {
  }
  EXPECT_EQ(DramLimit(), 4 * kMiB);
}

TEST_F(DaemonPolicyTest, ThatARefusalHasEndedIsInTheAuditLogAtTheSameVersionToo) {
  const std::string version = Status()["policy_version"];
  const std::string good = ReadFile(daemon_.manifest_path());
  WriteFile(daemon_.manifest_path(), TenantManifest("red", "socket: red", "eight"));
  ASSERT_TRUE(daemon_.WaitForLog("refused, version")) << daemon_.log();
  WriteFile(daemon_.manifest_path(), good);
  EXPECT_EQ(daemon_.Ctl({"reload"}).exit_code, 0);
  EXPECT_EQ(Status()["policy_version"], version);
  Stop();
  std::vector<std::string> told;
  for (const nlohmann::json& one : Audit()) {
    const std::string event = one["event"];
    if (!event.starts_with("policy")) continue;
    told.push_back(event);
    EXPECT_EQ(one["version"], version);
  }
  EXPECT_EQ(told, (std::vector<std::string>{"policy", "policy_refused", "policy"}));
}

TEST_F(DaemonPolicyTest, AnInvalidFileIsRefusedWholeAndToldOnce) {
  const std::string version = Status()["policy_version"];
  WriteFile(daemon_.policy_dir() + "/blue.yaml", TenantManifest("blue", "socket: blue", "8Mi"));
  WriteFile(daemon_.manifest_path(), TenantManifest("red", "socket: red", "eight"));
  ASSERT_TRUE(daemon_.WaitForLog("refused, version")) << daemon_.log();
  const nlohmann::json refused = Status();
  EXPECT_EQ(refused["policy_version"], version) << "not even the good half of it";
  EXPECT_THAT(std::string(refused["policy_error"]),
              HasSubstr(daemon_.manifest_path() + ":7:52: spec.pools[0].perNode.dram.limit: 'eight' is not a size"));
  EXPECT_EQ(refused["policy_reload_failures"], 1);
  EXPECT_EQ(DramLimit(), 16 * kMiB);
  EXPECT_THAT(daemon_.Ctl({"status"}).out, HasSubstr("REFUSED"));
  EXPECT_EQ(daemon_.Ctl({"reload"}).exit_code, 1) << "asked for, it is told to who asks, and to nobody else again";
  // A second change is the proof that the polls in between said nothing.
  WriteFile(daemon_.manifest_path(), TenantManifest("red", "socket: red", "12Mi"));
  ASSERT_TRUE(daemon_.WaitForLog("in force; tenants: 2")) << daemon_.log();
  EXPECT_EQ(LogLines("refused, version"), 1u) << daemon_.log();
  EXPECT_EQ(Status()["policy_error"], "");
  EXPECT_EQ(Status()["tenants"], 2);
  Stop();
  EXPECT_THAT(std::string(LastOf("policy_refused")["error"]), HasSubstr("'eight' is not a size"));
  const std::vector<nlohmann::json> events = Audit();
  EXPECT_EQ(
      std::count_if(events.begin(), events.end(), [](const auto& one) { return one["event"] == "policy_refused"; }), 1);
  EXPECT_EQ(LastOf("policy")["tenants"], 2);
}

TEST_F(DaemonPolicyTest, AStandingWarningIsLoggedOnceAndToldToWhoeverReloads) {
  WriteFile(daemon_.manifest_path(), TenantManifest("red", "socket: nowhere", "16Mi"));
  ASSERT_TRUE(daemon_.WaitForLog("no door of this node has the name 'nowhere'")) << daemon_.log();
  EXPECT_THAT(daemon_.Ctl({"reload"}).out, HasSubstr("warning: test/red: spec.subjects: no door of this node"));
  EXPECT_EQ(LogLines("no door of this node"), 1u) << daemon_.log();
}

TEST_F(DaemonPolicyTest, ACapacityThatWaitsForARestartSaysWhereItIsStatedAndWhatDiffers) {
  WriteFile(daemon_.policy_dir() + "/pool.yaml",
            "apiVersion: kvartal.dev/v1alpha1\nkind: KVNodePool\nmetadata: {name: local}\n"
            "spec: {capacity: {dram: 32Mi}}\n");
  ASSERT_TRUE(daemon_.WaitForLog("refused, version")) << daemon_.log();
  EXPECT_THAT(std::string(Status()["policy_error"]),
              HasSubstr(daemon_.policy_dir() + "/pool.yaml:1: KVNodePool local: states another capacity than at the "
                                               "start of the daemon, which is when it is taken: dram 32Mi instead of "
                                               "64Mi; restart kvartald"));
}

TEST_F(DaemonPolicyTest, APolicyAboveItsGrantIsRefused) {
  WriteFile(daemon_.policy_dir() + "/pool.yaml",
            "apiVersion: kvartal.dev/v1alpha1\nkind: KVNodePool\nmetadata: {name: local}\n"
            "spec: {capacity: {dram: 64Mi}, grants: [{maxLimit: {dram: 25%}}]}\n");
  ASSERT_TRUE(daemon_.WaitForLog("in force")) << "16Mi is a quarter: " << daemon_.log();
  WriteFile(daemon_.manifest_path(), TenantManifest("red", "socket: red", "17Mi"));
  ASSERT_TRUE(daemon_.WaitForLog("refused, version")) << daemon_.log();
  EXPECT_THAT(std::string(Status()["policy_error"]), HasSubstr("is above maxLimit.dram 25% (16777216 bytes)"));
}

TEST_F(DaemonPolicyTest, TheAuditLogKeepsWhoCameWhoDidNotAndWhatWasDeleted) {
  Client red;
  ASSERT_EQ(red.Attach(daemon_.door("red"), "test", nullptr, kPatient), KV_OK) << red.error();
  Client blue;  // no policy names its door
  EXPECT_EQ(blue.Attach(daemon_.door("blue"), "test", nullptr, kPatient), KV_DENIED);
  EXPECT_EQ(daemon_.Ctl({"drop", "--tenant", "test/red", "--yes"}).exit_code, 0);
  Stop();
  const std::string path = daemon_.folder() + "/audit.jsonl";
  struct stat info{};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const nlohmann::json attach = LastOf("attach");
  EXPECT_EQ(attach["tenant"], "test/red");
  EXPECT_EQ(attach["pid"], ::getpid());
  EXPECT_EQ(attach["uid"], ::getuid());
  EXPECT_EQ(attach["client"], "test");
  EXPECT_EQ(LastOf("deny")["reason"], "unknown_door");
  EXPECT_EQ(LastOf("drop")["tenant"], "test/red");
  EXPECT_EQ(LastOf("deletion")["outcome"], "erased");
  EXPECT_EQ(LastOf("deletion")["cause"], "removed");
  EXPECT_EQ(LastOf("deletion")["blocks"], 0) << "it had none";
  uint64_t serial = 0;
  for (const nlohmann::json& event : Audit()) EXPECT_EQ(event["serial"], ++serial) << event;
  EXPECT_EQ(Audit().back()["event"], "close");
}

TEST_F(DaemonPolicyTest, WhatATenantLeftThatNoPolicyNamesIsErasedByADropAtOnce) {
  Client red;
  ASSERT_EQ(red.Attach(daemon_.door("red"), "test", nullptr, kPatient), KV_OK) << red.error();
  const Client::Opened opened = red.OpenNamespace(Digest{7}, {16, 1, kMiB}, kPatient);
  ASSERT_EQ(opened.status, KV_OK) << red.error();
  const std::vector<Key> key(1);
  std::vector<kv_slot> slot(1);
  ASSERT_EQ(red.Reserve({.ns = opened.ns, .keys = key}, slot, kPatient), KV_OK) << red.error();
  ASSERT_EQ(red.Commit(slot, 0, kPatient).count, 1u) << red.error();
  std::filesystem::remove(daemon_.manifest_path());
  ASSERT_TRUE(daemon_.WaitForLog("nobody may attach")) << daemon_.log();
  const CommandResult dropped = daemon_.Ctl({"drop", "--tenant", "test/red", "--yes"});
  EXPECT_EQ(dropped.exit_code, 0) << dropped.err;
  EXPECT_THAT(daemon_.Ctl({"drop", "--tenant", "test/green", "--yes"}).err, HasSubstr("no tenant test/green"));
  Stop();
  EXPECT_EQ(LastOf("deletion")["outcome"], "erased");
  EXPECT_EQ(LastOf("deletion")["blocks"], 1);
}

TEST_F(DaemonPolicyTest, ALogRotationIsFollowedOnSighup) {
  const std::string path = daemon_.folder() + "/audit.jsonl";
  std::filesystem::rename(path, path + ".1");
  daemon_.Signal(SIGHUP);
  ASSERT_TRUE(daemon_.WaitForLog("in force")) << daemon_.log();
  Stop();
  EXPECT_EQ(Audit("audit.jsonl.1").front()["event"], "open");
  EXPECT_EQ(Audit().front()["event"], "reopen");
  EXPECT_EQ(Audit().back()["event"], "close");
}

// Stores one block more than the tenant may hold, so that one of its own goes and the reason is told.
TEST_F(DaemonPolicyTest, ExplainSaysWhatATenantHoldsAndWhyItLost) {
  constexpr uint32_t kShardBytes = kMiB;
  constexpr kv_layout kLayout = {16, 1, kShardBytes};
  Client red;
  ASSERT_EQ(red.Attach(daemon_.door("red"), "test", nullptr, kPatient), KV_OK) << red.error();
  const Client::Opened opened = red.OpenNamespace(Digest{7}, kLayout, kPatient);
  ASSERT_EQ(opened.status, KV_OK) << red.error();
  for (uint32_t i = 0; i < 20; ++i) {
    std::vector<Key> key(1);
    std::memcpy(key[0].data(), &i, sizeof(i));
    std::vector<kv_slot> slot(1);
    ASSERT_EQ(red.Reserve({.ns = opened.ns, .keys = key}, slot, kPatient), KV_OK) << red.error();
    ASSERT_EQ(slot[0].outcome, KV_GRANTED);
    ASSERT_EQ(red.Commit(slot, 0, kPatient).count, 1u) << red.error();
  }
  const CommandResult json = daemon_.Ctl({"explain", "--tenant", "test/red", "--output", "json"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const nlohmann::json reply = nlohmann::json::parse(json.out);
  EXPECT_EQ(reply["sla_tier"], "Standard");
  const nlohmann::json dram = reply["tiers"][1];
  EXPECT_EQ(dram["limit_bytes"], 16 * kMiB);
  EXPECT_LE(dram["charged_bytes"].get<uint64_t>(), 16 * kMiB);
  const auto own = std::find_if(reply["decisions"].begin(), reply["decisions"].end(),
                                [](const nlohmann::json& one) { return one["reason"] == "own_space"; });
  ASSERT_NE(own, reply["decisions"].end()) << json.out;
  EXPECT_GE((*own)["count"].get<uint64_t>(), 4u);
  EXPECT_EQ((*own)["bytes"].get<uint64_t>(), (*own)["count"].get<uint64_t>() * kShardBytes);
  const CommandResult words = daemon_.Ctl({"explain", "--tenant", "test/red"});
  EXPECT_THAT(words.out, HasSubstr("why:   the tenant's own new blocks wanted the space"));
  EXPECT_EQ(daemon_.Ctl({"explain", "--tenant", "test/green"}).exit_code, 1);
  EXPECT_THAT(daemon_.Ctl({"explain", "--tenant", "test/green"}).err, HasSubstr("there are: test/red"));
}

TEST(DaemonAudit, WithoutItsAuditLogANodeDoesNotServe) {
  DaemonOptions options;
  options.more_config = "auditLog: none/audit.jsonl\n";
  DaemonProcess daemon(options);
  EXPECT_EQ(daemon.StartAndWaitForEnd().code, 2);
  EXPECT_THAT(daemon.log(), HasSubstr("none/audit.jsonl: No such file or directory"));
}

}  // namespace
}  // namespace kvartal::testing
