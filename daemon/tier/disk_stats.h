// Plain numbers of one disk, copied out for metrics and people. No behaviour.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/tier/device_state.h"

namespace kvartal::tier {

struct NvmeCounters {
  uint64_t blocks_written = 0, blocks_read = 0, bytes_written = 0, bytes_read = 0;
  uint64_t write_errors = 0, read_errors = 0;  // from the device
  uint64_t header_mismatches = 0, checksum_mismatches = 0;
  uint64_t keys_missing = 0;  // blocks whose key is gone
  uint64_t segment_headers_written = 0;
  uint64_t quarantined_slots = 0;  // now: their last write failed, nobody gets them for a while

  uint64_t mismatches() const { return header_mismatches + checksum_mismatches; }
  NvmeCounters& operator+=(const NvmeCounters& other) {
    blocks_written += other.blocks_written;
    blocks_read += other.blocks_read;
    bytes_written += other.bytes_written;
    bytes_read += other.bytes_read;
    write_errors += other.write_errors;
    read_errors += other.read_errors;
    header_mismatches += other.header_mismatches;
    checksum_mismatches += other.checksum_mismatches;
    keys_missing += other.keys_missing;
    segment_headers_written += other.segment_headers_written;
    quarantined_slots += other.quarantined_slots;
    return *this;
  }
};

struct DiskStats {
  DeviceState state = DeviceState::kHealthy;
  uint64_t capacity_bytes = 0;     // what slots may cover
  uint64_t granted_bytes = 0;      // in slots that belong to a domain
  uint64_t queued_bytes = 0;       // of transfers it has accepted, and not ended
  uint64_t overdue_transfers = 0;  // that it has had for too long
  NvmeCounters counters;
};

// A disk of a node's configuration, with what is known of it by now.
struct ConfiguredDisk {
  std::string path;
  bool present = false;   // false: it could not be opened at the start, and its blocks are misses until it is
  std::string io_engine;  // io_uring | threads
  std::string note;       // what is degraded, and after " -> " what to do
  DiskStats stats;        // of one that is present

  const char* state_name() const { return present ? DeviceStateName(stats.state) : "absent"; }
};

}  // namespace kvartal::tier
