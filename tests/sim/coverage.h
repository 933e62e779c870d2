// Which situations a simulation was in, and how often: what finds nothing has to have been where bugs are.
// A plain value; sums add up over runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvartal::sim {

enum class Situation : uint8_t {
  // --- what clients do
  kGranted,
  kRefused,
  kCommitted,
  kFound,
  kLoaded,
  kDurable,
  kLostInRead,           // a load whose block the disk had not kept
  kStoredAnewWhileHeld,  // a lost block is being filled again, and loaded by who holds it from before
  kPinned,
  kPinRefused,
  kHinted,
  kGroupEnded,       // with blocks unfinished
  kRestEnded,        // of a slot: who was cut off writes no more, which is known before its time
  kNamespaceClosed,  // by the last group that had it open
  kNamespaceReopened,
  kRetiredEvicted,  // a block of a namespace that nobody has open went first
  // --- policy
  kLimitBelowUse,  // lowered under what is held
  kDrained,        // and drained
  kDrainWaits,     // or is on its way
  kLeaseNotRenewed,
  kEntryCap,
  kIdleExpired,
  kAgeExpired,
  kErasedOnDisk,
  kDemoted,
  kTaken,               // space of one tenant for another
  kShortOfGuarantee,    // a reserve waits for what is guaranteed to it
  kFillEnded,           // a fill that stood in the way of that
  kEvictedBesideLease,  // a tenant lost blocks while it read others in place
  kDropped,
  kDropStuck,  // by a disk that takes no zeros
  kTenantRemoved,
  kTenantBack,
  kTenantAnew,
  kRemovedErased,    // its grace was over
  kTenantForgotten,  // and nothing was left of it
  kLeasesCapped,     // a tenant leased all that is its own while a guarantee waited
  // A tenant held more than it is entitled to while a guarantee waited, and might have taken what was emptied for that.
  kBorrowsWhileWaited,
  kBorrowsNvmeWhileWaited,
  kNvmeRefused,  // for want of capacity
  kNvmeClaimed,  // a guarantee of more than a segment, and got
  kWriteSpared,  // the write budget had too little left for what the block is worth
  // --- devices
  kPopulateFailed,
  kHoleFilled,  // a client wrote where it has no memory
  kWriteFailed,
  kMismatch,  // a read found other bytes than it must
  kQueueFull,
  kCatalogFull,
  // --- one of several disks
  kHungWhileDemoting,  // it hangs with blocks on their way to it, and another is sound
  kStoredBesideHung,
  kLoadedBesideHung,
  kDiskAbsent,  // at a start
  kDiskBack,    // at a later one, as it went
  kDiskReplaced,
  kDroppedWhileAway,  // a tenant, while a disk was absent
  // --- restarts
  kCrash,
  kPowerCut,
  kCatalogLost,
  kClockSetBack,  // at a restart
  kClockSetForward,
  kCrashWhileWriting,  // blocks were on their way to the disk: whole, torn or not there
  kCrashWhileErasing,
  kCrashWhileRecovering,
  kCrashWhileLeased,
  kPinAtCrash,
  kPinKept,  // by a restart
  kSurvived,
  kStoredWhileRecovering,
  kStoredWhileOffline,  // on NVMe already, and the disk does not answer
  kDurableBeside,       // a block stored anew whose older copy on NVMe was kept
  // --- encryption
  kEncrypted,      // on NVMe, and durable
  kClearCopyGoes,  // it was written before its policy asked for that
  kKeyGone,        // and its block with it
};
inline constexpr size_t kSituations = 73;

class Coverage {
 public:
  void Note(Situation situation, uint64_t times = 1) { reached_[static_cast<size_t>(situation)] += times; }
  void Add(const Coverage& other);
  uint64_t of(Situation situation) const { return reached_[static_cast<size_t>(situation)]; }

  // Those that a million events must have reached more often, by name and count.
  std::vector<std::string> Missing() const;
  // Name and count of each, some a line.
  std::string Table() const;

 private:
  std::array<uint64_t, kSituations> reached_{};
};

}  // namespace kvartal::sim
