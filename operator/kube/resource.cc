#include "operator/kube/resource.h"

#include "absl/strings/str_cat.h"

namespace kvartal::kube {

std::string PathOf(const ResourceType& type) { return PathOf(type, ""); }

std::string PathOf(const ResourceType& type, std::string_view ns) {
  const std::string base =
      type.group.empty() ? absl::StrCat("/api/", type.version) : absl::StrCat("/apis/", type.group, "/", type.version);
  const std::string scope = ns.empty() ? "" : absl::StrCat("/namespaces/", std::string(ns));
  return absl::StrCat(base, scope, "/", type.plural);
}

std::string PathOf(const ResourceType& type, const ObjectKey& key, std::string_view part) {
  return absl::StrCat(PathOf(type, key.ns), "/", key.name, part.empty() ? "" : "/", std::string(part));
}

std::string QueryEscape(std::string_view text) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
                       byte == '-' || byte == '.' || byte == '_' || byte == '~';
    if (plain) {
      escaped += c;
    } else {
      escaped += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return escaped;
}

}  // namespace kvartal::kube
