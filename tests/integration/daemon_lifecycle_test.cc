// A real kvartald from start to end: readiness, doors, signals, restarts, and what it says when it may not start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "daemon/base/unique_fd.h"
#include "daemon/base/units.h"
#include "tests/support/daemon_process.h"
#include "tests/support/stopped_threads.h"

namespace kvartal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

nlohmann::json StatusOf(const DaemonProcess& daemon) {
  const CommandResult result = daemon.Ctl({"status", "--output", "json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out, nullptr, false);
}

nlohmann::json TierOf(const nlohmann::json& status, const std::string& name) {
  for (const nlohmann::json& tier : status["tiers"]) {
    if (tier["name"] == name) return tier;
  }
  return nullptr;
}

TEST(DaemonLifecycle, StartsServesAndStopsOnSigterm) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.Start().ok()) << daemon.log();
  EXPECT_EQ(daemon.ReadyWord("admin"), daemon.admin_socket());
  EXPECT_EQ(daemon.ReadyWord("attach"), daemon.attach_socket());
  EXPECT_EQ(daemon.ReadyWord("tenants"), "1");

  const nlohmann::json status = StatusOf(daemon);
  EXPECT_EQ(status["pid"], daemon.pid());
  EXPECT_EQ(status["tenants"], 1);
  EXPECT_EQ(status["bugs"], 0);
  EXPECT_EQ(TierOf(status, "dram")["capacity_bytes"], 64 * kMiB);
  EXPECT_EQ(TierOf(status, "nvme")["present"], false);

  daemon.Signal(SIGTERM);
  const ExitState state = daemon.WaitForEnd();
  EXPECT_TRUE(state.exited);
  EXPECT_EQ(state.code, 0) << daemon.log();
  EXPECT_FALSE(std::filesystem::exists(daemon.admin_socket()));
  EXPECT_FALSE(std::filesystem::exists(daemon.attach_socket()));
}

TEST(DaemonLifecycle, TheAdminSocketIsTheOwnersAndTheAttachSocketIsOpen) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.Start().ok()) << daemon.log();
  struct stat info{};
  ASSERT_EQ(::stat(daemon.admin_socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  ASSERT_EQ(::stat(daemon.attach_socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0666u);
}

TEST(DaemonLifecycle, ADoorIsASocketOfItsOwn) {
  DaemonOptions options;
  options.doors = {"red"};
  options.manifests = TenantManifest("red", "socket: red", "32Mi");
  DaemonProcess daemon(options);
  ASSERT_TRUE(daemon.Start().ok()) << daemon.log();
  EXPECT_TRUE(std::filesystem::is_socket(daemon.door("red")));
  EXPECT_EQ(daemon.ReadyWord("door"), daemon.door("red"));
}

TEST(DaemonLifecycle, StartsAgainOverTheSocketsAndFileOfAKilledOne) {
  DaemonOptions options;
  options.nvme_size = "64Mi";
  DaemonProcess daemon(options);
  ASSERT_TRUE(daemon.Start().ok()) << daemon.log();
  daemon.Kill();
  ASSERT_TRUE(std::filesystem::exists(daemon.admin_socket()));
  ASSERT_TRUE(daemon.Start().ok()) << daemon.log();
  const nlohmann::json nvme = TierOf(StatusOf(daemon), "nvme");
  EXPECT_EQ(nvme["healthy"], true) << nvme;
}

TEST(DaemonLifecycle, TellsASupervisor) {
  DaemonProcess daemon;
  const std::string path = daemon.folder() + "/notify";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  const UniqueFd supervisor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(supervisor.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  daemon.options().in_child = [&] { ::setenv("NOTIFY_SOCKET", path.c_str(), 1); };
  ASSERT_TRUE(daemon.Start().ok()) << daemon.log();
  char text[64] = {};
  ASSERT_GT(::recv(supervisor.get(), text, sizeof(text) - 1, 0), 0);
  EXPECT_STREQ(text, "READY=1");
  daemon.Signal(SIGTERM);
  daemon.WaitForEnd();
  std::memset(text, 0, sizeof(text));
  ASSERT_GT(::recv(supervisor.get(), text, sizeof(text) - 1, MSG_DONTWAIT), 0);
  EXPECT_STREQ(text, "STOPPING=1");
}

TEST(DaemonRefuses, ASecondDaemonOnTheSameSockets) {
  DaemonProcess first, second;
  ASSERT_TRUE(first.Start().ok()) << first.log();
  WriteFile(second.config_path(), ReadFile(second.config_path()) + "adminSocket: " + first.admin_socket() + "\n");
  const ExitState state = second.StartAndWaitForEnd();
  EXPECT_TRUE(state.exited);
  EXPECT_EQ(state.code, 2);
  EXPECT_THAT(second.log(), HasSubstr(first.admin_socket()));
  EXPECT_EQ(StatusOf(first)["pid"], first.pid());
}

TEST(DaemonRefuses, ASecondDaemonOnTheSameNvmeFile) {
  DaemonOptions options;
  options.nvme_size = "64Mi";
  DaemonProcess first(options);
  ASSERT_TRUE(first.Start().ok()) << first.log();
  options.nvme_path = first.nvme_path();
  DaemonProcess second(options);
  const ExitState state = second.StartAndWaitForEnd();
  EXPECT_TRUE(state.exited);
  EXPECT_EQ(state.code, 2);
  EXPECT_THAT(second.log(), HasSubstr(first.nvme_path()));
  EXPECT_EQ(TierOf(StatusOf(first), "nvme")["healthy"], true);
}

TEST(DaemonRefuses, AConfigurationWithAnUnknownKeyNamesItsPlace) {
  DaemonOptions options;
  options.more_config = "colour: blue\n";
  DaemonProcess daemon(options);
  const ExitState state = daemon.StartAndWaitForEnd();
  EXPECT_EQ(state.code, 2);
  EXPECT_THAT(daemon.log(), HasSubstr(daemon.config_path() + ":5:1"));
  EXPECT_THAT(daemon.log(), HasSubstr("colour"));
}

TEST(DaemonRefuses, ABadPolicyAtStartNamesItsPlace) {
  DaemonOptions options;
  options.manifests = TenantManifest("own", "uid: 1", "32Mi") + "  colour: blue\n";
  DaemonProcess daemon(options);
  const ExitState state = daemon.StartAndWaitForEnd();
  EXPECT_EQ(state.code, 2);
  EXPECT_THAT(daemon.log(), HasSubstr(daemon.manifest_path() + ":"));
  EXPECT_THAT(daemon.log(), HasSubstr("colour"));
}

TEST(DaemonRefuses, CheckConfigSaysWhatAStartWouldSay) {
  DaemonProcess daemon;
  const CommandResult good = RunCommand({"kvartald", "--check-config", "--config", daemon.config_path()});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_THAT(good.out, HasSubstr("tenants: 1"));
  WriteFile(daemon.config_path(), "runDir: run\n");
  const CommandResult bad = RunCommand({"kvartald", "--check-config", "--config", daemon.config_path()});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("policyDir"));
}

class NvmeOfflineTest : public ::testing::Test {
 protected:
  NvmeOfflineTest() : daemon_(WithNvme()) {}
  static DaemonOptions WithNvme() {
    DaemonOptions options;
    options.nvme_size = "64Mi";
    return options;
  }
  // The daemon serves DRAM and says in log, status and doctor that NVMe is offline, and why.
  void ExpectOffline(const std::string& why) {
    ASSERT_TRUE(daemon_.Start().ok()) << daemon_.log();
    EXPECT_EQ(daemon_.ReadyWord("nvme"), "offline");
    EXPECT_THAT(daemon_.log(), HasSubstr(why));
    const nlohmann::json status = StatusOf(daemon_);
    EXPECT_EQ(TierOf(status, "dram")["healthy"], true);
    EXPECT_EQ(TierOf(status, "nvme")["present"], true);
    EXPECT_EQ(TierOf(status, "nvme")["healthy"], false);
    EXPECT_THAT(TierOf(status, "nvme")["note"].get<std::string>(), HasSubstr(why));
    const CommandResult doctor = daemon_.Ctl({"doctor"});
    EXPECT_EQ(doctor.exit_code, 1);
    EXPECT_THAT(doctor.out, HasSubstr("FAIL  tier nvme"));
  }
  DaemonProcess daemon_;
};

TEST_F(NvmeOfflineTest, ADiskThatIsFullAtStart) {
  daemon_.options().in_child = [] {
    // A file may not grow beyond a megabyte: what a full disk looks like to a preallocation.
    const rlimit limit{kMiB, kMiB};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::signal(SIGXFSZ, SIG_IGN);
  };
  ExpectOffline(daemon_.nvme_path());
}

TEST_F(NvmeOfflineTest, AFileThatIsNotOurs) {
  WriteFile(daemon_.nvme_path(), std::string(8192, 'x'));
  ExpectOffline(daemon_.nvme_path());
  // It is somebody's data: it must be as it was.
  EXPECT_THAT(ReadFile(daemon_.nvme_path()).substr(0, 8192), std::string(8192, 'x'));
}

TEST_F(NvmeOfflineTest, AFileOfAnotherVersion) {
  ASSERT_TRUE(daemon_.Start().ok()) << daemon_.log();
  daemon_.Signal(SIGTERM);
  daemon_.WaitForEnd();
  // The version stands right after the magic of both superblocks, little-endian (docs/ON_DISK_FORMAT.md).
  std::fstream file(daemon_.nvme_path(), std::ios::in | std::ios::out | std::ios::binary);
  for (int copy = 0; copy < 2; ++copy) {
    file.seekp(copy * 4096 + 8);
    file.write("\x63\0\0\0", 4);
  }
  file.close();
  ExpectOffline("version");
}

TEST(DaemonSignals, SighupPutsAGoodPolicyInForceAndKeepsTheLastGoodOne) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.Start().ok()) << daemon.log();
  const std::string first_version = StatusOf(daemon)["policy_version"];

  WriteFile(daemon.manifest_path(), TenantManifest("one", "uid: 1", "8Mi") + TenantManifest("two", "uid: 2", "8Mi"));
  daemon.Signal(SIGHUP);
  ASSERT_TRUE(daemon.WaitForLog("in force; tenants: 2")) << daemon.log();
  nlohmann::json status = StatusOf(daemon);
  const std::string second_version = status["policy_version"];
  EXPECT_NE(second_version, first_version);
  EXPECT_EQ(status["policy_error"], "");

  WriteFile(daemon.manifest_path(), "kind: Nonsense\n");
  daemon.Signal(SIGHUP);
  ASSERT_TRUE(daemon.WaitForLog("stays in force")) << daemon.log();
  status = StatusOf(daemon);
  EXPECT_EQ(status["policy_version"], second_version);
  EXPECT_THAT(status["policy_error"].get<std::string>(), HasSubstr(daemon.manifest_path()));
}

TEST(DaemonSignals, AFolderThatIsSlowToReadHoldsUpNobody) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.Start().ok()) << daemon.log();
  const std::string version = StatusOf(daemon)["policy_version"];
  WriteFile(daemon.manifest_path(), TenantManifest("one", "uid: 1", "8Mi") + TenantManifest("two", "uid: 2", "8Mi"));
  {
    const StoppedThreads reader(daemon.pid(), "kv-policy");
    if (!reader.stopped()) GTEST_SKIP() << "this system lets nobody stop a thread";
    daemon.Signal(SIGHUP);
    EXPECT_EQ(StatusOf(daemon)["policy_version"], version);
  }
  ASSERT_TRUE(daemon.WaitForLog("in force; tenants: 2")) << daemon.log();
  EXPECT_NE(StatusOf(daemon)["policy_version"], version);
}

// The catalog's thread is what waits when the file system under it does not answer.
TEST(DaemonSignals, ACatalogThatHangsDoesNotHoldUpTheEnd) {
  DaemonOptions options;
  options.nvme_size = "64Mi";
  DaemonProcess daemon(options);
  ASSERT_TRUE(daemon.Start().ok()) << daemon.log();
  ASSERT_TRUE(daemon.WaitForLog("nvme has been read back")) << daemon.log();
  {
    const StoppedThreads catalog(daemon.pid(), "catalog");
    if (!catalog.stopped()) GTEST_SKIP() << "this system lets nobody stop a thread";
    daemon.Signal(SIGTERM);
    ASSERT_TRUE(daemon.WaitForLog("going down without")) << daemon.log();
    EXPECT_THAT(daemon.log(), HasSubstr("a sync of the catalog of NVMe"));
  }
  const ExitState state = daemon.WaitForEnd();
  EXPECT_TRUE(state.exited);
  EXPECT_EQ(state.code, 0) << daemon.log();
}

TEST(DaemonFootprint, AnIdleNodeStaysSmall) {
  DaemonOptions options;
  options.nvme_size = "64Mi";
  DaemonProcess daemon(options);
  ASSERT_TRUE(daemon.Start().ok()) << daemon.log();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(StatusOf(daemon)["rss_bytes"].get<uint64_t>(), 64 * kMiB);
#endif
}

}  // namespace
}  // namespace kvartal::testing
