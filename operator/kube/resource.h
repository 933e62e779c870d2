// Which objects of an API server are meant, and where they are found. Plain values.
#pragma once

#include <string>
#include <string_view>

namespace kvartal::kube {

struct ResourceType {
  std::string group;  // "" for the core group
  std::string version;
  std::string plural;
  bool namespaced = true;
};

// "namespace/name", or the name alone where there are no namespaces. Orders as the store does.
struct ObjectKey {
  std::string ns;
  std::string name;
  std::string ToString() const { return ns.empty() ? name : ns + "/" + name; }
  friend auto operator<=>(const ObjectKey&, const ObjectKey&) = default;
};

// Of all objects, of those of a namespace, of one object, of a part of it ("status").
std::string PathOf(const ResourceType& type);
std::string PathOf(const ResourceType& type, std::string_view ns);
std::string PathOf(const ResourceType& type, const ObjectKey& key, std::string_view part = "");

// Text as a value of a query.
std::string QueryEscape(std::string_view text);

}  // namespace kvartal::kube
