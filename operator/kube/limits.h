// Every bound and period of the controller runtime with its reason. Those marked (client-go) and (controller-runtime)
// are the constants of these libraries, kept exactly: operators of clusters know how they behave.
#pragma once

#include <cstddef>
#include <cstdint>

#include "daemon/base/units.h"

namespace kvartal::kube {

// --- calls
inline constexpr int64_t kCallDeadlineMs = 30'000;         // a whole answer; an API server gives up after 60 s itself
inline constexpr uint64_t kBodyBytesMax = 256 * kMiB;      // one answer: ten thousand policies are 30 MiB
inline constexpr uint64_t kErrorBodyBytesMax = 64 * kKiB;  // of an answer that is no success, kept to be told
inline constexpr double kCallsPerSecond = 20;              // (controller-runtime) of one process
inline constexpr double kCallsBurst = 30;                  // (controller-runtime)
inline constexpr int64_t kCallDelayMsMax = 60'000;         // a call that would wait longer for its turn is refused
inline constexpr int64_t kRetryAfterMsMax = 120'000;       // a longer wish of a server is cut to this
inline constexpr int64_t kTransportIdleMs = 660'000;  // net below all deadlines of ours; the longest watch is 615 s
inline constexpr int kTransportThreads = 4;           // they only hand bytes to the loop

// --- identity
inline constexpr int64_t kTokenPeriodMs = 60'000;        // (client-go) a token file is trusted for so long,
inline constexpr int64_t kTokenLeewayMs = 10'000;        // (client-go) and read again this much earlier
inline constexpr size_t kCredentialBytesMax = 1 * kMiB;  // a token, a certificate, a bundle of authorities

// --- list and watch
inline constexpr int64_t kListPageItems = 500;     // (client-go) only where the list cannot come from the cache
inline constexpr int64_t kSmallPageItems = 25;     // after a page that was more than we take: these we always do
inline constexpr int64_t kWatchSecondsMin = 300;   // (client-go) a watch asks to be ended after this
inline constexpr int64_t kWatchSecondsMax = 600;   // (client-go) up to this: herds of watches do not end together
inline constexpr int64_t kWatchMarginMs = 15'000;  // past its end a watch is dead: half-open connections say nothing
// An object has 1.5 MiB in etcd; of that each '<' is six characters of JSON. And what an event says around it.
inline constexpr size_t kWatchLineBytesMax = 6 * 3 * kMiB / 2 + 64 * kKiB;
inline constexpr int64_t kShortWatchMs = 1'000;  // (client-go) one that ends sooner, with nothing said, is a failure
inline constexpr int kBadWatchEndsMax = 5;       // in a row from one version: half a minute of tries, then a new list
inline constexpr int64_t kWatchBackoffMinMs = 800;        // (client-go)
inline constexpr int64_t kWatchBackoffMaxMs = 30'000;     // (client-go)
inline constexpr int64_t kWatchBackoffResetMs = 120'000;  // (client-go) healthy for so long: starts at the bottom again

// --- work queue
inline constexpr int64_t kRetryBaseMs = 5;         // (client-go) doubled by each failure of the key
inline constexpr int64_t kRetryMaxMs = 1'000'000;  // (client-go)
inline constexpr double kRetriesPerSecond = 10;    // (client-go) of all keys together
inline constexpr double kRetriesBurst = 100;       // (client-go)
inline constexpr size_t kReconcilesPerTurn = 64;   // of the loop: ten thousand keys that ask for nothing would else
                                                   // keep nodes and the lease waiting until the last of them
inline constexpr int64_t kStopMs = 30'000;         // (controller-runtime) from SIGTERM until work is cut off

// --- leader election
inline constexpr int64_t kLeaseDurationMs = 15'000;  // (controller-runtime)
inline constexpr int64_t kLeaseRenewMs = 10'000;     // (controller-runtime) without a renewal for so long: not leading
inline constexpr int64_t kLeaseRetryMs = 2'000;      // (controller-runtime)
inline constexpr int64_t kLeaseCallMs = 5'000;  // (client-go) half the above: a hanging call leaves time for another
inline constexpr double kLeaseJitter = 1.2;     // (client-go) candidates spread their tries

// --- Events
inline constexpr double kEventsPerSecond = 1.0 / 300;  // (client-go) of one object,
inline constexpr double kEventsBurst = 25;             // (client-go) after so many at once
inline constexpr size_t kEventSubjectsMax = 4096;      // (client-go) objects that are remembered
inline constexpr size_t kEventsOfSubjectMax = 64;      // of one object; beyond, counting begins anew
inline constexpr size_t kEventSimilarMax = 10;         // (client-go) messages of one reason told apart,
inline constexpr int64_t kEventSimilarMs = 600'000;    // (client-go) until none came for so long
inline constexpr size_t kEventMessageBytesMax = 1024;  // of the API

// --- health
inline constexpr int64_t kHealthBeatMs = 1'000;
inline constexpr int64_t kHealthStuckMs = 30'000;  // a list of ten thousand policies takes the loop a second

static_assert(kHealthStuckMs >= 10 * kHealthBeatMs);
static_assert(kLeaseDurationMs > kLeaseRenewMs && kLeaseRenewMs > kLeaseRetryMs * 2);
static_assert((kSmallPageItems + 1) * kWatchLineBytesMax <= kBodyBytesMax);
static_assert(kSmallPageItems < kListPageItems);
static_assert(kLeaseCallMs * 2 <= kLeaseRenewMs);
static_assert(kTransportIdleMs >= kWatchSecondsMax * 1000 + kWatchMarginMs && kTransportIdleMs > kCallDeadlineMs);
static_assert(kTokenLeewayMs < kTokenPeriodMs);
static_assert(kWatchBackoffMinMs < kWatchBackoffMaxMs && kWatchSecondsMin < kWatchSecondsMax);

}  // namespace kvartal::kube
