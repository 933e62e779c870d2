#include "daemon/tier/erasure_record.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace kvartal::tier {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers go to disk as they lie in memory");

constexpr size_t kNumbers = 6;
constexpr size_t kFixedBytes = 1 + sizeof(OwnerUidHash) + kNumbers * sizeof(uint64_t);

}  // namespace

std::string EncodeErasure(const ErasureRecord& in) {
  std::string out(1, static_cast<char>(in.kind));
  out.append(reinterpret_cast<const char*>(in.owner.data()), in.owner.size());
  const uint64_t numbers[kNumbers] = {static_cast<uint64_t>(in.before_wall_ms),
                                      static_cast<uint64_t>(in.oldest_first_commit_ms),
                                      in.blocks,
                                      in.dram_bytes,
                                      in.nvme_bytes,
                                      in.unzeroed_blocks};
  out.append(reinterpret_cast<const char*>(numbers), sizeof(numbers));
  return out + in.tenant;
}

absl::StatusOr<ErasureRecord> DecodeErasure(uint64_t id, std::string_view in) {
  if (in.size() < kFixedBytes) return absl::DataLossError(absl::StrCat("erasure ", id, " is cut short"));
  if (in[0] < 0 || in[0] > static_cast<char>(ErasureRecord::Kind::kUnzeroed))
    return absl::DataLossError(absl::StrCat("erasure ", id, " is of no known kind"));
  ErasureRecord out;
  out.id = id;
  out.kind = static_cast<ErasureRecord::Kind>(in[0]);
  std::memcpy(out.owner.data(), in.data() + 1, out.owner.size());
  uint64_t numbers[kNumbers];
  std::memcpy(numbers, in.data() + 1 + out.owner.size(), sizeof(numbers));
  out.before_wall_ms = static_cast<int64_t>(numbers[0]);
  out.oldest_first_commit_ms = static_cast<int64_t>(numbers[1]);
  out.blocks = numbers[2];
  out.dram_bytes = numbers[3];
  out.nvme_bytes = numbers[4];
  out.unzeroed_blocks = numbers[5];
  out.tenant = std::string(in.substr(kFixedBytes));
  return out;
}

}  // namespace kvartal::tier
