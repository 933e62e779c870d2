#include "daemon/tier/salt_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"

namespace kvartal::tier {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers go to disk as they lie in memory");

// Of a size that no sector boundary cuts: a record is there or not, whatever ends the process or the power.
constexpr size_t kRecordBytes = 64;
constexpr size_t kSaltAt = sizeof(OwnerUidHash);
constexpr size_t kMadeAt = kSaltAt + cipher::kSaltBytes;
constexpr size_t kChecksumAt = kMadeAt + sizeof(int64_t);
static_assert(kChecksumAt + sizeof(uint64_t) == kRecordBytes);
using Record = std::array<std::byte, kRecordBytes>;

constexpr char kMagic[] = "KVSALTS1";
constexpr size_t kMagicBytes = sizeof(kMagic) - 1;

Record Head() {
  Record head{};
  std::memcpy(head.data(), kMagic, kMagicBytes);
  return head;
}

bool IsFree(const OwnerSalt& place) { return place.owner == OwnerUidHash{} && place.salt == cipher::Salt{}; }

Record Encode(const OwnerSalt& in) {
  Record out{};
  if (IsFree(in)) return out;
  std::memcpy(out.data(), in.owner.data(), in.owner.size());
  std::memcpy(out.data() + kSaltAt, in.salt.data(), in.salt.size());
  std::memcpy(out.data() + kMadeAt, &in.made_wall_ms, sizeof(in.made_wall_ms));
  const uint64_t checksum = XXH3_64bits(out.data(), kChecksumAt);
  std::memcpy(out.data() + kChecksumAt, &checksum, sizeof(checksum));
  return out;
}

// A free place for what is damaged.
OwnerSalt Decode(std::span<const std::byte> in, bool* damaged) {
  OwnerSalt out;
  uint64_t checksum = 0;
  std::memcpy(&checksum, in.data() + kChecksumAt, sizeof(checksum));
  const bool zeros = std::all_of(in.begin(), in.end(), [](std::byte byte) { return byte == std::byte{0}; });
  *damaged = !zeros && checksum != XXH3_64bits(in.data(), kChecksumAt);
  if (zeros || *damaged) return out;
  std::memcpy(out.owner.data(), in.data(), out.owner.size());
  std::memcpy(out.salt.data(), in.data() + kSaltAt, out.salt.size());
  std::memcpy(&out.made_wall_ms, in.data() + kMadeAt, sizeof(out.made_wall_ms));
  return out;
}

absl::Status WriteAll(int fd, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return absl::ErrnoToStatus(written < 0 ? errno : EIO, "pwrite");
    offset += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::byte>> ReadAll(int fd) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  if (size < 0) return absl::ErrnoToStatus(errno, "lseek");
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  size_t read = 0;
  while (read < bytes.size()) {
    const ssize_t got = ::pread(fd, bytes.data() + read, bytes.size() - read, static_cast<off_t>(read));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "pread");
    if (got == 0) break;
    read += static_cast<size_t>(got);
  }
  bytes.resize(read);
  return bytes;
}

absl::Status About(const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(path, ": the salts of encrypted tenants: ", status.message()));
}

}  // namespace

absl::StatusOr<SaltFile> SaltFile::Open(const std::string& path) {
  SaltFile file(path);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 && errno != ENOENT) return About(path, absl::ErrnoToStatus(errno, "open"));
  file.fd_.reset(fd);
  if (file.fd_.valid()) KV_RETURN_IF_ERROR(file.Read());
  return file;
}

absl::Status SaltFile::Read() {
  const absl::StatusOr<std::vector<std::byte>> bytes = ReadAll(fd_.get());
  if (!bytes.ok()) return About(path_, bytes.status());
  const Record head = Head();
  if (bytes->size() < kRecordBytes) {  // its making was cut short: it has no salt
    fd_.reset();
    return absl::OkStatus();
  }
  if (!std::equal(head.begin(), head.end(), bytes->begin())) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_,
                     ": is not a file of salts that this build knows; move it away, and what is encrypted on the "
                     "device is lost"));
  }
  size_t damaged_records = 0;
  for (size_t at = kRecordBytes; at + kRecordBytes <= bytes->size(); at += kRecordBytes) {
    bool damaged = false;
    places_.push_back(Decode(std::span(*bytes).subspan(at, kRecordBytes), &damaged));
    damaged_records += damaged;
    if (damaged) unsaved_.insert(places_.size() - 1);
  }
  if (damaged_records > 0) {
    Log(LogLevel::kError, "catalog", path_, ": ", damaged_records,
        " salts are damaged: what was encrypted under them is lost");
  }
  return absl::OkStatus();
}

// With its name in the folder, so that a power cut does not take it back.
absl::Status SaltFile::Make() {
  UniqueFd made(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!made.valid()) return absl::ErrnoToStatus(errno, "open");
  KV_RETURN_IF_ERROR(WriteAll(made.get(), 0, Head()));
  const std::string folder = std::filesystem::absolute(path_).parent_path().string();
  const UniqueFd folder_fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_fd.valid() || ::fsync(folder_fd.get()) != 0) return absl::ErrnoToStatus(errno, "fsync of the folder");
  fd_ = std::move(made);
  return absl::OkStatus();
}

std::vector<OwnerSalt> SaltFile::salts() const {
  std::vector<OwnerSalt> salts;
  std::copy_if(places_.begin(), places_.end(), std::back_inserter(salts),
               [](const OwnerSalt& place) { return !IsFree(place); });
  return salts;
}

size_t SaltFile::PlaceOf(const OwnerUidHash& owner) const {
  const auto found = std::find_if(places_.begin(), places_.end(),
                                  [&](const OwnerSalt& place) { return !IsFree(place) && place.owner == owner; });
  return static_cast<size_t>(found - places_.begin());
}

void SaltFile::Set(size_t place, const OwnerSalt& salt) {
  if (place == places_.size()) places_.emplace_back();
  places_[place] = salt;
  unsaved_.insert(place);
}

absl::Status SaltFile::Put(const OwnerSalt& salt) {
  size_t place = PlaceOf(salt.owner);
  if (place == places_.size())
    place = static_cast<size_t>(std::find_if(places_.begin(), places_.end(), IsFree) - places_.begin());
  Set(place, salt);
  return Save();
}

absl::Status SaltFile::Forget(const OwnerUidHash& owner, int64_t before_wall_ms) {
  const size_t place = PlaceOf(owner);
  if (place < places_.size() && places_[place].made_wall_ms < before_wall_ms) Set(place, OwnerSalt());
  const absl::Status saved = Save();
  return fd_.valid() ? saved : absl::OkStatus();
}

absl::Status SaltFile::Save() {
  if (unsaved_.empty()) return absl::OkStatus();
  if (!fd_.valid()) KV_RETURN_IF_ERROR(About(path_, Make()));
  for (const size_t place : unsaved_) {
    const Record record = Encode(places_[place]);
    KV_RETURN_IF_ERROR(About(path_, WriteAll(fd_.get(), (place + 1) * kRecordBytes, record)));
  }
  if (::fdatasync(fd_.get()) != 0) return About(path_, absl::ErrnoToStatus(errno, "fdatasync"));
  unsaved_.clear();
  return absl::OkStatus();
}

}  // namespace kvartal::tier
