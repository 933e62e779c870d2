// JSON of which a part is worth having. The rest is passed over while it is read, so that what somebody has put into it
// costs no memory beside the text itself. Pure: any thread.
#pragma once

#include <string_view>

#include "nlohmann/json.hpp"

namespace kvartal::kube {

// `wanted`: {"metadata": {"name": true}} is the name of the metadata and nothing else; null is all there is. An array
// is looked through: what is wanted of it is wanted of each of its elements. A field that is wanted whole (true) is
// kept if it is text, a number, true, false or null, and passed over if it is more. "*" is every name that
// is not there by itself. Discarded: `text` is not JSON.
nlohmann::json ParseSparse(std::string_view text, const nlohmann::json& wanted);

}  // namespace kvartal::kube
