// The engine: README.md says what it does. Step() does a little of everything; what it does follows from the seed and
// from what the daemon answers.
// Confined to one thread.
// Invariant: a request ends only when each of its pages holds, on every rank, what its key says; anything else counts
// in EngineStats::wrong.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/libkvartal/kvartal.hpp"
#include "daemon/base/status.h"
#include "kernels/block_copy.h"
#include "tests/fake_engine/kv_content.h"
#include "tests/fake_engine/page_table.h"
#include "tests/fake_engine/rank_memory.h"

namespace kvartal::fake_engine {

struct EngineOptions {
  std::string socket;
  std::vector<LayerGroup> groups;  // their `tokens` divide the largest
  uint32_t ranks = 1;
  bool latent = false;  // MLA: every rank holds all of it, and it is stored once
  kernels::PageOrder order = kernels::PageOrder::kLBHNC;
  uint32_t chunks = 24;  // that fit in its pages; a chunk is a block of the group with the largest
  uint64_t seed = 1;
  bool mixes_up_ranks = false;  // a bug: what is loaded for a rank is the next one's. To be counted as wrong
};

struct EngineStats {
  uint64_t finished = 0, preempted = 0, aborted = 0;
  uint64_t computed = 0, shared = 0, loaded = 0;     // chunks
  uint64_t stored = 0, given_back = 0, refused = 0;  // blocks of one rank; given_back: by Abort
  uint64_t failed_loads = 0, gave_up_loading = 0;    // chunks computed in place of; requests
  uint64_t wrong = 0;                                // pages
};

class FakeEngine {
 public:
  // The daemon is there.
  static absl::StatusOr<std::unique_ptr<FakeEngine>> Start(EngineOptions options);
  ~FakeEngine();

  // A whole number of chunks, at most as many as fit.
  void Submit(std::vector<uint32_t> tokens);
  void Step();
  bool idle() const { return waiting_.empty() && active_.empty() && stores_.empty(); }
  uint32_t chunk_tokens() const { return chunk_tokens_; }
  const EngineStats& stats() const { return stats_; }

 private:
  struct Session {
    client::Client client;
    std::vector<kv_namespace> namespaces;  // by group
  };
  struct Request {
    std::vector<uint32_t> tokens;
    size_t chunks = 0;
    std::vector<std::vector<client::Key>> chains;  // by group
    std::vector<std::vector<uint32_t>> pages;      // by group, one a block
    size_t done = 0;                               // chunks whose pages are filled
    size_t load_until = 0;                         // chunks; loading while done < load_until
    std::vector<client::Lease> leases;             // by group, while it loads
  };
  // Blocks of one chunk and group, to be stored by every rank. Holds the pages.
  struct Store {
    uint32_t group = 0;
    std::vector<client::Key> keys;
    bool has_parent = false;
    client::Key parent{};
    uint32_t depth = 0;
    std::vector<uint32_t> pages;
  };

  explicit FakeEngine(EngineOptions options);
  absl::Status Open(Session* session, const client::Group* join);
  bool Chance(uint32_t percent) { return random_() % 100 < percent; }
  size_t PerChunk(size_t group) const { return chunk_tokens_ / options_.groups[group].tokens; }
  uint32_t ShardOf(size_t rank) const { return options_.latent ? 0 : static_cast<uint32_t>(rank); }

  bool Admit(Request* request);
  size_t TakeShared(Request* request);
  void LookUp(Request* request);
  bool LoadChunk(Request* request);
  bool LoadBlocks(size_t rank, size_t group, const Request& request, size_t first);
  void ComputeChunk(Request* request);
  void QueueStores(const Request& request, size_t chunk);
  void RunStore(const Store& store);
  void StoreOn(size_t rank, const Store& store);
  void Advance();
  void EndOne();
  void Finish(Request* request);
  // Gives its pages and leases back.
  void Clear(Request* request);

  const EngineOptions options_;
  uint32_t chunk_tokens_ = 0;
  std::mt19937_64 random_;
  Session scheduler_;
  std::vector<Session> workers_;                   // by rank
  std::vector<std::vector<RankMemory>> memory_;    // by rank, by group
  std::vector<std::unique_ptr<PageTable>> pages_;  // by group
  std::deque<Request> waiting_;
  std::list<Request> active_;
  std::deque<Store> stores_;
  EngineStats stats_;
};

}  // namespace kvartal::fake_engine
