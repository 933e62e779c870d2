// Bounds of the library inside a serving process, each with its reason. What the protocol bounds is in
// daemon/base/limits.h.
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <cstdint>

#include "daemon/base/limits.h"

namespace kvartal::client {

inline constexpr uint32_t kDeadlineMsDefault = 1000;  // where a call passes 0
inline constexpr uint32_t kDeadlineMsMax = 600'000;   // a call that waits longer is a hang
inline constexpr int64_t kAnswerSpinNs = 100'000;     // a lookup on two cores takes 50 us; being woken takes another 50
inline constexpr uint32_t kSpinsPerCoreCount = 64;    // how often it is asked whether this thread has one core only
inline constexpr uint32_t kAnswerMarginMs = 200;      // a daemon looks at deadlines ten times a second
inline constexpr uint32_t kBackoffMsMin = 50;         // first retry after a failed attach
inline constexpr uint32_t kBackoffMsMax = 2000;       // a returning daemon is found within this
inline constexpr uint32_t kSilentCallsMax = 8;        // deadlines missed in a row until the daemon counts as hung
inline constexpr size_t kAbandonedLookupsMax = 64;    // lookups given up whose leases are still to be handed back
inline constexpr size_t kFdsPerFrameMax = 4;          // room for more than the two a grant carries, to see a surplus
inline constexpr uint32_t kKeeperTickMs =
    50;  // how soon the keeper reads and gives leases back for a program that makes no calls
inline constexpr size_t kHeldReleasesMax = 64;  // leases given back that wait for a frame to travel with
inline constexpr size_t kUntoldFramesMax =
    1024;  // that a daemon which takes nothing is still to hear; then it is given up
inline constexpr uint32_t kKeeperFramesMax = 256;  // read in one go, so that a call never waits long for the keeper
inline constexpr uint64_t kPopulatePartBytes = 2 * kMiB;  // asked about and populated in one go, in less than 1 ms
inline constexpr size_t kPopulateQueueMax = 65'536;       // ranges; beyond it pages are faulted in by use
inline constexpr size_t kUsedArenasMax = 5;      // the living daemon's, and of dead ones that leases still read
inline constexpr size_t kEmptiedArenasMax = 64;  // address ranges kept so that stale pointers do not crash;
inline constexpr size_t kEmptiedArenasMin = 4;   // of large arenas fewer, for a process has 128 TiB of addresses,
inline constexpr uint64_t kEmptiedBytesMax = uint64_t{1} << 43;  // and an arena is four times the memory of its node
inline constexpr uint64_t kArenaBytesMax = uint64_t{1} << 46;
inline constexpr size_t kDurableBacklogMax = 1u << 20;  // reservations kept for the callback; beyond it only counted
inline constexpr size_t kClientNameBytesMax = 128;
inline constexpr size_t kSocketPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;
inline constexpr int64_t kTokenLookMsMin = 100;     // between looks at the token's file when little time is left,
inline constexpr int64_t kTokenLookMsMax = 60'000;  // and when much is: kubelet writes a newer one when a fifth is left
inline constexpr int64_t kTokenLookParts = 8;       // looks that fit into what is left
inline constexpr size_t kSpareLeasesMax = 256;      // lease objects kept for reuse

static_assert(kAbandonedLookupsMax >= kSilentCallsMax);

}  // namespace kvartal::client
