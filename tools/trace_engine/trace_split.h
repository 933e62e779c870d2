// Which tenant a request of a trace belongs to. A conversation stays with one tenant: its second block decides, since
// the first is a system prompt that many conversations share.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/kvartal-bench/trace.h"

namespace kvartal::trace_engine {

// The tenant, by position, whose part of [0, 1) the head of the chain hashes into. `shares` in any unit; one of 0 gets
// nothing. REQUIRES: their sum is above 0.
size_t OwnerOf(const bench::TraceRequest& request, const std::vector<double>& shares);

// For every request of the trace, in order.
std::vector<size_t> SplitTrace(const bench::Trace& trace, const std::vector<double>& shares);

}  // namespace kvartal::trace_engine
