#include <algorithm>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/index/prefix_index.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/stats.h"

namespace kvartal::bench {
namespace {

constexpr uint32_t kChainsARound = 4096;
const NamespaceId kNamespace(0);

// Keys of chain `chain`, written into `keys`.
void KeysOf(uint64_t chain, std::vector<BlockKey>* keys) {
  for (size_t i = 0; i < keys->size(); ++i) (*keys)[i] = MakeKey("index", chain * keys->size() + i);
}

// Nanoseconds a block of FindChain over random chains, entries read as a lookup reads them.
double OneRound(const index::PrefixIndex& index, const IndexOptions& options, std::mt19937_64* random,
                uint64_t* missing) {
  const uint64_t chains = std::max<uint64_t>(1, options.entries / options.chain);
  std::vector<std::vector<BlockKey>> keys(std::min<uint64_t>(kChainsARound, chains),
                                          std::vector<BlockKey>(options.chain));
  for (std::vector<BlockKey>& chain : keys) KeysOf((*random)() % chains, &chain);
  std::vector<EntryId> found(options.chain);
  const SystemClock clock;
  const int64_t start_ns = clock.MonotonicNs();
  for (const std::vector<BlockKey>& chain : keys) {
    index.FindChain(kNamespace, chain, found);
    for (uint32_t i = 0; i < options.chain; ++i) *missing += !found[i].valid() || index.at(found[i]).depth != i;
  }
  return static_cast<double>(clock.MonotonicNs() - start_ns) / static_cast<double>(keys.size() * options.chain);
}

}  // namespace

absl::StatusOr<Report> RunIndex(const IndexOptions& options) {
  if (options.chain == 0 || options.entries < options.chain) {
    return absl::InvalidArgumentError("--entries must be at least --chain, and --chain at least 1");
  }
  index::PrefixIndex index;
  Progress progress("index: filling", options.entries);
  std::vector<BlockKey> keys(options.chain);
  const SystemClock clock;
  int64_t insert_ns = 0;
  for (uint64_t chain = 0; chain < options.entries / options.chain; ++chain) {
    KeysOf(chain, &keys);
    const int64_t start_ns = clock.MonotonicNs();
    EntryId parent;
    for (uint32_t depth = 0; depth < options.chain; ++depth)
      parent = index.Insert(kNamespace, keys[depth], parent, depth);
    insert_ns += clock.MonotonicNs() - start_ns;
    progress.Update(index.size());
  }
  std::mt19937_64 random(1);
  std::vector<double> rounds;
  rounds.reserve(static_cast<size_t>(options.rounds));
  uint64_t missing = 0;
  for (int round = 0; round < options.rounds; ++round) rounds.push_back(OneRound(index, options, &random, &missing));

  Report report("index");
  report.Add("entries", index.size());
  report.Add("ns_per_block", Median(rounds));
  report.Add("bytes_per_entry", static_cast<double>(index.MemoryBytes()) / static_cast<double>(index.size()));
  report.Add("insert_ns_per_block", static_cast<double>(insert_ns) / static_cast<double>(index.size()));
  report.Add("missing", missing);
  report.Note(
      absl::StrCat("random chains of ", options.chain, ", median of ", options.rounds, " rounds of ", kChainsARound));
  return report;
}

}  // namespace kvartal::bench
