// One write or read of a slot, from Submit to its end, and the work on it that belongs on the disk thread.
// Owned by its callbacks, so that a disk that outlives the tier never touches memory that is gone. The engine loop
// fills it in, then the disk thread has it alone until `done`. Invariant: Verify says OK only for the very block that
// was asked for, with the bytes that were written.
#pragma once

#include <cstdint>
#include <span>

#include "absl/functional/any_invocable.h"
#include "daemon/base/ids.h"
#include "daemon/base/mapping.h"
#include "daemon/base/status.h"
#include "daemon/tier/nvme_format.h"

namespace kvartal::tier {

struct NvmeTransfer {
  // What a read found. Anything but kFine is a miss.
  enum class Verdict : uint8_t { kFine, kBadHeader, kBadChecksum };

  Mapping page;  // the header, on its way out or in
  uint64_t header_seed = 0;
  SlotId slot;
  BlockHeader header;  // write: what is written; read: what is expected, generation 0 for "any"
  std::span<std::byte> payload;
  Verdict verdict = Verdict::kFine;
  absl::AnyInvocable<void(absl::StatusOr<BlockHeader>)> write_done;
  absl::AnyInvocable<void(absl::Status)> read_done;

  // Before a write: the checksum of the payload, and the header page.
  absl::Status Seal();
  // After a read: DataLoss, and a verdict, when header or payload is not what was asked for.
  absl::Status Verify();

 private:
  absl::Status CheckIdentity(const BlockHeader& found) const;
};

}  // namespace kvartal::tier
