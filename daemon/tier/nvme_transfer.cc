#include "daemon/tier/nvme_transfer.h"

#include "absl/strings/str_cat.h"

namespace kvartal::tier {

absl::Status NvmeTransfer::Seal() {
  header.payload_xxh3 = PayloadChecksum(payload);
  EncodeBlockHeader(header, header_seed, slot, {page.data(), page.size()});
  return absl::OkStatus();
}

absl::Status NvmeTransfer::Verify() {
  verdict = Verdict::kBadHeader;
  const absl::StatusOr<BlockHeader> found = DecodeBlockHeader({page.data(), page.size()}, header_seed, slot);
  if (!found.ok()) {
    return absl::DataLossError(absl::StrCat("nvme slot ", slot.value(), ": ", found.status().message()));
  }
  KV_RETURN_IF_ERROR(CheckIdentity(*found));
  verdict = Verdict::kBadChecksum;
  const uint64_t checksum = PayloadChecksum(payload);
  if (checksum != found->payload_xxh3) {
    return absl::DataLossError(absl::StrCat("nvme slot ", slot.value(), ": payload checksum is ",
                                            absl::Hex(checksum, absl::kZeroPad16), ", its header says ",
                                            absl::Hex(found->payload_xxh3, absl::kZeroPad16)));
  }
  verdict = Verdict::kFine;
  header.generation = found->generation;
  return absl::OkStatus();
}

absl::Status NvmeTransfer::CheckIdentity(const BlockHeader& found) const {
  const BlockIdentity& expected = header.identity;
  const char* differs = nullptr;
  if (found.identity.key != expected.key) differs = "key";
  if (found.identity.digest != expected.digest) differs = "namespace digest";
  if (found.identity.owner != expected.owner) differs = "owner";
  if (found.identity.payload_bytes != expected.payload_bytes) differs = "length";
  if (differs != nullptr)
    return absl::DataLossError(absl::StrCat("nvme slot ", slot.value(), " holds another ", differs));
  if (header.generation != 0 && found.generation != header.generation) {
    return absl::DataLossError(absl::StrCat("nvme slot ", slot.value(), " has generation ", found.generation,
                                            ", expected ", header.generation));
  }
  return absl::OkStatus();
}

}  // namespace kvartal::tier
