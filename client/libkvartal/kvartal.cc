// The C ABI over ClientCore: checks arguments, refuses forked children, and lets no exception out.
#include "client/libkvartal/kvartal.h"

#include <errno.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "client/libkvartal/client_core.h"

using kvartal::client::ClientCore;
using kvartal::client::Deadline;

struct kv_client {
  ClientCore core;
};

namespace {

constexpr const char* kDefaultSocket = "/run/kvartal/kvartal.sock";
constexpr const char* kForked =
    "this process was forked from the one that attached: attach anew here (memory and session stay with the parent)";

// Of kv_attach calls of this thread that gave no client.
thread_local std::string attach_error;

Deadline DeadlineOf(uint32_t ms) {
  return Deadline::In(std::min(ms == 0 ? kvartal::client::kDeadlineMsDefault : ms, kvartal::client::kDeadlineMsMax));
}

// Runs `call` unless the client cannot be used here. The C ABI's one place where exceptions end: all that may come is
// memory or threads running out.
template <typename Call>
kv_status Guarded(kv_client* client, Call call) noexcept {
  if (client == nullptr) return KV_INVALID_ARGUMENT;
  try {
    client->core.BeginCall();
    if (client->core.InForkedChild()) return client->core.Fail(KV_UNAVAILABLE, kForked);
    return call(client->core);
  } catch (...) {
    return KV_UNAVAILABLE;
  }
}

kv_status BadArgument(ClientCore& core, const char* what) { return core.Fail(KV_INVALID_ARGUMENT, what); }

// The fields the caller's struct has, zero for those it is too old to know.
template <typename Struct>
bool CopyKnownFields(const Struct* from, size_t required, Struct* to) {
  if (from == nullptr || from->struct_size < required) return false;
  *to = Struct{};
  std::memcpy(to, from, std::min(from->struct_size, sizeof(Struct)));
  return true;
}

std::string SocketPath(const kv_options& options) {
  if (options.socket_path != nullptr) return options.socket_path;
  const char* path = std::getenv("KVARTAL_SOCKET");
  return path != nullptr && *path != '\0' ? path : kDefaultSocket;
}

std::string TokenPath(const kv_options& options) {
  if (options.token_path != nullptr) return options.token_path;
  const char* path = std::getenv("KVARTAL_TOKEN_FILE");
  return path != nullptr ? path : "";
}

std::string ClientName(const kv_options& options) {
  std::string name = options.client_name != nullptr ? options.client_name : program_invocation_short_name;
  name.resize(std::min(name.size(), kvartal::client::kClientNameBytesMax));
  return name;
}

const char* LayoutFault(const kv_layout& layout) {
  if (layout.tokens_per_block == 0) return "layout: tokens_per_block is 0, at least 1 is needed";
  if (layout.shard_count == 0 || layout.shard_count > kvartal::kShardsMax) return "layout: shard_count is not in 1..64";
  if (layout.shard_bytes == 0) return "layout: shard_bytes is 0";
  const uint64_t stride = kvartal::RoundUp(layout.shard_bytes, kvartal::kSlotAlignBytes);
  if (stride * layout.shard_count > kvartal::kBlockBytesMax) return "layout: a block of more than 32 MiB";
  return nullptr;
}

}  // namespace

extern "C" {

kv_status kv_attach(const kv_options* options, kv_client** client) {
  if (client == nullptr) {
    attach_error = "kv_attach was given no place for the client (a kv_client**)";
    return KV_INVALID_ARGUMENT;
  }
  *client = nullptr;
  try {
    kv_options known{};
    if (options != nullptr && !CopyKnownFields(options, sizeof(size_t), &known)) {
      attach_error = "kv_options.struct_size is not set: sizeof(kv_options)";
      return KV_INVALID_ARGUMENT;
    }
    std::string group;
    if (known.join_group != nullptr) group.assign(reinterpret_cast<const char*>(known.join_group), KV_GROUP_BYTES);
    if (SocketPath(known).size() > kvartal::client::kSocketPathBytesMax) {
      attach_error = "the socket path " + SocketPath(known) + " is longer than the " +
                     std::to_string(kvartal::client::kSocketPathBytesMax) + " bytes the system allows";
      return KV_INVALID_ARGUMENT;
    }
    std::shared_ptr<kvartal::client::Bell> bell = kvartal::client::Bell::Make(&attach_error);
    if (bell == nullptr) return KV_UNAVAILABLE;
    attach_error = "this process has no memory or no thread left";  // what else may be in the way
    auto made = std::unique_ptr<kv_client>(
        new kv_client{{SocketPath(known), TokenPath(known), ClientName(known), group, std::move(bell)}});
    const kv_status status = made->core.Attach(DeadlineOf(known.deadline_ms));
    if (status == KV_OK || status == KV_UNAVAILABLE) {
      *client = made.release();
    } else {
      attach_error = made->core.last_error();
    }
    return status;
  } catch (...) {
    return KV_UNAVAILABLE;
  }
}

void kv_detach(kv_client* client) {
  // A forked child owns neither the session nor the thread nor the mappings: there is nothing it could end.
  if (client != nullptr && !client->core.InForkedChild()) delete client;
}

const char* kv_last_error(const kv_client* client) {
  return client == nullptr ? attach_error.c_str() : client->core.last_error().c_str();
}

const char* kv_last_refusal(const kv_client* client) {
  return client == nullptr ? "" : client->core.last_refusal().c_str();
}

const char* kv_status_name(kv_status status) {
  switch (status) {
    case KV_OK:
      return "ok";
    case KV_UNAVAILABLE:
      return "unavailable";
    case KV_REFUSED:
      return "refused";
    case KV_DENIED:
      return "denied";
    case KV_INVALID_ARGUMENT:
      return "invalid argument";
    case KV_NOT_FOUND:
      return "not found";
    case KV_LOST:
      return "lost";
    case KV_UNSUPPORTED:
      return "unsupported";
  }
  return "unknown status";
}

int kv_connected(const kv_client* client) {
  return client != nullptr && !client->core.InForkedChild() && client->core.AskConnected() ? 1 : 0;
}

const char* kv_tenant(const kv_client* client) { return client == nullptr ? "" : client->core.tenant().c_str(); }

kv_status kv_group(const kv_client* client, uint8_t group[KV_GROUP_BYTES]) {
  if (group != nullptr) std::memset(group, 0, KV_GROUP_BYTES);
  if (client == nullptr || group == nullptr) return KV_INVALID_ARGUMENT;
  if (client->core.group().size() != KV_GROUP_BYTES) return KV_UNAVAILABLE;
  std::memcpy(group, client->core.group().data(), KV_GROUP_BYTES);
  return KV_OK;
}

kv_status kv_open_namespace(kv_client* client, const uint8_t digest[KV_DIGEST_BYTES], const kv_layout* layout,
                            kv_namespace* ns, uint32_t deadline_ms) {
  if (ns != nullptr) *ns = KV_NAMESPACE_NONE;
  return Guarded(client, [&](ClientCore& core) {
    if (digest == nullptr || layout == nullptr || ns == nullptr)
      return BadArgument(core, "digest, layout and ns must not be NULL");
    if (const char* fault = LayoutFault(*layout); fault != nullptr) return BadArgument(core, fault);
    return core.OpenNamespace(digest, *layout, ns, DeadlineOf(deadline_ms));
  });
}

kv_status kv_close_namespace(kv_client* client, kv_namespace ns) {
  return Guarded(client, [&](ClientCore& core) { return core.CloseNamespace(ns); });
}

kv_status kv_lookup(kv_client* client, kv_namespace ns, const uint8_t* keys, uint32_t count, uint64_t prompt_tokens,
                    kv_lease** lease, uint32_t* matched, uint64_t* request, uint32_t deadline_ms) {
  if (lease != nullptr) *lease = nullptr;
  if (matched != nullptr) *matched = 0;
  if (request != nullptr) *request = 0;
  return Guarded(client, [&](ClientCore& core) {
    if (lease == nullptr || matched == nullptr) return BadArgument(core, "lease and matched must not be NULL");
    if (keys == nullptr && count > 0) return BadArgument(core, "keys is NULL and count is not 0");
    if (count > kvartal::kLeasedBlocksPerGroupMax) return BadArgument(core, "more keys than an engine group may lease");
    return core.Lookup(ns, keys, count, prompt_tokens, lease, matched, request, DeadlineOf(deadline_ms));
  });
}

const kv_block* kv_lease_blocks(const kv_lease* lease) { return lease == nullptr ? nullptr : lease->blocks.data(); }

uint32_t kv_lease_count(const kv_lease* lease) {
  return lease == nullptr ? 0 : static_cast<uint32_t>(lease->blocks.size());
}

uint32_t kv_lease_front(const kv_lease* lease) { return lease == nullptr ? 0 : lease->front; }

const void* kv_lease_shard(const kv_lease* lease, uint32_t i, uint32_t shard) {
  if (lease == nullptr || i >= lease->blocks.size() || shard >= lease->shard_count) return nullptr;
  const auto* data = static_cast<const std::byte*>(lease->blocks[i].data);
  return data == nullptr ? nullptr : data + size_t{shard} * lease->shard_stride_bytes;
}

kv_status kv_load(kv_client* client, kv_lease* lease, uint32_t first, uint32_t count, uint32_t* loaded,
                  uint32_t deadline_ms) {
  if (loaded != nullptr) *loaded = 0;
  return Guarded(client, [&](ClientCore& core) {
    if (lease == nullptr || loaded == nullptr) return BadArgument(core, "lease and loaded must not be NULL");
    return core.Load(lease, first, count, loaded, DeadlineOf(deadline_ms));
  });
}

kv_status kv_prefetch(kv_client* client, kv_lease* lease, uint32_t first, uint32_t count) {
  return Guarded(client, [&](ClientCore& core) {
    if (lease == nullptr) return BadArgument(core, "lease must not be NULL");
    return core.Prefetch(lease, first, count);
  });
}

int kv_block_valid(const kv_lease* lease, uint32_t i) {
  if (lease == nullptr || i >= lease->blocks.size() || lease->blocks[i].data == nullptr) return 0;
  if (!lease->mark.IsHere()) return 0;
  return lease->arena->Unchanged(lease->offsets[i], lease->blocks[i].generation) ? 1 : 0;
}

void kv_release(kv_client* client, kv_lease* lease, uint32_t count) {
  if (lease == nullptr) return;
  Guarded(client, [&](ClientCore& core) {
    core.Release(lease, count);
    return KV_OK;
  });
}

uint64_t kv_lease_id(const kv_lease* lease) { return lease == nullptr ? 0 : lease->id; }

kv_status kv_borrow(kv_client* client, kv_namespace ns, uint64_t id, uint32_t first, uint32_t count, kv_lease** lease,
                    uint32_t deadline_ms) {
  if (lease != nullptr) *lease = nullptr;
  return Guarded(client, [&](ClientCore& core) {
    if (lease == nullptr) return BadArgument(core, "lease must not be NULL");
    if (id == 0) return BadArgument(core, "id is 0: kv_lease_id of a lease that another session holds");
    if (count == 0 || uint64_t{first} + count > kvartal::kLeasedBlocksPerGroupMax)
      return BadArgument(core, "no blocks, or more than an engine group may lease");
    return core.Borrow(ns, id, first, count, lease, DeadlineOf(deadline_ms));
  });
}

kv_status kv_pin(kv_client* client, kv_lease* lease, uint64_t until_wall_ms, uint32_t deadline_ms) {
  return Guarded(client, [&](ClientCore& core) {
    if (lease == nullptr) return BadArgument(core, "lease must not be NULL");
    return core.Pin(lease, until_wall_ms, DeadlineOf(deadline_ms));
  });
}

kv_status kv_hint(kv_client* client, const kv_lease* lease, kv_hint_what what) {
  return Guarded(client, [&](ClientCore& core) {
    if (lease == nullptr) return BadArgument(core, "lease must not be NULL");
    if (what != KV_HINT_ENDED && what != KV_HINT_WAITING)
      return BadArgument(core, "what is neither KV_HINT_ENDED nor KV_HINT_WAITING");
    return core.Hint(lease, what);
  });
}

kv_status kv_renew(kv_client* client, uint32_t deadline_ms) {
  return Guarded(client, [&](ClientCore& core) { return core.Renew(DeadlineOf(deadline_ms)); });
}

kv_status kv_reserve(kv_client* client, const kv_reserve_args* args, kv_slot* slots, uint32_t deadline_ms) {
  kv_reserve_args known{};
  const bool is_known = CopyKnownFields(args, offsetof(kv_reserve_args, parent_key), &known);
  const bool count_is_good = known.count > 0 && known.count <= kvartal::kReservePerFrameMax;
  if (slots != nullptr && count_is_good) std::fill_n(slots, known.count, kvartal::client::kNoSlot);
  return Guarded(client, [&](ClientCore& core) {
    if (!is_known) {
      return BadArgument(core, "kv_reserve_args.struct_size is not set: sizeof(kv_reserve_args)");
    }
    if (known.keys == nullptr || slots == nullptr) return BadArgument(core, "keys and slots must not be NULL");
    if (!count_is_good) return BadArgument(core, "count is not in 1..1024");
    return core.Reserve(known, slots, DeadlineOf(deadline_ms));
  });
}

kv_status kv_commit(kv_client* client, const kv_slot* slots, uint32_t count, uint32_t shard, uint32_t* committed,
                    uint32_t deadline_ms) {
  uint32_t ignored = 0;
  if (committed == nullptr) committed = &ignored;
  *committed = 0;
  return Guarded(client, [&](ClientCore& core) {
    if (slots == nullptr && count > 0) return BadArgument(core, "slots is NULL and count is not 0");
    return core.Commit(slots, count, shard, committed, DeadlineOf(deadline_ms));
  });
}

kv_status kv_abort(kv_client* client, const kv_slot* slots, uint32_t count, uint32_t deadline_ms) {
  return Guarded(client, [&](ClientCore& core) {
    if (slots == nullptr && count > 0) return BadArgument(core, "slots is NULL and count is not 0");
    return core.Abort(slots, count, DeadlineOf(deadline_ms));
  });
}

kv_status kv_poll(kv_client* client, uint32_t wait_ms, uint64_t* durable) {
  if (durable != nullptr) *durable = 0;
  return Guarded(client, [&](ClientCore& core) {
    return core.Poll(Deadline::In(std::min(wait_ms, kvartal::client::kDeadlineMsMax)), durable);
  });
}

void kv_on_durable(kv_client* client, void (*callback)(void* context, uint64_t reservation), void* context) {
  if (client != nullptr) client->core.OnDurable(callback, context);
}

}  // extern "C"
