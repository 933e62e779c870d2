#include "operator/kube/json_fields.h"

namespace kvartal::kube {

const nlohmann::json* FieldAt(const nlohmann::json& value, std::initializer_list<const char*> path) {
  const nlohmann::json* at = &value;
  for (const char* step : path) {
    if (!at->is_object()) return nullptr;
    const auto found = at->find(step);
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at;
}

std::string TextAt(const nlohmann::json& value, std::initializer_list<const char*> path) {
  const nlohmann::json* at = FieldAt(value, path);
  return at != nullptr && at->is_string() ? at->get<std::string>() : "";
}

std::optional<int64_t> NumberAt(const nlohmann::json& value, std::initializer_list<const char*> path) {
  const nlohmann::json* at = FieldAt(value, path);
  if (at == nullptr || !at->is_number_integer()) return std::nullopt;
  return at->get<int64_t>();
}

}  // namespace kvartal::kube
