// Every bound of the daemon with its reason. Relations between them are asserted at the end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "daemon/base/units.h"

namespace kvartal {

// --- memory layout
inline constexpr uint64_t kSlotAlignBytes = 4 * kKiB;    // O_DIRECT and page granularity; a SlotId counts these
inline constexpr uint64_t kExtentAlignBytes = 2 * kMiB;  // a huge page: populate and punch work in these
inline constexpr uint64_t kExtentMaxBytes =
    64 * kMiB;  // one charge; larger would make a small tenant's growth too coarse
inline constexpr uint32_t kExtentWastePercentMax = 3;  // extents are sized so that the tail no slot fits in stays below
inline constexpr uint64_t kExtentWantBytes =
    16 * kMiB;  // what a tenant grows by: few charges, and a small tenant still fits
inline constexpr uint64_t kExtentWantSmallBytes =
    2 * kMiB;  // the same for slots below kSmallSlotBytes: hundreds of slots already
inline constexpr uint32_t kSmallSlotBytes = 64 * kKiB;
inline constexpr uint64_t kStrayPunchParts =
    8;  // of an arena's addresses, one part at a time is searched for stray pages
inline constexpr uint64_t kBlockBytesMax = 32 * kMiB;  // a 70B block of 64 tokens; larger is a wrong layout
inline constexpr uint32_t kShardsMax = 64;             // node-local TP x PP ranks of one engine
inline constexpr uint64_t kArenaOverCapacity = 4;  // virtual arena size : tier capacity, room for mixed extent sizes

// --- NVMe
inline constexpr uint64_t kNvmeHeaderBytes = 4 * kKiB;  // one header in front of each payload
inline constexpr uint64_t kSegmentMinBytes = 16 * kMiB;
inline constexpr uint64_t kSegmentMaxBytes = 256 * kMiB;
inline constexpr uint64_t kIoPartBytes = 1 * kMiB;  // larger blocks are cut so that a deadline can cut in
inline constexpr size_t kDiskQueueMax = 8192;       // submitted and not completed, a device; a full queue is a refusal
inline constexpr size_t kDiskQueuePerOwnerMax = 1024;     // of those, one tenant's: a flood refuses only itself
inline constexpr size_t kSpareTransfersMax = 1024;        // kept for reuse, a page each
inline constexpr uint64_t kIoQuantumBytes = 1 * kMiB;     // a turn at the device of an owner with weight 100
inline constexpr uint64_t kBackgroundFloorPercent = 10;   // of a device's bytes, for demotion and scrub while they wait
inline constexpr size_t kDiskTransfersPerPlace = 2;       // handed to a device: the next is there when one ends
inline constexpr uint64_t kDiskUnderWayBytes = 8 * kMiB;  // and more small ones while they are less together: a
                                                          // newcomer's turn is a few milliseconds away
inline constexpr int64_t kIoDeadlineMs = 2000;            // with the device; healthy ones need a hundredth under load
inline constexpr size_t kTransfersPerRing = 4;            // a thread submits and hashes about 5 GB/s: a fast disk needs
                                                          // several
inline constexpr unsigned kRingPartsMax = 60;             // of transfers, in a ring at once: 60 MiB
inline constexpr unsigned kRingEntries = 64;              // two pages, which some kernels count as locked: eight rings
                                                          // fit a memlock limit of 64 KiB
inline constexpr uint32_t kSlotRun = 16;                  // slots a chain that begins finds free in a row: its blocks
                                                          // lie together, and become free together
inline constexpr uint64_t kDiskRunBytes = 32 * kMiB;      // of a chain on one disk, then it goes on at another: read in
                                                          // one sweep, and a longer prefix by several disks
inline constexpr int64_t kWritesPerDayPercentMax = 10'000;  // of a disk: more than any is made for
inline constexpr uint64_t kWriteBudgetSavedSeconds = 600;   // of a write budget that may be saved up for a burst
inline constexpr uint32_t kSegmentStuckTicks = 100;         // without a block leaving a segment: given up for as long
inline constexpr uint32_t kSegmentMovesMax = 4;   // blocks that leave a segment at once: a buffer each, and the
                                                  // disk is left to others
inline constexpr size_t kCatalogQueueMax = 4096;  // metadata batches not yet in RocksDB
inline constexpr int kCatalogSyncSeconds = 5;     // power loss forgets at most this much
inline constexpr uint64_t kNvmeDataStartBytes =
    1 * kMiB;  // superblock copies lie below; segments stay aligned as partitions do
inline constexpr uint64_t kNvmeForeignProbeBytes =
    128 * kKiB;                                  // must be zeros before a file is taken for a new one: covers btrfs
inline constexpr uint32_t kDeviceErrorsMax = 5;  // so many within the window: the device takes no new blocks
inline constexpr uint32_t kDeviceErrorsOfflineMax = 20;  // so many: it is not even read from, blocks there wait
inline constexpr int64_t kDeviceErrorWindowMs = 60'000;  // and so long without an error it is trusted again,
inline constexpr uint32_t kDeviceHealSuccesses = 256;    // or after so many transfers in a row without one
inline constexpr size_t kQuarantinedSlotsMax =
    64;                                         // slots whose write failed, kept out of use: the oldest returns first
inline constexpr size_t kScanReadsMax = 32;     // header reads under way while a lost catalog is rebuilt
inline constexpr uint32_t kScanErrorsMax = 64;  // of the device: then the scan stops with what it has
inline constexpr size_t kRecoveryBatchMax = 1024;    // records handed to the engine at once: about 1 ms of its loop
inline constexpr size_t kCatalogLoadBatchesMax = 8;  // batches read ahead of the engine
inline constexpr size_t kCatalogBatchOpsMax = 4096;  // operations of one RocksDB write: bounds its memory and its delay
inline constexpr uint64_t kCatalogMemtableBytes = 8 * kMiB;
inline constexpr uint64_t kCatalogBlockCacheBytes = 4 * kMiB;
inline constexpr uint64_t kCatalogWalBytesMax = 64 * kMiB;  // what a restart replays at most
inline constexpr int kCatalogOpenFilesMax = 64;
inline constexpr int kCatalogReopenSeconds = 10;    // between attempts to open a database that stopped taking writes
inline constexpr uint32_t kCatalogSetAsideMax = 4;  // unreadable databases kept for a look: older ones are removed
inline constexpr size_t kNodeKeysMax = 64;          // in a file: two or three while blocks of an old one are left
inline constexpr size_t kNodeKeysBytesMax = 16 * kKiB;  // of that file: four lines of comment for each key
inline constexpr int64_t kNodeKeysPollMs = 1000;        // between two looks at it
inline constexpr size_t kBounceSpareBytes = 32 * kMiB;  // of memory for bytes between slots and a disk kept for the
                                                        // next: as much as a fast disk has under way
inline constexpr uint64_t kCatalogBallastBytes =
    64 * kMiB;  // given up on a full disk, so that a database can open: its log and its manifest fit many times

// --- threads
inline constexpr size_t kMemoryQueueMax = 4096;  // populate and punch requests under way
inline constexpr uint64_t kMemoryPartBytes =
    16 * kMiB;  // of one request before the next one's turn: about 10 ms with small pages
inline constexpr size_t kLoopPostMax = 65536;  // callbacks posted to the engine loop and not yet run

// --- engine
inline constexpr uint32_t kTickMs = 100;  // TTL and lease resolution
inline constexpr uint32_t kTimerWorkPerTurn =
    4096;                                          // of expiry: half a millisecond of the loop, then others have a turn
inline constexpr uint32_t kTimerDropWork = 8;      // of those: a copy dropped or a record changed; a mere look is 1
inline constexpr int64_t kTimerCatchUpMs = 10;     // between turns while timers wait: at most a tenth of the loop
inline constexpr uint32_t kTimerStepsMax = 65536;  // ticks a wheel moves at once: a process stopped for two hours
inline constexpr uint32_t kTimerBusyTicks = 10;  // until a block that is in use, though its time is up, is tried again
inline constexpr size_t kWaitingMax = 1024;      // a node: Reserves and Loads that wait for room
inline constexpr size_t kWaitingPerTenantMax = 256;  // so that one tenant cannot take all of them
inline constexpr uint32_t kSweepEntriesPerTick =
    16384;  // looked at after a policy shortened a time: ten million entries in a minute
inline constexpr uint32_t kRecordPeriods = 8;           // of an NVMe TTL: a restart forgets at most one of use
inline constexpr uint32_t kRecordPeriodTicksMin = 100;  // and ten seconds: bounds how often a record is written again
inline constexpr uint32_t kTimeKeptTicks = 600;         // between dates kept on disk: what a clock set back may hide
inline constexpr uint32_t kErasuresMax = 128;           // blocks being zeroed at once: leaves the disk queue to reads
inline constexpr uint32_t kReceiptRetryTicks = 100;     // until a receipt that nobody could keep is told again
inline constexpr int64_t kRemovedGraceMs = 600'000;     // a removed tenant's bytes are kept so long: deleted by mistake
inline constexpr int64_t kRemovedGraceSecondsMax =
    30 * 86400;                                            // what a node may set: erased in this life, not the next
inline constexpr uint32_t kDropBlocksPerTurn = 4096;       // of a tenant that is erased: nobody else waits longer
inline constexpr uint32_t kEvictionsPerReserveMax = 4096;  // bound of one search for space
inline constexpr uint32_t kDropAheadMax = 64;              // blocks dropped together for a Reserve that wants as many
inline constexpr uint16_t kHoldsPerBlockMax = 0xffff;      // leases or holds of one block: a 16-bit count in its entry
inline constexpr uint8_t kReadErrorsPerBlockMax =
    3;  // of the device, in a row: then the block is given up, for its place may never be read again
inline constexpr uint32_t kDropStuckTicks =
    300;  // without a block of a drop being erased: its tenant, shut out meanwhile, waits no longer
inline constexpr size_t kPromotionsPerTenantMax = 1024;        // NVMe reads under way
inline constexpr int64_t kPinMsMax = 30LL * 24 * 3600 * 1000;  // a pin may last 30 days
inline constexpr uint32_t kEmptyTicksMax = 10;  // an empty extent idle this long goes back: a second of hysteresis
inline constexpr uint32_t kOverLimitBlocksPerTick =
    512;                                              // evicted a tick and tenant while usage is above a lowered limit
inline constexpr uint64_t kGhostsPerBlock = 2;        // evicted blocks remembered for each cached one, a generation
inline constexpr uint64_t kGhostsMin = 28 * 1024;     // a generation: with fewer, what a small cache forgot looks new
inline constexpr uint64_t kGhostsMax = 224 * 1024;    // a generation: 9 MB a tenant in both
inline constexpr uint64_t kGhostsNodeMax = 4u << 20;  // a generation of all tenants, cut evenly: 170 MB a node in both
inline constexpr uint32_t kSharePeriodTicks = 10;     // shares are poured anew every second
inline constexpr uint64_t kShareSlackPercent = 1;     // above its share by less, a tenant gives nothing: no ping-pong
inline constexpr uint64_t kShareStepPercent = 2;  // of a tier: what a tenant that ran out may try beyond what it holds
inline constexpr uint64_t kShareStepBytes = 16 * kMiB;  // the same at least: space changes hands by whole extents
inline constexpr uint64_t kGhostFadeSeconds = 64;       // misses of lost blocks count for about a minute
inline constexpr uint64_t kGhostKeysMax = 1u << 20;     // a node and tier, cut evenly between tenants: about 50 MB
inline constexpr uint64_t kGhostCapacityParts = 16;     // ghosts of a small guarantee: this part of the tier
inline constexpr size_t kLeavingProbesMax = 64;         // extents looked at for the one that is easiest to empty
inline constexpr uint32_t kFillTicksMax = 100;          // a fill in an extent that has to be emptied, beside an older
                                                        // copy on NVMe, or that no rank is at, ends after 10 s, as a
                                                        // lease does
inline constexpr uint32_t kSlotRestTicks = 20;          // a slot whose fill was cut short is nobody's for two seconds:
                                                        // who wrote it has ended by then, or learnt of it
inline constexpr uint32_t kLoadTicksFree = 100;         // a Load keeps its blocks for so long, as a lease does: then as
                                                        // long as a lease of them would be renewed
inline constexpr uint32_t kVictimProbesMax = 4096;      // leased candidates passed over before a search gives up
inline constexpr uint32_t kSparedPerTickMax = 65536;    // blocks of a tenant that its searches for room pass over in a
                                                        // tick, because the request they are for has used them:
                                                        // that number is the client's to choose

// --- index
inline constexpr uint32_t kIndexEntriesMax = 0xffff'fff0;  // an EntryId is 32 bits and None is its largest value
inline constexpr uint32_t kIndexCellsPerMove = 32;  // table cells moved an insert while growing: under a microsecond

// --- attach protocol
inline constexpr size_t kFrameBytesMax = 64 * kKiB;    // one packet
inline constexpr uint32_t kKeysPerFrameMax = 1024;     // 32 KiB of keys; a longer chain is several frames
inline constexpr uint32_t kReservePerFrameMax = 1024;  // slots a Reserve may ask for
inline constexpr size_t kOutboxFramesMax = 256;        // frames a client has not read yet; then it is cut off
inline constexpr size_t kOutboxBytesMax = 2 * kMiB;  // of them together: many stalled clients must not fill the daemon
inline constexpr size_t kUntoldDurablesMax = 1u << 17;  // durable blocks a client has not been told of; 1 MiB of ids
inline constexpr size_t kUntoldRangesMax = 1u << 17;    // granted ranges a client has not been told of; 2 MiB of them
inline constexpr size_t kPendingPerSessionMax = 64;     // Reserves and Loads of one session not yet answered
inline constexpr size_t kSessionsMax = 4096;            // a node
inline constexpr size_t kSessionsFloor = 8;  // of those that a tenant always gets: an engine with a few ranks. Of many
                                             // tenants less, for half of all sessions are anybody's
inline constexpr size_t kStrangersMax = 64;  // connected peers nobody vouches for, until they are told so
inline constexpr uint32_t kAcceptsPerWakeMax = 64;  // a storm of connects yields to sessions after these
inline constexpr size_t kReclaimsKept = 64;         // latest reclaim times shown to people
inline constexpr size_t kLeasesPerGroupMax = 4096;
inline constexpr size_t kLeasedBlocksPerGroupMax = 1u << 20;
inline constexpr size_t kLeasedBlocksPerTenantMax = 1u << 22;  // of all its groups; 8 bytes each, charged to nobody
inline constexpr size_t kLeasedBlocksPerNodeMax = 1u << 25;    // 256 MiB: of many tenants each has its part of it
inline constexpr size_t kFillingBlocksPerGroupMax = 1u << 16;
inline constexpr size_t kNamespacesPerTenantMax = 256;  // open at once, of a tenant or a client: an engine has a few
inline constexpr size_t kNamespacesKeptMax = 16'384;    // of a tenant, with those nobody has open that have blocks: a
                                                        // kilobyte each. Then no group opens another; recovery may
inline constexpr size_t kUnackedFdsMax = 2;             // fds in flight to one client
inline constexpr uint32_t kAttachDeadlineMs = 5000;     // from connect to Attach
inline constexpr uint32_t kLeaseMsDefault = 10000;
inline constexpr uint32_t kLeaseMsMax = 60000;
inline constexpr uint32_t kFramesPerWakeMax = 64;           // one busy client yields to the others after these,
inline constexpr uint64_t kPositionsPerWakeMax = 1u << 16;  // or after so many blocks looked at: those of 64 full
                                                            // lookups. A Hint or Pin of more is refused
inline constexpr int64_t kLeaseFreshParts = 8;  // a lease renewed within this part of its time is not looked through
                                                // again: the frames of a long chain come one after another
inline constexpr uint32_t kLeaseTickWorkMax = 8192;     // blocks of ended leases given back a tick, all groups together
inline constexpr uint32_t kGivenBackPerTurnMax = 8192;  // blocks given back at once of what a group releases, or leaves
                                                        // when it ends: a few milliseconds of the loop

inline constexpr size_t kEndedGroupsMax = 64;  // whose leases are given back turn by turn

// --- tokens of pods
inline constexpr size_t kTokenBytesMax = 16 * kKiB;  // one ServiceAccount token; real ones have 1 to 2 KiB
inline constexpr size_t kTokenKeysMax = 64;  // in a key set; a cluster in the middle of a rotation has two or three
inline constexpr size_t kTokenKeysBytesMax = 256 * kKiB;      // of a key set's text
inline constexpr int kTokenRsaBitsMin = 2048;                 // shorter keys can be broken,
inline constexpr int kTokenRsaBitsMax = 8192;                 // and longer ones would hold the loop for a millisecond
inline constexpr int64_t kTokenSecondsMax = 100'000'000'000;  // a time in a token: its milliseconds do not overflow
inline constexpr int64_t kTokenLeewaySeconds = 10;  // for a server's clock that is ahead; none for one that is behind
inline constexpr int64_t kTokenKeysPollMs = 1000;   // between two looks at the file of the key set
inline constexpr size_t kUnidentifiedMax = 1024;    // connections nobody vouches for yet, which a token still may: with
                                                    // one more, the oldest makes room
inline constexpr size_t kGonePodsMax = 4096;        // deleted pods remembered, whose tokens may still be valid
inline constexpr size_t kCgroupTextMax =
    64 * kKiB;  // of /proc/PID/cgroup: a dozen lines, their paths not of our choice

// --- manifests and configuration
inline constexpr size_t kYamlBytesMax = 1024 * kKiB;  // one file; an object in Kubernetes is smaller than 1.5 MB
inline constexpr size_t kYamlDepthMax = 32;           // ours nest 8 deep, a copied managedFields about 16
inline constexpr size_t kYamlNodesMax = 65536;        // bounds memory and time of one file
inline constexpr size_t kYamlFindingsMax = 16;        // errors told at once; the rest is counted
inline constexpr size_t kPolicyFilesMax = 1024;       // files of a policy folder
inline constexpr size_t kTenantsMax = 4096;           // a node; each is a set of metric series
inline constexpr size_t kSubjectsMax = 64;            // a policy
inline constexpr size_t kPoolClaimsMax = 16;          // a policy
inline constexpr size_t kCodecsMax = 16;              // a policy
inline constexpr size_t kCodecModelsMax = 64;         // a codec rule
inline constexpr size_t kGrantsMax = 64;       // a pool; more would not fit the cost budget of the schema's rules
inline constexpr size_t kGroupsMax = 64;       // GPU groups or share groups of a pool
inline constexpr size_t kGroupGpusMax = 64;    // a GPU group: 8 GPUs in 7 MIG slices
inline constexpr size_t kMatchLabelsMax = 32;  // a selector
inline constexpr int64_t kSecondsMax = 10ll * 365 * 86400;  // a TTL or an age; in milliseconds far from overflow
inline constexpr int64_t kWeightMax = 10000;
inline constexpr int64_t kEntriesMax = 4294967294;    // EntryId's largest valid value
inline constexpr uint64_t kSizeBytesMax = INT64_MAX;  // a Quantity; what Kubernetes can hold
inline constexpr uint64_t kDramBytesMin = kExtentAlignBytes;
inline constexpr uint64_t kDramBytesMax =
    (uint64_t{UINT32_MAX} * kSlotAlignBytes) / kArenaOverCapacity;  // SlotId's reach
inline constexpr uint64_t kNvmeBytesMin = 64 * kMiB;  // four segments: fewer cannot serve several slot sizes
inline constexpr uint64_t kNvmeBytesMax = uint64_t{UINT32_MAX} * kSlotAlignBytes;  // SlotId's reach, of all disks
inline constexpr int kDiskThreadsMax = 64;     // a disk works on at once; deeper queues only add latency
inline constexpr size_t kDisksMax = 16;        // a node: as many as a server has bays; each has threads and a database
inline constexpr size_t kDoorsMax = 256;       // `socket` attestor: one listener each
inline constexpr size_t kSocketPathMax = 107;  // sockaddr_un::sun_path with its final zero
inline constexpr uint32_t kLeaseMsMin = kTickMs;

// --- the doors for people
inline constexpr int kAdminThreadsMax = 8;               // gRPC threads; a waiting Drop or Drain holds one
inline constexpr int kAdminRequestBytesMax = 64 * 1024;  // requests are a name at most
inline constexpr int64_t kAdminAnswerMs = 5000;          // a question to the loop: longer means it is stuck
inline constexpr int64_t kAdminLongAnswerMs =
    600'000;                                        // Drop, Drain, CheckInvariants: zeroing a full disk takes minutes
inline constexpr int64_t kAdminStopMs = 1000;       // calls under way at exit are cut off after this
inline constexpr int64_t kDrainDeadlineMs = 5000;   // SIGTERM to the end of the loop
inline constexpr int64_t kExitDeadlineMs = 8000;    // SIGTERM to exit; a supervisor's patience starts at 10 s
inline constexpr int64_t kQuietPollMs = 5;          // at exit: how often the last callbacks are looked for
inline constexpr unsigned kSelfCheckSeconds = 120;  // a check of the books in a copy of the process; then it is killed
inline constexpr size_t kSelfCheckTextMax = 4096;   // of what a failed check printed
inline constexpr size_t kMetricTenantsMax = 256;    // lines a metric; tenants beyond are summed in one called "other"
inline constexpr int64_t kMetricsPeriodMs = 1000;   // how old a scraped number may be
inline constexpr size_t kReloadsMax = 16;           // readings of the policy folder asked for and not done
inline constexpr int64_t kPolicyPollMs = 250;       // a change of the folder is in force after two to three of these
inline constexpr size_t kAuditQueueMax = 4096;      // audit events not yet written; one more is lost, and that is told
inline constexpr size_t kAuditDoorQueueMax = 2048;  // of those, attaches and denials: the rest is for what was decided
inline constexpr size_t kAuditDenialsMax = 64;  // kinds of denial told apart in one period; the rest by reason alone
inline constexpr int64_t kAuditDenialPeriodMs = 1000;  // a denial is told at once, its repetitions together after this

static_assert(kExtentAlignBytes % kSlotAlignBytes == 0);
static_assert(kExtentMaxBytes >= kBlockBytesMax);
static_assert(kExtentMaxBytes >= kExtentWantBytes && kExtentWantBytes >= kExtentWantSmallBytes);
static_assert(kKeysPerFrameMax * 32 < kFrameBytesMax);
static_assert(kSegmentMinBytes % kExtentAlignBytes == 0);
static_assert(kMemoryPartBytes % kExtentAlignBytes == 0);
static_assert(kNvmeHeaderBytes % kSlotAlignBytes == 0);
static_assert(kNvmeDataStartBytes >= kNvmeForeignProbeBytes && kNvmeForeignProbeBytes >= 2 * kNvmeHeaderBytes);
static_assert(kScanReadsMax < kDiskQueuePerOwnerMax && kDiskQueuePerOwnerMax <= kDiskQueueMax);
static_assert(kPromotionsPerTenantMax <= kDiskQueuePerOwnerMax);
static_assert(kDiskThreadsMax * kDiskTransfersPerPlace <= kDiskQueueMax);
// The kernel makes room for twice as many completions: a part, its cancellation, and what wakes the thread.
static_assert(2 * kRingEntries > 2 * kRingPartsMax);
static_assert(kNvmeBytesMin >= 4 * kSegmentMinBytes);
static_assert(kDisksMax * kNvmeBytesMin <= kNvmeBytesMax);
static_assert(kAuditDoorQueueMax < kAuditQueueMax);
static_assert(kDrainDeadlineMs + 2 * kAdminStopMs <= kExitDeadlineMs);  // closing what does not hang is done by then
static_assert(2 * kTokenBytesMax < kFrameBytesMax);
static_assert(kUnidentifiedMax >= 4 * kAcceptsPerWakeMax && kUnidentifiedMax < kSessionsMax);
static_assert(kLeasedBlocksPerNodeMax / kTenantsMax >= 4 * kKeysPerFrameMax);
static_assert(kLeaseMsDefault >= kLeaseMsMin && kLeaseMsDefault <= kLeaseMsMax);

}  // namespace kvartal
