#include "daemon/block/block_key.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/escaping.h"

namespace kvartal {

std::string KeyToHex(const BlockKey& key, size_t bytes_shown) {
  const size_t count = std::min(bytes_shown, kBlockKeyBytes);
  return absl::BytesToHexString(std::string_view(reinterpret_cast<const char*>(key.bytes.data()), count));
}

}  // namespace kvartal
