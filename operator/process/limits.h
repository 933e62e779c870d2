// Every bound and period of the operator process with its reason.
#pragma once

#include <cstddef>
#include <cstdint>

#include "daemon/control/stream_limits.h"
#include "operator/sync/limits.h"

namespace kvartal::process {

// --- deciding
inline constexpr int64_t kSettleMs = 50;        // changes that come together are decided together
inline constexpr int64_t kSettleMaxMs = 1'000;  // and never later than this, however many come

// --- pods
inline constexpr int64_t kPodsSettleMs = 200;  // what ends together is told together

// --- telling
inline constexpr int64_t kStatusSettleMs = 200;       // nodes that answer together are one write
inline constexpr int64_t kStatusIntervalMs = 1'000;   // of one policy: a status fans out to every watcher
inline constexpr int64_t kUsageIntervalMs = 300'000;  // how old usage in a status may get
inline constexpr double kUsageWritesPerSecond = 5;    // of all policies: a quarter of what we may ask of the server
inline constexpr double kUsageWritesBurst = 20;
inline constexpr int64_t kConnectedIntervalMs = 60'000;  // of a pool: streams end by age, of thousands one a second
inline constexpr int64_t kReturnMs = 120'000;  // after we began to lead: nodes may be on their way back to us, the last
                                               // of them in a minute and a half, and then there may be a queue
inline constexpr size_t kStatusesAtOnce = 4;

// --- deletion
inline constexpr int64_t kFinalizeMaxMs = 150'000;  // then the object goes, whatever nodes have not said
inline constexpr int64_t kFinalizePollMs = 1'000;

// --- the keys that tokens are signed with
inline constexpr int64_t kKeysMs = 300'000;  // the API server itself says that they may be cached for an hour
inline constexpr int64_t kKeysRetryMs = 10'000;

// --- the rest
inline constexpr int64_t kMetricsMs = 2'000;
inline constexpr int64_t kStopEventsMs = 3'000;  // for Events that are on their way when the last write has ended
inline constexpr int64_t kStopLeaseMs = 5'000;   // to give the lease up; then it runs out by itself

static_assert(kReturnMs >= control::kRedialLatestMs + 20'000);
static_assert(kReturnMs < kUsageIntervalMs);
static_assert(kFinalizeMaxMs >= kReturnMs + sync::kAnswerMs);  // who came back last has the time to answer

}  // namespace kvartal::process
