#include "daemon/control/admin_reply.h"

#include <gtest/gtest.h>

namespace kvartal::control {
namespace {

namespace pb = admin::v1;

NodeView ViewOfTwoTenants() {
  NodeView view;
  view.policy_tenants = 1;
  view.removed_tenants = {"red/a"};
  view.engine.tenants.resize(2);
  view.engine.tenants[0].name = "red/a";
  view.engine.tenants[1].name = "blue/b";
  view.engine.capacity_bytes = {0, 1000, 2000};
  view.engine.charged_bytes = {0, 300, 5};
  view.engine.reclaiming_bytes = {0, 7, 0};
  view.tiers[TierIndex(TierKind::kDram)].configured = true;
  view.tiers[TierIndex(TierKind::kNvme)] = {true, false, "offline: disk full"};
  SessionView session;
  session.id = 9;
  session.tenant = "blue/b";
  session.attestor = "uid";
  session.pid = 42;
  session.leased_blocks = 3;
  view.sessions = {session, session};
  return view;
}

TEST(FillStatus, TellsEveryTierWithItsHealthAndNote) {
  pb::StatusReply reply;
  FillStatus(ViewOfTwoTenants(), &reply);
  ASSERT_EQ(reply.tiers_size(), 3);
  EXPECT_FALSE(reply.tiers(0).present());
  EXPECT_FALSE(reply.tiers(0).healthy());
  EXPECT_EQ(reply.tiers(1).name(), "dram");
  EXPECT_TRUE(reply.tiers(1).healthy());
  EXPECT_EQ(reply.tiers(1).charged_bytes(), 300u);
  EXPECT_EQ(reply.tiers(1).reclaiming_bytes(), 7u);
  EXPECT_EQ(reply.tiers(2).name(), "nvme");
  EXPECT_TRUE(reply.tiers(2).present());
  EXPECT_FALSE(reply.tiers(2).healthy());
  EXPECT_EQ(reply.tiers(2).note(), "offline: disk full");
  EXPECT_EQ(reply.tenants(), 1u);
  EXPECT_EQ(reply.sessions(), 2u);
}

TEST(FillStatus, TellsEveryDiskAsItIsConfigured) {
  NodeView view = ViewOfTwoTenants();
  view.disks.resize(2);
  view.disks[0] = {.path = "/d0", .present = true, .io_engine = "threads", .note = "slow -> mend it", .stats = {}};
  view.disks[0].stats.state = tier::DeviceState::kDegraded;
  view.disks[0].stats.granted_bytes = 12;
  view.disks[0].stats.counters.header_mismatches = 2;
  view.disks[0].stats.counters.checksum_mismatches = 3;
  view.disks[1].path = "/d1";
  pb::StatusReply reply;
  FillStatus(view, &reply);
  ASSERT_EQ(reply.disks_size(), 2);
  EXPECT_EQ(reply.disks(0).path(), "/d0");
  EXPECT_EQ(reply.disks(0).state(), "degraded");
  EXPECT_EQ(reply.disks(0).io_engine(), "threads");
  EXPECT_EQ(reply.disks(0).used_bytes(), 12u);
  EXPECT_EQ(reply.disks(0).mismatches(), 5u);
  EXPECT_EQ(reply.disks(0).note(), "slow -> mend it");
  EXPECT_EQ(reply.disks(1).state(), "absent");
}

TEST(FillTenants, CountsSessionsATenantAndLeavesZeroRefusalsOut) {
  NodeView view = ViewOfTwoTenants();
  engine::TenantTierStats& dram = view.engine.tenants[1].tiers[TierIndex(TierKind::kDram)];
  dram.charged_bytes = 64;
  dram.refusal(policy::Refusal::kTenantLimit).count = 4;
  view.engine.tenants[1].blocks_hit = 11;
  pb::ListTenantsReply reply;
  FillTenants(view, &reply);
  ASSERT_EQ(reply.tenants_size(), 2);
  EXPECT_TRUE(reply.tenants(0).removed());
  EXPECT_FALSE(reply.tenants(1).removed());
  EXPECT_EQ(reply.tenants(0).sessions(), 0u);
  EXPECT_EQ(reply.tenants(1).sessions(), 2u);
  EXPECT_EQ(reply.tenants(1).blocks_hit(), 11u);
  const pb::TenantTier& tier = reply.tenants(1).tiers(1);
  EXPECT_EQ(tier.charged_bytes(), 64u);
  ASSERT_EQ(tier.refusals_size(), 1);
  EXPECT_EQ(tier.refusals().at("tenant_limit"), 4u);
  EXPECT_EQ(reply.tenants(0).tiers(1).refusals_size(), 0);
}

TEST(FillSessions, CopiesWhatASessionHolds) {
  pb::ListSessionsReply reply;
  FillSessions(ViewOfTwoTenants(), &reply);
  ASSERT_EQ(reply.sessions_size(), 2);
  EXPECT_EQ(reply.sessions(0).id(), 9u);
  EXPECT_EQ(reply.sessions(0).pid(), 42u);
  EXPECT_EQ(reply.sessions(0).attestor(), "uid");
  EXPECT_EQ(reply.sessions(0).leased_blocks(), 3u);
}

}  // namespace
}  // namespace kvartal::control
