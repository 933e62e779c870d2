#include "tools/kvartal-bench/daemon_files.h"

#include <gtest/gtest.h>

#include "crds/manifest.h"
#include "daemon/base/units.h"
#include "daemon/config/node_config.h"

namespace kvartal::bench {
namespace {

DaemonSetup TwoTenants() {
  DaemonSetup setup;
  setup.dram_bytes = 256 * kMiB;
  setup.nvme_bytes = 1 * kGiB;
  setup.nvme_threads = 3;
  setup.nvme_io = "uring";
  TenantSetup by_uid;
  by_uid.name = "first";
  by_uid.uid = 42;
  by_uid.entries_max = 1000;
  TenantSetup by_door;
  by_door.name = "second";
  by_door.door = "side";
  by_door.dram_limit_bytes = 64 * kMiB;
  setup.tenants = {by_uid, by_door};
  return setup;
}

TEST(DaemonFiles, TheDaemonTakesTheConfiguration) {
  const auto config =
      config::ParseNodeConfig(ConfigurationText(TwoTenants(), "/run/bench"), "kvartal.yaml", "/run/bench");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->dram_bytes, 256 * kMiB);
  ASSERT_EQ(config->nvme.size(), 1u);
  EXPECT_EQ(config->nvme[0].size_bytes, 1 * kGiB);
  EXPECT_EQ(config->nvme[0].io_threads, 3);
  EXPECT_EQ(config->nvme[0].io, "uring");
  ASSERT_EQ(config->doors.size(), 1u);
  EXPECT_EQ(config->doors[0].path, "/run/bench/side.sock");
  EXPECT_EQ(config->policy_dir, "/run/bench/policies");
}

TEST(DaemonFiles, TheDaemonTakesTheManifests) {
  const auto manifests = crds::ParseManifests(ManifestText(TwoTenants()), "tenants.yaml");
  ASSERT_TRUE(manifests.ok()) << manifests.status();
  ASSERT_EQ(manifests->policies.size(), 2u);
  const crds::TenantPolicy& first = manifests->policies[0];
  EXPECT_EQ(first.subjects.at(0).uid, 42u);
  EXPECT_EQ(first.max_entries, 1000);
  EXPECT_EQ(first.ttl.dram_seconds, 0) << "idle expiry is off";
  EXPECT_EQ(first.pools.at(0).dram.limit->bytes, 256 * kMiB);
  EXPECT_EQ(first.pools.at(0).nvme.limit->bytes, 1 * kGiB);
  const crds::TenantPolicy& second = manifests->policies[1];
  EXPECT_EQ(second.subjects.at(0).socket, "side");
  EXPECT_EQ(second.pools.at(0).dram.limit->bytes, 64 * kMiB);
  EXPECT_FALSE(second.max_entries.has_value());
}

TEST(DaemonFiles, NoNvmeMeansNone) {
  DaemonSetup setup = TwoTenants();
  setup.nvme_bytes = 0;
  const auto config = config::ParseNodeConfig(ConfigurationText(setup, "/run/bench"), "kvartal.yaml", "/run/bench");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->nvme.empty());
  EXPECT_TRUE(crds::ParseManifests(ManifestText(setup), "tenants.yaml").ok());
}

}  // namespace
}  // namespace kvartal::bench
