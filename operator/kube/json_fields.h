// Fields of JSON that came over the network: absent, or of another type than expected, is an answer and never an
// exception. Pure functions: any thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "nlohmann/json.hpp"

namespace kvartal::kube {

// nullptr unless every step is a key of an object.
const nlohmann::json* FieldAt(const nlohmann::json& value, std::initializer_list<const char*> path);
// "" unless it is text.
std::string TextAt(const nlohmann::json& value, std::initializer_list<const char*> path);
std::optional<int64_t> NumberAt(const nlohmann::json& value, std::initializer_list<const char*> path);

}  // namespace kvartal::kube
