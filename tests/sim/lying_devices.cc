#include "tests/sim/lying_devices.h"

#include <cstring>
#include <utility>

namespace kvartal::sim {
namespace {

class LyingArena : public device::Arena {
 public:
  LyingArena(std::unique_ptr<device::Arena> honest, std::byte* data, bool punches, Executor* executor)
      : honest_(std::move(honest)), data_(data), punches_(punches), executor_(executor) {}

  uint64_t size_bytes() const override { return honest_->size_bytes(); }
  std::byte* data() const override { return data_; }
  int fd() const override { return honest_->fd(); }
  int generation_fd() const override { return honest_->generation_fd(); }
  std::atomic<uint32_t>* generations() const override { return honest_->generations(); }
  absl::Status Populate(uint64_t offset, uint64_t bytes, Done done) override {
    return honest_->Populate(offset, bytes, std::move(done));
  }
  absl::Status Punch(uint64_t offset, uint64_t bytes, Done done) override {
    if (punches_) return honest_->Punch(offset, bytes, std::move(done));
    executor_->Post([done = std::move(done)]() mutable { done(absl::OkStatus()); });
    return absl::OkStatus();
  }
  absl::Status Zero(uint64_t offset, uint64_t bytes, Done done) override {
    return honest_->Zero(offset, bytes, std::move(done));
  }
  uint64_t AllocatedBytes() const override { return honest_->AllocatedBytes(); }

 private:
  const std::unique_ptr<device::Arena> honest_;
  std::byte* const data_;
  const bool punches_;
  Executor* const executor_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<device::Arena>> LyingMemory::CreateArena(const char* name, uint64_t size_bytes) {
  absl::StatusOr<std::unique_ptr<device::Arena>> made = honest_->CreateArena(name, size_bytes);
  if (!made.ok() || planted_ == Planted::kNothing) return made;
  if (first_ == nullptr) first_ = (*made)->data();
  std::byte* const data = planted_ == Planted::kOverlappingMemory ? first_ : (*made)->data();
  return std::make_unique<LyingArena>(*std::move(made), data, planted_ != Planted::kPunchDoesNothing, executor_);
}

bool WatchedCatalog::Put(const tier::CatalogRecord& record, absl::AnyInvocable<void(absl::Status)> done) {
  auto told = [this, slot = record.slot, done = std::move(done)](absl::Status status) mutable {
    recorded_ = slot;
    done(std::move(status));
    recorded_.reset();
  };
  if (planted_ == Planted::kLosesPuts && ++puts_ % 4 == 0) {
    executor_->Post([told = std::move(told)]() mutable { told(absl::OkStatus()); });
    return true;
  }
  return honest_->Put(record, std::move(told));
}

void WatchedCatalog::Delete(SlotId slot) {
  on_delete_(slot);
  if (planted_ != Planted::kLosesDeletes) honest_->Delete(slot);
}

void WatchedCatalog::PutTombstone(const tier::OwnerUidHash& owner, int64_t before_wall_ms,
                                  absl::AnyInvocable<void(absl::Status)> done) {
  if (planted_ != Planted::kLosesTombstones) return honest_->PutTombstone(owner, before_wall_ms, std::move(done));
  executor_->Post([done = std::move(done)]() mutable { done(absl::OkStatus()); });
}

void WatchedCatalog::Load(absl::AnyInvocable<void(std::vector<tier::CatalogRecord>)> batch,
                          absl::AnyInvocable<void(absl::Status)> done) {
  if (planted_ != Planted::kForgetsRecords) return honest_->Load(std::move(batch), std::move(done));
  honest_->Load(
      [batch = std::move(batch)](std::vector<tier::CatalogRecord> records) mutable {
        records.resize(records.size() / 2);
        batch(std::move(records));
      },
      std::move(done));
}

bool LyingFile::Submit(device::BlockIo io) {
  const bool of_block = io.part_count == 2;
  const bool write = io.op == device::BlockIo::Op::kWrite;
  // What is neither a block nor the header of a segment.
  const bool zeros = write && !of_block && io.parts[0].iov_len > kNvmeHeaderBytes;
  if (planted_ == Planted::kSkipsZeros && zeros) {
    executor_->Post([io = std::make_shared<device::BlockIo>(std::move(io))] { io->done(absl::OkStatus()); });
    return true;
  }
  if (planted_ == Planted::kLosesWrites && write && of_block && ++writes_ % 8 == 0) {
    executor_->Post([io = std::make_shared<device::BlockIo>(std::move(io))] {
      const absl::Status sealed = io->before(*io);
      io->done(sealed);
    });
    return true;
  }
  if (planted_ != Planted::kStaleReads || !of_block) return honest_->Submit(std::move(io));
  const uint64_t bytes = io.parts[0].iov_len + io.parts[1].iov_len;
  if (write) {
    const std::span<std::byte> disk = honest_->bytes().subspan(io.offset, bytes);
    before_[io.offset].assign(disk.begin(), disk.end());
    return honest_->Submit(std::move(io));
  }
  const auto before = before_.find(io.offset);
  if (before == before_.end() || before->second.size() != bytes) return honest_->Submit(std::move(io));
  io.after = [old = before->second, verify = std::move(io.after)](device::BlockIo& read) mutable {
    const auto& [header, payload] = read.parts;
    std::memcpy(header.iov_base, old.data(), header.iov_len);
    std::memcpy(payload.iov_base, old.data() + header.iov_len, payload.iov_len);
    return verify(read);
  };
  return honest_->Submit(std::move(io));
}

}  // namespace kvartal::sim
