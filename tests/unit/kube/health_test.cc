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
  stats.controllers = {{"policy", {}, 4}, {"pool", {}, 2}};
  ControllerStats& work = stats.controllers[0].work;
  work.done = 7;
  work.failed = 2;
  work.queue.depth = 3;
  work.queue.working = 1;
  work.queue.longest_ms = 1500;
  work.queue.worked.Observe(30);
  stats.controllers[1].work.failed = 5;
  stats.calls.durations["PUT"].Observe(90'000);
  stats.host = "10.0.0.1:443";
  stats.calls.requests[{"GET", 200}] = 5;
  stats.calls.requests[{"GET", 0}] = 1;
  stats.lease = "kvartal-operator";
  stats.leading = true;
  Health health;
  health.SetMetrics(MetricsText(stats));
  const std::string text = health.Answer("/metrics", 0).text;
  EXPECT_THAT(text, HasSubstr("controller_runtime_reconcile_total{controller=\"policy\",result=\"success\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("controller_runtime_reconcile_errors_total{controller=\"policy\"} 2\n"
                              "controller_runtime_reconcile_errors_total{controller=\"pool\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("workqueue_depth{name=\"policy\"} 3\nworkqueue_depth{name=\"pool\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("workqueue_longest_running_processor_seconds{name=\"policy\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("workqueue_work_duration_seconds_bucket{name=\"policy\",le=\"0.025\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("workqueue_work_duration_seconds_bucket{name=\"policy\",le=\"0.1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("workqueue_work_duration_seconds_sum{name=\"policy\"} 0.03\n"));
  EXPECT_THAT(text, HasSubstr("controller_runtime_reconcile_time_seconds_count{controller=\"policy\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("workqueue_queue_duration_seconds_count{name=\"policy\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("{host=\"10.0.0.1:443\",verb=\"PUT\",le=\"60\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("{host=\"10.0.0.1:443\",verb=\"PUT\",le=\"+Inf\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("rest_client_requests_total{code=\"200\",host=\"10.0.0.1:443\",method=\"GET\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("{code=\"<error>\",host"));
  EXPECT_THAT(text, HasSubstr("leader_election_master_status{name=\"kvartal-operator\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("  ")));
}

}  // namespace
}  // namespace kvartal::kube
