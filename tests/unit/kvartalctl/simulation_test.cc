#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_split.h"
#include "daemon/base/units.h"
#include "tools/kvartalctl/hit_rate_plot.h"
#include "tools/kvartalctl/simulation_arguments.h"
#include "tools/kvartalctl/simulation_report.h"

namespace kvartal::ctl {
namespace {

std::string Wrong(const absl::Status& status) {
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(SimulationArguments, ReadsACapacity) {
  const auto capacity = ParseCapacity("dram=64Gi,nvme=1Ti");
  ASSERT_TRUE(capacity.ok()) << capacity.status();
  EXPECT_EQ(capacity->bytes[TierIndex(TierKind::kDram)], 64 * kGiB);
  EXPECT_EQ(capacity->bytes[TierIndex(TierKind::kNvme)], kTiB);
  EXPECT_EQ(capacity->bytes[TierIndex(TierKind::kHbm)], 0u);
}

TEST(SimulationArguments, SaysWhatIsWrongWithACapacity) {
  for (const auto& [text, what] :
       {std::pair{"ssd=1Gi", "unknown tier 'ssd'"}, std::pair{"dram", "'dram' is not TIER="},
        std::pair{"dram=", "is not a size"}, std::pair{"dram=1Gi,dram=2Gi", "dram twice"},
        std::pair{"dram=25%", "share"}, std::pair{"dram=4Ki", "from 2097152"}, std::pair{"", "TIER=SIZE"}}) {
    EXPECT_NE(Wrong(ParseCapacity(text).status()).find(what), std::string::npos) << text;
  }
}

TEST(SimulationArguments, ReadsASweepInRisingOrder) {
  const auto sweep = ParseSweep("dram=4Gi,1Gi,2Gi,1Gi");
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  EXPECT_EQ(sweep->tier, TierKind::kDram);
  EXPECT_EQ(sweep->bytes, (std::vector<uint64_t>{kGiB, 2 * kGiB, 4 * kGiB}));
}

TEST(SimulationArguments, SaysWhatIsWrongWithASweep) {
  for (const auto& [text, what] :
       {std::pair{"1Gi,2Gi", "is not TIER="}, std::pair{"hbm=1Gi", "unknown tier 'hbm'"},
        std::pair{"dram=1Gi,,2Gi", "is not a size"}, std::pair{"dram=1Gi,x", "'x' is not a size"}}) {
    EXPECT_NE(Wrong(ParseSweep(text).status()).find(what), std::string::npos) << text;
  }
}

std::vector<std::pair<uint64_t, uint64_t>> DramAndNvme(const std::string& capacity, const std::string& sweep) {
  const auto asked = CapacitiesOf(capacity, sweep);
  EXPECT_TRUE(asked.ok()) << asked.status();
  std::vector<std::pair<uint64_t, uint64_t>> sizes;
  if (!asked.ok()) return sizes;
  for (const policy::NodeCapacity& run : asked->runs)
    sizes.emplace_back(run.bytes[TierIndex(TierKind::kDram)], run.bytes[TierIndex(TierKind::kNvme)]);
  return sizes;
}

TEST(SimulationArguments, ASweepSaysTheCapacitiesAndOfTheOtherTierWhatTheCapacitySays) {
  using Sizes = std::vector<std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(DramAndNvme("dram=4Gi,nvme=1Ti", ""), (Sizes{{4 * kGiB, kTiB}}));
  EXPECT_EQ(DramAndNvme("", "dram=1Gi,2Gi"), (Sizes{{kGiB, 0}, {2 * kGiB, 0}}));
  EXPECT_EQ(DramAndNvme("nvme=1Ti", "dram=1Gi,2Gi"), (Sizes{{kGiB, kTiB}, {2 * kGiB, kTiB}}));
  EXPECT_EQ(DramAndNvme("dram=4Gi", "nvme=1Gi,2Gi"), (Sizes{{4 * kGiB, kGiB}, {4 * kGiB, 2 * kGiB}}));
  EXPECT_TRUE(CapacitiesOf("", "dram=1Gi,2Gi")->swept == TierKind::kDram);
  EXPECT_FALSE(CapacitiesOf("dram=1Gi", "")->swept.has_value());
}

TEST(SimulationArguments, WithoutASizeOfDramThereIsNoNode) {
  EXPECT_NE(Wrong(CapacitiesOf("", "").status()).find("--capacity dram=64Gi"), std::string::npos);
  EXPECT_NE(Wrong(CapacitiesOf("", "nvme=1Gi,2Gi").status()).find("how much dram"), std::string::npos);
  EXPECT_NE(Wrong(CapacitiesOf("nvme=1Ti", "").status()).find("how much dram"), std::string::npos);
}

TEST(SimulationArguments, NoCapacityIsIgnoredForASweep) {
  EXPECT_NE(Wrong(CapacitiesOf("dram=4Gi", "dram=1Gi,2Gi").status()).find("both name dram"), std::string::npos);
  EXPECT_NE(Wrong(CapacitiesOf("dram=4Gi,nvme=1Ti", "nvme=1Gi").status()).find("both name nvme"), std::string::npos);
}

std::shared_ptr<const policy::PolicyTable> TwoTenants() {
  std::vector<policy::TenantRules> rules(2);
  rules[0].name = rules[0].uid = "red/cache";
  rules[0].weight = 400;
  rules[1].name = rules[1].uid = "blue/cache";
  rules[1].weight = 100;
  return policy::PolicyTable::FromRules(std::move(rules), {});
}

TEST(SimulationArguments, SharesAreWeightsUnlessToldOtherwise) {
  EXPECT_EQ(*SharesOf(*TwoTenants(), ""), (std::vector<double>{400, 100}));
  EXPECT_EQ(*SharesOf(*TwoTenants(), "10,90"), (std::vector<double>{10, 90}));
}

TEST(SimulationArguments, SaysWhatIsWrongWithASplit) {
  EXPECT_NE(Wrong(SharesOf(*TwoTenants(), "1,2,3").status()).find("red/cache, blue/cache"), std::string::npos);
  EXPECT_NE(Wrong(SharesOf(*TwoTenants(), "1,-2").status()).find("'-2'"), std::string::npos);
  EXPECT_NE(Wrong(SharesOf(*TwoTenants(), "1,nan").status()).find("'nan'"), std::string::npos);
  EXPECT_NE(Wrong(SharesOf(*TwoTenants(), "0,0").status()).find("somebody"), std::string::npos);
}

TEST(SimulationArguments, ACapacityThatThePoolDoesNotHaveIsNotSimulatedAsLess) {
  control::LoadedPolicy policy;
  policy.pool = "pool.yaml:2: KVNodePool laptop";
  policy.table = policy::PolicyTable::FromRules({}, {{0, kGiB, 4 * kGiB}});
  EXPECT_TRUE(CheckPoolHas(policy, {{0, kGiB, 0}}).ok());
  EXPECT_NE(Wrong(CheckPoolHas(policy, {{0, 8 * kGiB, 0}}))
                .find("pool.yaml:2: KVNodePool laptop: states 1Gi of dram, which is less than 8Gi"),
            std::string::npos);
}

SimulatedRun ARun(size_t points) {
  SimulatedRun run;
  run.trace = "t.jsonl";
  run.requests = 12;
  run.block_bytes = 4 * kMiB;
  run.eviction = "lru";
  for (size_t i = 0; i < points; ++i) {
    SimulatedPoint point;
    point.capacity.bytes[TierIndex(TierKind::kDram)] = (i + 1) * kGiB;
    point.tenants.resize(2);
    for (trace_engine::TenantOutcome& tenant : point.tenants) {
      tenant.served.requests = 6;
      tenant.served.blocks_asked = 40;
      tenant.served.blocks_from_dram = 8;
      tenant.served.blocks_from_nvme = 2;
      tenant.served.tokens_asked = 1000;
      tenant.served.tokens_from_dram = 200;
      tenant.served.tokens_from_nvme = 50;
    }
    point.tenants[0].stats.name = "red/cache";
    point.tenants[1].stats.name = "blue/cache";
    engine::TenantTierStats& dram = point.tenants[0].stats.tiers[TierIndex(TierKind::kDram)];
    dram.drop(policy::DropReason::kOwnSpace).count = 7;
    dram.drop(policy::DropReason::kIdle).count = 3;
    dram.refusal(policy::Refusal::kTenantLimit).count = 5;
    run.points.push_back(std::move(point));
  }
  return run;
}

TEST(SimulationReport, TellsTenantsReasonsAndTheSum) {
  const std::string text = SimulationTable(ARun(1));
  EXPECT_NE(text.find("simulated: 12 requests of t.jsonl"), std::string::npos) << text;
  EXPECT_NE(text.find("own_space 7, idle 3"), std::string::npos) << text;
  EXPECT_NE(text.find("tenant_limit 5"), std::string::npos) << text;
  EXPECT_NE(text.find("25.0%"), std::string::npos) << text;
}

TEST(SimulationReport, ASweepHasALineACapacity) {
  const std::string text = SimulationTable(ARun(3));
  for (const char* capacity : {"\n1.0 GiB", "\n2.0 GiB", "\n3.0 GiB"}) {
    EXPECT_NE(text.find(capacity), std::string::npos) << text;
  }
}

TEST(SimulationReport, JsonHasExactNumbersByTierAndReason) {
  const nlohmann::ordered_json data = SimulationJson(ARun(2));
  EXPECT_EQ(data["simulated"], true);
  ASSERT_EQ(data["points"].size(), 2u);
  const auto& point = data["points"][1];
  EXPECT_EQ(point["capacity_bytes"]["dram"], 2 * kGiB);
  EXPECT_EQ(point["all"]["blocks_from_nvme"], 4);
  EXPECT_DOUBLE_EQ(point["tenants"][0]["token_hit"].get<double>(), 0.25);
  EXPECT_EQ(point["tenants"][0]["tiers"]["dram"]["drops"]["own_space"], 7);
  EXPECT_EQ(point["tenants"][0]["tiers"]["dram"]["evictions"], 7) << "idle expiry is no eviction";
  EXPECT_EQ(point["tenants"][0]["tiers"]["dram"]["refusals"]["tenant_limit"], 5);
}

TEST(SimulationReport, CsvIsARectangle) {
  const std::vector<std::string> lines = absl::StrSplit(SimulationCsv(ARun(2)), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 1u + 2 * 2);
  const size_t columns = std::vector<std::string>(absl::StrSplit(lines[0], ',')).size();
  for (const std::string& line : lines) {
    EXPECT_EQ(std::vector<std::string>(absl::StrSplit(line, ',')).size(), columns) << line;
  }
  EXPECT_NE(lines[0].find("dram_drops_own_space"), std::string::npos);
  EXPECT_NE(lines[1].find("red/cache"), std::string::npos);
}

TEST(HitRatePlot, SaysWhatItShows) {
  HitRatePlot plot;
  plot.title = "Simulated token hit rate";
  plot.subtitle = "simulated";
  plot.x_label = "DRAM capacity";
  plot.capacity_bytes = {kGiB, 2 * kGiB, 16 * kGiB};
  plot.lines = {{"red & <co>", {0.1, 0.2, 0.4}, false}, {"all tenants", {0.1, 0.15, 0.3}, true}};
  const std::string svg = RenderSvg(plot);
  for (const char* part : {"Simulated token hit rate", "logarithmic", "1.0 GiB", "16.0 GiB", "token hit rate (%",
                           "red &amp; &lt;co&gt;", "all tenants", "</svg>"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
  size_t lines = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1)) ++lines;
  EXPECT_EQ(lines, 2u);
}

// Higher is better and must look so; more capacity lies to the right.
TEST(HitRatePlot, PointsLieWhereTheirValuesAre) {
  HitRatePlot plot;
  plot.capacity_bytes = {kGiB, 2 * kGiB};
  plot.lines = {{"a", {0.1, 0.2}, false}};
  const std::string svg = RenderSvg(plot);
  const size_t at = svg.find("points=\"") + 8;
  double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
  ASSERT_EQ(std::sscanf(svg.c_str() + at, "%lf,%lf %lf,%lf", &x1, &y1, &x2, &y2), 4);
  EXPECT_LT(x1, x2);
  EXPECT_GT(y1, y2);
}

}  // namespace
}  // namespace kvartal::ctl
