// One attached client with one open namespace: the verbs the benchmarks share, with errors as absl::Status.
// Confined to one thread.
// Invariant: the session ends with the object; leases end before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "client/libkvartal/kvartal.hpp"
#include "daemon/base/status.h"
#include "daemon/block/block_key.h"

namespace kvartal::bench {

inline constexpr uint32_t kDeadlineMs = 10'000;  // a benchmark would rather wait than count a slow call as a miss

// Keys as the client library wants them.
inline std::span<const client::Key> ClientKeys(std::span<const BlockKey> keys) {
  static_assert(sizeof(BlockKey) == sizeof(client::Key));
  return {keys.empty() ? nullptr : &keys.front().bytes, keys.size()};
}

struct Found {
  client::Lease lease;
  uint32_t matched = 0;
  uint64_t request = 0;
};

// What became of the blocks of one store.
struct Stored {
  uint64_t stored = 0;
  uint64_t existed = 0;
  uint64_t refused = 0;
  std::string refusal;  // of the last refused one
};

// A slot to be filled: block `index` of the chain.
struct Granted {
  size_t index = 0;
  uint64_t reservation = 0;
  std::span<std::byte> bytes;
};

class BenchClient {
 public:
  // `join`: the group of another session, or nullptr.
  static absl::StatusOr<std::unique_ptr<BenchClient>> Attach(const std::string& socket_path,
                                                             const std::string& digest_name, const kv_layout& layout,
                                                             const client::Group* join = nullptr);

  client::Client& client() { return client_; }
  kv_namespace ns() const { return ns_; }
  uint32_t block_bytes() const { return layout_.shard_bytes; }
  std::string tenant() const { return client_.tenant(); }

  absl::StatusOr<Found> Lookup(std::span<const BlockKey> keys, uint64_t prompt_tokens = 0);
  // Stores chain[first, last): reserve, fill each granted block, commit; 1024 blocks a round.
  absl::StatusOr<Stored> Store(std::span<const BlockKey> chain, size_t first, size_t last, uint64_t request,
                               absl::FunctionRef<void(const Granted&)> fill);
  // Handles what the daemon said unasked; how many blocks of its engine group it was told of as durable.
  absl::StatusOr<uint64_t> Poll(uint32_t wait_ms);
  // The status of a call on this client, with what the library says about it.
  absl::Status StatusOf(kv_status status, const char* call) const;

 private:
  explicit BenchClient(const kv_layout& layout) : layout_(layout) {}

  const kv_layout layout_;
  client::Client client_;
  kv_namespace ns_ = KV_NAMESPACE_NONE;
};

}  // namespace kvartal::bench
