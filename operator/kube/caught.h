// The end of a library's exceptions: what `work` throws comes back as a status.
#pragma once

#include <exception>

#include "daemon/base/status.h"

namespace kvartal::kube {

// Unavailable with the exception's text; OK when nothing was thrown.
template <typename Work>
absl::Status Caught(Work work) {
  try {
    work();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return absl::UnavailableError(error.what());
  } catch (...) {
    return absl::UnavailableError("unknown failure");
  }
}

}  // namespace kvartal::kube
