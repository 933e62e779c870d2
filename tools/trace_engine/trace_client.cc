#include "tools/trace_engine/trace_client.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "tools/kvartal-bench/block_bytes.h"

namespace kvartal::trace_engine {
namespace {

// Ticks a Reserve or Load may wait for room before it counts as refused: longer than the engine's own hysteresis.
constexpr int kPatienceTicks = 5 * static_cast<int>(kEmptyTicksMax);

// Where an answer lands, which may never come.
template <typename T>
using Answer = std::shared_ptr<std::optional<T>>;

// Lets the node run until the answer is there. False when it stays away.
template <typename T>
bool Await(VirtualNode* node, const Answer<T>& answer) {
  node->Settle();
  for (int tick = 0; !answer->has_value() && tick < kPatienceTicks; ++tick) {
    node->AdvanceToMs(node->now_ms() + kTickMs);
  }
  return answer->has_value();
}

}  // namespace

void Served::Add(const Served& other) {
  requests += other.requests;
  blocks_asked += other.blocks_asked;
  blocks_from_dram += other.blocks_from_dram;
  blocks_from_nvme += other.blocks_from_nvme;
  tokens_asked += other.tokens_asked;
  tokens_from_dram += other.tokens_from_dram;
  tokens_from_nvme += other.tokens_from_nvme;
  blocks_stored += other.blocks_stored;
  blocks_refused += other.blocks_refused;
  blocks_unloaded += other.blocks_unloaded;
}

absl::StatusOr<TraceClient> TraceClient::Attach(VirtualNode* node, const std::string& tenant,
                                                const ModelLayout& layout) {
  const TenantId id = node->engine().FindTenant(tenant);
  if (!id.valid()) return absl::NotFoundError(absl::StrCat("no policy names the tenant ", tenant));
  KV_RETURN_IF_ERROR(node->engine().OpenMemory(id).status());
  KV_ASSIGN_OR_RETURN(const NamespaceId ns,
                      node->engine().OpenNamespace(id, bench::MakeDigest("trace/" + tenant), layout));
  return TraceClient(node, GroupId(id.value()), ns, layout.tokens_per_block);
}

void TraceClient::Serve(std::span<const BlockKey> chain, uint64_t prompt_tokens, size_t keep_max) {
  ++served_.requests;
  served_.tokens_asked += prompt_tokens;
  if (chain.empty()) return;
  served_.blocks_asked += chain.size();
  const engine::LookupResult found = node_->engine().Lookup(ns_, chain, prompt_tokens, 0, &places_);
  std::vector<engine::Hold> holds;
  holds.reserve(places_.size());
  size_t in_place = 0;
  for (const engine::BlockPlace& place : places_) {
    holds.push_back(engine::HoldOf(place));
    in_place += holds.back().in_place ? 1 : 0;
  }
  const size_t usable = in_place + (in_place < places_.size() ? LoadBehind(in_place, &holds) : 0);
  const uint64_t tokens = std::min<uint64_t>(usable * block_tokens_, prompt_tokens);
  const uint64_t dram_tokens = std::min<uint64_t>(in_place * block_tokens_, tokens);
  served_.blocks_from_dram += in_place;
  served_.blocks_from_nvme += usable - in_place;
  served_.tokens_from_dram += dram_tokens;
  served_.tokens_from_nvme += tokens - dram_tokens;
  Store(chain, usable, keep_max == 0 ? chain.size() : std::min(chain.size(), keep_max), found.request);
  node_->engine().Release(holds);
  node_->Settle();
}

size_t TraceClient::LoadBehind(size_t in_place, std::vector<engine::Hold>* holds) {
  std::vector<EntryId> entries;
  entries.reserve(places_.size() - in_place);
  for (size_t i = in_place; i < places_.size(); ++i) entries.push_back(places_[i].entry);
  auto answer = std::make_shared<std::optional<engine::CacheEngine::LoadResult>>();
  // Places that come when nobody waits for them any more are given back at once.
  auto given_up = std::make_shared<bool>(false);
  node_->engine().Load({.ns = ns_, .entries = std::move(entries)},
                       [node = node_, answer, given_up](engine::CacheEngine::LoadResult result) {
                         if (*given_up) {
                           for (const engine::BlockPlace& place : result.places) {
                             const engine::Hold hold = engine::HoldOf(place);
                             node->engine().Release({&hold, 1});
                           }
                           return;
                         }
                         *answer = std::move(result);
                       });
  if (!Await(node_, answer)) {
    *given_up = true;
    served_.blocks_unloaded += places_.size() - in_place;
    return 0;
  }
  for (const engine::BlockPlace& place : (*answer)->places) holds->push_back(engine::HoldOf(place));
  const size_t loaded = (*answer)->places.size();
  served_.blocks_unloaded += places_.size() - in_place - loaded;
  return loaded;
}

void TraceClient::Store(std::span<const BlockKey> chain, size_t first, size_t end, uint64_t request) {
  if (first >= end) return;
  auto answer = std::make_shared<std::optional<std::vector<engine::ReservedBlock>>>();
  node_->engine().Reserve({.group = group_,
                           .ns = ns_,
                           .request = request,
                           .keys = chain.subspan(first, end - first),
                           .parent = first == 0 ? nullptr : &chain[first - 1],
                           .first_depth = static_cast<uint32_t>(first)},
                          [answer](std::vector<engine::ReservedBlock> blocks) { *answer = std::move(blocks); });
  if (!Await(node_, answer)) {
    node_->engine().AbortGroup(group_);
    served_.blocks_refused += end - first;
    return;
  }
  Commit(**answer);
}

void TraceClient::Commit(std::span<const engine::ReservedBlock> blocks) {
  for (const engine::ReservedBlock& block : blocks) {
    served_.blocks_refused += block.outcome == engine::ReserveOutcome::kRefused ? 1 : 0;
    if (block.outcome != engine::ReserveOutcome::kGranted) continue;
    const engine::CommitOutcome outcome = node_->engine().Commit(group_, block.reservation, 0);
    served_.blocks_stored += outcome == engine::CommitOutcome::kVisible ? 1 : 0;
  }
  node_->Settle();
}

}  // namespace kvartal::trace_engine
