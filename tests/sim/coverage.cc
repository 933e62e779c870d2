#include "tests/sim/coverage.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvartal::sim {
namespace {

struct Row {
  Situation situation;
  const char* name;
  uint64_t least;  // in a million events
};
constexpr Row kRows[] = {
    {Situation::kGranted, "granted", 80'000},
    {Situation::kRefused, "refused", 1'000},
    {Situation::kCommitted, "committed", 80'000},
    {Situation::kFound, "found", 40'000},
    {Situation::kLoaded, "loaded", 8'000},
    {Situation::kDurable, "durable", 8'000},
    {Situation::kLostInRead, "lost in a read", 20},
    {Situation::kStoredAnewWhileHeld, "stored anew while held", 20},
    {Situation::kPinned, "pinned", 200},
    {Situation::kPinRefused, "pin refused", 20},
    {Situation::kHinted, "hinted", 200},
    {Situation::kGroupEnded, "group ended with blocks unfinished", 200},
    {Situation::kRestEnded, "rest of a slot ended early", 200},
    {Situation::kNamespaceClosed, "namespace closed", 100},
    {Situation::kNamespaceReopened, "namespace reopened", 100},
    {Situation::kRetiredEvicted, "retired block evicted", 20},
    {Situation::kLimitBelowUse, "limit lowered below use", 50},
    {Situation::kDrained, "drained to a lowered limit", 50},
    {Situation::kDrainWaits, "drain waits", 20},
    {Situation::kLeaseNotRenewed, "lease not renewed", 50},
    {Situation::kEntryCap, "entry cap", 50},
    {Situation::kIdleExpired, "idle block expired", 1'000},
    {Situation::kAgeExpired, "block erased for its age", 200},
    {Situation::kErasedOnDisk, "zeros seen on disk", 50},
    {Situation::kDemoted, "demoted", 200},
    {Situation::kTaken, "taken for another tenant", 1'000},
    {Situation::kShortOfGuarantee, "waits for its guarantee", 1'000},
    {Situation::kFillEnded, "overdue fill ended", 20},
    {Situation::kEvictedBesideLease, "evicted beside a lease", 500},
    {Situation::kDropped, "tenant dropped", 200},
    {Situation::kDropStuck, "drop stuck at a disk", 5},
    {Situation::kTenantRemoved, "tenant removed", 200},
    {Situation::kTenantBack, "removed tenant back", 50},
    {Situation::kTenantAnew, "tenant made anew", 50},
    {Situation::kRemovedErased, "removed tenant erased", 50},
    {Situation::kTenantForgotten, "removed tenant forgotten", 50},
    {Situation::kLeasesCapped, "leases capped", 20},
    {Situation::kBorrowsWhileWaited, "borrows while a guarantee waits", 20},
    {Situation::kBorrowsNvmeWhileWaited, "borrows NVMe while one waits", 20},
    {Situation::kNvmeRefused, "refused on NVMe", 50},
    {Situation::kNvmeClaimed, "guarantee on NVMe claimed", 5},
    {Situation::kWriteSpared, "write spared", 200},
    {Situation::kPopulateFailed, "populate failed", 20},
    {Situation::kHoleFilled, "hole written to", 5},
    {Situation::kWriteFailed, "disk write failed", 50},
    {Situation::kMismatch, "mismatch found", 20},
    {Situation::kQueueFull, "queue full", 50},
    {Situation::kCatalogFull, "catalog full", 20},
    {Situation::kHungWhileDemoting, "disk hangs with demotions on it", 5},
    {Situation::kStoredBesideHung, "stored beside a hung disk", 100},
    {Situation::kLoadedBesideHung, "loaded beside a hung disk", 3},
    {Situation::kDiskAbsent, "disk absent at a start", 20},
    {Situation::kDiskBack, "absent disk back", 20},
    {Situation::kDiskReplaced, "disk replaced by an empty one", 10},
    {Situation::kDroppedWhileAway, "dropped while a disk is away", 10},
    {Situation::kCrash, "crash", 200},
    {Situation::kPowerCut, "power cut", 10},
    {Situation::kCatalogLost, "catalog lost", 10},
    {Situation::kClockSetBack, "clock set back over a restart", 20},
    {Situation::kClockSetForward, "clock set forward over a restart", 5},
    {Situation::kCrashWhileWriting, "crash while writing", 50},
    {Situation::kCrashWhileErasing, "crash while erasing", 20},
    {Situation::kCrashWhileRecovering, "crash while recovering", 5},
    {Situation::kCrashWhileLeased, "crash while leased", 50},
    {Situation::kPinAtCrash, "pin in force at a crash", 50},
    {Situation::kPinKept, "pin kept over a crash", 20},
    {Situation::kSurvived, "durable block survived", 400},
    {Situation::kStoredWhileRecovering, "stored while recovering", 20},
    {Situation::kStoredWhileOffline, "stored while its disk is offline", 20},
    {Situation::kDurableBeside, "durable by an older copy", 20},
    {Situation::kEncrypted, "durable and encrypted", 200},
    {Situation::kClearCopyGoes, "copy in the clear given up", 50},
    {Situation::kKeyGone, "key gone", 20},
};
static_assert(std::size(kRows) == kSituations);

}  // namespace

void Coverage::Add(const Coverage& other) {
  for (size_t i = 0; i < kSituations; ++i) reached_[i] += other.reached_[i];
}

std::vector<std::string> Coverage::Missing() const {
  std::vector<std::string> missing;
  for (const Row& row : kRows) {
    if (of(row.situation) >= row.least) continue;
    missing.push_back(absl::StrCat(row.name, ": ", of(row.situation), ", must be ", row.least));
  }
  return missing;
}

std::string Coverage::Table() const {
  constexpr size_t kColumns = 3;
  std::string out;
  for (size_t i = 0; i < kSituations; ++i) {
    const uint64_t times = of(kRows[i].situation);
    absl::StrAppend(&out, absl::StrFormat("  %-34s %9s", kRows[i].name, times > 0 ? absl::StrCat(times) : "never"));
    if (i % kColumns == kColumns - 1 || i + 1 == kSituations) absl::StrAppend(&out, "\n");
  }
  return out;
}

}  // namespace kvartal::sim
