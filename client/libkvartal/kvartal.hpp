// C++ owners over the C ABI of kvartal.h: a Client detaches and a Lease releases by itself. Header-only.
// Threads, deadlines and lifetimes are those of kvartal.h. Client and Lease: move-only, one thread at a time.
// Invariant: a Lease must not outlive the Client it came from.
#pragma once

#if __cplusplus < 202002L
#error "kvartal.hpp needs C++20 (-std=c++20); kvartal.h, which it is made over, is for C99 and any C++"
#endif

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "client/libkvartal/kvartal.h"

namespace kvartal::client {

using Key = std::array<uint8_t, KV_KEY_BYTES>;
using Digest = std::array<uint8_t, KV_DIGEST_BYTES>;
using Group = std::array<uint8_t, KV_GROUP_BYTES>;
static_assert(sizeof(Key) == KV_KEY_BYTES, "a span of keys is an array of bytes to the C ABI");

class Lease {
 public:
  Lease() = default;
  Lease(kv_client* client, kv_lease* lease) : client_(client), lease_(lease) {}
  Lease(Lease&& other) noexcept : client_(other.client_), lease_(std::exchange(other.lease_, nullptr)) {}
  Lease& operator=(Lease&& other) noexcept {
    if (this == &other) return *this;
    Release();
    client_ = other.client_;
    lease_ = std::exchange(other.lease_, nullptr);
    return *this;
  }
  ~Lease() { Release(); }

  explicit operator bool() const { return lease_ != nullptr; }
  kv_lease* get() const { return lease_; }
  std::span<const kv_block> blocks() const { return {kv_lease_blocks(lease_), kv_lease_count(lease_)}; }
  const void* Shard(uint32_t i, uint32_t shard) const { return kv_lease_shard(lease_, i, shard); }
  bool Valid(uint32_t i) const { return kv_block_valid(lease_, i) != 0; }

  struct Loaded {
    kv_status status = KV_UNAVAILABLE;
    uint32_t count = 0;
  };
  Loaded Load(uint32_t first, uint32_t count, uint32_t deadline_ms) {
    Loaded out;
    out.status = kv_load(client_, lease_, first, count, &out.count, deadline_ms);
    return out;
  }
  kv_status Prefetch(uint32_t first, uint32_t count) { return kv_prefetch(client_, lease_, first, count); }
  kv_status Pin(uint64_t until_wall_ms, uint32_t deadline_ms) {
    return kv_pin(client_, lease_, until_wall_ms, deadline_ms);
  }
  kv_status Hint(kv_hint_what what) { return kv_hint(client_, lease_, what); }
  // The first `count` blocks that are left; the lease ends with its last one.
  void ReleaseFront(uint32_t count) {
    if (count == 0) return;
    const bool ends = count >= kv_lease_count(lease_) - kv_lease_front(lease_);
    kv_release(client_, ends ? std::exchange(lease_, nullptr) : lease_, count);
  }
  void Release() {
    if (lease_ != nullptr) kv_release(client_, std::exchange(lease_, nullptr), 0);
  }

 private:
  kv_client* client_ = nullptr;
  kv_lease* lease_ = nullptr;
};

class Client {
 public:
  Client() = default;
  Client(Client&& other) noexcept : client_(std::exchange(other.client_, nullptr)) {}
  Client& operator=(Client&& other) noexcept {
    if (this != &other) kv_detach(std::exchange(client_, std::exchange(other.client_, nullptr)));
    return *this;
  }
  ~Client() { Detach(); }

  // `socket_path` "": the default. `join`: the group of another session, nullptr for a new one.
  kv_status Attach(const std::string& socket_path, const std::string& name = "", const Group* join = nullptr,
                   uint32_t deadline_ms = 0, const std::string& token_path = "") {
    Detach();
    kv_options options{};
    options.struct_size = sizeof(options);
    options.socket_path = socket_path.empty() ? nullptr : socket_path.c_str();
    options.client_name = name.empty() ? nullptr : name.c_str();
    options.join_group = join == nullptr ? nullptr : join->data();
    options.deadline_ms = deadline_ms;
    options.token_path = token_path.empty() ? nullptr : token_path.c_str();
    return kv_attach(&options, &client_);
  }
  void Detach() { kv_detach(std::exchange(client_, nullptr)); }

  explicit operator bool() const { return client_ != nullptr; }
  kv_client* get() const { return client_; }
  bool connected() const { return kv_connected(client_) != 0; }
  std::string error() const { return kv_last_error(client_); }
  std::string refusal() const { return kv_last_refusal(client_); }
  std::string tenant() const { return kv_tenant(client_); }
  kv_status GetGroup(Group* group) const { return kv_group(client_, group->data()); }

  struct Opened {
    kv_status status = KV_UNAVAILABLE;
    kv_namespace ns = KV_NAMESPACE_NONE;
  };
  Opened OpenNamespace(const Digest& digest, const kv_layout& layout, uint32_t deadline_ms) {
    Opened out;
    out.status = kv_open_namespace(client_, digest.data(), &layout, &out.ns, deadline_ms);
    return out;
  }

  kv_status CloseNamespace(kv_namespace ns) { return kv_close_namespace(client_, ns); }

  struct Found {
    kv_status status = KV_UNAVAILABLE;
    uint32_t matched = 0;
    uint64_t request = 0;
    Lease lease;
  };
  Found Lookup(kv_namespace ns, std::span<const Key> keys, uint64_t prompt_tokens, uint32_t deadline_ms) {
    Found out;
    kv_lease* lease = nullptr;
    out.status = kv_lookup(client_, ns, Bytes(keys), static_cast<uint32_t>(keys.size()), prompt_tokens, &lease,
                           &out.matched, &out.request, deadline_ms);
    out.lease = Lease(client_, lease);
    return out;
  }

  struct ReserveArgs {
    kv_namespace ns = KV_NAMESPACE_NONE;
    uint32_t shard = 0;
    std::span<const Key> keys;
    const Key* parent = nullptr;
    uint32_t first_depth = 0;
    uint64_t request = 0;
  };
  // REQUIRES: slots.size() >= args.keys.size().
  kv_status Reserve(const ReserveArgs& args, std::span<kv_slot> slots, uint32_t deadline_ms) {
    kv_reserve_args c{};
    c.struct_size = sizeof(c);
    c.ns = args.ns;
    c.shard = args.shard;
    c.keys = Bytes(args.keys);
    c.count = static_cast<uint32_t>(args.keys.size());
    c.parent_key = args.parent == nullptr ? nullptr : args.parent->data();
    c.first_depth = args.first_depth;
    c.request = args.request;
    return kv_reserve(client_, &c, slots.data(), deadline_ms);
  }

  struct Committed {
    kv_status status = KV_UNAVAILABLE;
    uint32_t count = 0;
  };
  Committed Commit(std::span<const kv_slot> slots, uint32_t shard, uint32_t deadline_ms) {
    Committed out;
    out.status = kv_commit(client_, slots.data(), static_cast<uint32_t>(slots.size()), shard, &out.count, deadline_ms);
    return out;
  }
  kv_status Abort(std::span<const kv_slot> slots, uint32_t deadline_ms) {
    return kv_abort(client_, slots.data(), static_cast<uint32_t>(slots.size()), deadline_ms);
  }
  kv_status Renew(uint32_t deadline_ms) { return kv_renew(client_, deadline_ms); }

  struct Polled {
    kv_status status = KV_UNAVAILABLE;
    uint64_t durable = 0;
  };
  Polled Poll(uint32_t wait_ms) {
    Polled out;
    out.status = kv_poll(client_, wait_ms, &out.durable);
    return out;
  }
  void OnDurable(void (*callback)(void*, uint64_t), void* context) { kv_on_durable(client_, callback, context); }

 private:
  static const uint8_t* Bytes(std::span<const Key> keys) { return keys.empty() ? nullptr : keys.data()->data(); }
  kv_client* client_ = nullptr;
};

}  // namespace kvartal::client
