// What a serving engine does for a prompt, on a virtual node: look the chain up, load what is on NVMe, compute and
// store the rest, release.
// Confined to the thread of the node, which outlives it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/block/block_key.h"
#include "daemon/block/model_layout.h"
#include "tools/trace_engine/virtual_node.h"

namespace kvartal::trace_engine {

// Sums over the requests of a client. A block counts for NVMe when it lay at or behind the first block of its request
// that had to be loaded.
struct Served {
  uint64_t requests = 0;
  uint64_t blocks_asked = 0, blocks_from_dram = 0, blocks_from_nvme = 0;
  uint64_t tokens_asked = 0, tokens_from_dram = 0, tokens_from_nvme = 0;
  uint64_t blocks_stored = 0;
  uint64_t blocks_refused = 0;   // of those to be stored
  uint64_t blocks_unloaded = 0;  // found on NVMe, yet there was no room to load them into

  uint64_t blocks_hit() const { return blocks_from_dram + blocks_from_nvme; }
  uint64_t tokens_hit() const { return tokens_from_dram + tokens_from_nvme; }
  void Add(const Served& other);
};

class TraceClient {
 public:
  // NotFound when the node's policy has no such tenant.
  static absl::StatusOr<TraceClient> Attach(VirtualNode* node, const std::string& tenant, const ModelLayout& layout);

  // Stores at most the first `keep_max` blocks of the chain; 0: all of it.
  void Serve(std::span<const BlockKey> chain, uint64_t prompt_tokens, size_t keep_max = 0);

  const Served& served() const { return served_; }

 private:
  TraceClient(VirtualNode* node, GroupId group, NamespaceId ns, uint32_t block_tokens)
      : node_(node), group_(group), ns_(ns), block_tokens_(block_tokens) {}
  // Blocks from the front that can be read now; appends to `holds` what the loading leased.
  size_t LoadBehind(size_t in_place, std::vector<engine::Hold>* holds);
  void Store(std::span<const BlockKey> chain, size_t first, size_t end, uint64_t request);
  void Commit(std::span<const engine::ReservedBlock> blocks);

  VirtualNode* node_;
  GroupId group_;
  NamespaceId ns_;
  uint32_t block_tokens_;
  std::vector<engine::BlockPlace> places_;  // of the request being served
  Served served_;
};

}  // namespace kvartal::trace_engine
