#include "tools/kvartal-bench/verified_load.h"

#include <cstddef>
#include <utility>

#include "tools/kvartal-bench/block_bytes.h"

namespace kvartal::bench {
namespace {

void CompareOne(BenchClient* client, const client::Lease& lease, const BlockKey& key, uint32_t i, Compared* compared) {
  const auto* const data = static_cast<const std::byte*>(lease.Shard(i, 0));
  const uint64_t wrong = WrongBytes(key, {data, client->block_bytes()});
  // Bytes that changed under a lease that had ended are a failed load, not wrong bytes.
  if (wrong != 0 && !lease.Valid(i)) {
    ++compared->lost;
    return;
  }
  ++compared->blocks;
  compared->bytes += client->block_bytes();
  compared->wrong_bytes += wrong;
}

}  // namespace

absl::StatusOr<Compared> LoadAndCompare(BenchClient* client, std::span<const BlockKey> chain, Found found) {
  Compared compared;
  for (uint32_t i = 0; i < found.matched; ++i) compared.from_nvme += found.lease.blocks()[i].tier == KV_TIER_NVME;
  for (uint32_t first = 0; first < found.matched;) {
    const auto [status, loaded] = found.lease.Load(first, found.matched - first, kDeadlineMs);
    const bool outcome = status == KV_OK || status == KV_LOST || status == KV_REFUSED;
    if (!outcome) return client->StatusOf(status, "load");
    for (uint32_t i = first; i < first + loaded; ++i) CompareOne(client, found.lease, chain[i], i, &compared);
    const uint32_t left = found.matched - first;
    if (loaded == 0 || status == KV_LOST) {
      (status == KV_LOST ? compared.lost : compared.refused) += left - loaded;
      return compared;
    }
    found.lease.ReleaseFront(loaded);
    first += loaded;
  }
  return compared;
}

}  // namespace kvartal::bench
