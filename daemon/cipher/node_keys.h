// The keys of a node, by their numbers, as a file has them: what is written is encrypted under the newest, what was
// written earlier is read as long as its key is there.
// Immutable: any thread may use it.
// Invariants: numbers are unique and not 0; the bytes of a key are in SecretMemory alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/cipher/secret_memory.h"

namespace kvartal::cipher {

inline constexpr size_t kKeyBytes = 32;

class NodeKeys {
 public:
  // A key a line: its number and 64 hex digits, "2 9f86d0...". Lines that begin with # say nothing. The highest number
  // is the newest. No key at all is fine: nothing can be encrypted then.
  static absl::StatusOr<std::shared_ptr<const NodeKeys>> Parse(std::span<const std::byte> text);
  // PermissionDenied: others may read the file, or its group may change it. A file of no bytes is refused, since one
  // that is being written in place looks like that. Messages never hold a key.
  static absl::StatusOr<std::shared_ptr<const NodeKeys>> Read(const std::string& path);

  size_t size() const { return ids_.size(); }
  uint32_t newest() const { return ids_.empty() ? 0 : ids_.back(); }  // 0: none
  // Empty when there is none of that number.
  std::span<const std::byte> Find(uint32_t id) const;
  bool Equals(const NodeKeys& other) const;

 private:
  NodeKeys() = default;
  std::vector<uint32_t> ids_;  // ascending
  SecretMemory bytes_;         // of all, in the order of ids_
};

}  // namespace kvartal::cipher
