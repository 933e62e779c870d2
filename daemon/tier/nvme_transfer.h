// One write or read of a slot, from Submit to its end, and the work on it that belongs on the disk thread.
// Owned by its callbacks, so that a disk that outlives the tier never touches memory that is gone. The engine loop
// fills it in, then the disk thread has it alone until `done`. Invariant: Verify says OK only for the very block that
// was asked for, with the bytes that were written.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "daemon/base/ids.h"
#include "daemon/base/mapping.h"
#include "daemon/base/mutex.h"
#include "daemon/base/status.h"
#include "daemon/device/block_file.h"
#include "daemon/tier/bounce_buffers.h"
#include "daemon/tier/nvme_format.h"

namespace kvartal::tier {

// What the blocks of a domain are encrypted with.
struct DomainCipher {
  std::shared_ptr<const cipher::TenantCipher> cipher;  // null: nothing of it ever was
  bool required = false;                               // no block is written, or taken for its own, in the clear
};

// The same, as it is now, for transfers that wait: a policy may change meanwhile. Thread-safe.
class PresentCipher {
 public:
  DomainCipher Get() const {
    MutexLock lock(mutex_);
    return cipher_;
  }
  void Set(DomainCipher cipher) {
    MutexLock lock(mutex_);
    std::swap(cipher_, cipher);
  }

 private:
  mutable Mutex mutex_;
  DomainCipher cipher_ ABSL_GUARDED_BY(mutex_);
};

struct NvmeTransfer {
  // What came of it on the disk thread. Anything but kFine is a miss of a read; a write knows but kNoKey beside it.
  enum class Verdict : uint8_t { kFine, kBadHeader, kBadChecksum, kNoKey };

  Mapping page;  // the header, on its way out or in
  uint64_t header_seed = 0;
  SlotId slot;
  BlockHeader header;                           // to write; or expected (generation 0: any), then found
  std::span<std::byte> payload;                 // what is written, or where the block goes that is read
  Mapping landing;                              // read: what the disk puts where that may be another's block
  std::shared_ptr<const PresentCipher> cipher;  // of the domain
  BounceBuffers* bounce = nullptr;              // outlives it
  Mapping encrypted;                            // write: what of `payload` goes to the disk
  Verdict verdict = Verdict::kFine;
  absl::AnyInvocable<void(absl::StatusOr<BlockHeader>)> write_done;
  absl::AnyInvocable<void(absl::Status)> read_done;

  // Before a write: checksum or encryption of the payload, and the header page. FailedPrecondition: there is no key.
  absl::Status Seal(device::BlockIo* io);
  // Before a read of what may be another tenant's block: clients map `payload`, so the disk is given memory of the
  // daemon's own, and the block goes on to `payload` once it is found to be the one asked for.
  absl::Status Land(device::BlockIo* io);
  // After a read: DataLoss, and a verdict, when header or payload is not what was asked for; FailedPrecondition when
  // its key is gone; after either what the disk brought is zeros. An encrypted one is decrypted where it lies: nobody
  // is told of it before.
  absl::Status Verify();

 private:
  std::span<std::byte> Arrived() const {
    return landing.data() == nullptr ? payload : std::span(landing.data(), payload.size());
  }
  absl::Status Encrypt(const cipher::TenantCipher* with, device::BlockIo* io);
  absl::Status Check();
  absl::Status CheckIdentity(const BlockHeader& found) const;
  absl::Status Decrypt(const cipher::TenantCipher* with, const BlockHeader& found);
  absl::Status CheckSum(bool encrypted_alone, const BlockHeader& found);
};

}  // namespace kvartal::tier
