// What may be asked of a disk: a word of the tier that engine, metrics and people share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvartal::tier {

enum class DeviceState : uint8_t {
  kHealthy,
  kDegraded,  // takes no new blocks; reads go on
  kOffline,   // not read from either: what it holds is a miss, and is kept
};

constexpr const char* DeviceStateName(DeviceState state) {
  constexpr const char* kNames[] = {"healthy", "degraded", "offline"};
  return kNames[static_cast<size_t>(state)];
}

}  // namespace kvartal::tier
