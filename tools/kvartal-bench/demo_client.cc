#include "tools/kvartal-bench/demo_client.h"

#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/units.h"
#include "tools/kvartal-bench/bench_client.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/stats.h"
#include "tools/kvartal-bench/verified_load.h"

namespace kvartal::bench {
namespace {

constexpr uint64_t kTellEvery = 16;

absl::Status DropTo(uint32_t uid) {
  if (::setgroups(0, nullptr) != 0 || ::setresgid(uid, uid, uid) != 0 || ::setresuid(uid, uid, uid) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("cannot become uid ", uid, ": ", std::strerror(errno)));
  }
  // Changing the uid clears it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return absl::OkStatus();
}

struct Served {
  uint64_t requests = 0, stored = 0, refused = 0;
  Compared loads;
  std::vector<double> lookup_us;
};

absl::Status Serve(BenchClient* client, const Trace& trace, const TraceRequest& request, Served* served) {
  const std::vector<BlockKey> chain = trace.Chain(request);
  if (chain.empty()) return absl::OkStatus();
  const SystemClock clock;
  const int64_t start_ns = clock.MonotonicNs();
  KV_ASSIGN_OR_RETURN(Found found, client->Lookup(chain, request.input_tokens));
  served->lookup_us.push_back(static_cast<double>(clock.MonotonicNs() - start_ns) / 1e3);
  const uint32_t matched = found.matched;
  const uint64_t number = found.request;
  KV_ASSIGN_OR_RETURN(const Compared loads, LoadAndCompare(client, chain, std::move(found)));
  served->loads.blocks += loads.blocks;
  served->loads.from_nvme += loads.from_nvme;
  served->loads.bytes += loads.bytes;
  served->loads.wrong_bytes += loads.wrong_bytes;
  served->loads.lost += loads.lost;
  served->loads.refused += loads.refused;
  KV_ASSIGN_OR_RETURN(const Stored stored,
                      client->Store(chain, matched, chain.size(), number,
                                    [&](const Granted& slot) { FillBlock(chain[slot.index], slot.bytes); }));
  served->stored += stored.stored;
  served->refused += stored.refused;
  return absl::OkStatus();
}

void Tell(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace

uint32_t DemoShareOf(const TraceRequest& request) {
  if (request.blocks.empty()) return 0;
  const uint64_t head = request.blocks.size() > 1 ? request.blocks[1] : request.blocks[0];
  return static_cast<uint32_t>(MakeKey("share", head).Prefix64() % kDemoShares);
}

absl::Status RunDemoClient(const std::string& socket, const DemoClientOptions& options) {
  // Before the uid is dropped: the trace may lie in a folder that only the user who started this may read.
  KV_ASSIGN_OR_RETURN(const Trace trace, LoadTrace(options.trace, options.requests));
  if (options.uid >= 0) KV_RETURN_IF_ERROR(DropTo(static_cast<uint32_t>(options.uid)));
  const kv_layout layout{kTraceBlockTokens, 1, static_cast<uint32_t>(options.block_kib * kKiB)};
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchClient> client, BenchClient::Attach(socket, "demo", layout));
  Tell("tenant " + client->tenant());
  Served served;
  const SystemClock clock;
  const int64_t start_ns = clock.MonotonicNs();
  for (const TraceRequest& request : trace.requests) {
    const uint32_t share = DemoShareOf(request);
    if (share < options.share_from || share >= options.share_to) continue;
    KV_RETURN_IF_ERROR(Serve(client.get(), trace, request, &served));
    if (++served.requests % kTellEvery == 0) Tell(absl::StrCat("progress ", served.requests));
  }
  const double seconds = static_cast<double>(clock.MonotonicNs() - start_ns) / 1e9;
  const uint64_t block_bytes = client->block_bytes();
  Tell(absl::StrCat("progress ", served.requests));
  Tell(absl::StrCat("result requests=", served.requests, " seconds=", seconds,
                    " stored_bytes=", served.stored * block_bytes, " loaded_bytes=", served.loads.bytes,
                    " wrong_bytes=", served.loads.wrong_bytes, " nvme_blocks=", served.loads.from_nvme,
                    " loaded_blocks=", served.loads.blocks, " lost=", served.loads.lost,
                    " loads_refused=", served.loads.refused, " refused=", served.refused,
                    " p50_us=", Percentile(served.lookup_us, 50), " p99_us=", Percentile(served.lookup_us, 99)));
  return absl::OkStatus();
}

}  // namespace kvartal::bench
