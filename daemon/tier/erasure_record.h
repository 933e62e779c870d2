// An erasure that was promised, as the catalog keeps it until its receipt is kept: what of it is done, and what a
// restart still owes. Plain value; pure functions over bytes; any input is safe to decode.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/base/status.h"
#include "daemon/tier/nvme_format.h"

namespace kvartal::tier {

struct ErasureRecord {
  enum class Kind : uint8_t {
    kMaxAge,    // of blocks that were over age, one by one: those of it are gone already
    kRemoval,   // of all that the owner had committed before `before_wall_ms`
    kUnzeroed,  // never ends: blocks that the device took no zeros for
  };
  uint64_t id = 0;  // chosen by who opens it; none is used twice
  Kind kind = Kind::kMaxAge;
  OwnerUidHash owner{};
  std::string tenant;  // its name, for the receipt
  int64_t before_wall_ms = 0;
  // So far.
  int64_t oldest_first_commit_ms = 0;
  uint64_t blocks = 0;
  uint64_t dram_bytes = 0, nvme_bytes = 0;
  uint64_t unzeroed_blocks = 0;

  friend bool operator==(const ErasureRecord&, const ErasureRecord&) = default;
};

// All but the id, which is the key.
std::string EncodeErasure(const ErasureRecord& in);
absl::StatusOr<ErasureRecord> DecodeErasure(uint64_t id, std::string_view in);

}  // namespace kvartal::tier
