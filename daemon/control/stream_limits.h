// Every bound and period of the stream from the operator with its reason.
#pragma once

#include <cstddef>
#include <cstdint>

#include "daemon/base/units.h"

namespace kvartal::control {

inline constexpr int64_t kRedialMinMs = 1'000;   // a new leader listens within seconds of the old one's end
inline constexpr int64_t kRedialMaxMs = 60'000;  // an operator that is away for hours is not asked all the time
inline constexpr int64_t kRedialLatestMs = kRedialMaxMs * 3 / 2;  // chance stretches a wait to this at most
inline constexpr int64_t kStreamHealthyMs = 60'000;  // a stream that lived so long: its end says nothing of the next
inline constexpr int kUpdateBytesMax = 64 * static_cast<int>(kMiB);  // a set of four thousand policies, and more
inline constexpr size_t kSendQueueMax = 64;    // messages the operator has not taken: usage, which may be lost
inline constexpr size_t kReadsQueued = 3;      // one set at a time, and one writing of keys and one of pods beside it
inline constexpr int64_t kUseTellMs = 30'000;  // how old what the operator knows of usage may be

inline constexpr int kStreamKeepaliveMs = 30'000;  // a half-open connection is found after this
inline constexpr int kStreamKeepaliveTimeoutMs = 20'000;
inline constexpr size_t kStreamTokenBytesMax = 64 * kKiB;
inline constexpr size_t kReasonBytesMax = 512;  // with one for each of kTenantsMax a Hello fits what an operator takes

}  // namespace kvartal::control
