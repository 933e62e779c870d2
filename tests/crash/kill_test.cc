// kill -9 of a real kvartald under load, at a moment that a printed seed decides: what was called durable is there
// afterwards with the right bytes, nothing is wrong, and the books agree. KVARTAL_TEST_SEED repeats a run.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"
#include "tests/support/daemon_process.h"
#include "tools/admin/admin_client.h"
#include "tools/kvartal-bench/bench_client.h"
#include "tools/kvartal-bench/restart_load.h"
#include "tools/kvartal-bench/verified_load.h"

namespace kvartal::testing {
namespace {

using admin::AdminClient;
using bench::BenchClient;
using bench::RestartLoad;

constexpr int kLoops = 3;
constexpr uint64_t kLoads = 2;
constexpr uint64_t kChainsALoad = 48;  // so that all that is ever stored fits on the disk: nothing may be evicted there
constexpr uint64_t kKillAfterMin = 128, kKillAfterMax = 1024;  // durable blocks; enough that clients were told of some
constexpr kv_layout kLayout = {16, 1, 16 * kKiB};
constexpr auto kPatience = std::chrono::seconds(60);
static_assert(kKillAfterMax < kLoads * kChainsALoad * bench::kRestartChainBlocks, "the kill comes before the end");

uint64_t Seed() {
  const char* const given = std::getenv("KVARTAL_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
}

struct Verdict {
  uint64_t checked = 0, right = 0, lost = 0, wrong_bytes = 0, from_nvme = 0;
};

class KillTest : public ::testing::Test {
 protected:
  explicit KillTest(DaemonOptions options = Options()) : seed_(Seed()), random_(seed_), daemon_(std::move(options)) {
    std::cout << "seed " << seed_ << std::endl;
    RecordProperty("seed", absl::StrCat(seed_));
  }

  static DaemonOptions Options() {
    DaemonOptions options;
    options.nvme_size = "256Mi";
    // Far less DRAM than what is stored: loads under way at the kill read from the disk, too.
    options.manifests = TenantManifest("own", absl::StrCat("uid: ", ::getuid()), "8Mi", "256Mi");
    options.more_config = "logLevel: warning\n";
    return options;
  }

  void Start() {
    ASSERT_TRUE(daemon_.Start().ok()) << daemon_.log();
    admin_ = std::make_unique<AdminClient>(AdminClient::WaitingFor(daemon_.admin_socket()));
  }

  uint64_t DurableBlocks() {
    const auto tenant = admin_->GetTenant("test/own");
    EXPECT_TRUE(tenant.ok()) << tenant.status();
    return tenant.ok() ? tenant->durable_blocks() : 0;
  }

  // Polls as fast as it can: the kill is to come in the middle of things.
  void WaitDurable(uint64_t blocks) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    for (uint64_t durable = 0; durable < blocks;) {
      durable = DurableBlocks();
      ASSERT_LT(std::chrono::steady_clock::now(), until) << durable << " of " << blocks << " blocks are durable";
    }
  }

  void KillUnderLoad() {
    const uint64_t recovered = DurableBlocks();
    std::atomic<bool> stop = false;
    std::vector<std::unique_ptr<RestartLoad>> loads;
    std::vector<absl::Status> results(kLoads);
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < kLoads; ++i, next_chain_ += kChainsALoad) {
      loads.push_back(
          std::make_unique<RestartLoad>(daemon_.attach_socket(), kLayout, next_chain_, kChainsALoad, random_()));
      threads.emplace_back([&stop, &result = results[i], load = loads.back().get()] { result = load->Run(stop); });
    }
    const uint64_t kill_after = kKillAfterMin + random_() % (kKillAfterMax - kKillAfterMin);
    WaitDurable(recovered + kill_after);
    daemon_.Kill();
    stop = true;
    for (std::thread& thread : threads) thread.join();
    for (uint64_t i = 0; i < kLoads; ++i) {
      EXPECT_TRUE(results[i].ok()) << results[i];
      EXPECT_EQ(loads[i]->wrong_bytes(), 0u);
      read_bytes_ += loads[i]->read_bytes();
      for (const bench::DurableBlock& block : loads[i]->durable()) {
        durable_.push_back(bench::RestartChain(block.chain)[block.depth]);
      }
    }
  }

  // Every block that was ever called durable, each by itself: a gap must not hide what lies behind it.
  void CheckDurable(Verdict* verdict) {
    const auto client = BenchClient::Attach(daemon_.attach_socket(), bench::kRestartDigest, kLayout);
    ASSERT_TRUE(client.ok()) << client.status();
    for (const BlockKey& key : durable_) {
      auto found = (*client)->Lookup({&key, 1});
      ASSERT_TRUE(found.ok()) << found.status();
      const auto compared = bench::LoadAndCompare(client->get(), {&key, 1}, *std::move(found));
      ASSERT_TRUE(compared.ok()) << compared.status();
      ++verdict->checked;
      verdict->right += compared->blocks == 1 && compared->wrong_bytes == 0;
      verdict->lost += compared->blocks == 0;
      verdict->wrong_bytes += compared->wrong_bytes;
      verdict->from_nvme += compared->from_nvme;
    }
  }

  void WaitRecovered() {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    for (bool recovering = true; recovering;) {
      const auto status = admin_->GetStatus();
      ASSERT_TRUE(status.ok()) << status.status();
      recovering = status->recovering();
      ASSERT_LT(std::chrono::steady_clock::now(), until);
    }
  }

  void CheckBooks() {
    const auto tenant = admin_->GetTenant("test/own");
    ASSERT_TRUE(tenant.ok()) << tenant.status();
    const admin::v1::TenantTier& nvme = admin::TierOf(*tenant, "nvme");
    EXPECT_GE(nvme.blocks(), durable_.size());
    EXPECT_EQ(nvme.charged_bytes(), nvme.blocks() * (kLayout.shard_bytes + kNvmeHeaderBytes));
    const absl::Status invariants = admin_->CheckInvariants().status();
    EXPECT_TRUE(invariants.ok()) << invariants;
  }

  void ExpectDurableSurvives(int loops);

  const uint64_t seed_;
  std::mt19937_64 random_;
  DaemonProcess daemon_;
  std::unique_ptr<AdminClient> admin_;
  uint64_t next_chain_ = 0;
  uint64_t read_bytes_ = 0;
  std::vector<BlockKey> durable_;
};

void KillTest::ExpectDurableSurvives(int loops) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (int loop = 0; loop < loops; ++loop) {
    SCOPED_TRACE(absl::StrCat("seed ", seed_, ", loop ", loop));
    const size_t before = durable_.size();
    ASSERT_NO_FATAL_FAILURE(KillUnderLoad());
    EXPECT_GT(durable_.size(), before) << "nothing was promised, so nothing is checked";
    ASSERT_NO_FATAL_FAILURE(Start());
    // It serves while it reads back what is there: the next is killed amid that.
    if (loop % 2 == 1) {
      daemon_.Kill();
      ASSERT_NO_FATAL_FAILURE(Start());
    }
    ASSERT_NO_FATAL_FAILURE(WaitRecovered());
    ASSERT_NO_FATAL_FAILURE(CheckBooks());
    Verdict verdict;
    ASSERT_NO_FATAL_FAILURE(CheckDurable(&verdict));
    EXPECT_EQ(verdict.checked, durable_.size());
    EXPECT_EQ(verdict.right, durable_.size());
    EXPECT_EQ(verdict.lost, 0u);
    EXPECT_EQ(verdict.wrong_bytes, 0u);
    EXPECT_GT(verdict.from_nvme, 0u);
    ASSERT_NO_FATAL_FAILURE(CheckBooks());
  }
  std::cout << durable_.size() << " durable blocks, " << read_bytes_ << " bytes read back under load" << std::endl;
}

TEST_F(KillTest, WhatIsDurableSurvivesAndNothingIsWrong) { ASSERT_NO_FATAL_FAILURE(ExpectDurableSurvives(kLoops)); }

class EncryptedKillTest : public KillTest {
 protected:
  EncryptedKillTest() : KillTest(EncryptedOptions()) {
    const std::string path = daemon_.folder() + "/nvme.keys";
    WriteFile(path, "1 " + std::string(64, 'a') + "\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
  static DaemonOptions EncryptedOptions() {
    DaemonOptions options = Options();
    options.manifests += "  encryption: {nvme: Required}\n";
    options.more_config += "nvmeKeyFile: nvme.keys\n";
    return options;
  }
};

// The salt of a tenant is there before any block under it is called durable.
TEST_F(EncryptedKillTest, WhatIsDurableSurvivesAndNothingIsWrong) {
  ASSERT_NO_FATAL_FAILURE(ExpectDurableSurvives(kLoops));
}

// The positive control: with the disk emptied the same check finds every block missing.
TEST_F(KillTest, TheCheckSeesADiskThatWasEmptied) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(KillUnderLoad());
  std::filesystem::remove(daemon_.nvme_path());
  std::filesystem::remove_all(daemon_.nvme_path() + ".catalog");
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(WaitRecovered());
  Verdict verdict;
  ASSERT_NO_FATAL_FAILURE(CheckDurable(&verdict));
  EXPECT_GT(verdict.checked, 0u);
  EXPECT_EQ(verdict.lost, verdict.checked);
  EXPECT_EQ(verdict.right, 0u);
}

}  // namespace
}  // namespace kvartal::testing
