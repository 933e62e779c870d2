// What the Helm chart says about the rest of the house, held against the house: its copies of the CRDs, the metrics
// that alerts and dashboard ask for, and the runbooks that alerts lead to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "daemon/policy/eviction_names.h"
#include "operator/kube/limits.h"
#include "operator/process/limits.h"
#include "operator/sync/limits.h"
#include "tests/support/daemon_process.h"

namespace kvartal {
namespace {

using ::testing::HasSubstr;

const std::string kSource = KVARTAL_SOURCE_DIR;
const std::string kChart = kSource + "/charts/kvartal/";

std::set<std::string> AllOf(const std::string& text, const std::string& pattern) {
  std::set<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) found.insert((*it)[1]);
  return found;
}

// What daemon and operator export, as their sources spell it.
std::set<std::string> ExportedMetrics() {
  std::string text = testing::ReadFile(kSource + "/daemon/telemetry/metric_names.h");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kSource + "/operator")) {
    if (entry.path().extension() == ".cc") text += testing::ReadFile(entry.path().string());
  }
  return AllOf(text, "\"([a-z]+_[a-z_]+)\"");
}

// What a query asks for: words that are no function, label or keyword of the language.
std::set<std::string> AskedMetrics(const std::string& query) {
  std::string bare = std::regex_replace(query, std::regex("\"[^\"]*\""), "");
  bare = std::regex_replace(bare, std::regex("\\{[^}]*\\}"), "");
  bare = std::regex_replace(bare, std::regex("\\b(by|without)\\s*\\([^)]*\\)"), "");
  bare = std::regex_replace(bare, std::regex("\\[[^\\]]*\\]"), "");
  // A histogram is asked for by its buckets.
  bare = std::regex_replace(bare, std::regex("_duration_seconds_bucket\\b"), "_duration_seconds");
  std::set<std::string> words = AllOf(bare, "\\b([a-z]+(?:_[a-z]+)+)\\b");
  for (const char* const function : {"clamp_min", "histogram_quantile"}) words.erase(function);
  return words;
}

TEST(ChartFilesTest, CrdsAreThoseOfTheHouseByteForByte) {
  size_t compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kSource + "/crds")) {
    if (entry.path().extension() != ".yaml") continue;
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(testing::ReadFile(kChart + "files/crds/" + name), testing::ReadFile(entry.path().string()))
        << "cp crds/" << name << " charts/kvartal/files/crds/";
    ++compared;
  }
  EXPECT_EQ(compared, 2u);
  for (const auto& entry : std::filesystem::directory_iterator(kChart + "files/crds")) {
    EXPECT_TRUE(std::filesystem::exists(kSource + "/crds/" + entry.path().filename().string())) << entry.path();
  }
}

TEST(ChartFilesTest, TheEvictionOrdersAreThoseOfTheHouse) {
  const auto schema = nlohmann::json::parse(testing::ReadFile(kChart + "values.schema.json"));
  const auto& allowed = schema["properties"]["daemon"]["properties"]["eviction"]["enum"];
  EXPECT_THAT(allowed.get<std::vector<std::string>>(), ::testing::ElementsAreArray(policy::kEvictionNames));
}

TEST(ChartFilesTest, AlertsAskForMetricsThatAreExportedAndHaveARunbook) {
  const std::set<std::string> exported = ExportedMetrics();
  ASSERT_TRUE(exported.contains("kvartal_tier_up") && exported.contains("workqueue_depth"));
  const std::string operations = testing::ReadFile(kSource + "/docs/OPERATIONS.md");
  const YAML::Node rules = YAML::LoadFile(kChart + "files/alerts/kvartal.yaml");
  std::set<std::string> names;
  for (const YAML::Node& group : rules["groups"]) {
    for (const YAML::Node& rule : group["rules"]) {
      const std::string name = rule["alert"].as<std::string>();
      EXPECT_TRUE(names.insert(name).second) << name << " twice";
      const std::set<std::string> asked = AskedMetrics(rule["expr"].as<std::string>());
      EXPECT_FALSE(asked.empty()) << name;
      for (const std::string& metric : asked) EXPECT_TRUE(exported.contains(metric)) << name << " asks for " << metric;
      EXPECT_THAT(operations, HasSubstr(absl::StrCat("\n### ", name, "\n"))) << "no runbook";
      EXPECT_EQ(rule["annotations"]["runbook_url"].as<std::string>(),
                absl::StrCat("RUNBOOKS#", absl::AsciiStrToLower(name)));
      EXPECT_NE(rule["annotations"]["summary"].as<std::string>(), "");
      EXPECT_THAT((std::set<std::string>{"info", "warning", "critical"}),
                  ::testing::Contains(rule["labels"]["severity"].as<std::string>()));
    }
  }
  EXPECT_GT(names.size(), 15u);
  for (const std::string& heading : AllOf(operations, "\\n### (Kvartal[A-Za-z]+)\\n"))
    EXPECT_TRUE(names.contains(heading)) << "a runbook for an alert that there is not";
}

TEST(ChartFilesTest, TheDashboardAsksForMetricsThatAreExported) {
  const std::set<std::string> exported = ExportedMetrics();
  const auto dashboard = nlohmann::json::parse(testing::ReadFile(kChart + "files/dashboards/kvartal.json"));
  std::set<std::string> shown;
  for (const auto& panel : dashboard.at("panels")) {
    if (panel.at("type") == "row") continue;
    for (const auto& target : panel.at("targets")) {
      for (const std::string& metric : AskedMetrics(target.at("expr").get<std::string>())) {
        EXPECT_TRUE(exported.contains(metric)) << panel.at("title") << " asks for " << metric;
        shown.insert(metric);
      }
    }
  }
  EXPECT_GT(shown.size(), 20u);
}

// Killed before its end, the operator would leave its Lease to run out: the next leader begins that much later.
TEST(ChartFilesTest, TheOperatorHasTheTimeItNeedsToStop) {
  const std::set<std::string> seconds =
      AllOf(testing::ReadFile(kChart + "templates/operator-deployment.yaml"), "terminationGracePeriodSeconds: (\\d+)");
  ASSERT_EQ(seconds.size(), 1u);
  EXPECT_GT(std::stoi(*seconds.begin()) * 1000,
            sync::kStopMs + kube::kStopMs + process::kStopEventsMs + process::kStopLeaseMs);
}

// What nobody reports is no sum that is zero.
TEST(ChartFilesTest, ALeaderThatWasNeverThereIsMissed) {
  const YAML::Node rules = YAML::LoadFile(kChart + "files/alerts/kvartal.yaml");
  size_t found = 0;
  for (const YAML::Node& group : rules["groups"]) {
    for (const YAML::Node& rule : group["rules"]) {
      if (rule["alert"].as<std::string>() != "KvartalOperatorWithoutLeader") continue;
      EXPECT_THAT(rule["expr"].as<std::string>(), HasSubstr("or absent(leader_election_master_status"));
      ++found;
    }
  }
  EXPECT_EQ(found, 1u);
}

TEST(ChartFilesTest, TheReasonsThatAlertsNameAreReasonsOfTheDaemon) {
  const std::string reasons = testing::ReadFile(kSource + "/daemon/attach/attach_stats.h") +
                              testing::ReadFile(kSource + "/daemon/policy/refusal.h");
  const std::string alerts = testing::ReadFile(kChart + "files/alerts/kvartal.yaml");
  size_t checked = 0;
  for (const std::string& list : AllOf(alerts, "(?:reason|kind)!?(?:=~|!~|=)\"([a-z_|]+)\"")) {
    for (const std::string& reason : AllOf(list, "([a-z_]+)")) {
      EXPECT_THAT(reasons, HasSubstr(absl::StrCat("\"", reason, "\"")));
      ++checked;
    }
  }
  EXPECT_GT(checked, 8u);
}

}  // namespace
}  // namespace kvartal
