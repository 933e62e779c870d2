// A part of a block file as a disk of its own, so that a node of several disks has one queue and one memory to look
// at. Confined to the thread of the simulation. Invariant: disks that are parts laid one after another have the tier's
// slots where one disk would have them.
#pragma once

#include <utility>

#include "daemon/device/block_file.h"

namespace kvartal::sim {

class FilePart : public device::BlockFile {
 public:
  FilePart(device::BlockFile* whole, uint64_t begin, uint64_t bytes) : whole_(whole), begin_(begin), bytes_(bytes) {}
  uint64_t size_bytes() const override { return bytes_; }
  bool direct_io() const override { return whole_->direct_io(); }
  bool Submit(device::BlockIo io) override {
    io.offset += begin_;
    return whole_->Submit(std::move(io));
  }
  absl::Status ReadNow(uint64_t offset, void* data, size_t bytes) override {
    return whole_->ReadNow(begin_ + offset, data, bytes);
  }
  absl::Status WriteNow(uint64_t offset, const void* data, size_t bytes) override {
    return whole_->WriteNow(begin_ + offset, data, bytes);
  }
  absl::Status Sync() override { return whole_->Sync(); }
  size_t Pending() const override { return whole_->Pending(); }
  size_t Overdue() const override { return whole_->Overdue(); }
  bool Withdraw(DomainId owner, uint64_t offset) override { return whole_->Withdraw(owner, begin_ + offset); }

 private:
  device::BlockFile* const whole_;
  const uint64_t begin_;
  const uint64_t bytes_;
};

}  // namespace kvartal::sim
