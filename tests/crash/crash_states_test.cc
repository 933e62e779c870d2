// Every state that a crash could have left: what the engine writes to disk and catalog is recorded and cut at many
// points, some of what was not yet safe is dropped or torn, and the real recovery code starts on what remains. No byte
// is wrong, nothing that was called durable is lost by a kill, nothing that was erased comes back, the books agree.
// KVARTAL_CRASH_SEEDS: how many histories (default 2); KVARTAL_TEST_SEED: the first one; KVARTAL_CRASH_POINTS: at how
// many places each is cut (default 24), at every one where that is more than there are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/tier/nvme_format.h"
#include "tests/support/crash_journal.h"
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using testing::CrashImage;
using testing::CrashJournal;
using testing::CrashPoint;

constexpr uint32_t kBlockBytes = 8 * kKiB;
constexpr uint32_t kPageWords = kSlotAlignBytes / sizeof(uint64_t);
constexpr uint64_t kDiskBytes = kNvmeDataStartBytes + 2 * kSegmentMinBytes;
constexpr uint64_t kSlotBytes = kBlockBytes + kNvmeHeaderBytes;
constexpr uint64_t kNumbers = 48;  // keys of a tenant
constexpr int64_t kMaxAgeMs = 60'000;
constexpr int kSteps = 260;
constexpr uint64_t kPointsASeed = 24;
constexpr int kSubsetsAPoint = 2;  // of each kind
constexpr CrashPoint kNever = ~CrashPoint{0};
const char* const kTenants[] = {"small/t", "aged/t", "dropped/t"};
constexpr uint32_t kSmall = 0, kAged = 1, kDropped = 2;

uint64_t Environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Bytes of one reservation: every page says whose it is, every word depends on where it is.
uint64_t WordOf(uint64_t version, uint64_t index) {
  if (index % kPageWords == 0) return 0xC0DE'0000'0000'0000 | version << 8 | index / kPageWords;
  return (version + 1) * 0x9E3779B97F4A7C15ull + index * 0xC2B2AE3D27D4EB4Full;
}

// What was written under one reservation, and what was said about it.
struct Version {
  uint32_t tenant = 0;
  uint64_t number = 0;
  int64_t commit_ms = 0;
  SlotId slot;                     // on NVMe, once durable
  CrashPoint durable_at = kNever;  // its client was told
  CrashPoint ended_at = kNever;    // from then on it may be gone: evicted, or its tenant dropped
  CrashPoint erased_at = kNever;   // from then on it must be: the drop of its tenant has ended
};

// A block that is to be filled at the next step.
struct Granted {
  uint32_t tenant = 0;
  uint64_t number = 0;
  ReservedBlock block;
};

enum class ImageKind { kKilled, kPowerCut, kCatalogLost };

struct Verdict {
  uint64_t found = 0;
  uint64_t promised = 0, lost = 0;  // durable before the kill, or flushed before the power cut
  uint64_t wrong = 0;               // blocks whose bytes were never theirs
  uint64_t back = 0;                // erased, and found, or their bytes are on the disk
  uint64_t clear = 0;               // pages of encrypted blocks that can be read by anybody
};

class CrashStatesTest : public EngineTest {
 protected:
  CrashStatesTest() {
    dram_bytes_ = 64 * kMiB;
    nvme_capacity_bytes_ = kDiskBytes;
  }

  static BlockKey KeyOfBlock(uint32_t tenant, uint64_t number) { return KeyOf(tenant * 1000 + number); }

  // --- one history
  void Record(uint64_t seed) {
    random_.seed(seed);
    auto small = Rules(kTenants[kSmall], 16 * kMiB, 24 * kSlotBytes);  // evicts
    auto aged = Rules(kTenants[kAged], 16 * kMiB, 8 * kMiB);
    aged.max_age_ms = kMaxAgeMs;
    auto dropped = Rules(kTenants[kDropped], 16 * kMiB, 8 * kMiB);
    disk_ = testing::MakeFakeDisk(kDiskBytes);
    catalog_disk_ = std::make_shared<testing::CatalogDisk>();
    disk_->journal = catalog_disk_->journal = &journal_;
    if (encrypted_) {
      small.encrypt_nvme = dropped.encrypt_nvme = true;
      const std::string key = absl::StrCat("1 ", std::string(64, 'a'));
      ring_ = std::make_shared<cipher::KeyRing>();
      ring_->Set(*cipher::NodeKeys::Parse(std::as_bytes(std::span(key))));
    }
    rules_ = {small, aged, dropped};
    Boot();
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps / 2) Killed();
      Step();
    }
    Settle();
  }

  void Killed() {
    by_reservation_.clear();
    granted_.clear();
    dropping_ = false;
    Restart();
  }

  void Step() {
    for (const Granted& granted : std::exchange(granted_, {})) Fill(granted.tenant, granted.number, granted.block);
    const auto tenant = static_cast<uint32_t>(random_() % std::size(kTenants));
    const uint64_t first = random_() % (kNumbers - 4);
    switch (random_() % 16) {
      case 0:
        clock_.AdvanceMs(static_cast<int64_t>(random_() % 900));
        engine_->Tick();
        break;
      case 1:
        catalog_->Flush([](const absl::Status&) {});
        break;
      case 2:
        if (random_() % 8 == 0) Drop();
        break;
      case 3:
      case 4:
      case 5:
        LoadSome(tenant, first, 1 + random_() % 4);
        break;
      default:
        StoreSome(tenant, first, 1 + random_() % 4);
    }
    file_->SetReorder(random_() % 2 == 0, random_());
    for (uint64_t i = random_() % 24; i > 0; --i) executor_->RunOne();
  }

  void Settle() {
    AdvanceMs(2000);
    if (!dropped_once_) Drop();
    AdvanceMs(3000);
  }

  void StoreSome(uint32_t tenant, uint64_t first, uint64_t count) {
    if (tenant == kDropped && dropping_) return;
    std::vector<BlockKey> keys;
    for (uint64_t i = 0; i < count; ++i) keys.push_back(KeyOfBlock(tenant, first + i));
    const NamespaceId ns = OpenOf(tenant);
    engine_->Reserve({.group = kGroup, .ns = ns, .keys = keys},
                     [this, tenant, first](const std::vector<ReservedBlock>& blocks) {
                       for (size_t i = 0; i < blocks.size(); ++i) {
                         if (blocks[i].outcome == ReserveOutcome::kGranted)
                           granted_.push_back({tenant, first + i, blocks[i]});
                       }
                     });
  }

  void Fill(uint32_t tenant, uint64_t number, const ReservedBlock& block) {
    const uint64_t version = versions_.size();
    Version& made = versions_.emplace_back();
    made.tenant = tenant;
    made.number = number;
    made.commit_ms = clock_.WallMs();
    std::byte* const data = Data(kTenants[tenant], block.arena_offset);
    for (uint64_t i = 0; i < kBlockBytes / sizeof(uint64_t); ++i) {
      const uint64_t word = WordOf(version, i);
      std::memcpy(data + i * sizeof(word), &word, sizeof(word));
    }
    by_reservation_[block.reservation.value()] = version;
    engine_->Commit(kGroup, block.reservation, 0);
  }

  void OnDurable(GroupId, ReservationId reservation) override {
    const auto found = by_reservation_.find(reservation.value());
    if (found == by_reservation_.end()) return;
    Version& version = versions_[found->second];
    for (const auto& [slot, header] : catalog_disk_->records) {
      if (header.identity.key == KeyOfBlock(version.tenant, version.number)) version.slot = SlotId(slot);
    }
    version.durable_at = journal_.size();
  }

  void LoadSome(uint32_t tenant, uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      const std::vector<BlockKey> keys = {KeyOfBlock(tenant, first + i)};
      std::vector<BlockPlace> places;
      engine_->Lookup(OpenOf(tenant), keys, 0, 0, &places);
      if (places.empty()) continue;
      engine_->Load({.ns = OpenOf(tenant), .entries = {places[0].entry}},
                    [this](const CacheEngine::LoadResult& result) {
                      if (!result.places.empty()) engine_->Release(Holds(result.places));
                    });
      engine_->Release(Holds(places));
    }
  }

  void Drop() {
    if (dropping_) return;
    dropping_ = dropped_once_ = true;
    const CrashPoint begin = journal_.size();
    const size_t before = versions_.size();
    for (Version& version : versions_) {
      if (version.tenant == kDropped) version.ended_at = std::min(version.ended_at, begin);
    }
    drops_.push_back(begin);
    engine_->DropTenant(engine_->FindTenant(kTenants[kDropped]), [this, before](const absl::StatusOr<uint64_t>& bytes) {
      dropping_ = false;
      if (!bytes.ok()) return;
      for (size_t i = 0; i < before; ++i) {
        Version& version = versions_[i];
        if (version.tenant == kDropped) version.erased_at = std::min(version.erased_at, journal_.size());
      }
    });
  }

  NamespaceId OpenOf(uint32_t tenant) { return Open(kTenants[tenant], 1, 1, kBlockBytes); }

  // Who was evicted: no promise holds any more.
  void NoteEnds() {
    for (const auto& [point, slot] : journal_.forgotten()) {
      for (Version& version : versions_) {
        if (version.slot == slot && version.durable_at <= point) version.ended_at = std::min(version.ended_at, point);
      }
    }
  }

  // --- what a start on such a disk shows
  Verdict Recovered(CrashImage image, CrashPoint point, ImageKind kind) {
    if (file_ != nullptr) file_->CutPower();
    Shutdown();
    disk_ = std::move(image.disk);
    catalog_disk_ = image.catalog;
    if (kind == ImageKind::kCatalogLost) {
      catalog_disk_ = std::make_shared<testing::CatalogDisk>();
      catalog_disk_->salts = image.catalog->salts;  // they are in a file of their own
    }
    Boot();
    AdvanceMs(1000);  // what is owed is erased
    engine_->CheckInvariants();
    Verdict verdict;
    std::vector<bool> there(versions_.size());
    for (uint32_t tenant = 0; tenant < std::size(kTenants); ++tenant) {
      for (uint64_t number = 0; number < kNumbers; ++number) Look(tenant, number, point, kind, &there, &verdict);
    }
    engine_->CheckInvariants();
    CheckPromises(point, kind, there, &verdict);
    if (kind == ImageKind::kKilled) LookForErased(point, &verdict);
    return verdict;
  }

  void Look(uint32_t tenant, uint64_t number, CrashPoint point, ImageKind kind, std::vector<bool>* there,
            Verdict* verdict) {
    const std::vector<BlockKey> keys = {KeyOfBlock(tenant, number)};
    const NamespaceId ns = OpenOf(tenant);
    std::vector<BlockPlace> places;
    engine_->Lookup(ns, keys, 0, 0, &places);
    if (places.empty()) return;
    std::optional<CacheEngine::LoadResult> loaded;
    engine_->Load({.ns = ns, .entries = {places[0].entry}},
                  [&](CacheEngine::LoadResult result) { loaded = std::move(result); });
    Pump();
    engine_->Release(Holds(places));
    ASSERT_TRUE(loaded.has_value()) << "a Load never ended";
    if (loaded->places.empty()) return;  // found out by its header: a miss
    ++verdict->found;
    const std::optional<uint64_t> id = VersionIn(Data(kTenants[tenant], loaded->places[0].arena_offset));
    engine_->Release(Holds(loaded->places));
    if (!id || versions_[*id].tenant != tenant || versions_[*id].number != number) {
      ++verdict->wrong;
      return;
    }
    const Version& version = versions_[*id];
    (*there)[*id] = true;
    const bool over_age = tenant == kAged && clock_.WallMs() - version.commit_ms >= kMaxAgeMs + kTickMs;
    // What was evicted before the drop was not zeroed: without catalog and tombstone its header may be found again.
    // Not where it was encrypted: its salt went with the drop.
    const bool was_evicted = kind == ImageKind::kCatalogLost && !OnNvmeAtItsDrop(version) && !encrypted_;
    if (over_age || (version.erased_at <= point && !was_evicted)) ++verdict->back;
  }

  // None when not every word is as it was written.
  std::optional<uint64_t> VersionIn(const std::byte* data) const {
    uint64_t word = 0;
    std::memcpy(&word, data, sizeof(word));
    const uint64_t version = (word & 0x0000'FFFF'FFFF'FF00) >> 8;
    if (version >= versions_.size()) return std::nullopt;
    for (uint64_t i = 0; i < kBlockBytes / sizeof(uint64_t); ++i) {
      std::memcpy(&word, data + i * sizeof(word), sizeof(word));
      if (word != WordOf(version, i)) return std::nullopt;
    }
    return version;
  }

  bool OnNvmeAtItsDrop(const Version& version) const {
    return version.durable_at < version.ended_at &&
           std::find(drops_.begin(), drops_.end(), version.ended_at) != drops_.end();
  }

  // A power cut may take what was not flushed since.
  void CheckPromises(CrashPoint point, ImageKind kind, const std::vector<bool>& there, Verdict* verdict) {
    const CrashPoint promised_until = kind == ImageKind::kPowerCut ? journal_.SafeAt(point) : point;
    for (size_t i = 0; i < versions_.size(); ++i) {
      const Version& version = versions_[i];
      if (version.durable_at > promised_until || version.ended_at <= point) continue;
      // Headers of what it evicted are there as well, and nothing says which is which.
      if (kind == ImageKind::kCatalogLost && version.tenant == kSmall) continue;
      if (version.tenant == kAged && clock_.WallMs() - version.commit_ms >= kMaxAgeMs) continue;
      ++verdict->promised;
      verdict->lost += !there[i];
    }
  }

  void LookForErased(CrashPoint point, Verdict* verdict) {
    const std::span<const std::byte> disk = file_->bytes();
    for (size_t at = kNvmeDataStartBytes; at < disk.size(); at += kSlotAlignBytes) {
      uint64_t word = 0;
      std::memcpy(&word, disk.data() + at, sizeof(word));
      if (word >> 48 != 0xC0DE) continue;
      const uint64_t id = (word & 0x0000'FFFF'FFFF'FF00) >> 8;
      if (id >= versions_.size() || WordOf(id, word % 256 * kPageWords) != word) continue;
      verdict->clear += encrypted_ && versions_[id].tenant != kAged;
      verdict->back += versions_[id].erased_at <= point && OnNvmeAtItsDrop(versions_[id]);
    }
  }

  std::mt19937_64 random_;
  CrashJournal journal_;
  std::vector<Version> versions_;
  std::map<uint64_t, uint64_t> by_reservation_;
  std::vector<Granted> granted_;
  std::vector<CrashPoint> drops_;
  bool dropping_ = false, dropped_once_ = false;
  bool encrypted_ = false;  // all but kAged
};

class CrashHistory : public CrashStatesTest, public ::testing::WithParamInterface<bool> {
 protected:
  CrashHistory() { encrypted_ = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(All, CrashHistory, ::testing::Bool(),
                         [](const auto& given) { return given.param ? "Encrypted" : "Clear"; });

TEST_P(CrashHistory, NoStateACrashCouldLeaveIsWrongLossyOrBringsBackWhatWasErased) {
  const uint64_t first = Environment("KVARTAL_TEST_SEED", 1);
  const uint64_t seeds = Environment("KVARTAL_CRASH_SEEDS", 2);
  Verdict sum;
  uint64_t images = 0, erased = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    Shutdown();
    journal_ = CrashJournal();
    versions_.clear();
    by_reservation_.clear();
    granted_.clear();
    drops_.clear();
    dropping_ = dropped_once_ = false;
    ASSERT_NO_FATAL_FAILURE(Record(seed));
    NoteEnds();
    for (const Version& version : versions_) erased += version.erased_at != kNever;
    std::mt19937_64 random(seed);
    // Some of the points, or every one; the last one is the end, where every drop is over.
    const uint64_t points = std::min<uint64_t>(Environment("KVARTAL_CRASH_POINTS", kPointsASeed), journal_.size());
    for (uint64_t i = 0; i <= points; ++i) {
      const bool in_order = points == journal_.size() || i == points;
      const CrashPoint point = !in_order ? random() % journal_.size() : i == points ? journal_.size() : i;
      for (int subset = 0; subset < kSubsetsAPoint; ++subset) {
        for (const ImageKind kind : {ImageKind::kKilled, ImageKind::kPowerCut, ImageKind::kCatalogLost}) {
          SCOPED_TRACE(absl::StrCat("seed ", seed, ", cut at ", point, " of ", journal_.size(), ", subset ", subset,
                                    ", kind ", static_cast<int>(kind)));
          CrashImage image = kind == ImageKind::kPowerCut ? journal_.PowerCutAt(point, kDiskBytes, &random)
                                                          : journal_.KilledAt(point, kDiskBytes, &random);
          const Verdict verdict = Recovered(std::move(image), point, kind);
          ASSERT_EQ(verdict.wrong, 0u);
          ASSERT_EQ(verdict.lost, 0u) << "of " << verdict.promised;
          ASSERT_EQ(verdict.back, 0u);
          ASSERT_EQ(verdict.clear, 0u);
          sum.found += verdict.found;
          sum.promised += verdict.promised;
          ++images;
        }
      }
    }
  }
  EXPECT_GT(sum.found, images);
  EXPECT_GT(sum.promised, images);
  EXPECT_GT(erased, 0u);
  std::cout << images << " states of " << seeds << " histories: " << sum.found << " blocks found, " << sum.promised
            << " promises kept" << std::endl;
}

// The controls: each check can fail.
TEST_F(CrashStatesTest, ALostBlockIsSeen) {
  ASSERT_NO_FATAL_FAILURE(Record(1));
  NoteEnds();
  std::mt19937_64 random(1);
  CrashImage image = journal_.KilledAt(journal_.size(), kDiskBytes, &random);
  const auto kept = std::find_if(versions_.begin(), versions_.end(), [](const Version& version) {
    return version.durable_at != kNever && version.ended_at == kNever && version.tenant != kAged;
  });
  ASSERT_NE(kept, versions_.end());
  image.disk->bytes.data()[uint64_t{kept->slot.value()} * kSlotAlignBytes + kNvmeHeaderBytes] ^= std::byte{1};
  EXPECT_EQ(Recovered(std::move(image), journal_.size(), ImageKind::kKilled).lost, 1u);
}

TEST_F(CrashStatesTest, BytesOfAnotherBlockUnderAGoodHeaderAreSeen) {
  ASSERT_NO_FATAL_FAILURE(Record(1));
  NoteEnds();
  std::mt19937_64 random(1);
  CrashImage image = journal_.KilledAt(journal_.size(), kDiskBytes, &random);
  const uint64_t seed = tier::DecodeSuperblock({image.disk->bytes.data(), kNvmeHeaderBytes})->header_seed;
  std::vector<SlotId> slots;
  for (const Version& version : versions_) {
    if (version.durable_at != kNever && version.ended_at == kNever && version.tenant == kSmall)
      slots.push_back(version.slot);
  }
  ASSERT_GE(slots.size(), 2u);
  std::byte* const one = image.disk->bytes.data() + uint64_t{slots[0].value()} * kSlotAlignBytes;
  const std::byte* const other = image.disk->bytes.data() + uint64_t{slots[1].value()} * kSlotAlignBytes;
  auto header = tier::DecodeBlockHeader({one, kNvmeHeaderBytes}, seed, slots[0]);
  ASSERT_TRUE(header.ok()) << header.status();
  std::memcpy(one + kNvmeHeaderBytes, other + kNvmeHeaderBytes, kBlockBytes);
  header->payload_xxh3 = tier::PayloadChecksum({one + kNvmeHeaderBytes, kBlockBytes});
  tier::EncodeBlockHeader(*header, seed, slots[0], {one, kNvmeHeaderBytes});
  EXPECT_EQ(Recovered(std::move(image), journal_.size(), ImageKind::kKilled).wrong, 1u);
}

TEST_F(CrashStatesTest, WhatWasErasedAndIsThereIsSeen) {
  ASSERT_NO_FATAL_FAILURE(Record(1));
  NoteEnds();
  std::mt19937_64 random(1);
  // The disk as it was before the drop, taken for one after it.
  CrashImage image = journal_.KilledAt(drops_.back(), kDiskBytes, &random);
  EXPECT_GT(Recovered(std::move(image), journal_.size(), ImageKind::kKilled).back, 0u);
}

}  // namespace
}  // namespace kvartal::engine
