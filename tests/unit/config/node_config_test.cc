#include "daemon/config/node_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/limits.h"
#include "daemon/policy/eviction_names.h"
#include "daemon/policy/tenant_orders.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::config {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::string kMinimal = "runDir: run\ndram: {size: 1Gi}\npolicyDir: policy\n";

std::string ErrorOf(const std::string& text) {
  const auto config = ParseNodeConfig(text, "n.yaml", "/etc/kvartal");
  return config.ok() ? "accepted" : std::string(config.status().message());
}

TEST(NodeConfigTest, TheLeastThereIsHasTheDefaults) {
  const auto config = ParseNodeConfig(kMinimal, "n.yaml", "/etc/kvartal");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->run_dir, "/etc/kvartal/run");
  EXPECT_EQ(config->attach_socket, "/etc/kvartal/run/kvartal.sock");
  EXPECT_EQ(config->attach_socket_mode, 0666u);
  EXPECT_EQ(config->admin_socket, "/etc/kvartal/run/admin.sock");
  EXPECT_THAT(config->doors, IsEmpty());
  EXPECT_TRUE(config->attest_uid);
  EXPECT_EQ(config->dram_bytes, kGiB);
  EXPECT_THAT(config->nvme, IsEmpty());
  EXPECT_EQ(config->nvme_key_file, "");
  EXPECT_EQ(config->eviction, "lru");
  EXPECT_EQ(config->policy_dir, "/etc/kvartal/policy");
  EXPECT_EQ(config->metrics_address, "");
  EXPECT_EQ(config->audit_log, "");
  EXPECT_EQ(config->log_level, "info");
  EXPECT_EQ(config->lease_ms, kLeaseMsDefault);
  EXPECT_EQ(config->removed_grace_ms, kRemovedGraceMs);
}

TEST(NodeConfigTest, AllowsExactlyTheEvictionOrdersThatCanBeMade) {
  std::vector<std::string> names(policy::kEvictionNames.begin(), policy::kEvictionNames.end());
  EXPECT_FALSE(names.empty());
  for (const std::string& name : names) {
    EXPECT_EQ(ErrorOf(kMinimal + "eviction: " + name), "accepted");
    EXPECT_TRUE(policy::NewTenantOrders(name).ok()) << name;
  }
  const std::string allowed = "allowed: " + absl::StrJoin(names, ", ");
  EXPECT_THAT(ErrorOf(kMinimal + "eviction: none"), HasSubstr(allowed));
  EXPECT_THAT(std::string(policy::NewTenantOrders("none").status().message()), HasSubstr(allowed));
}

TEST(NodeConfigTest, ReadsEveryKey) {
  const auto config = ParseNodeConfig(
      "runDir: /run/kvartal\nattachSocket: /run/a.sock\nattachSocketMode: \"0600\"\nadminSocket: adm.sock\n"
      "doors: [{name: red, path: /run/red, mode: \"0666\"}, {name: green}]\nattestUid: false\ndram: {size: 512Mi}\n"
      "nvme: [{path: ../nvme.dat, size: 64Mi, io: pool, ioThreads: 3, writesPerDayPercent: 150}]\n"
      "nvmeKeyFile: nvme.keys\neviction: "
      "lru\npolicyDir: "
      "./p/\nmetricsAddress: "
      "\"[::1]:9400\"\n"
      "auditLog: ../log/audit.jsonl\nlogLevel: debug\nleaseMs: 500\nremovedGraceSeconds: 0\n",
      "n.yaml", "/etc/kvartal");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->attach_socket, "/run/a.sock");
  EXPECT_EQ(config->audit_log, "/etc/log/audit.jsonl");
  EXPECT_EQ(config->attach_socket_mode, 0600u);
  EXPECT_EQ(config->admin_socket, "/etc/kvartal/adm.sock");
  ASSERT_THAT(config->doors, SizeIs(2));
  EXPECT_EQ(config->doors[0].path, "/run/red");
  EXPECT_EQ(config->doors[0].mode, 0666u);
  EXPECT_EQ(config->doors[1].path, "/run/kvartal/green.sock");
  EXPECT_EQ(config->doors[1].mode, 0660u);
  EXPECT_FALSE(config->attest_uid);
  ASSERT_THAT(config->nvme, SizeIs(1));
  EXPECT_EQ(config->nvme[0].path, "/etc/nvme.dat");
  EXPECT_EQ(config->nvme[0].size_bytes, 64 * kMiB);
  EXPECT_EQ(config->nvme[0].io, "pool");
  EXPECT_EQ(config->nvme[0].io_threads, 3);
  EXPECT_EQ(config->nvme[0].writes_per_day_percent, 150u);
  EXPECT_EQ(config->nvme_key_file, "/etc/kvartal/nvme.keys");
  EXPECT_EQ(config->metrics_address, "[::1]:9400");
  EXPECT_EQ(config->log_level, "debug");
  EXPECT_EQ(config->lease_ms, 500u);
  EXPECT_EQ(config->removed_grace_ms, 0);
}

TEST(NodeConfigTest, TheTierIsAListOfDisksOfAnySizeAndAsManyAsTheLimitSays) {
  std::string disks;
  for (size_t i = 0; i < kDisksMax; ++i)
    disks += "- {path: d" + std::to_string(i) + ", size: " + std::to_string(i + 1) + "Gi}\n";
  const auto config = ParseNodeConfig(kMinimal + "nvme:\n" + disks, "n.yaml", "/x");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_THAT(config->nvme, SizeIs(kDisksMax));
  EXPECT_EQ(config->nvme[3].path, "/x/d3");
  EXPECT_EQ(config->nvme[3].size_bytes, 4 * kGiB);
  const auto more = ParseNodeConfig(kMinimal + "nvme:\n" + disks + "- {path: more, size: 1Gi}\n", "n.yaml", "/x");
  EXPECT_THAT(std::string(more.status().message()), HasSubstr("nvme: has 17 items; allowed: at most 16"));
}

TEST(NodeConfigTest, OneFileUnderTwoNamesIsNoSecondDisk) {
  const testing::ScratchDir folder;
  std::ofstream(folder.File("a")) << "x";
  std::filesystem::create_hard_link(folder.File("a"), folder.File("b"));
  std::filesystem::create_directory_symlink(folder.path(), folder.File("same"));
  const auto read = [&](const std::string& first, const std::string& second) {
    return std::string(ParseNodeConfig(kMinimal + "nvme: [{path: " + folder.File(first) +
                                           ", size: 1Gi}, {path: " + folder.File(second) + ", size: 1Gi}]",
                                       "n.yaml", "/x")
                           .status()
                           .message());
  };
  EXPECT_THAT(read("a", "b"), HasSubstr("nvme[1].path: "));
  EXPECT_THAT(read("later", "same/later"), HasSubstr("is the file of nvme[0]"));
  EXPECT_EQ(read("a", "later"), "");
}

TEST(NodeConfigTest, TheSharedDoorCanBeClosed) {
  const auto config = ParseNodeConfig(kMinimal + "attachSocket: \"\"\ndoors: [{name: red}]\n", "n.yaml", "/x");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->attach_socket, "");
}

TEST(NodeConfigTest, NamesWhatIsMissing) {
  const std::string error = ErrorOf("logLevel: info\n");
  for (const char* key :
       {"n.yaml:1:1: runDir: is required", "n.yaml:1:1: dram: is required", "n.yaml:1:1: policyDir: is required"}) {
    EXPECT_THAT(error, HasSubstr(key));
  }
  EXPECT_THAT(ErrorOf("runDir: r\npolicyDir: p\ndram: {}\n"), HasSubstr("n.yaml:3:7: dram.size: is required"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("n.yaml: has 0 YAML documents; a configuration is exactly one"));
  EXPECT_THAT(ErrorOf(kMinimal + "---\n" + kMinimal), HasSubstr("has 2 YAML documents"));
  EXPECT_THAT(ErrorOf("- a\n"), HasSubstr("n.yaml:1:1: must be a mapping"));
}

TEST(NodeConfigTest, RefusesOneBadValueWithPlaceAndWhatIsAllowed) {
  const std::pair<const char*, const char*> cases[] = {
      {"dramSize: 1Gi", "n.yaml:4:1: unknown key 'dramSize'; allowed: runDir, attachSocket,"},
      {"policystream: {}", "policyDir, policyStream, "},
      {"attachSocketMode: 0999", "n.yaml:4:19: attachSocketMode: '0999' is not a file mode"},
      {"doors: [{name: Red}]", "n.yaml:4:16: doors[0].name: 'Red' is not valid; allowed: a DNS label"},
      {"doors: [{path: x}]", "n.yaml:4:9: doors[0].name: is required"},
      {"doors: [{name: red, path: /a}, {name: red, path: /b}]",
       "n.yaml:4:39: doors[1].name: door 'red' is listed twice"},
      {"doors: [{name: red, path: /a}, {name: blue, path: /a}]",
       "doors[1].path: '/a' is already the socket of doors[0].path"},
      {"doors: [{name: kvartal}]",
       "doors[0].path: '/etc/kvartal/run/kvartal.sock' is already the socket of attachSocket"},
      {"adminSocket: run/kvartal.sock",
       "adminSocket: '/etc/kvartal/run/kvartal.sock' is already the socket of attachSocket"},
      {"adminSocket: run/../run/./kvartal.sock", "is already the socket of attachSocket"},
      {"attachSocket: \"\"", "attachSocket: is \"\" and there are no doors: nobody could connect"},
      {"attachSocket:", "attachSocket: is empty"},
      {"attestUid: false", "attestUid: is false and there are no doors"},
      {"attestUid: 1", "attestUid: '1' is not allowed; allowed: true, false"},
      {"nvme: [{path: a, size: 63Mi}]",
       "n.yaml:4:24: nvme[0].size: 66060288 bytes is out of range; allowed: 67108864 to"},
      {"nvme: [{path: a, size: 17Ti}]", "nvme[0].size: 18691697672192 bytes is out of range"},
      {"nvme: [{path: a, size: 10%}]", "nvme[0].size: '10%' is a percentage; here a size is wanted"},
      {"nvme: [{path: a}]", "nvme[0].size: is required"},
      {"nvme: [{size: 1Gi}]", "nvme[0].path: is required"},
      {"nvme: [{path: a, size: 1Gi, writesPerDayPercent: 10001}]",
       "nvme[0].writesPerDayPercent: '10001' is out of range; allowed: integers 0 to 10000"},
      {"nvme: [{path: a, size: 1Gi, ioThreads: 0}]",
       "nvme[0].ioThreads: '0' is out of range; allowed: integers 1 to 64"},
      {"nvme: [{path: a, size: 1Gi, io: aio}]", "nvme[0].io: 'aio' is not allowed; allowed: auto, uring, pool"},
      {"nvme: [{path: a, size: 1Gi}, {path: b, size: 1Gi}, {path: x/../a, size: 2Gi}]",
       "n.yaml:4:59: nvme[2].path: '/etc/kvartal/a' is the file of nvme[0], '/etc/kvartal/a'; each disk needs a file "
       "of its own"},
      {"nvme: [{path: a, size: 1Gi, writesPerDayPercent: 100}, {path: b, size: 1Gi, writesPerDayPercent: 50}]",
       "nvme[1].writesPerDayPercent: is 50 and that of nvme[0] 100; the disks share one budget"},
      {"nvme: [{path: a, size: 1Gi, writesPerDayPercent: 100}, {path: b, size: 1Gi}]",
       "nvme[1].writesPerDayPercent: is 0 and that of nvme[0] 100"},
      {"nvme: [{path: a, size: 9Ti}, {path: b, size: 8Ti}]",
       "n.yaml:4:46: nvme[1].size: the disks up to this one are 18691697672192 bytes together; allowed: at most"},
      {"eviction: lfu", "n.yaml:4:11: eviction: 'lfu' is not allowed; allowed: lru, lhd"},
      {"metricsAddress: \"9400\"", "metricsAddress: '9400' is not an address; allowed: \"host:port\""},
      {"metricsAddress: \"localhost:99999\"", "metricsAddress: 'localhost:99999' is not an address"},
      {"metricsAddress: \":9400\"", "metricsAddress: ':9400' is not an address"},
      {"metricsAddress: \"::1:9400\"", "metricsAddress: '::1:9400' is not an address"},
      {"logLevel: loud", "logLevel: 'loud' is not allowed; allowed: debug, info, warning, error"},
      {"leaseMs: 99", "leaseMs: '99' is out of range; allowed: integers 100 to 60000"},
      {"leaseMs: 60001", "leaseMs: '60001' is out of range"},
      {"removedGraceSeconds: -1", "removedGraceSeconds: '-1' is out of range; allowed: integers 0 to 2592000"},
      {"removedGraceSeconds: 10m", "removedGraceSeconds: '10m' is not an integer"},
      {"leaseMs: 1e3", "leaseMs: '1e3' is not an integer"},
      {"runDir: again", "n.yaml:4:1: duplicate key 'runDir'; it stands already at 1:1"},
  };
  for (const auto& [line, expected] : cases) {
    const std::string error = ErrorOf(kMinimal + line + "\n");
    EXPECT_THAT(error, HasSubstr(expected)) << line;
    EXPECT_EQ(error.find('\n'), std::string::npos) << "one mistake, one finding: " << error;
  }
}

TEST(NodeConfigTest, TokensTakeAnIssuerWithItsKeysAndTheNameOfTheNode) {
  EXPECT_FALSE(ParseNodeConfig(kMinimal, "n.yaml", "/etc/kvartal")->kubernetes.has_value());
  const auto config = ParseNodeConfig(
      kMinimal +
          "attestUid: false\nkubernetes: {nodeName: gpu-1, issuer: 'https://a', jwksFile: k.json, hostPids: true}\n",
      "n.yaml", "/etc/kvartal");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->kubernetes.has_value()) << "which also says who may come without doors and uids";
  EXPECT_EQ(config->kubernetes->node_name, "gpu-1");
  EXPECT_EQ(config->kubernetes->issuer, "https://a");
  EXPECT_EQ(config->kubernetes->jwks_file, "/etc/kvartal/k.json");
  EXPECT_EQ(config->kubernetes->audience, "kvartal");
  EXPECT_TRUE(config->kubernetes->host_pids);
  EXPECT_THAT(ErrorOf(kMinimal + "kubernetes: {nodeName: gpu-1}\n"), HasSubstr("kubernetes.issuer"));
  EXPECT_THAT(ErrorOf(kMinimal + "kubernetes: {issuer: 'https://a'}\n"), HasSubstr("kubernetes.jwksFile"));
  EXPECT_THAT(ErrorOf(kMinimal + "kubernetes: {issuer: a, jwksFile: b, node: c}\n"), HasSubstr("unknown key 'node'"));
}

TEST(NodeConfigTest, DramHasAFloorAndACeiling) {
  const auto with = [](const std::string& size) {
    return ErrorOf(absl::StrCat("runDir: r\npolicyDir: p\ndram: {size: ", size, "}\n"));
  };
  EXPECT_EQ(with("2Mi"), "accepted");
  EXPECT_THAT(with("2097151"), HasSubstr("n.yaml:3:14: dram.size: 2097151 bytes is out of range; allowed: 2097152 to"));
  EXPECT_THAT(with("0"), HasSubstr("out of range"));
  EXPECT_THAT(with("5Ti"), HasSubstr("out of range"));
  EXPECT_THAT(with("16Ei"), HasSubstr("is too large"));
  EXPECT_THAT(with("1.5Gi"), HasSubstr("is not a size"));
  EXPECT_THAT(with("-1"), HasSubstr("is not a size"));
}

TEST(NodeConfigTest, SocketPathsFitTheKernel) {
  // "/kvartal.sock" is 13 bytes.
  const auto with = [](size_t run_dir_bytes) {
    return ErrorOf(
        absl::StrCat("runDir: /", std::string(run_dir_bytes - 1, 'x'), "\ndram: {size: 1Gi}\npolicyDir: p\n"));
  };
  EXPECT_EQ(with(kSocketPathMax - 13), "accepted");
  EXPECT_THAT(with(kSocketPathMax - 12), HasSubstr("has 108 bytes; allowed: at most 107; choose a shorter runDir"));
  EXPECT_THAT(ErrorOf(kMinimal + "doors: [{name: a, path: /" + std::string(200, 'y') + "}]\n"),
              HasSubstr("n.yaml:4:25: doors[0].path: the socket path"));
}

TEST(NodeConfigTest, LoadsFilesAndTakesPathsAgainstTheirFolder) {
  const auto missing = LoadNodeConfig("/nonexistent/n.yaml");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("/nonexistent/n.yaml"));

  std::string folder = "/tmp/node_config_XXXXXX";  // short: socket paths must fit
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/n.yaml";
  std::ofstream(path) << kMinimal;
  const auto config = LoadNodeConfig(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->policy_dir, folder + "/policy");
  std::ofstream(path) << kMinimal << "leaseMs: 1\n";
  EXPECT_THAT(LoadNodeConfig(path).status().message(), HasSubstr(absl::StrCat(path, ":4:10: leaseMs")));
  std::filesystem::remove_all(folder);
}

TEST(NodeConfigTest, TheNameOfTheNodeMayComeFromTheEnvironment) {
  const std::string path = ::testing::TempDir() + "node_of_environment.yaml";
  std::ofstream(path) << kMinimal << "kubernetes: {issuer: a, jwksFile: b}\n";
  ::unsetenv("KVARTAL_NODE");
  EXPECT_THAT(std::string(LoadNodeConfig(path).status().message()), HasSubstr("$KVARTAL_NODE is not set"));
  ::setenv("KVARTAL_NODE", "gpu-7", 1);
  const auto config = LoadNodeConfig(path);
  ::unsetenv("KVARTAL_NODE");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kubernetes->node_name, "gpu-7");
}

TEST(NodeConfigTest, TheShippedExampleIsWhatTheDemoNeeds) {
  const std::string path = std::string(KVARTAL_SOURCE_DIR) + "/daemon/config/example.yaml";
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  // As if the checkout were /kvartal: the length of its real path is no fault of the example.
  const auto config = ParseNodeConfig(text.str(), path, "/kvartal/daemon/config");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->policy_dir, "/kvartal/crds/examples/demo");
  EXPECT_TRUE(std::filesystem::exists(std::string(KVARTAL_SOURCE_DIR) + "/crds/examples/demo/pool.yaml"));
  EXPECT_EQ(config->run_dir, "/kvartal/build/kvartal-data/run");
  EXPECT_EQ(config->dram_bytes, kGiB);
  ASSERT_THAT(config->nvme, SizeIs(1));
  EXPECT_EQ(config->nvme[0].size_bytes, 4 * kGiB);
  EXPECT_EQ(config->nvme[0].path, "/kvartal/build/kvartal-data/nvme.dat");
  ASSERT_THAT(config->doors, SizeIs(3));
  EXPECT_EQ(config->doors[0].name, "red");
  EXPECT_EQ(config->doors[1].name, "green");
  EXPECT_EQ(config->doors[2].name, "blue");
  EXPECT_EQ(config->metrics_address, "127.0.0.1:9464");
}

TEST(NodeConfigTest, PolicyHasOneSourceAFolderOrAStream) {
  const std::string rest = "runDir: r\ndram: {size: 1Gi}\n";
  const auto stream = ParseNodeConfig(
      rest + "policyStream: {operator: op:9443, keepIn: kept, caFile: ca.crt, tokenFile: /t}\n", "n.yaml", "/etc/kv");
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ(stream->policy_stream->address, "op:9443");
  EXPECT_EQ(stream->policy_stream->keep_in, "/etc/kv/kept");
  EXPECT_EQ(stream->policy_stream->ca_file, "/etc/kv/ca.crt");
  EXPECT_EQ(stream->policy_stream->token_file, "/t");
  EXPECT_FALSE(ParseNodeConfig(rest + "policyDir: p\n", "n.yaml", "/etc/kv")->policy_stream.has_value());
  EXPECT_THAT(ErrorOf(rest + "policyDir: p\npolicyStream: {operator: o, keepIn: k}\n"), HasSubstr("one source"));
  EXPECT_THAT(ErrorOf(rest + "policyStream: {operator: o}\n"), HasSubstr("policyStream.keepIn: is required"));
  EXPECT_THAT(ErrorOf(rest + "policyStream: {operator: o, keepIn: k, tokenFile: t}\n"), HasSubstr("give caFile"));
}

TEST(NodeConfig, DriveWritesADayBecomeBytesASecond) {
  NvmeConfig disk;
  disk.size_bytes = 8'640'000'000'000;  // 8.64 TB: a hundred million bytes for each second of a day
  EXPECT_EQ(WriteBytesPerSecond(disk), 0u) << "no budget";
  disk.writes_per_day_percent = 100;
  EXPECT_EQ(WriteBytesPerSecond(disk), 100'000'000u);
  disk.writes_per_day_percent = 30;
  EXPECT_EQ(WriteBytesPerSecond(disk), 30'000'000u);
}

}  // namespace
}  // namespace kvartal::config
