#include "daemon/tier/nvme_superblock.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/log.h"
#include "daemon/base/mapping.h"
#include "daemon/base/units.h"
#include "daemon/tier/nvme_tier.h"

namespace kvartal::tier {
namespace {

constexpr int kCopies = 2;
constexpr const char* kMoveAway = "move the file away (or name another in nvme.path) to start with an empty one";

std::span<const std::byte> PageOf(std::span<const std::byte> pages, int copy) {
  return pages.subspan(copy * kNvmeHeaderBytes, kNvmeHeaderBytes);
}

bool AllZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

void FillRandom(void* data, size_t bytes) { KV_CHECK(::getrandom(data, bytes, 0) == static_cast<ssize_t>(bytes)); }

Superblock NewSuperblock(uint64_t file_bytes) {
  Superblock out;
  FillRandom(out.device_uuid.data(), out.device_uuid.size());
  FillRandom(&out.header_seed, sizeof(out.header_seed));
  out.file_bytes = file_bytes;
  out.segment_bytes = SegmentBytesFor(file_bytes);
  return out;
}

// The newest undamaged copy; nullopt when the device is to be made new.
absl::StatusOr<std::optional<Superblock>> ChooseCopy(std::span<const std::byte> front) {
  std::optional<Superblock> newest;
  absl::Status refusal;
  bool ours = false;
  for (int copy = 0; copy < kCopies; ++copy) {
    absl::StatusOr<Superblock> decoded = DecodeSuperblock(PageOf(front, copy));
    if (decoded.ok()) {
      if (!newest.has_value() || decoded->open_count > newest->open_count) newest = *decoded;
      continue;
    }
    const std::optional<uint32_t> version = SuperblockVersion(PageOf(front, copy));
    if (!version.has_value()) continue;
    ours = true;
    // Without an undamaged copy the doubt is in favour of what the other build may have left here.
    if (*version != kNvmeFormatVersion) refusal = decoded.status();
    Log(LogLevel::kWarning, "nvme", "superblock copy ", copy,
        " is unusable: ", std::string(decoded.status().message()));
  }
  if (newest.has_value()) return newest;
  if (!refusal.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the nvme file was written in another format: ", refusal.message(), "; ", kMoveAway));
  }
  if (ours) {
    Log(LogLevel::kError, "nvme", "both superblocks are damaged: the cache in this file is lost, starting empty");
    return std::optional<Superblock>();
  }
  if (!AllZero(front)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the nvme file holds something that is not a Kvartal cache: its first ", front.size(),
                     " bytes are neither zeros nor a superblock (",
                     DecodeSuperblock(PageOf(front, 0)).status().message(), "); ", kMoveAway));
  }
  return std::optional<Superblock>();
}

absl::Status WriteCopies(const Superblock& superblock, device::BlockFile* file) {
  KV_ASSIGN_OR_RETURN(const Mapping page, Mapping::Anonymous(kNvmeHeaderBytes));
  EncodeSuperblock(superblock, {page.data(), page.size()});
  // The front page last: a device that was being made new looks new until its second copy is safe.
  for (int copy = kCopies; copy-- > 0;) {
    KV_RETURN_IF_ERROR(file->WriteNow(copy * kNvmeHeaderBytes, page.data(), page.size()));
    KV_RETURN_IF_ERROR(file->Sync());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Superblock> OpenSuperblock(device::BlockFile* file) {
  const uint64_t size = file->size_bytes();
  const uint64_t least = kNvmeDataStartBytes + kExtentAlignBytes;
  if (size < least) {
    return absl::InvalidArgumentError(
        absl::StrCat("the nvme file has ", size, " bytes, it needs at least ", least, ": raise nvme.capacity"));
  }
  KV_ASSIGN_OR_RETURN(const Mapping front, Mapping::Anonymous(kNvmeForeignProbeBytes));
  KV_RETURN_IF_ERROR(file->ReadNow(0, front.data(), front.size()));
  KV_ASSIGN_OR_RETURN(const std::optional<Superblock> found, ChooseCopy({front.data(), front.size()}));
  Superblock superblock = found.has_value() ? *found : NewSuperblock(size);
  if (superblock.file_bytes != size) {
    const bool grew = superblock.file_bytes < size;
    Log(grew ? LogLevel::kInfo : LogLevel::kWarning, "nvme", "the file had ", superblock.file_bytes,
        " bytes when it was last open and has ", size,
        grew ? " now: what it holds is kept" : " now; blocks that lay in the part that is gone are lost");
    superblock.file_bytes = size;
  }
  ++superblock.open_count;
  KV_RETURN_IF_ERROR(WriteCopies(superblock, file));
  return superblock;
}

absl::Status JudgeFront(std::span<const std::byte> front) { return ChooseCopy(front).status(); }

std::string DeviceIdOf(const Superblock& superblock) {
  const auto* bytes = reinterpret_cast<const char*>(superblock.device_uuid.data());
  return absl::BytesToHexString(absl::string_view(bytes, superblock.device_uuid.size()));
}

}  // namespace kvartal::tier
