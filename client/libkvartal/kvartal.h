/* libkvartal: what a serving pod links to use the node's KV cache. C ABI, stable within a major version.
 * Shapes. A block is one key's KV bytes: `shard_count` shards of `shard_bytes` each, one shard a node-local rank. Keys
 * are the engine's own 32-byte chained prefix hashes; a chain is a prompt's keys in order.
 * Threads. A kv_client may be used by one thread at a time; different clients are independent. The library has one
 * background thread a client, which renews leases and populates granted memory; it never touches block bytes and runs
 * none of your code.
 * Deadlines. Every call that talks to the daemon takes `deadline_ms` (0: 1000; more than 600000 is taken as 600000)
 * and returns by then. A dead, slow or absent daemon is KV_UNAVAILABLE, never a crash or a hang: treat it as a miss.
 * Later calls reconnect by themselves, with back-off (50 ms to 2 s; no call ever waits for it), and open the
 * namespaces again. Leases and reservations end with their session.
 * Memory. Pointers lead straight into mapped shared memory. Their content is yours to read while you hold the lease,
 * and to write between kv_reserve and kv_commit / kv_abort. When a session ends its memory is kept while a lease reads
 * it (of the last 4 dead daemons), then, or at once and without a call of yours, replaced by zeros, for which
 * kv_block_valid says 0. The addresses stay readable until kv_detach, but for the oldest after 64 such ends, and after
 * 4 where they are more than 8 TiB together: a pointer from so long ago is a crash.
 * Fork. In a forked child every call is KV_UNAVAILABLE, nothing is sent, and the memory is not mapped: attach anew
 * there.
 * Signals. SIGPIPE is never raised, and no signal is delivered to the background thread.
 * Errors. Functions return a kv_status; kv_last_error tells what was wrong, where and what to do. What a call gives
 * back through pointers is set also when it fails: NULL, 0, KV_NAMESPACE_NONE, slots that are KV_SLOT_REFUSED, or as
 * much as was done by then (the counts of kv_lookup, kv_load, kv_commit and kv_poll).
 */
#ifndef KVARTAL_H_
#define KVARTAL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KV_API __attribute__((visibility("default")))
#else
#define KV_API
#endif

#define KV_KEY_BYTES 32
#define KV_DIGEST_BYTES 32
#define KV_GROUP_BYTES 16

typedef enum kv_status {
  KV_OK = 0,
  KV_UNAVAILABLE = 1,      /* no daemon, connection lost, deadline passed: treat as a miss */
  KV_REFUSED = 2,          /* a limit or policy; kv_last_refusal names it */
  KV_DENIED = 3,           /* nobody vouches for this process */
  KV_INVALID_ARGUMENT = 4, /* the call was wrong; nothing happened */
  KV_NOT_FOUND = 5,        /* lease, reservation or namespace has ended */
  KV_LOST = 6,             /* the bytes are gone or changed under an expired lease: a failed load */
  KV_UNSUPPORTED = 7       /* the daemon does not have this */
} kv_status;

typedef enum kv_tier { KV_TIER_HBM = 0, KV_TIER_DRAM = 1, KV_TIER_NVME = 2 } kv_tier;

typedef struct kv_client kv_client;
typedef struct kv_lease kv_lease;

typedef struct kv_options {
  size_t struct_size;        /* sizeof(kv_options), so that the struct can grow */
  const char* socket_path;   /* NULL: $KVARTAL_SOCKET, else /run/kvartal/kvartal.sock */
  const char* client_name;   /* for the daemon's log, at most 128 bytes; NULL: the program's name */
  const uint8_t* join_group; /* KV_GROUP_BYTES of another session's kv_group; NULL: a new engine group */
  uint32_t deadline_ms;      /* of the attach itself; 0: 1000 */
  const char* token_path;    /* file of the pod's ServiceAccount token, read at every attach and renewed from before it
                                expires; NULL: $KVARTAL_TOKEN_FILE, else none */
} kv_options;

/* `options` may be NULL. Gives a client also when no daemon answers (KV_UNAVAILABLE: every call is a miss until one
 * appears); so it does when the token's file cannot be read yet. With KV_UNAVAILABLE *client is NULL only when this
 * process has no memory, thread or open file left. KV_DENIED, KV_INVALID_ARGUMENT, KV_UNSUPPORTED and KV_NOT_FOUND (no
 * such group to join) give none: kv_last_error(NULL) tells this thread why. */
KV_API kv_status kv_attach(const kv_options* options, kv_client** client);
/* Ends the session: leases end, unfinished blocks are aborted, memory is unmapped. NULL is allowed. */
KV_API void kv_detach(kv_client* client);

/* Of the last call; "" when it went well. Valid until the next call on this client. Never NULL. NULL client: of the
 * last kv_attach of this thread that gave none. */
KV_API const char* kv_last_error(const kv_client* client);
/* "tenant_limit", "capacity", ... of the last KV_REFUSED or partly refused call; "" when there was none. */
KV_API const char* kv_last_refusal(const kv_client* client);
KV_API const char* kv_status_name(kv_status status);
/* 1 while a session is up. Any thread may ask at any time before kv_detach, also while another is in a call. */
KV_API int kv_connected(const kv_client* client);
/* The tenant the daemon took this process for; "" before the first attach. */
KV_API const char* kv_tenant(const kv_client* client);
/* What another session of this engine joins with. KV_UNAVAILABLE before the first attach. Sessions that come back to
 * a daemon that restarted are together again under the same name. */
KV_API kv_status kv_group(const kv_client* client, uint8_t group[KV_GROUP_BYTES]);

typedef struct kv_layout {
  uint32_t tokens_per_block; /* >= 1 */
  uint32_t shard_count;      /* node-local ranks that store a part of each block; 1..64 */
  uint32_t shard_bytes;      /* bytes of one shard; a block is at most 32 MiB */
} kv_layout;

typedef uint32_t kv_namespace; /* of this client, from 1, until it is closed; survives reconnects */
#define KV_NAMESPACE_NONE 0    /* no call takes it: KV_INVALID_ARGUMENT */

/* `digest` names everything that makes KV incompatible: model, weights, dtype, page layout, hash seed, LoRA, engine,
 * salt. With KV_UNAVAILABLE *ns is good all the same: it is opened when a daemon appears. */
KV_API kv_status kv_open_namespace(kv_client* client, const uint8_t digest[KV_DIGEST_BYTES], const kv_layout* layout,
                                   kv_namespace* ns, uint32_t deadline_ms);
/* Nothing is asked about it any more, and its number may be another's. When nobody on this node has the digest open its
 * blocks stay, and are the first to go. Leases and slots of it last as others do. Waits for nothing. A client may have
 * 256 namespaces open, so may a tenant on a node. */
KV_API kv_status kv_close_namespace(kv_client* client, kv_namespace ns);

/* ---- load path */

typedef struct kv_block {
  const void* data; /* shard 0 of the block; NULL unless tier is KV_TIER_DRAM */
  kv_tier tier;
  uint32_t generation; /* what kv_block_valid compares */
} kv_block;

/* How many leading keys of the chain are resident, where, and a lease on them. One round trip per 1024 keys; when the
 * deadline passes after the first, what matched until then. `prompt_tokens`: tokens of the whole prompt, for hit
 * accounting; 0: count * tokens_per_block. KV_OK with a lease when at least one block matched; KV_OK with *lease NULL
 * and *matched 0 is a miss. `request` (may be NULL) receives the number to pass to kv_reserve for the rest of this
 * chain. */
KV_API kv_status kv_lookup(kv_client* client, kv_namespace ns, const uint8_t* keys, uint32_t count,
                           uint64_t prompt_tokens, kv_lease** lease, uint32_t* matched, uint64_t* request,
                           uint32_t deadline_ms);
/* kv_lease_count(lease) elements, in chain order. Valid until the lease is released or loaded. */
KV_API const kv_block* kv_lease_blocks(const kv_lease* lease);
KV_API uint32_t kv_lease_count(const kv_lease* lease);
/* The first block that is left: those before it are released, or were not borrowed. */
KV_API uint32_t kv_lease_front(const kv_lease* lease);
/* Shard `shard` of block `i`; NULL unless it is in DRAM. */
KV_API const void* kv_lease_shard(const kv_lease* lease, uint32_t i, uint32_t shard);

/* Brings blocks [first, first + count) of the lease into DRAM. *loaded is how many from `first` on are there now: fewer
 * than asked when the chain is longer than the tenant may hold at once (use them, kv_release the front, ask again;
 * KV_REFUSED when it is 0), or when a block was lost (KV_LOST: a miss from there on). */
KV_API kv_status kv_load(kv_client* client, kv_lease* lease, uint32_t first, uint32_t count, uint32_t* loaded,
                         uint32_t deadline_ms);
/* Says that kv_load will be called for blocks [first, first + count): the daemon reads them from NVMe meanwhile, after
 * what others wait for, as many as there is room for. Waits for nothing. For a long chain: prefetch a part ahead, load
 * a part, copy it out, release it, and so on; the disk then works while you copy. */
KV_API kv_status kv_prefetch(kv_client* client, kv_lease* lease, uint32_t first, uint32_t count);
/* After copying block `i` out: 1 when the bytes were stable all the while, 0 when the lease had ended and they may have
 * changed, for blocks that are released or not in DRAM, and in a forked child. Costs no system call; any thread that
 * may read the block may ask. */
KV_API int kv_block_valid(const kv_lease* lease, uint32_t i);
/* Gives back the first `count` blocks that are left (0: all). When none are left the lease is freed. Indexes into the
 * lease do not move. NULL is allowed. A whole lease goes back with the next call to the daemon, or within 50 ms when
 * there is none: it costs no system call. */
KV_API void kv_release(kv_client* client, kv_lease* lease, uint32_t count);
/* What another session of the same engine group borrows this lease by; 0 for NULL. */
KV_API uint64_t kv_lease_id(const kv_lease* lease);
/* A handle of this client on blocks [first, first + count) of the lease `id`, which another session of its engine group
 * holds: the scheduler looks up and keeps the lease, a worker borrows, loads and copies. `ns` is what it was looked up
 * in, opened by this client. Indexes are those of the owner's lease. kv_load makes the blocks readable (KV_NOT_FOUND:
 * the lease has ended); kv_release frees the handle and gives nothing back, so the owner keeps the lease until then. */
KV_API kv_status kv_borrow(kv_client* client, kv_namespace ns, uint64_t id, uint32_t first, uint32_t count,
                           kv_lease** lease, uint32_t deadline_ms);
/* Keeps every block of the lease, at most 65536, resident until `until_wall_ms` (ms since 1970); a time that has passed
 * keeps nothing, and ends no pin. */
KV_API kv_status kv_pin(kv_client* client, kv_lease* lease, uint64_t until_wall_ms, uint32_t deadline_ms);
/* What is known of the conversation whose chain the lease holds, looked up from its first block to its last: advice for
 * what is evicted. KV_HINT_ENDED: nobody will ask for it again; its blocks go first, but for those that other chains
 * share, until somebody asks for them. KV_HINT_WAITING: for a tool or a person, and it comes back; its blocks and their
 * TTL count as asked for now. Waits for nothing. Of a lease with more than 65536 blocks it is not taken. */
typedef enum kv_hint_what { KV_HINT_ENDED = 1, KV_HINT_WAITING = 2 } kv_hint_what;
KV_API kv_status kv_hint(kv_client* client, const kv_lease* lease, kv_hint_what what);
/* Makes every lease of this engine group live on. The background thread does it by itself for the leases of its client;
 * for tests and stopped processes. */
KV_API kv_status kv_renew(kv_client* client, uint32_t deadline_ms);

/* ---- store path */

typedef enum kv_reserve_outcome { KV_GRANTED = 0, KV_EXISTS = 1, KV_SLOT_REFUSED = 2 } kv_reserve_outcome;

typedef struct kv_slot {
  void* data;           /* write shard_bytes here; NULL unless granted */
  uint64_t reservation; /* for kv_commit and kv_abort; 0 unless granted */
  kv_reserve_outcome outcome;
} kv_slot;

typedef struct kv_reserve_args {
  size_t struct_size; /* sizeof(kv_reserve_args) */
  kv_namespace ns;
  uint32_t shard;            /* which shard this session writes */
  const uint8_t* keys;       /* count x KV_KEY_BYTES, consecutive blocks of one chain */
  uint32_t count;            /* at most 1024 */
  const uint8_t* parent_key; /* of keys[0]; NULL for the head of a chain. Where it and the depth are not true to the
                                chain its blocks may go before others; nothing else depends on them */
  uint32_t first_depth;      /* position of keys[0] in its chain */
  uint64_t request;          /* from kv_lookup, 0 when there was none */
} kv_reserve_args;

/* Fills `slots[0..count)`. KV_OK also when some are refused (kv_last_refusal says why); KV_REFUSED when none was
 * granted and none exists. Slots are charged from this moment. */
KV_API kv_status kv_reserve(kv_client* client, const kv_reserve_args* args, kv_slot* slots, uint32_t deadline_ms);
/* Makes filled slots visible; slots that were not granted are passed over. *committed (may be NULL): how many are
 * stored now. KV_NOT_FOUND when that is fewer than were granted: the others were committed or aborted before, or their
 * session had ended. With KV_UNAVAILABLE the slots that the daemon had not heard of are given back as soon as it takes
 * it, and after any kv_commit or kv_abort there is nothing to be written to them any more. */
KV_API kv_status kv_commit(kv_client* client, const kv_slot* slots, uint32_t count, uint32_t shard, uint32_t* committed,
                           uint32_t deadline_ms);
KV_API kv_status kv_abort(kv_client* client, const kv_slot* slots, uint32_t count, uint32_t deadline_ms);

/* Handles what the daemon said unasked (durable blocks, goodbye); waits at most `wait_ms` (0: not at all) for the first
 * of it. Calls do this by themselves; for programs that wait for durability, in a loop. *durable (may be NULL): blocks
 * that would survive kill -9 of the daemon and that this client was told of, in total: those of its engine group,
 * whichever of the group's clients committed them. */
KV_API kv_status kv_poll(kv_client* client, uint32_t wait_ms, uint64_t* durable);
/* Called from kv_poll and other calls, on their thread, for each reservation of the engine group that became durable.
 * It must not call into the client. */
KV_API void kv_on_durable(kv_client* client, void (*callback)(void* context, uint64_t reservation), void* context);

#ifdef __cplusplus
}
#endif

#endif /* KVARTAL_H_ */
