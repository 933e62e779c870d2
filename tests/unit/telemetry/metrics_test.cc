#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "daemon/base/limits.h"
#include "daemon/base/unique_fd.h"
#include "daemon/telemetry/metric_families.h"
#include "daemon/telemetry/metrics_exporter.h"

namespace kvartal::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const NodeMetrics& metrics) { return prometheus::TextSerializer().Serialize(ToFamilies(metrics)); }

NodeMetrics OneTenant() {
  NodeMetrics metrics;
  metrics.tier_configured = {false, true, true};
  metrics.tier_healthy = {false, true, false};
  metrics.engine.policy_version = "abc";
  metrics.engine.tenants.resize(1);
  metrics.engine.tenants[0].name = "team-red/chat";
  metrics.engine.tenants[0].tiers[TierIndex(TierKind::kDram)].charged_bytes = 2097152;
  metrics.engine.tenants[0].tokens_hit = 640;
  return metrics;
}

size_t LinesBeginning(const std::string& text, const std::string& prefix) {
  size_t count = 0;
  for (size_t at = text.find("\n" + prefix); at != std::string::npos; at = text.find("\n" + prefix, at + 1)) ++count;
  return count;
}

TEST(ToFamilies, SplitsTheTenantNameInTwoLabels) {
  const std::string text = Text(OneTenant());
  EXPECT_THAT(text,
              HasSubstr("kvartal_tenant_charged_bytes{tenant_namespace=\"team-red\",tenant=\"chat\",tier=\"dram\"} "
                        "2097152"));
  EXPECT_THAT(text, HasSubstr("# TYPE kvartal_tenant_charged_bytes gauge"));
  EXPECT_THAT(text, HasSubstr("# TYPE kvartal_tenant_lookup_tokens_hit_total counter"));
  EXPECT_THAT(text,
              HasSubstr("kvartal_tenant_lookup_tokens_hit_total{tenant_namespace=\"team-red\",tenant=\"chat\"} 640"));
}

TEST(ToFamilies, ATierThatIsNotConfiguredHasNoLines) { EXPECT_THAT(Text(OneTenant()), Not(HasSubstr("tier=\"hbm\""))); }

TEST(ToFamilies, ASickTierIsConfiguredAndDown) {
  const std::string text = Text(OneTenant());
  EXPECT_THAT(text, HasSubstr("kvartal_tier_up{tier=\"dram\"} 1"));
  EXPECT_THAT(text, HasSubstr("kvartal_tier_up{tier=\"nvme\"} 0"));
}

TEST(ToFamilies, TheStateOfTheDiskIsShownWhereThereIsOne) {
  NodeMetrics metrics = OneTenant();
  EXPECT_THAT(Text(metrics), Not(HasSubstr("kvartal_nvme_device_state")));
  metrics.engine.nvme_present = true;
  metrics.engine.nvme_state = tier::DeviceState::kDegraded;
  metrics.engine.nvme_quarantined_slots = 7;
  EXPECT_THAT(Text(metrics), HasSubstr("kvartal_nvme_device_state 1"));
  EXPECT_THAT(Text(metrics), HasSubstr("kvartal_nvme_quarantined_slots 7"));
}

TEST(ToFamilies, EachDiskHasLinesOfItsOwnAndOneThatIsAbsentItsStateAlone) {
  NodeMetrics metrics = OneTenant();
  EXPECT_THAT(Text(metrics), Not(HasSubstr("disk=\"")));
  metrics.disks.resize(3);
  for (size_t i = 0; i < 3; ++i) metrics.disks[i].path = "/d" + std::to_string(i);
  metrics.disks[0].present = metrics.disks[1].present = true;
  metrics.disks[0].stats.granted_bytes = 4096;
  metrics.disks[0].stats.counters.bytes_written = 8192;
  metrics.disks[1].stats.state = tier::DeviceState::kOffline;
  metrics.disks[1].stats.counters.read_errors = 20;
  const std::string text = Text(metrics);
  EXPECT_THAT(text, HasSubstr("kvartal_nvme_disk_state{disk=\"/d0\"} 0"));
  EXPECT_THAT(text, HasSubstr("kvartal_nvme_disk_state{disk=\"/d1\"} 2"));
  EXPECT_THAT(text, HasSubstr("kvartal_nvme_disk_state{disk=\"/d2\"} 3"));
  EXPECT_THAT(text, HasSubstr("kvartal_nvme_disk_used_bytes{disk=\"/d0\"} 4096"));
  EXPECT_THAT(text, HasSubstr("kvartal_nvme_disk_written_bytes_total{disk=\"/d0\"} 8192"));
  EXPECT_THAT(text, HasSubstr("kvartal_nvme_disk_errors_total{disk=\"/d1\",kind=\"read\"} 20"));
  EXPECT_THAT(text, Not(HasSubstr("kvartal_nvme_disk_used_bytes{disk=\"/d2\"}")));
}

TEST(ToFamilies, OnlyReasonsThatHappenedAreShown) {
  NodeMetrics metrics = OneTenant();
  metrics.engine.tenants[0].tiers[TierIndex(TierKind::kNvme)].refusal(policy::Refusal::kCapacity).count = 3;
  metrics.attach.denials[static_cast<size_t>(attach::DenialReason::kUnknownUid)] = 2;
  const std::string text = Text(metrics);
  EXPECT_EQ(LinesBeginning(text, "kvartal_tenant_refusals_total{"), 1u);
  EXPECT_THAT(text, HasSubstr("tier=\"nvme\",reason=\"capacity\"} 3"));
  EXPECT_THAT(text, HasSubstr("kvartal_attach_denials_total{reason=\"unknown_uid\"} 2"));
}

TEST(ToFamilies, WhatABillIsMadeOf) {
  NodeMetrics metrics = OneTenant();
  engine::TenantTierStats& dram = metrics.engine.tenants[0].tiers[TierIndex(TierKind::kDram)];
  dram.byte_seconds = 4096.5;
  dram.tokens_served = 77;
  dram.fair_share_bytes = 5;
  dram.demand_bytes = 6;
  const std::string text = Text(metrics);
  const std::string labels = "{tenant_namespace=\"team-red\",tenant=\"chat\",tier=\"dram\"} ";
  EXPECT_THAT(text, HasSubstr("kvartal_tenant_byte_seconds_total" + labels + "4096.5"));
  EXPECT_THAT(text, HasSubstr("# TYPE kvartal_tenant_byte_seconds_total counter"));
  EXPECT_THAT(text, HasSubstr("kvartal_tenant_tokens_served_total" + labels + "77"));
  EXPECT_THAT(text, HasSubstr("kvartal_tenant_fair_share_bytes" + labels + "5"));
  EXPECT_THAT(text, HasSubstr("kvartal_tenant_demand_bytes" + labels + "6"));
}

TEST(ToFamilies, LatenciesAreCumulativeAndBySlaTier) {
  NodeMetrics metrics = OneTenant();
  LatencyHistogram& load = metrics.engine.latency[static_cast<size_t>(policy::SlaTier::kPremium)].load;
  for (const int64_t us : {10, 15, 16, 700, 40'000'000}) load.AddNs(us * 1000);
  const std::string text = Text(metrics);
  EXPECT_THAT(text, HasSubstr("# TYPE kvartal_load_duration_seconds histogram"));
  const std::string bucket = "kvartal_load_duration_seconds_bucket{sla=\"premium\",le=\"";
  EXPECT_THAT(text, HasSubstr(bucket + "1.5e-05\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(bucket + "6.3e-05\"} 3\n"));
  EXPECT_THAT(text, HasSubstr(bucket + "0.001023\"} 4\n"));
  EXPECT_THAT(text, HasSubstr(bucket + "16.777215\"} 4\n"));
  EXPECT_THAT(text, HasSubstr(bucket + "+Inf\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("kvartal_load_duration_seconds_count{sla=\"premium\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("kvartal_load_duration_seconds_count{sla=\"basic\"} 0\n"));
  EXPECT_EQ(LinesBeginning(text, bucket), 12u);
}

TEST(ToFamilies, EveryDropReasonIsAWordOfItsOwn) {
  NodeMetrics metrics = OneTenant();
  policy::Tally& taken =
      metrics.engine.tenants[0].tiers[TierIndex(TierKind::kDram)].drop(policy::DropReason::kTakenByOther);
  taken.count = 2;
  taken.bytes = 4096;
  const std::string text = Text(metrics);
  EXPECT_EQ(LinesBeginning(text, "kvartal_tenant_dropped_copies_total{"), 1u);
  EXPECT_THAT(text, HasSubstr("tier=\"dram\",reason=\"taken_by_other\"} 2"));
  EXPECT_THAT(text, HasSubstr("tier=\"dram\",reason=\"taken_by_other\"} 4096"));
}

// A folder has nobody who could be away.
TEST(ToFamilies, HowLongTheOperatorHasBeenAwayIsToldWhereThereIsOne) {
  NodeMetrics metrics = OneTenant();
  EXPECT_THAT(Text(metrics), Not(HasSubstr("kvartal_operator_away_seconds")));
  metrics.operator_away_ms = 0;
  EXPECT_THAT(Text(metrics), HasSubstr("\nkvartal_operator_away_seconds 0\n"));
  metrics.operator_away_ms = 90'500;
  EXPECT_THAT(Text(metrics), HasSubstr("\nkvartal_operator_away_seconds 90.5\n"));
}

TEST(ToFamilies, ARefusedFolderAndLostAuditEventsAreSeen) {
  NodeMetrics metrics = OneTenant();
  EXPECT_THAT(Text(metrics), HasSubstr("\nkvartal_policy_refused 0\n"));
  metrics.policy_refused = true;
  metrics.audit_lost = 3;
  EXPECT_THAT(Text(metrics), HasSubstr("\nkvartal_policy_refused 1\n"));
  EXPECT_THAT(Text(metrics), HasSubstr("\nkvartal_audit_lost_total 3\n"));
}

TEST(ToFamilies, TenantsBeyondTheLimitAreSummedInOneLine) {
  NodeMetrics metrics = OneTenant();
  metrics.tier_configured = {false, true, false};
  metrics.engine.tenants.clear();
  for (size_t i = 0; i < kMetricTenantsMax + 3; ++i) {
    engine::TenantStats tenant;
    tenant.name = "ns/t" + std::to_string(i);
    tenant.lookups = 10;
    tenant.tiers[TierIndex(TierKind::kDram)].charged_bytes = 100;
    tenant.tiers[TierIndex(TierKind::kDram)].byte_seconds = 0.5;
    metrics.attach.session_list.emplace_back().tenant = tenant.name;
    metrics.engine.tenants.push_back(tenant);
  }
  const std::string text = Text(metrics);
  EXPECT_EQ(LinesBeginning(text, "kvartal_tenant_charged_bytes{"), kMetricTenantsMax + 1);
  EXPECT_THAT(text,
              HasSubstr("kvartal_tenant_charged_bytes{tenant_namespace=\"\",tenant=\"other\",tier=\"dram\"} 300"));
  EXPECT_THAT(text, HasSubstr("kvartal_tenant_lookups_total{tenant_namespace=\"\",tenant=\"other\"} 30"));
  EXPECT_THAT(text, HasSubstr("kvartal_tenant_sessions{tenant_namespace=\"\",tenant=\"other\"} 3"));
  EXPECT_THAT(text,
              HasSubstr("kvartal_tenant_byte_seconds_total{tenant_namespace=\"\",tenant=\"other\",tier=\"dram\"} 1.5"));
  EXPECT_THAT(text, HasSubstr("kvartal_tenants_folded 3"));
}

TEST(ToFamilies, TenantsOnTheirWayOutFoldBeforeThoseThatAreThere) {
  NodeMetrics metrics = OneTenant();
  metrics.engine.tenants.clear();
  for (size_t i = 0; i < kMetricTenantsMax + 3; ++i) {
    engine::TenantStats tenant;
    tenant.name = "ns/t" + std::to_string(i);
    tenant.removed = i < 10;
    metrics.engine.tenants.push_back(tenant);
  }
  const std::string text = Text(metrics);
  EXPECT_THAT(text, HasSubstr("tenant=\"t" + std::to_string(kMetricTenantsMax + 2) + "\""));
  EXPECT_THAT(text, HasSubstr("tenant=\"t6\""));
  for (const char* folded : {"t7", "t8", "t9"}) {
    EXPECT_THAT(text, Not(HasSubstr(std::string("tenant=\"") + folded + "\"")));
  }
}

TEST(ToFamilies, ExactlyTheLimitFoldsNobody) {
  NodeMetrics metrics = OneTenant();
  const engine::TenantStats tenant = metrics.engine.tenants[0];
  metrics.engine.tenants.assign(kMetricTenantsMax, tenant);
  EXPECT_EQ(Text(metrics).find("tenant=\"other\""), std::string::npos);
}

TEST(ToFamilies, ANameThatNeedsEscapingStaysOneLabel) {
  NodeMetrics metrics = OneTenant();
  metrics.engine.tenants[0].name = "a/b\"} 1\nevil 2";
  EXPECT_THAT(Text(metrics), Not(HasSubstr("\nevil")));
}

UniqueFd ConnectTo(const std::string& address) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&peer), sizeof(peer)) == 0 ? std::move(fd) : UniqueFd();
}

std::string Scrape(const std::string& address) {
  const UniqueFd fd = ConnectTo(address);
  if (!fd.valid()) return "no connection";
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(::write(fd.get(), request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char part[4096];
  for (ssize_t got = 0; (got = ::read(fd.get(), part, sizeof(part))) > 0;)
    answer.append(part, static_cast<size_t>(got));
  return answer;
}

TEST(MetricsExporter, ShowsTheLastSnapshot) {
  auto exporter = MetricsExporter::Start("127.0.0.1:0");
  ASSERT_TRUE(exporter.ok()) << exporter.status();
  NodeMetrics metrics = OneTenant();
  metrics.engine.entries = 1;
  (*exporter)->Update(metrics);
  metrics.engine.entries = 2;
  (*exporter)->Update(metrics);
  const std::string answer = Scrape((*exporter)->address());
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("\nkvartal_index_entries 2"));
}

TEST(MetricsExporter, WhoSaysNothingKeepsNoScraperWaiting) {
  auto exporter = MetricsExporter::Start("127.0.0.1:0");
  ASSERT_TRUE(exporter.ok()) << exporter.status();
  (*exporter)->Update(OneTenant());
  // Upstream's server would wait half a minute for each of them, one after another.
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(ConnectTo((*exporter)->address()));
  EXPECT_THAT(Scrape((*exporter)->address()), HasSubstr("200 OK"));
  for (const UniqueFd& each : silent) EXPECT_TRUE(each.valid());
}

TEST(MetricsExporter, ATakenPortIsNamed) {
  auto first = MetricsExporter::Start("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = MetricsExporter::Start((*first)->address());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address()));
}

TEST(MetricsExporter, NonsenseIsAnError) { EXPECT_FALSE(MetricsExporter::Start("not an address").ok()); }

}  // namespace
}  // namespace kvartal::telemetry
