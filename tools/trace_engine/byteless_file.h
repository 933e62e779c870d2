// The disk of a virtual node: transfers of slots move nothing and end at once, in virtual time; only the superblock
// is kept. There is no disk thread, so nothing of a payload is hashed, and a read hands back the block that was
// asked for.
// Confined to the thread of the node.
// Invariant: `done` of an accepted transfer runs exactly once, with OK.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "daemon/base/event_loop.h"
#include "daemon/device/block_file.h"

namespace kvartal::trace_engine {

class BytelessFile : public device::BlockFile {
 public:
  BytelessFile(uint64_t size_bytes, Executor* executor);

  uint64_t size_bytes() const override { return size_bytes_; }
  bool direct_io() const override { return false; }
  bool Submit(device::BlockIo io) override;
  absl::Status ReadNow(uint64_t offset, void* data, size_t bytes) override;
  absl::Status WriteNow(uint64_t offset, const void* data, size_t bytes) override;
  absl::Status Sync() override { return absl::OkStatus(); }
  size_t Pending() const override { return *pending_; }

 private:
  const uint64_t size_bytes_;
  Executor* const executor_;
  std::vector<std::byte> front_;           // where the superblock is
  const std::shared_ptr<size_t> pending_;  // callbacks may outlive this object
};

}  // namespace kvartal::trace_engine
