#include "tools/kvartal-bench/bench_client.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "tools/kvartal-bench/block_bytes.h"

namespace kvartal::bench {

absl::Status BenchClient::StatusOf(kv_status status, const char* call) const {
  if (status == KV_OK) return absl::OkStatus();
  const absl::StatusCode code = status == KV_UNAVAILABLE ? absl::StatusCode::kUnavailable
                                : status == KV_REFUSED   ? absl::StatusCode::kResourceExhausted
                                                         : absl::StatusCode::kInternal;
  return absl::Status(code, absl::StrCat(call, ": ", kv_status_name(status), ": ", client_.error()));
}

absl::StatusOr<std::unique_ptr<BenchClient>> BenchClient::Attach(const std::string& socket_path,
                                                                 const std::string& digest_name,
                                                                 const kv_layout& layout, const client::Group* join) {
  std::unique_ptr<BenchClient> bench(new BenchClient(layout));
  const kv_status attached = bench->client_.Attach(socket_path, "kvartal-bench", join, kDeadlineMs);
  if (!bench->client_) {
    return absl::PermissionDeniedError(absl::StrCat("cannot attach to ", socket_path, ": ", kv_status_name(attached)));
  }
  KV_RETURN_IF_ERROR(bench->StatusOf(attached, "attach"));
  const client::Client::Opened opened =
      bench->client_.OpenNamespace(MakeDigest(digest_name).bytes, layout, kDeadlineMs);
  KV_RETURN_IF_ERROR(bench->StatusOf(opened.status, "open namespace"));
  bench->ns_ = opened.ns;
  return bench;
}

absl::StatusOr<Found> BenchClient::Lookup(std::span<const BlockKey> keys, uint64_t prompt_tokens) {
  client::Client::Found found = client_.Lookup(ns_, ClientKeys(keys), prompt_tokens, kDeadlineMs);
  KV_RETURN_IF_ERROR(StatusOf(found.status, "lookup"));
  return Found{std::move(found.lease), found.matched, found.request};
}

absl::StatusOr<Stored> BenchClient::Store(std::span<const BlockKey> chain, size_t first, size_t last, uint64_t request,
                                          absl::FunctionRef<void(const Granted&)> fill) {
  Stored sum;
  std::vector<kv_slot> slots;
  while (first < last) {
    const size_t count = std::min<size_t>(last - first, kReservePerFrameMax);
    slots.assign(count, kv_slot{});
    client::Client::ReserveArgs args;
    args.ns = ns_;
    args.keys = ClientKeys(chain.subspan(first, count));
    args.parent = first == 0 ? nullptr : &chain[first - 1].bytes;
    args.first_depth = static_cast<uint32_t>(first);
    args.request = request;
    const kv_status reserved = client_.Reserve(args, slots, kDeadlineMs);
    if (reserved == KV_REFUSED) {
      sum.refused += last - first;
      sum.refusal = client_.refusal();
      return sum;
    }
    KV_RETURN_IF_ERROR(StatusOf(reserved, "reserve"));
    const uint64_t refused_before = sum.refused;
    for (size_t i = 0; i < count; ++i) {
      if (slots[i].outcome == KV_GRANTED) {
        fill({first + i, slots[i].reservation, {static_cast<std::byte*>(slots[i].data), block_bytes()}});
      }
      sum.existed += slots[i].outcome == KV_EXISTS;
      sum.refused += slots[i].outcome == KV_SLOT_REFUSED;
    }
    if (sum.refused != refused_before) sum.refusal = client_.refusal();
    const client::Client::Committed committed = client_.Commit(slots, 0, kDeadlineMs);
    KV_RETURN_IF_ERROR(StatusOf(committed.status, "commit"));
    sum.stored += committed.count;
    first += count;
  }
  return sum;
}

absl::StatusOr<uint64_t> BenchClient::Poll(uint32_t wait_ms) {
  const client::Client::Polled polled = client_.Poll(wait_ms);
  KV_RETURN_IF_ERROR(StatusOf(polled.status, "poll"));
  return polled.durable;
}

}  // namespace kvartal::bench
