// One client under load while the daemon is killed beneath it: stores chains, reads them back, remembers what was
// promised.
// Confined to the thread that runs it; read by the owner after that thread has ended.
// Invariant: a block counts as durable only when the daemon said so.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/base/status.h"
#include "daemon/block/block_key.h"
#include "tools/kvartal-bench/bench_client.h"

namespace kvartal::bench {

inline constexpr uint32_t kRestartChainBlocks = 16;
inline constexpr const char* kRestartDigest = "restart";

// Chain `number` of the whole benchmark.
std::vector<BlockKey> RestartChain(uint64_t number);

struct DurableBlock {
  uint64_t chain = 0;
  uint32_t depth = 0;
};

class RestartLoad {
 public:
  // Stores chains first_chain, first_chain + 1, ... at most `chains_max` of them.
  RestartLoad(std::string socket, kv_layout layout, uint64_t first_chain, uint64_t chains_max, uint64_t seed);

  // Until `stop`, or the daemon is gone: then OkStatus, since that is what this is for.
  absl::Status Run(const std::atomic<bool>& stop);

  const std::vector<DurableBlock>& durable() const { return durable_; }
  uint64_t stored() const { return stored_; }
  uint64_t read_bytes() const { return read_bytes_; }
  uint64_t wrong_bytes() const { return wrong_bytes_; }
  uint64_t chains_used() const { return chains_used_; }

 private:
  absl::Status RunUntilEnd(const std::atomic<bool>& stop);
  absl::Status StoreOne();
  absl::Status ReadOne();
  static void OnDurable(void* self, uint64_t reservation);

  const std::string socket_;
  const kv_layout layout_;
  const uint64_t first_chain_, chains_max_;
  std::mt19937_64 random_;
  std::unique_ptr<BenchClient> client_;
  absl::flat_hash_map<uint64_t, DurableBlock> promised_;  // by reservation, not yet durable
  std::vector<DurableBlock> durable_;
  uint64_t chains_used_ = 0;
  uint64_t stored_ = 0, read_bytes_ = 0, wrong_bytes_ = 0;
};

}  // namespace kvartal::bench
