// What a kv_lease is: the blocks of one lookup and where they are. Objects are reused, so that a lookup allocates
// nothing. The calling thread's; blocks and Unchanged may be read by any thread of the program while it holds the
// lease.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/libkvartal/arena_map.h"
#include "client/libkvartal/kvartal.h"
#include "client/libkvartal/process_mark.h"

struct kv_lease {
  const kvartal::client::ProcessMark mark = kvartal::client::ProcessMark::Here();  // its memory is not mapped elsewhere
  std::vector<kv_block> blocks;
  std::vector<uint64_t> offsets;  // in the arena; of blocks in DRAM
  uint64_t id = 0;
  uint64_t session_serial = 0;  // the session it was given in; ends with it
  uint32_t front = 0;           // blocks before it are released
  bool borrowed = false;        // another session of the group holds it, and gives it back
  uint32_t shard_stride_bytes = 0;
  uint32_t shard_count = 0;
  uint32_t slot_bytes = 0;
  size_t position = 0;  // among the client's leases
  std::shared_ptr<kvartal::client::ArenaMap> arena;
};
