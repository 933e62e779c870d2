#include "daemon/cipher/node_keys.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::cipher {
namespace {

std::optional<uint8_t> HexDigit(std::byte byte) {
  const auto c = static_cast<char>(byte);
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<uint8_t>(c - 'A' + 10);
  return std::nullopt;
}

bool IsBlank(std::byte byte) { return byte == std::byte{' '} || byte == std::byte{'\t'} || byte == std::byte{'\r'}; }

// Words of one line: text is not copied, since copies would have to be wiped.
std::vector<std::span<const std::byte>> WordsOf(std::span<const std::byte> line) {
  std::vector<std::span<const std::byte>> words;
  size_t at = 0;
  while (at < line.size()) {
    while (at < line.size() && IsBlank(line[at])) ++at;
    const size_t begin = at;
    while (at < line.size() && !IsBlank(line[at])) ++at;
    if (at > begin) words.push_back(line.subspan(begin, at - begin));
  }
  return words;
}

// 0: it is none.
uint32_t NumberOf(std::span<const std::byte> word) {
  constexpr uint64_t kTen = 10;
  uint64_t number = 0;
  for (const std::byte byte : word) {
    const auto c = static_cast<char>(byte);
    if (c < '0' || c > '9') return 0;
    number = number * kTen + static_cast<uint64_t>(c - '0');
    if (number > UINT32_MAX) return 0;
  }
  return static_cast<uint32_t>(number);
}

bool DecodeKey(std::span<const std::byte> word, std::span<std::byte> out) {
  if (word.size() != 2 * kKeyBytes) return false;
  for (size_t i = 0; i < kKeyBytes; ++i) {
    const std::optional<uint8_t> high = HexDigit(word[2 * i]), low = HexDigit(word[2 * i + 1]);
    if (!high.has_value() || !low.has_value()) return false;
    out[i] = std::byte(static_cast<uint8_t>(*high << 4 | *low));
  }
  return true;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const NodeKeys>> NodeKeys::Parse(std::span<const std::byte> text) {
  const auto wrong = [](size_t line, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
  };
  std::map<uint32_t, std::span<const std::byte>> words_by_id;
  SecretMemory checked(kKeyBytes);
  size_t number = 0;
  while (!text.empty()) {
    const auto end = std::find(text.begin(), text.end(), std::byte{'\n'});
    const std::span<const std::byte> line = text.first(static_cast<size_t>(end - text.begin()));
    text = text.subspan(std::min(text.size(), line.size() + 1));
    ++number;
    const std::vector<std::span<const std::byte>> words = WordsOf(line);
    if (words.empty() || words[0][0] == std::byte{'#'}) continue;
    const uint32_t id = NumberOf(words[0]);
    if (words.size() != 2 || id == 0)
      return wrong(number,
                   "expected a number from 1 to 4294967295 and 64 hex digits; make a key by: openssl rand -hex 32");
    if (!DecodeKey(words[1], checked.bytes()))
      return wrong(number, absl::StrCat("key ", id, " is not 64 hex digits; make one by: openssl rand -hex 32"));
    if (!words_by_id.try_emplace(id, words[1]).second)
      return wrong(number, absl::StrCat("key ", id, " is there twice; every key has a number of its own"));
    if (words_by_id.size() > kNodeKeysMax)
      return wrong(number, absl::StrCat("more than ", kNodeKeysMax, " keys; remove those of which no block is left"));
  }
  std::shared_ptr<NodeKeys> keys(new NodeKeys());
  keys->bytes_ = SecretMemory(std::max<size_t>(words_by_id.size(), 1) * kKeyBytes);
  for (const auto& [id, word] : words_by_id) {
    DecodeKey(word, keys->bytes_.bytes().subspan(keys->ids_.size() * kKeyBytes, kKeyBytes));
    keys->ids_.push_back(id);
  }
  return std::shared_ptr<const NodeKeys>(std::move(keys));
}

absl::StatusOr<std::shared_ptr<const NodeKeys>> NodeKeys::Read(const std::string& path) {
  // Not blocking: what is no plain file is refused below, and must not be waited for before.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info{};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": the keys cannot be read"));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": is not a file"));
  constexpr mode_t kTooOpen = S_IWGRP | S_IRWXO;
  if ((info.st_mode & kTooOpen) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, ": others may read the keys, or their group may change them; chmod 0600 ", path));
  }
  if (info.st_size > static_cast<off_t>(kNodeKeysBytesMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", info.st_size, " bytes; a file of keys has at most ", kNodeKeysBytesMax));
  }
  SecretMemory text(kNodeKeysBytesMax);
  size_t read = 0;
  while (read < kNodeKeysBytesMax) {
    const ssize_t got = ::read(fd.get(), text.bytes().data() + read, kNodeKeysBytesMax - read);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": the keys cannot be read"));
    if (got == 0) break;
    read += static_cast<size_t>(got);
  }
  // As one looks that is being written in place: taken as it is, every block under the keys of before would be lost.
  if (read == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": is empty; write keys beside it and rename that over it, or a line of # alone to have no keys"));
  }
  absl::StatusOr<std::shared_ptr<const NodeKeys>> keys = Parse(text.bytes().first(read));
  if (!keys.ok()) return absl::Status(keys.status().code(), absl::StrCat(path, ": ", keys.status().message()));
  return keys;
}

std::span<const std::byte> NodeKeys::Find(uint32_t id) const {
  const auto found = std::lower_bound(ids_.begin(), ids_.end(), id);
  if (id == 0 || found == ids_.end() || *found != id) return {};
  return bytes_.bytes().subspan(static_cast<size_t>(found - ids_.begin()) * kKeyBytes, kKeyBytes);
}

bool NodeKeys::Equals(const NodeKeys& other) const {
  return ids_ == other.ids_ &&
         CRYPTO_memcmp(bytes_.bytes().data(), other.bytes_.bytes().data(), bytes_.bytes().size()) == 0;
}

}  // namespace kvartal::cipher
