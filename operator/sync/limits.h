// Every bound and period of the stream to the nodes with its reason.
#pragma once

#include <cstddef>
#include <cstdint>

#include "daemon/base/limits.h"
#include "daemon/base/units.h"

namespace kvartal::sync {

// --- herds
inline constexpr double kStreamsPerSecond = 200;    // five thousand nodes that come at once are back in half a minute,
inline constexpr double kStreamsBurst = 200;        // and nobody is worse off meanwhile: what they hold is in force
inline constexpr double kWholeSetsPerSecond = 100;  // a set of four hundred policies is half a megabyte
inline constexpr double kWholeSetsBurst = 200;
inline constexpr int kSmallDeltaObjects = 16;  // an edit: never waits for its turn
inline constexpr size_t kDeltasKept = 64;      // nodes of a pool are sent the same bytes
inline constexpr size_t kSetsSweepMin = 64;  // versions; names of sets that are gone are dropped when they may be half
inline constexpr int64_t kTickMs = 100;      // whoever waits for a turn

// --- pods
inline constexpr int64_t kPodsIntervalMs = 1'000;  // of one node: a rollout there is a few messages
inline constexpr double kPodsPerSecond = 500;      // messages to all nodes: whole lists of a cluster that begins take
inline constexpr double kPodsBurst = 500;          // seconds, and are ten kilobytes each
inline constexpr size_t kPodsOfNodeMax = 4'096;  // a kubelet runs a few hundred; beyond, somebody binds what never runs

// --- streams
inline constexpr int64_t kHelloMs = 10'000;   // a node says who it is with its first breath
inline constexpr size_t kStrangersMax = 256;  // streams that have not said who they are, and may hold a message each
inline constexpr int64_t kAnswerMs = 30'000;  // a node writes to its disk before it answers; later, it is not there
inline constexpr int kMessageBytesMax = 4 * static_cast<int>(kMiB);  // from a node: a Hello of a thousand objects
inline constexpr int kStreamAgeMs = 30 * 60 * 1000;  // then it dials again, to whoever leads; gRPC varies it by a tenth
inline constexpr int kStreamAgeGraceMs = 10'000;
inline constexpr int kKeepaliveMs = 30'000;  // a half-open connection is found after two of these
inline constexpr int kKeepaliveTimeoutMs = 20'000;
inline constexpr size_t kOutboxMax = 64;  // messages that a node has not taken; beyond, it dials again
inline constexpr int kStopMs = 2'000;     // streams are cut after this when the operator goes

// Of each stranger its begin, a message and its end wait for the loop at most; of each node a message and an end.
static_assert(kStrangersMax * 3 + 20'000 * 2 < kLoopPostMax);

}  // namespace kvartal::sync
