// Records of a test, and calls of a catalog that wait for their end.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "daemon/base/limits.h"
#include "daemon/tier/nvme_catalog.h"
#include "tests/support/manual_executor.h"

namespace kvartal::tier {

inline CatalogRecord RecordOf(uint32_t slot, uint64_t number, uint8_t owner = 1, int64_t first_commit_ms = 1000) {
  CatalogRecord record;
  record.slot = SlotId(slot);
  std::memcpy(record.header.identity.key.bytes.data(), &number, sizeof(number));
  record.header.identity.owner[0] = owner;
  record.header.identity.payload_bytes = 8192;
  record.header.identity.shard_bytes = 8192;
  record.header.generation = number + 1;
  record.header.first_commit_ms = first_commit_ms;
  record.header.payload_xxh3 = ~number;
  return record;
}

inline uint64_t NumberOf(const BlockHeader& header) {
  uint64_t number;
  std::memcpy(&number, header.identity.key.bytes.data(), sizeof(number));
  return number;
}

inline OwnerUidHash OwnerOf(uint8_t owner) {
  OwnerUidHash hash{};
  hash[0] = owner;
  return hash;
}

// Calls of a catalog that wait for their end. Confined to the thread that pumps the executor.
// Invariant: each has been answered when it returns.
class CatalogCalls {
 public:
  explicit CatalogCalls(testing::ManualExecutor* executor) : executor_(executor) {}

  absl::Status Put(NvmeCatalog* catalog, const CatalogRecord& record) {
    std::optional<absl::Status> result;
    EXPECT_TRUE(catalog->Put(record, [&](absl::Status status) { result = std::move(status); }));
    return Await(&result);
  }
  absl::Status Tombstone(NvmeCatalog* catalog, uint8_t owner, int64_t before_ms) {
    std::optional<absl::Status> result;
    catalog->PutTombstone(OwnerOf(owner), before_ms, [&](absl::Status status) { result = std::move(status); });
    return Await(&result);
  }
  absl::Status Flush(NvmeCatalog* catalog) {
    std::optional<absl::Status> result;
    catalog->Flush([&](absl::Status status) { result = std::move(status); });
    return Await(&result);
  }
  // Those that no tombstone covers.
  std::map<uint32_t, BlockHeader> Load(NvmeCatalog* catalog) {
    std::map<uint32_t, BlockHeader> records;
    condemned_.clear();
    std::optional<absl::Status> result;
    catalog->Load(
        [&](std::vector<CatalogRecord> batch) {
          EXPECT_FALSE(result.has_value()) << "a batch after the end";
          EXPECT_LE(batch.size(), kRecoveryBatchMax);
          for (const CatalogRecord& record : batch) {
            const bool first = record.condemned ? condemned_.insert(record.slot.value()).second
                                                : records.emplace(record.slot.value(), record.header).second;
            EXPECT_TRUE(first) << "a record came twice";
            EXPECT_TRUE(record.condemned || condemned_.empty()) << "what is alive comes first";
          }
        },
        [&](absl::Status status) { result = std::move(status); });
    const absl::Status status = Await(&result);
    EXPECT_TRUE(status.ok()) << status;
    return records;
  }
  // Slots that the last Load said are.
  const std::set<uint32_t>& condemned() const { return condemned_; }

 private:
  absl::Status Await(std::optional<absl::Status>* result) {
    executor_->RunUntil([&] { return result->has_value(); });
    return **result;
  }

  testing::ManualExecutor* const executor_;
  std::set<uint32_t> condemned_;
};

}  // namespace kvartal::tier
