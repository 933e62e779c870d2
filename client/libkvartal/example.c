/* Looks a chain of two blocks up; stores it when it is not there. */
#include <stdio.h>
#include <string.h>

#include "client/libkvartal/kvartal.h"

int main(void) {
  kv_client* client;
  if (kv_attach(NULL, &client) != KV_OK) fprintf(stderr, "no cache: %s\n", kv_last_error(client));
  if (client == NULL) return 1;

  const uint8_t digest[KV_DIGEST_BYTES] = "model, weights, dtype, ...";
  const kv_layout layout = {.tokens_per_block = 16, .shard_count = 1, .shard_bytes = 4096};
  kv_namespace ns;
  kv_open_namespace(client, digest, &layout, &ns, 1000);

  const uint8_t keys[2][KV_KEY_BYTES] = {"hash of block 0", "hash of blocks 0 and 1"};
  kv_lease* lease;
  uint32_t matched, loaded;
  uint64_t request;
  kv_lookup(client, ns, keys[0], 2, 0, &lease, &matched, &request, 5);
  if (matched > 0 && kv_load(client, lease, 0, matched, &loaded, 100) == KV_OK) {
    char copy[4096];
    memcpy(copy, kv_lease_blocks(lease)[0].data, sizeof(copy));
    if (kv_block_valid(lease, 0)) printf("hit: %s\n", copy);
  }
  kv_release(client, lease, 0);

  const kv_reserve_args args = {
      .struct_size = sizeof(args), .ns = ns, .keys = keys[0], .count = 2, .request = request};
  kv_slot slots[2] = {0};
  uint32_t stored = 0;
  if (kv_reserve(client, &args, slots, 100) == KV_OK) {
    for (int i = 0; i < 2; ++i) {
      if (slots[i].outcome == KV_GRANTED) snprintf(slots[i].data, 4096, "KV of block %d", i);
    }
    kv_commit(client, slots, 2, 0, &stored, 100);
  }
  printf("stored %u blocks\n", stored);
  kv_detach(client);
  return 0;
}
