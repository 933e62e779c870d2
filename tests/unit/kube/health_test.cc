#include "operator/kube/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/kube/limits.h"
#include "operator/kube/metrics_text.h"

namespace kvartal::kube {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(HealthTest, ALoopThatDoesNotTurnIsNotAlive) {
  Health health;
  health.Beat(1000);
  EXPECT_EQ(health.Answer("/healthz", 1000 + kHealthStuckMs - 1).status, 200);
  EXPECT_EQ(health.Answer("/healthz", 1000 + kHealthStuckMs).status, 503);
  health.Beat(1000 + kHealthStuckMs);
  EXPECT_EQ(health.Answer("/healthz", 1000 + kHealthStuckMs).status, 200);
}

TEST(HealthTest, ReadyIsWhoWaitsForNothing) {
  Health health;
  health.Beat(0);
  EXPECT_EQ(health.Answer("/readyz", 0).status, 503);
  health.SetWaitingFor("caches");
  EXPECT_THAT(health.Answer("/readyz", 0).text, HasSubstr("caches"));
  health.SetWaitingFor("");
  EXPECT_EQ(health.Answer("/readyz", 0).status, 200);
  EXPECT_EQ(health.Answer("/readyz", kHealthStuckMs).status, 503);
}

TEST(HealthTest, NothingElseIsServed) {
  const Health health;
  for (const char* path : {"", "/", "/healthz/", "/metrics/..", "/debug/pprof"})
    EXPECT_EQ(health.Answer(path, 0).status, 404) << path;
}

TEST(HealthTest, MetricsHaveTheNamesThatDashboardsKnow) {
  RuntimeStats stats;
  stats.controller = "policy";
  stats.work = {7, 2, {.adds = 9, .retries = 2, .depth = 3, .waiting = 0, .working = 1}};
  stats.host = "10.0.0.1:443";
  stats.calls.requests[{"GET", 200}] = 5;
  stats.calls.requests[{"GET", 0}] = 1;
  stats.lease = "kvartal-operator";
  stats.leading = true;
  Health health;
  health.SetMetrics(MetricsText(stats));
  const std::string text = health.Answer("/metrics", 0).text;
  EXPECT_THAT(text, HasSubstr("controller_runtime_reconcile_total{controller=\"policy\",result=\"success\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("workqueue_depth{name=\"policy\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("rest_client_requests_total{code=\"200\",host=\"10.0.0.1:443\",method=\"GET\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("{code=\"<error>\",host"));
  EXPECT_THAT(text, HasSubstr("leader_election_master_status{name=\"kvartal-operator\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("  ")));
}

}  // namespace
}  // namespace kvartal::kube
