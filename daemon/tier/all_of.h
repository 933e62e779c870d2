// The ends of several operations as one. Confined to the engine loop. Invariant: `done` runs once, after the last of
// them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "daemon/base/status.h"

namespace kvartal::tier {

// To be told `count` ends. What `done` is told is the first failure, and rather one that cut an operation short than
// lost data.
inline std::function<void(const absl::Status&)> AllOf(size_t count, absl::AnyInvocable<void(absl::Status)> done) {
  struct Joined {
    size_t left;
    absl::Status status;
    absl::AnyInvocable<void(absl::Status)> done;
  };
  const auto joined = std::make_shared<Joined>(Joined{count, absl::OkStatus(), std::move(done)});
  return [joined](const absl::Status& status) {
    if (absl::IsDataLoss(joined->status) && !status.ok()) joined->status = status;
    joined->status.Update(status);
    if (--joined->left == 0) joined->done(std::move(joined->status));
  };
}

}  // namespace kvartal::tier
