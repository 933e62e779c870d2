// A disk that fails one read while the catalog is opened.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "daemon/tier/rocks_store.h"

namespace {

// Reads of tables until one fails; 0: none does.
std::atomic<int> reads_until_failure = 0;

bool IsTable(int fd) {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
  return !error && path.extension() == ".sst";
}

}  // namespace

// Before that of the C library, for RocksDB too.
extern "C" ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  if (reads_until_failure > 0 && IsTable(fd) && --reads_until_failure == 0) {
    errno = EIO;
    return -1;
  }
  return ::syscall(SYS_pread64, fd, data, bytes, offset);
}

namespace kvartal::tier {
namespace {

constexpr char kDevice[] = "d0";
constexpr uint64_t kCount = 500;  // more than a block of a table holds, of erasures and tombstones each

bool WasSetAside(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().find(".corrupt-") != std::string::npos) return true;
  }
  return false;
}

// Its name has "lock" in it, and so has every message with its path.
std::string MakeFolder() {
  std::string pattern = ::testing::TempDir() + "/kvartal-block-XXXXXX";
  return ::mkdtemp(pattern.data());
}

void MakeCatalog(const CatalogOptions& options) {
  {
    auto store = RocksStore::Open(options);
    ASSERT_TRUE(store.ok()) << store.status();
    for (uint64_t id = 1; id <= kCount; ++id) {
      ErasureRecord erasure;
      erasure.id = id;
      OwnerUidHash owner{};
      std::memcpy(owner.data(), &id, sizeof(id));
      (*store)->PutErasure(erasure);
      ASSERT_TRUE((*store)->PutTombstone(owner, 77).ok());
    }
  }
  // What was written comes from a table from then on.
  ASSERT_TRUE(RocksStore::Open(options).ok());
}

// What is owed to a tenant that was erased: read whole, or not begun with. A folder that is set aside is told of.
TEST(RocksStoreReadFaultTest, WhateverReadFailsAtAnOpenNothingThatIsToBeErasedIsForgotten) {
  constexpr int kReadsMax = 100;
  const std::string kept = MakeFolder();
  ASSERT_NO_FATAL_FAILURE(MakeCatalog({.path = kept + "/catalog", .device_id = kDevice}));
  bool refused = false, all_read = false;
  for (int failing = 1; failing <= kReadsMax && !all_read; ++failing) {
    const std::string folder = MakeFolder();
    const CatalogOptions options{.path = folder + "/catalog", .device_id = kDevice};
    std::filesystem::copy(kept + "/catalog", options.path, std::filesystem::copy_options::recursive);
    reads_until_failure = failing;
    {
      const auto store = RocksStore::Open(options);
      all_read = reads_until_failure.exchange(0) > 0;
      refused |= !store.ok();
      if (store.ok() && !WasSetAside(folder)) {
        EXPECT_EQ((*store)->Erasures().size(), kCount) << failing;
        EXPECT_EQ((*store)->tombstones().size(), kCount) << failing;
        EXPECT_TRUE((*store)->Reopen().ok());
      }
      EXPECT_FALSE(absl::IsFailedPrecondition(store.status())) << "no other daemon is there: " << store.status();
    }
    if (!WasSetAside(folder)) {
      const auto store = RocksStore::Open(options);
      ASSERT_TRUE(store.ok()) << store.status();
      EXPECT_EQ((*store)->Erasures().size(), kCount) << failing;
    }
    std::filesystem::remove_all(folder);
  }
  std::filesystem::remove_all(kept);
  EXPECT_TRUE(refused) << "some read that failed must have been one of what is owed";
  EXPECT_TRUE(all_read);
}

}  // namespace
}  // namespace kvartal::tier
