#include "tools/trace_engine/trace_split.h"

#include <numeric>

#include "daemon/base/check.h"

namespace kvartal::trace_engine {
namespace {

constexpr uint32_t kGoldenRatio32 = 2654435761u;

// In [0, 1), the same for all requests of a conversation.
double HeadHash(const bench::TraceRequest& request) {
  if (request.blocks.size() < 2) return 0;
  const uint32_t hash = static_cast<uint32_t>(request.blocks[1]) * kGoldenRatio32;
  return static_cast<double>(hash >> 8) / static_cast<double>(1 << 24);
}

}  // namespace

size_t OwnerOf(const bench::TraceRequest& request, const std::vector<double>& shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  KV_CHECK(sum > 0);
  const double at = HeadHash(request) * sum;
  double end = 0;
  size_t last = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] <= 0) continue;
    end += shares[i];
    last = i;
    if (at < end) return i;
  }
  return last;  // what rounding leaves
}

std::vector<size_t> SplitTrace(const bench::Trace& trace, const std::vector<double>& shares) {
  std::vector<size_t> owners;
  owners.reserve(trace.requests.size());
  for (const bench::TraceRequest& request : trace.requests) owners.push_back(OwnerOf(request, shares));
  return owners;
}

}  // namespace kvartal::trace_engine
