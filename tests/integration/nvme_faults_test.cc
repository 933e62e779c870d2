// Damage to the disk of a real kvartald, seen through the client library: a damaged block is a miss and is counted, the
// others are right, and no byte is ever wrong. And memory: a client that writes where it was granted nothing.
#include <sys/mman.h>
#include <sys/mount.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "tests/integration/nvme_fixture.h"

namespace kvartal::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kMismatches[] = "kvartal_nvme_errors_total{kind=\"mismatch\"}";
constexpr char kStrayBytes[] = "kvartal_stray_bytes_punched_total ";

using NvmeFaultsTest = NvmeTest;

TEST_F(NvmeFaultsTest, WhatIsLoadedFromNvmeIsRight) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> keys = Keys("loads", 192);  // 12 MiB, three times what the tenant may hold in DRAM
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
  const Census before = Ask(client_.get(), keys);
  EXPECT_EQ(before.right, keys.size());
  EXPECT_EQ(before.wrong_bytes, 0u);
  EXPECT_GE(before.from_nvme, keys.size() - 4 * kMiB / kNvmeTestBlockBytes);
  EXPECT_GE(Tenant().blocks_loaded(), before.from_nvme);

  ASSERT_NO_FATAL_FAILURE(Stop());
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(admin::TierOf(Tenant(), "nvme").blocks(), keys.size());
  const Census after = Ask(client_.get(), keys);
  EXPECT_EQ(after.right, keys.size());
  EXPECT_EQ(after.from_nvme, keys.size()) << "a new daemon has nothing in DRAM";
  EXPECT_EQ(Metric(kMismatches), 0);
  ExpectBooksAgree();
}

class NvmeBitTest : public NvmeTest, public ::testing::WithParamInterface<uint64_t> {};

// A bit at GetParam() bytes from the start of a block's header.
TEST_P(NvmeBitTest, ADamagedBlockIsAMissAndIsCountedAndTheOthersAreRight) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> keys = Keys("bits", 32);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
  ASSERT_NO_FATAL_FAILURE(Stop());
  const size_t victim = 13;
  const uint64_t header = HeaderOf(keys[victim]);
  ASSERT_NE(header, 0u);
  ASSERT_NO_FATAL_FAILURE(FlipBit(header + GetParam()));
  ASSERT_NO_FATAL_FAILURE(Start());

  const Census damaged = Ask(client_.get(), {&keys[victim], 1});
  EXPECT_EQ(damaged.from_nvme, 1u) << "the catalog knows of the block, its bytes are read";
  EXPECT_EQ(damaged.missed, 1u);
  EXPECT_EQ(damaged.wrong_bytes, 0u);
  const Census all = Ask(client_.get(), keys);
  EXPECT_EQ(all.right, keys.size() - 1);
  EXPECT_EQ(all.missed, 1u);
  EXPECT_EQ(all.wrong_bytes, 0u);
  EXPECT_EQ(all.from_nvme, keys.size() - 1) << "the damaged one is not even found any more";
  EXPECT_EQ(Tenant().load_failures(), 1u);
  Until("the mismatch in the metrics", [this] { return Metric(kMismatches) >= 1; });
  EXPECT_EQ(Metric(kMismatches), 1);
  EXPECT_EQ(admin::TierOf(Tenant(), "nvme").blocks(), keys.size() - 1);
  ExpectBooksAgree();

  // The key is free to be stored again.
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), {&keys[victim], 1}));
  EXPECT_EQ(Ask(client_.get(), {&keys[victim], 1}).right, 1u);
}

TEST_P(NvmeBitTest, AChainIsLoadedUpToItsDamagedBlock) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> chain = Keys("chain", 16);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), chain, true));
  ASSERT_NO_FATAL_FAILURE(Stop());
  const uint32_t victim = 9;
  const uint64_t header = HeaderOf(chain[victim]);
  ASSERT_NE(header, 0u);
  ASSERT_NO_FATAL_FAILURE(FlipBit(header + GetParam()));
  ASSERT_NO_FATAL_FAILURE(Start());

  auto found = client_->Lookup(chain);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->matched, chain.size());
  const auto [status, loaded] = found->lease.Load(0, found->matched, bench::kDeadlineMs);
  EXPECT_EQ(status, KV_LOST) << kv_status_name(status);
  EXPECT_EQ(loaded, victim);
  for (uint32_t i = 0; i < loaded; ++i) {
    const auto* const data = static_cast<const std::byte*>(found->lease.Shard(i, 0));
    EXPECT_EQ(bench::WrongBytes(chain[i], {data, kNvmeTestBlockBytes}), 0u) << i;
  }
  found->lease.Release();
  const auto again = client_->Lookup(chain);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->matched, victim);
}

// A bit of the key, of the generation, of the header's checksum; the first and the last byte of the payload.
INSTANTIATE_TEST_SUITE_P(Places, NvmeBitTest,
                         ::testing::Values(20, 152, 4090, kNvmeHeaderBytes,
                                           kNvmeHeaderBytes + kNvmeTestBlockBytes - 1));

TEST_F(NvmeFaultsTest, AFileCutToHalfStartsSaysSoAndServesNothingWrong) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> keys = Keys("half", 640);  // 42.5 of the file's 64 MiB
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
  ASSERT_NO_FATAL_FAILURE(Stop());
  std::filesystem::resize_file(daemon_.nvme_path(), 32 * kMiB);
  std::vector<BlockKey> kept, lost;
  const auto headers = Headers();
  for (const BlockKey& key : keys) {
    const auto header = headers.find(BytesOf(key));
    const bool whole = header != headers.end() && header->second + kNvmeHeaderBytes + kNvmeTestBlockBytes <= 32 * kMiB;
    (whole ? kept : lost).push_back(key);
  }
  ASSERT_FALSE(kept.empty());
  ASSERT_FALSE(lost.empty());
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_THAT(daemon_.log(), HasSubstr(daemon_.nvme_path() + " had 33554432 bytes"));
  const Census census = Ask(client_.get(), keys);
  EXPECT_EQ(census.right, kept.size());
  EXPECT_EQ(census.missed, lost.size());
  EXPECT_EQ(census.wrong_bytes, 0u);
  EXPECT_EQ(Tenant().load_failures(), lost.size());
  Until("the mismatches in the metrics", [&] { return Metric(kMismatches) >= static_cast<double>(lost.size()); });
  ExpectBooksAgree();

  // What was lost is stored again, and lives.
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), lost));
  ASSERT_NO_FATAL_FAILURE(Stop());
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(Ask(client_.get(), keys).right, keys.size());
}

TEST_F(NvmeFaultsTest, ALostCatalogIsMadeAgainFromTheHeaders) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> keys = Keys("catalog", 192);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
  ASSERT_NO_FATAL_FAILURE(Stop());
  ASSERT_GT(std::filesystem::remove_all(daemon_.nvme_path() + ".catalog"), 0u);
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_THAT(daemon_.log(), HasSubstr("the NVMe catalog does not know all blocks"));
  Census census = Ask(client_.get(), keys);
  EXPECT_EQ(census.right, keys.size());
  EXPECT_EQ(census.from_nvme, keys.size());
  EXPECT_EQ(census.wrong_bytes, 0u);
  EXPECT_EQ(admin::TierOf(Tenant(), "nvme").blocks(), keys.size());
  ExpectBooksAgree();

  // The catalog is whole again: the next start needs no look at the headers.
  ASSERT_NO_FATAL_FAILURE(Stop());
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_THAT(daemon_.log(), ::testing::Not(HasSubstr("the NVMe catalog does not know all blocks")));
  EXPECT_EQ(Ask(client_.get(), keys).right, keys.size());
}

TEST_F(NvmeFaultsTest, ALostCatalogAndADamagedHeaderCostOneBlock) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> keys = Keys("both", 32);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
  ASSERT_NO_FATAL_FAILURE(Stop());
  ASSERT_GT(std::filesystem::remove_all(daemon_.nvme_path() + ".catalog"), 0u);
  ASSERT_NO_FATAL_FAILURE(FlipBit(HeaderOf(keys[5]) + 20));
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(admin::TierOf(Tenant(), "nvme").blocks(), keys.size() - 1);
  const Census census = Ask(client_.get(), keys);
  EXPECT_EQ(census.right, keys.size() - 1);
  EXPECT_EQ(census.missed, 1u);
  EXPECT_EQ(census.wrong_bytes, 0u);
  ExpectBooksAgree();
}

TEST_F(NvmeFaultsTest, ADamagedTableOfTheCatalogCostsNoBlock) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> keys = Keys("table", 192);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
  ASSERT_NO_FATAL_FAILURE(Stop());
  ASSERT_NO_FATAL_FAILURE(Start());  // its log becomes a table
  ASSERT_NO_FATAL_FAILURE(Stop());
  size_t damaged = 0;
  for (const auto& entry : std::filesystem::directory_iterator(daemon_.nvme_path() + ".catalog")) {
    if (entry.path().extension() != ".sst" || entry.file_size() < 8 * kKiB) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
    file << "damage";
    ++damaged;
  }
  ASSERT_GT(damaged, 0u);
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_THAT(daemon_.log(), HasSubstr("looking for the rest in the headers"));
  for (int life = 0; life < 2; ++life) {
    const Census census = Ask(client_.get(), keys);
    EXPECT_EQ(census.right, keys.size());
    EXPECT_EQ(census.wrong_bytes, 0u);
    EXPECT_EQ(admin::TierOf(Tenant(), "nvme").blocks(), keys.size());
    ExpectBooksAgree();
    ASSERT_NO_FATAL_FAILURE(Stop());
    ASSERT_NO_FATAL_FAILURE(Start());
  }
}

// A folder on a file system of its own, in memory.
class SmallDisk {
 public:
  SmallDisk(std::string folder, const char* size) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    mounted_ = ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, size) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  bool Resize(const char* size) const { return ::mount("tmpfs", folder_.c_str(), "tmpfs", MS_REMOUNT, size) == 0; }

 private:
  const std::string folder_;
  bool mounted_ = false;
};

TEST_F(NvmeFaultsTest, ACatalogWithoutRoomCostsNoBlockAndTakesRecordsAgainWhenThereIsSome) {
  const SmallDisk disk(daemon_.nvme_path() + ".catalog", "size=256k");
  if (!disk.mounted()) GTEST_SKIP() << "mounting needs root";
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> keys = Keys("room", 192);
  uint64_t stored = 0;
  // Each record has 200 bytes: stored over and over, until there is no room for another.
  for (int round = 0; stored < 20 * keys.size(); ++round) {
    const std::vector<BlockKey> some = Keys("room" + std::to_string(round), keys.size());
    for (const BlockKey& key : some) {
      const auto done =
          client_->Store({&key, 1}, 0, 1, 0, [&](const bench::Granted& slot) { bench::FillBlock(key, slot.bytes); });
      ASSERT_TRUE(done.ok()) << done.status();
      stored += done->stored;
    }
    if (daemon_.log().find("takes no records") != std::string::npos) break;
  }
  ASSERT_TRUE(daemon_.WaitForLog("takes no records")) << daemon_.log();
  const Census full = Ask(client_.get(), Keys("room0", keys.size()));
  EXPECT_EQ(full.wrong_bytes, 0u);
  ASSERT_TRUE(disk.Resize("size=64m"));
  ASSERT_TRUE(daemon_.WaitForLog("takes records again")) << daemon_.log();
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
  EXPECT_EQ(Ask(client_.get(), keys).right, keys.size());
  ExpectBooksAgree();
  ASSERT_NO_FATAL_FAILURE(Stop());
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(Ask(client_.get(), keys).right, keys.size());
}

TEST_F(NvmeFaultsTest, TheNumberOfFilesDoesNotGrowWithTheBlocks) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto files = [this] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(daemon_.folder())) {
      count += entry.is_regular_file();
    }
    return count;
  };
  const size_t before = files();
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), Keys("files", 640)));
  EXPECT_LE(files(), before + 4);
}

// Memory. The arena is mapped whole, so nothing stops a client's store instructions beyond what it was granted.
class StrayMemoryTest : public NvmeTest {
 protected:
  StrayMemoryTest() : NvmeTest(TwoTenants()) {}
  static DaemonOptions TwoTenants() {
    DaemonOptions options;
    options.doors = {"red", "blue"};
    options.manifests = TenantManifest("red", "socket: red", "8Mi") + TenantManifest("blue", "socket: blue", "8Mi");
    return options;
  }
  // The first byte of the first block.
  static std::byte* Store(bench::BenchClient* client, std::span<const BlockKey> keys) {
    std::byte* first = nullptr;
    const auto stored = client->Store(keys, 0, keys.size(), 0, [&](const bench::Granted& slot) {
      bench::FillBlock(keys[slot.index], slot.bytes);
      if (slot.index == 0) first = slot.bytes.data();
    });
    EXPECT_TRUE(stored.ok()) << stored.status();
    EXPECT_EQ(stored->stored, keys.size());
    return first;
  }
  static uint64_t PresentBytes(std::byte* from, uint64_t bytes) {
    const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> present(bytes / page_bytes);
    // Asks, where a read would make the pages come back.
    EXPECT_EQ(::mincore(from, bytes, present.data()), 0);
    return page_bytes * static_cast<uint64_t>(std::count_if(present.begin(), present.end(),
                                                            [](unsigned char page) { return (page & 1) != 0; }));
  }
};

TEST_F(StrayMemoryTest, WritesIntoAHoleAreSeenPunchedAndCountedAndHurtNobody) {
  ASSERT_NO_FATAL_FAILURE(StartDaemon());
  std::unique_ptr<bench::BenchClient> red, blue;
  ASSERT_NO_FATAL_FAILURE(Attach(daemon_.door("red"), &red));
  ASSERT_NO_FATAL_FAILURE(Attach(daemon_.door("blue"), &blue));
  const std::vector<BlockKey> red_keys = Keys("red", 16), blue_keys = Keys("blue", 16);
  std::byte* const own = Store(red.get(), red_keys);
  ASSERT_NE(own, nullptr);
  Store(blue.get(), blue_keys);
  auto held = blue->Lookup(blue_keys);
  ASSERT_TRUE(held.ok()) << held.status();
  ASSERT_EQ(held->matched, blue_keys.size());
  const uint64_t red_charged = admin::TierOf(Tenant("test/red"), "dram").charged_bytes();
  const uint64_t blue_charged = admin::TierOf(Tenant("test/blue"), "dram").charged_bytes();
  EXPECT_EQ(Metric(kStrayBytes), 0);

  // The arena is four times the 64 MiB of the tier, the tenant holds 8 MiB near its start at most.
  constexpr uint64_t kStray = 4 * kMiB;
  std::byte* const hole = own + 128 * kMiB - reinterpret_cast<uintptr_t>(own) % kExtentAlignBytes;
  ASSERT_EQ(PresentBytes(hole, kStray), 0u);
  std::memset(hole, 0xAB, kStray);

  Until("the stray pages are punched", [&] { return PresentBytes(hole, kStray) == 0; });
  Until("they are counted", [this] { return Metric(kStrayBytes) >= static_cast<double>(kStray); });
  EXPECT_EQ(Metric(kStrayBytes), static_cast<double>(kStray));
  EXPECT_EQ(hole[0], std::byte{0});

  for (uint32_t i = 0; i < held->matched; ++i) {
    const auto* const data = static_cast<const std::byte*>(held->lease.Shard(i, 0));
    EXPECT_EQ(bench::WrongBytes(blue_keys[i], {data, kNvmeTestBlockBytes}), 0u) << i;
    EXPECT_TRUE(held->lease.Valid(i)) << i;
  }
  held->lease.Release();
  EXPECT_EQ(Ask(red.get(), red_keys).right, red_keys.size());
  EXPECT_EQ(Ask(blue.get(), blue_keys).right, blue_keys.size());
  EXPECT_EQ(admin::TierOf(Tenant("test/red"), "dram").charged_bytes(), red_charged);
  EXPECT_EQ(admin::TierOf(Tenant("test/blue"), "dram").charged_bytes(), blue_charged);
  const absl::Status invariants = admin_->CheckInvariants().status();
  EXPECT_TRUE(invariants.ok()) << invariants;
  EXPECT_EQ(Status().bugs(), 0u);
}

}  // namespace
}  // namespace kvartal::testing
