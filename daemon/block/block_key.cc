#include "daemon/block/block_key.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace kvartal {

std::string KeyToHex(const BlockKey& key, size_t bytes_shown) {
  const size_t count = std::min(bytes_shown, kBlockKeyBytes);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(key.bytes.data()), count));
}

}  // namespace kvartal
