// kvartalctl and the metrics endpoint against a real kvartald.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <yaml-cpp/yaml.h>

#include <cctype>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "daemon/base/unique_fd.h"
#include "tests/support/daemon_process.h"

namespace kvartal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class DaemonAdminTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(daemon_.Start().ok()) << daemon_.log(); }
  static DaemonOptions TwoTenants() {
    DaemonOptions options;
    options.manifests = TenantManifest("red", "uid: 1", "16Mi") + TenantManifest("blue", "uid: 2", "16Mi");
    return options;
  }
  DaemonProcess daemon_{TwoTenants()};
};

TEST_F(DaemonAdminTest, TenantsInEveryFormatTellTheSame) {
  const CommandResult json = daemon_.Ctl({"tenants", "--output", "json"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const nlohmann::json tenants = nlohmann::json::parse(json.out)["tenants"];
  ASSERT_EQ(tenants.size(), 2u);
  const CommandResult yaml = daemon_.Ctl({"--output", "yaml", "tenants"});
  ASSERT_EQ(yaml.exit_code, 0) << yaml.err;
  const YAML::Node nodes = YAML::Load(yaml.out)["tenants"];
  ASSERT_EQ(nodes.size(), 2u);
  const CommandResult table = daemon_.Ctl({"tenants"});
  for (size_t i = 0; i < 2; ++i) {
    const std::string name = tenants[i]["name"];
    EXPECT_EQ(nodes[i]["name"].as<std::string>(), name);
    EXPECT_EQ(nodes[i]["tiers"][1]["limit_bytes"].as<uint64_t>(),
              tenants[i]["tiers"][1]["limit_bytes"].get<uint64_t>());
    EXPECT_EQ(tenants[i]["tiers"][1]["limit_bytes"], 16u << 20);
    EXPECT_THAT(table.out, HasSubstr(name));
  }
  EXPECT_THAT(table.out, HasSubstr("16.0 MiB"));
  EXPECT_THAT(table.out, HasSubstr("  FROM NVME  "));
}

TEST_F(DaemonAdminTest, StatusTableIsForPeople) {
  const CommandResult status = daemon_.Ctl({"status"});
  ASSERT_EQ(status.exit_code, 0) << status.err;
  EXPECT_THAT(status.out, HasSubstr("2 tenants"));
  EXPECT_THAT(status.out, HasSubstr("64.0 MiB"));
}

TEST_F(DaemonAdminTest, SessionsOfAnIdleNodeAreNone) {
  const CommandResult sessions = daemon_.Ctl({"sessions", "--output", "json"});
  ASSERT_EQ(sessions.exit_code, 0) << sessions.err;
  EXPECT_TRUE(nlohmann::json::parse(sessions.out)["sessions"].empty());
}

TEST_F(DaemonAdminTest, DropOfAnUnknownTenantNamesThoseThereAre) {
  const CommandResult drop = daemon_.Ctl({"drop", "--tenant", "test/green", "--yes"});
  EXPECT_EQ(drop.exit_code, 1);
  EXPECT_THAT(drop.err, HasSubstr("test/red"));
  EXPECT_THAT(drop.err, HasSubstr("test/blue"));
}

TEST_F(DaemonAdminTest, DropOfAnEmptyTenantDeletesNothingAndSucceeds) {
  const CommandResult drop = daemon_.Ctl({"drop", "--tenant", "test/red", "--yes", "--output", "json"});
  ASSERT_EQ(drop.exit_code, 0) << drop.err;
  EXPECT_EQ(nlohmann::json::parse(drop.out)["bytes"], 0);
}

TEST_F(DaemonAdminTest, ReloadSaysWhatIsWrongAndKeepsThePolicy) {
  WriteFile(daemon_.manifest_path(), TenantManifest("red", "uid: 1", "eight"));
  const CommandResult bad = daemon_.Ctl({"reload"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr(daemon_.manifest_path()));
  EXPECT_THAT(daemon_.Ctl({"status"}).out, HasSubstr("REFUSED"));
  WriteFile(daemon_.manifest_path(), TenantManifest("red", "uid: 1", "8Mi"));
  EXPECT_EQ(daemon_.Ctl({"reload"}).exit_code, 0);
  EXPECT_THAT(daemon_.Ctl({"status"}).out, HasSubstr("1 tenant,"));
}

TEST_F(DaemonAdminTest, DrainIsSeenInStatusAndRepeats) {
  EXPECT_EQ(daemon_.Ctl({"drain"}).exit_code, 0);
  EXPECT_EQ(daemon_.Ctl({"drain"}).exit_code, 0);
  EXPECT_THAT(daemon_.Ctl({"status"}).out, HasSubstr("draining"));
  daemon_.Signal(SIGTERM);
  EXPECT_EQ(daemon_.WaitForEnd().code, 0);
}

TEST_F(DaemonAdminTest, DoctorChecksTheBooksOfARunningDaemon) {
  const CommandResult doctor = daemon_.Ctl({"doctor", "--config", daemon_.config_path(), "--output", "json"});
  const nlohmann::json report = nlohmann::json::parse(doctor.out);
  EXPECT_EQ(doctor.exit_code, 0) << doctor.out;
  EXPECT_EQ(report["good"], true);
  bool books = false;
  for (const nlohmann::json& check : report["checks"]) {
    EXPECT_NE(check["level"], "FAIL") << check;
    if (check["name"] == "books") books = check["level"] == "OK";
  }
  EXPECT_TRUE(books) << doctor.out;
  EXPECT_EQ(daemon_.Ctl({"status"}).exit_code, 0);
}

std::string Scrape(const std::string& address, const std::string& ask = "GET /metrics") {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&peer), sizeof(peer)) != 0) return "";
  const std::string request = ask + " HTTP/1.0\r\n\r\n";
  if (::write(fd.get(), request.data(), request.size()) != static_cast<ssize_t>(request.size())) return "";
  std::string answer;
  char part[4096];
  for (ssize_t got = 0; (got = ::read(fd.get(), part, sizeof(part))) > 0;)
    answer.append(part, static_cast<size_t>(got));
  return answer;
}

TEST_F(DaemonAdminTest, MetricsAnswerAndParse) {
  const std::string answer = Scrape(daemon_.ReadyWord("metrics"));
  ASSERT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer,
              HasSubstr("kvartal_tenant_limit_bytes{tenant_namespace=\"test\",tenant=\"red\",tier=\"dram\"} 16777216"));
  std::istringstream body(answer.substr(answer.find("\r\n\r\n") + 4));
  size_t samples = 0;
  for (std::string line; std::getline(body, line);) {
    if (line.empty() || line[0] == '#') continue;
    ++samples;
    EXPECT_EQ(line.rfind("kvartal_", 0) == 0 || line.rfind("exposer_", 0) == 0, true) << line;
    char* end = nullptr;
    const std::string value = line.substr(line.rfind(' ') + 1);
    std::strtod(value.c_str(), &end);
    EXPECT_EQ(*end, '\0') << line;
  }
  EXPECT_GT(samples, 50u);
}

// LMCache 5128: what an administrator may do was served on the port of the metrics, on every interface.
TEST_F(DaemonAdminTest, WhereMetricsAreReadNothingElseIsServed) {
  const std::string address = daemon_.ReadyWord("metrics");
  for (const char* ask : {"GET /", "GET /tenants", "POST /drop", "GET /kvartal.admin.v1.Admin/Status",
                          "POST /kvartal.admin.v1.Admin/Drop", "PUT /quota/red"}) {
    const std::string answer = Scrape(address, ask);
    EXPECT_THAT(answer, Not(HasSubstr("200 OK"))) << ask;
    EXPECT_THAT(answer, Not(HasSubstr("kvartal_"))) << ask;
  }
  EXPECT_THAT(Scrape(address), HasSubstr("200 OK")) << "it is asked at all";
}

TEST(DaemonMetrics, ATakenPortIsAWarningNotAnEnd) {
  DaemonProcess first;
  ASSERT_TRUE(first.Start().ok()) << first.log();
  DaemonOptions options;
  options.metrics_address = first.ReadyWord("metrics");
  DaemonProcess second(options);
  ASSERT_TRUE(second.Start().ok()) << second.log();
  EXPECT_THAT(second.log(), HasSubstr("metrics cannot listen on " + options.metrics_address));
  EXPECT_THAT(second.Ctl({"status"}).out, HasSubstr("OFF: metrics cannot listen on " + options.metrics_address));
  const CommandResult doctor = second.Ctl({"doctor"});
  EXPECT_EQ(doctor.exit_code, 1);
  EXPECT_THAT(doctor.out, HasSubstr("FAIL  metrics"));
}

TEST(KvartalctlAlone, NoDaemonSaysWhichSocketAndHowToStart) {
  const CommandResult status = RunCommand({"kvartalctl", "--socket", "/nonexistent/admin.sock", "status"});
  EXPECT_EQ(status.exit_code, 1);
  EXPECT_THAT(status.err, HasSubstr("/nonexistent/admin.sock"));
  EXPECT_THAT(status.err, HasSubstr("kvartald --config"));
}

TEST(KvartalctlAlone, AskedWronglyIsTwo) {
  EXPECT_EQ(RunCommand({"kvartalctl"}).exit_code, 2);
  const CommandResult fly = RunCommand({"kvartalctl", "fly"});
  EXPECT_EQ(fly.exit_code, 2);
  EXPECT_THAT(fly.err, HasSubstr("there is no command 'fly'; there are: "));
  EXPECT_THAT(fly.err, HasSubstr("explain"));
  const CommandResult xml = RunCommand({"kvartalctl", "status", "--output", "xml"});
  EXPECT_EQ(xml.exit_code, 2);
  EXPECT_THAT(xml.err, HasSubstr("'xml' is not known; there are: table, json, yaml, csv"));
  EXPECT_THAT(RunCommand({"kvartalctl", "status", "--output", "csv"}).err, HasSubstr("csv is for simulate"));
  EXPECT_THAT(RunCommand({"kvartalctl", "policy", "guess"}).err, HasSubstr("no command 'guess'; there are: validate"));
  const CommandResult slip = RunCommand({"kvartalctl", "drop", "--tenant", "a/b", "--yess"});
  EXPECT_EQ(slip.exit_code, 2);
  EXPECT_THAT(slip.err, HasSubstr("'--yess' means nothing here"));
  EXPECT_EQ(RunCommand({"kvartalctl", "--help"}).exit_code, 0);
}

TEST(KvartalctlAlone, WhatIsNoSocketIsToldSo) {
  DaemonProcess unused;
  const CommandResult status = RunCommand({"kvartalctl", "--socket", unused.config_path(), "status"});
  EXPECT_EQ(status.exit_code, 1);
  EXPECT_THAT(status.err, HasSubstr(unused.config_path() + " is not a socket"));
}

TEST(KvartalctlAlone, SimulateAskedWronglyIsTwoAndAPolicyThatIsNotThereIsOne) {
  DaemonProcess unused;
  WriteFile(unused.manifest_path(), TenantManifest("one", "uid: 1", "8Mi") +
                                        "---\napiVersion: kvartal.dev/v1alpha1\nkind: KVNodePool\n"
                                        "metadata: {name: local}\nspec: {capacity: {dram: 64Mi}}\n");
  const auto simulate = [&](std::vector<std::string> more) {
    std::vector<std::string> command = {"kvartalctl", "simulate", "--requests", "100"};
    command.insert(command.end(), more.begin(), more.end());
    return RunCommand(command);
  };
  const std::string folder = unused.policy_dir();
  const CommandResult right = simulate({"--capacity", "dram=64Mi", "--policy", folder, "--output", "yaml"});
  EXPECT_EQ(right.exit_code, 0) << right.err;
  EXPECT_EQ(YAML::Load(right.out)["requests"].as<int>(), 100);
  EXPECT_EQ(simulate({"--capacity", "dram=64Mi", "--policy", folder, "--output", "csv"}).exit_code, 0);
  const CommandResult sweep = simulate({"--sweep", "dram=32Mi,64Mi", "--policy", folder, "--output", "json"});
  EXPECT_EQ(sweep.exit_code, 0) << sweep.err;
  EXPECT_EQ(nlohmann::json::parse(sweep.out)["points"].size(), 2u);
  EXPECT_EQ(simulate({"--policy", folder}).exit_code, 2);
  EXPECT_EQ(simulate({"--capacity", "dram=64Mi", "--policy", folder, "--split", "1,2"}).exit_code, 2);
  EXPECT_EQ(simulate({"--capacity", "dram=64Mi", "--policy", folder, "--eviction", "fifo"}).exit_code, 2);
  EXPECT_EQ(simulate({"--sweep", "dram=32Mi,64Mi", "--policy", folder, "--plot", "sweep.png"}).exit_code, 2);
  EXPECT_EQ(RunCommand({"kvartalctl", "simulate", "--requests", "-1", "--capacity", "dram=64Mi", "--policy", folder})
                .exit_code,
            2);
  const CommandResult above = simulate({"--capacity", "dram=1Gi", "--policy", folder});
  EXPECT_EQ(above.exit_code, 2);
  EXPECT_THAT(above.err, HasSubstr("KVNodePool local: states 64Mi of dram, which is less than 1Gi"));
  EXPECT_EQ(simulate({"--capacity", "dram=64Mi", "--policy", folder + "/none"}).exit_code, 1);
}

TEST(KvartalctlAlone, PolicyValidateNeedsNoDaemonAndTellsEveryProblem) {
  DaemonProcess unused;  // never started: its files are what is looked at
  const CommandResult good = RunCommand({"kvartalctl", "policy", "validate", unused.policy_dir()});
  EXPECT_EQ(good.exit_code, 0) << good.err;

  WriteFile(unused.manifest_path(),
            TenantManifest("one", "uid: nobody", "8Mi") + TenantManifest("two", "uid: 2", "eight"));
  for (const std::string& path : {unused.manifest_path(), unused.policy_dir()}) {
    const CommandResult bad = RunCommand({"kvartalctl", "policy", "validate", path});
    EXPECT_EQ(bad.exit_code, 1);
    EXPECT_THAT(bad.err, HasSubstr("nobody"));
    EXPECT_THAT(bad.err, HasSubstr("eight"));
  }
}

TEST(KvartalctlAlone, PolicyValidateMakesUpNoCapacity) {
  DaemonProcess unused;
  std::string manifest = TenantManifest("one", "uid: 1", "100Gi");
  const std::string limit = "limit: 100Gi";
  manifest.replace(manifest.find(limit), limit.size(), "guarantee: 25%, limit: 100Gi");
  WriteFile(unused.manifest_path(), manifest);
  const CommandResult alone = RunCommand({"kvartalctl", "policy", "validate", unused.policy_dir()});
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("is above the limit 100Gi on a node with more than 400Gi of dram"));
  EXPECT_THAT(alone.out + alone.err, ::testing::Not(HasSubstr("1024Ti")));
}

TEST(KvartalctlAlone, PolicyValidateAgainstANodeWarnsOfALimitAboveItsCapacity) {
  DaemonProcess unused;
  WriteFile(unused.manifest_path(), TenantManifest("one", "uid: 1", "8Ti"));
  const CommandResult alone =
      RunCommand({"kvartalctl", "policy", "validate", unused.manifest_path(), "--output", "json"});
  EXPECT_TRUE(nlohmann::json::parse(alone.out)["warnings"].empty()) << alone.out;
  const CommandResult fitted = RunCommand({"kvartalctl", "policy", "validate", unused.manifest_path(), "--config",
                                           unused.config_path(), "--output", "json"});
  EXPECT_EQ(fitted.exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(fitted.out)["warnings"].size(), 1u) << fitted.out;
  WriteFile(unused.manifest_path(), TenantManifest("one", "socket: nowhere", "8Mi"));
  EXPECT_THAT(
      RunCommand({"kvartalctl", "policy", "validate", unused.manifest_path(), "--config", unused.config_path()}).out,
      HasSubstr("no door of this node has the name 'nowhere': nobody may attach here"));
}

TEST(KvartalctlAlone, DoctorFailsWhereNoDaemonAnswersAndSaysWhatItDidNotCheck) {
  DaemonProcess unused;
  const CommandResult doctor = RunCommand({"kvartalctl", "doctor", "--config", unused.config_path()});
  EXPECT_EQ(doctor.exit_code, 1) << doctor.out;
  EXPECT_THAT(doctor.out, HasSubstr("FAIL  daemon"));
  EXPECT_THAT(doctor.out, HasSubstr("were not checked"));
  EXPECT_THAT(doctor.out, HasSubstr(unused.admin_socket()));
}

TEST(KvartalctlAlone, DoctorFailsOnADiskThatCannotHoldTheFile) {
  DaemonOptions options;
  options.nvme_size = "15Ti";
  DaemonProcess unused(options);
  const CommandResult doctor = RunCommand({"kvartalctl", "doctor", "--config", unused.config_path()});
  EXPECT_EQ(doctor.exit_code, 1);
  EXPECT_THAT(doctor.out, HasSubstr("FAIL  nvme space"));
}

}  // namespace
}  // namespace kvartal::testing
