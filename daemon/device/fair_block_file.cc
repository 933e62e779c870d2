#include "daemon/device/fair_block_file.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "daemon/base/check.h"
#include "daemon/device/fair_queue.h"

namespace kvartal::device {
namespace {

// A write wears the device and takes its bandwidth twice over, next to a read.
uint64_t CostOf(const BlockIo& io) { return io.op == BlockIo::Op::kWrite ? 2 * io.bytes() : io.bytes(); }

class FairBlockFile : public BlockFile {
 public:
  FairBlockFile(std::unique_ptr<BlockFile> file, const FairBlockFileOptions& options)
      : file_(std::move(file)),
        under_way_min_(options.under_way_min),
        under_way_bytes_max_(options.under_way_bytes),
        owner_queue_max_(options.owner_queue_max == 0 ? kDiskQueuePerOwnerMax : options.owner_queue_max) {}

  // What was accepted ends on the file.
  ~FairBlockFile() override {
    while (std::optional<BlockIo> io = queue_.Pop()) KV_CHECK(file_->Submit(*std::move(io)));
  }

  uint64_t size_bytes() const override { return file_->size_bytes(); }
  bool direct_io() const override { return file_->direct_io(); }
  absl::Status ReadNow(uint64_t offset, void* data, size_t bytes) override {
    return file_->ReadNow(offset, data, bytes);
  }
  absl::Status WriteNow(uint64_t offset, const void* data, size_t bytes) override {
    return file_->WriteNow(offset, data, bytes);
  }
  absl::Status Sync() override { return file_->Sync(); }
  size_t Pending() const override { return queue_.size() + under_way_; }
  size_t Overdue() const override { return file_->Overdue(); }
  void SetWeight(DomainId owner, uint32_t weight) override { queue_.SetWeight(owner, weight); }

  bool Withdraw(DomainId owner, uint64_t offset) override {
    const auto is_it = [&](const BlockIo& io) { return io.offset == offset; };
    const bool taken = queue_.Take(owner, IoClass::kDemandRead, is_it).has_value() ||
                       queue_.Take(owner, IoClass::kPromotion, is_it).has_value();
    if (taken) --accepted_[owner];
    return taken;
  }

  void Hasten(DomainId owner, uint64_t offset) override {
    std::optional<BlockIo> io =
        queue_.Take(owner, IoClass::kPromotion, [&](const BlockIo& waiting) { return waiting.offset == offset; });
    if (!io.has_value()) return;
    io->io_class = IoClass::kDemandRead;
    const uint64_t cost = CostOf(*io);
    queue_.Push(owner, IoClass::kDemandRead, cost, *std::move(io));
  }

  bool Submit(BlockIo io) override {
    size_t& accepted = accepted_[io.owner];
    if (accepted >= owner_queue_max_ || Pending() >= kDiskQueueMax) return false;
    ++accepted;
    io.done = [this, alive = std::weak_ptr<bool>(alive_), owner = io.owner, bytes = io.bytes(),
               done = std::move(io.done)](absl::Status status) mutable {
      if (!alive.expired()) OnEnded(owner, bytes);
      done(std::move(status));
    };
    const DomainId owner = io.owner;
    const IoClass io_class = io.io_class;
    const uint64_t cost = CostOf(io);
    queue_.Push(owner, io_class, cost, std::move(io));
    HandOver();
    return true;
  }

 private:
  void HandOver() {
    while (under_way_ < under_way_min_ || under_way_bytes_ < under_way_bytes_max_) {
      std::optional<BlockIo> io = queue_.Pop();
      if (!io.has_value()) return;
      ++under_way_;
      under_way_bytes_ += io->bytes();
      KV_CHECK(file_->Submit(*std::move(io)));
    }
  }

  void OnEnded(DomainId owner, uint64_t bytes) {
    --under_way_;
    under_way_bytes_ -= bytes;
    --accepted_[owner];
    HandOver();
  }

  const std::unique_ptr<BlockFile> file_;
  const size_t under_way_min_;
  const uint64_t under_way_bytes_max_;
  const size_t owner_queue_max_;
  FairQueue<BlockIo> queue_;
  absl::flat_hash_map<DomainId, size_t> accepted_;  // and not ended
  size_t under_way_ = 0;
  uint64_t under_way_bytes_ = 0;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace

std::unique_ptr<BlockFile> NewFairBlockFile(std::unique_ptr<BlockFile> file, const FairBlockFileOptions& options) {
  return std::make_unique<FairBlockFile>(std::move(file), options);
}

}  // namespace kvartal::device
