#include "daemon/control/decision_words.h"

namespace kvartal::control {

DecisionWords WordsOf(policy::Refusal reason) {
  using policy::Refusal;
  switch (reason) {
    case Refusal::kNone:
      return {"nothing was refused", "nothing to do"};
    case Refusal::kTenantLimit:
      return {"the tenant was at its limit, and all it holds was leased, pinned or on the move",
              "raise the limit, pin less, or let the engine release its leases sooner"};
    case Refusal::kCapacity:
      return {"the tier was full, and nothing in it could be taken for this tenant",
              "give it a guarantee, or the node more; on nvme what is free may be in parts too small for a block"};
    case Refusal::kEntryCap:
      return {"the tenant has as many blocks in the index as it may, and none of them could be given up",
              "raise spec.index.maxEntries, or use larger blocks"};
    case Refusal::kTooSmall:
      return {"the tenant's limit is smaller than one block needs", "raise the limit above one extent and one block"};
    case Refusal::kNoTier:
      return {"the tenant may hold nothing in this tier, or this node has none",
              "claim the tier in spec.pools, or configure it on the node; else this is as it should be"};
    case Refusal::kQueueFull:
      return {"too much was under way already; a copy to disk is tried again while its block is in memory",
              "nothing if it is rare: it is a burst; else use faster or more disks, or store less at once"};
    case Refusal::kTierSick:
      return {"the device reported errors, so nothing new is written to it",
              "look at kvartalctl status and the daemon's log, replace or repair the device, restart the daemon"};
    case Refusal::kOutOfMemory:
      return {"the system refused memory that the configuration counts on",
              "lower dram.size, or raise the memory limit of the daemon's cgroup"};
    case Refusal::kDraining:
      return {"the daemon is going down and takes no new stores", "nothing: stores go on after its restart"};
    case Refusal::kRecovering:
      return {"what survived the restart is still being counted", "nothing: it ends by itself"};
    case Refusal::kGroupLimit:
      return {"one engine group held too many leases or unfinished blocks",
              "release leases, and commit or abort reservations; see kvartalctl sessions for whose they are"};
    case Refusal::kBusy:
      return {"another process was filling the same block", "nothing: the other one's copy serves both"};
    case Refusal::kGone:
      return {"a block that was to be pinned had left the cache", "store it again, then pin it"};
    case Refusal::kTooLong:
      return {"a pin would have lasted longer than the tenant's maxAgeSeconds or the longest pin allow",
              "pin for a shorter time, or raise spec.retention.maxAgeSeconds"};
    case Refusal::kParentUnpinned:
      return {"a pin was asked for a block whose parent is not pinned as long",
              "pin prompts from their first block on"};
    case Refusal::kOwed:
      return {"another tenant waited for memory it is guaranteed, and this one had as much leased as its own guarantee",
              "raise the guarantee to what is read at once, or release leases sooner"};
    case Refusal::kWriteBudget:
      return {"the disk's write budget was short, and nothing said yet that the block would be read from there",
              "nothing: blocks that are used again are kept; or raise nvme.writesPerDayPercent"};
    case Refusal::kLate:
      return {"room or the disk took longer than the caller would wait",
              "look at the disk's health and load, or let callers wait longer"};
    case Refusal::kEncryptionKeyMissing:
      return {"the tenant's blocks have to be encrypted on NVMe, and there is no key, or a disk with its salt is away",
              "put a key into nvmeKeyFile: it is read within a second; or see to the absent disk: kvartalctl doctor"};
  }
  return {"for a reason this version has no words for", "look at the daemon's log"};
}

DecisionWords WordsOf(policy::DropReason reason) {
  using policy::DropReason;
  switch (reason) {
    case DropReason::kOwnSpace:
      return {"the tenant's own new blocks wanted the space",
              "raise its limit if its hit rate matters; a cache that is full does this all the time"};
    case DropReason::kTakenByOther:
      return {"another tenant was entitled to the space: what was taken was above this tenant's guarantee",
              "raise its guarantee to what it must never lose, or its weight to keep more of the idle space"};
    case DropReason::kOverLimit:
      return {"its limit was lowered below what it held", "nothing: it ends when it holds what it may"};
    case DropReason::kEntryCap:
      return {"the tenant had as many blocks in the index as it may",
              "raise spec.index.maxEntries, or use larger blocks"};
    case DropReason::kRetired:
      return {"no live engine uses the model these blocks were made for, and space was wanted",
              "nothing: they could not have been hit, unless that engine comes back"};
    case DropReason::kIdle:
      return {"nobody used the block for longer than the TTL of this tier",
              "raise spec.ttl of this tier if such blocks are asked for again"};
    case DropReason::kMaxAge:
      return {"the block was older than the tenant's maxAgeSeconds", "nothing: the policy asks for it"};
    case DropReason::kRemoved:
      return {"the tenant was dropped, or removed from the policy", "nothing: somebody asked for it"};
    case DropReason::kUnreadable:
      return {"the device failed, or gave bytes that are not the block's",
              "look at the disk: one is a defect, many are a dying device"};
    case DropReason::kKeyMissing:
      return {"the key that the block is encrypted under is in nvmeKeyFile no more",
              "nothing if that was meant; else keep an old key until the NVMe TTL has passed since the newer one came"};
    case DropReason::kInTheClear:
      return {
          "it was written before the policy asked for encryption on NVMe",
          "nothing: what is in memory is written again, encrypted; what is not is stored anew when it is asked for"};
  }
  return {"for a reason this version has no words for", "look at the daemon's log"};
}

}  // namespace kvartal::control
