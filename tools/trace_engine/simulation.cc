#include "tools/trace_engine/simulation.h"

#include <cmath>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/units.h"

namespace kvartal::trace_engine {

absl::StatusOr<std::vector<TenantOutcome>> Simulate(const SimulationInput& input) {
  KV_CHECK(input.owners.size() == input.trace->requests.size());
  KV_ASSIGN_OR_RETURN(
      const std::unique_ptr<VirtualNode> node,
      VirtualNode::Start(input.policy, {.eviction = input.eviction,
                                        .nvme_write_bytes_per_second = input.nvme_write_bytes_per_second}));
  const ModelLayout layout{.tokens_per_block = bench::kTraceBlockTokens,
                           .shard_count = 1,
                           .shard_bytes = static_cast<uint32_t>(input.block_kib * kKiB)};
  std::vector<TraceClient> clients;
  for (const policy::TenantRules& rules : input.policy->tenants()) {
    KV_ASSIGN_OR_RETURN(TraceClient client, TraceClient::Attach(node.get(), rules.name, layout));
    clients.push_back(std::move(client));
  }
  uint64_t done = 0;
  for (const bench::TraceRequest& request : input.trace->requests) {
    node->AdvanceToMs(std::llround(request.arrival_s * 1000));
    clients[input.owners[done]].Serve(input.trace->Chain(request), request.input_tokens, input.keep_max);
    ++done;
    if (input.after_request) input.after_request(*node, done);
  }
  // A new node numbers its tenants in the order of the policy.
  const engine::EngineStats stats = node->engine().stats();
  std::vector<TenantOutcome> outcomes;
  outcomes.reserve(clients.size());
  for (size_t i = 0; i < clients.size(); ++i) outcomes.push_back({clients[i].served(), stats.tenants[i]});
  return outcomes;
}

}  // namespace kvartal::trace_engine
