#include "daemon/tier/nvme_transfer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvartal::tier {

absl::Status NvmeTransfer::Seal(device::BlockIo* io) {
  const DomainCipher now = cipher->Get();
  if (now.required) return Encrypt(now.cipher.get(), io);
  header.payload_xxh3 = PayloadChecksum(payload);
  EncodeBlockHeader(header, header_seed, slot, {page.data(), page.size()});
  return absl::OkStatus();
}

absl::Status NvmeTransfer::Encrypt(const cipher::TenantCipher* with, device::BlockIo* io) {
  const std::span<std::byte> header_page(page.data(), page.size());
  header.payload_xxh3 = 0;
  if (with != nullptr) header.seal = with->NewSeal();
  bool sealed = header.seal.key_id != 0;
  if (sealed) {
    encrypted = bounce->Take(payload.size());
    EncodeBlockHeader(header, header_seed, slot, header_page);
    sealed = with->Encrypt(BoundToPayload(header_page), payload, {encrypted.data(), payload.size()}, &header.seal);
  }
  if (!sealed) {
    verdict = Verdict::kNoKey;
    return absl::FailedPreconditionError("blocks of this tenant have to be encrypted, and the node has no key");
  }
  EncodeBlockHeader(header, header_seed, slot, header_page);
  io->parts[1].iov_base = encrypted.data();
  return absl::OkStatus();
}

absl::Status NvmeTransfer::Land(device::BlockIo* io) {
  landing = bounce->Take(payload.size());
  io->parts[1].iov_base = landing.data();
  return absl::OkStatus();
}

absl::Status NvmeTransfer::Verify() {
  absl::Status result = Check();
  const std::span<std::byte> arrived = Arrived();
  if (landing.data() != nullptr && result.ok()) std::copy(arrived.begin(), arrived.end(), payload.begin());
  // What came instead is nobody's, and the slot may be mapped. In memory that is kept no block outlives its tenant.
  if (landing.data() != nullptr || !result.ok()) std::fill(arrived.begin(), arrived.end(), std::byte{0});
  bounce->Give(std::move(landing));
  return result;
}

absl::Status NvmeTransfer::Check() {
  verdict = Verdict::kBadHeader;
  const absl::StatusOr<BlockHeader> found = DecodeBlockHeader({page.data(), page.size()}, header_seed, slot);
  if (!found.ok()) {
    return absl::DataLossError(absl::StrCat("nvme slot ", slot.value(), ": ", found.status().message()));
  }
  KV_RETURN_IF_ERROR(CheckIdentity(*found));
  const DomainCipher now = cipher->Get();
  KV_RETURN_IF_ERROR(found->seal.key_id != 0 ? Decrypt(now.cipher.get(), *found) : CheckSum(now.required, *found));
  verdict = Verdict::kFine;
  header.generation = found->generation;
  header.seal.key_id = found->seal.key_id;
  return absl::OkStatus();
}

absl::Status NvmeTransfer::CheckSum(bool encrypted_alone, const BlockHeader& found) {
  // Whoever writes to the disk can make such a block: only a tag shows who wrote it.
  if (encrypted_alone)
    return absl::DataLossError(
        absl::StrCat("nvme slot ", slot.value(), " is in the clear, its tenant's policy is not"));
  verdict = Verdict::kBadChecksum;
  const uint64_t checksum = PayloadChecksum(Arrived());
  if (checksum == found.payload_xxh3) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("nvme slot ", slot.value(), ": payload checksum is ",
                                          absl::Hex(checksum, absl::kZeroPad16), ", its header says ",
                                          absl::Hex(found.payload_xxh3, absl::kZeroPad16)));
}

absl::Status NvmeTransfer::Decrypt(const cipher::TenantCipher* with, const BlockHeader& found) {
  verdict = Verdict::kNoKey;
  if (with == nullptr || !with->Has(found.seal.key_id)) {
    return absl::FailedPreconditionError(
        absl::StrCat("nvme slot ", slot.value(), " is encrypted under key ", found.seal.key_id, ", which is gone"));
  }
  verdict = Verdict::kBadChecksum;
  if (with->Decrypt(BoundToPayload({page.data(), page.size()}), found.seal, Arrived())) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("nvme slot ", slot.value(), " is not what was encrypted under key ",
                                          found.seal.key_id, " for its tenant"));
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
