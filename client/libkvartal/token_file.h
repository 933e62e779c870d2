// The token of a pod, as kubelet projects it into a file and renews it there.
#pragma once

#include <string>

namespace kvartal::client {

// False, with the reason in `error`, when there is no token to be had. Blanks at its end are not part of it.
bool ReadTokenFile(const std::string& path, std::string* token, std::string* error);

}  // namespace kvartal::client
