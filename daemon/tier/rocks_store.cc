#include "daemon/tier/rocks_store.h"

#include <fcntl.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::tier {
namespace {

constexpr char kMetaKey[] = "m";
constexpr char kTimeKey[] = "w";
constexpr char kSlotPrefix = 's';
constexpr char kTombstonePrefix = 't';
constexpr char kErasurePrefix = 'e';
constexpr size_t kErasureKeyBytes = 1 + sizeof(uint64_t);
constexpr size_t kSlotKeyBytes = 1 + sizeof(uint32_t);
constexpr const char* kSetAsideSuffix = ".corrupt-";
constexpr const char* kBallastSuffix = ".ballast";

absl::Status ToStatus(const rocksdb::Status& status, const std::string& path) {
  if (status.ok()) return absl::OkStatus();
  const std::string what = absl::StrCat("catalog ", path, ": ", status.ToString());
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(absl::StrCat(what, "; free space on its disk"));
  if (status.IsCorruption()) return absl::DataLossError(what);
  // Said by RocksDB of its lock file alone; the path may have the word anywhere.
  const std::string said = absl::StrReplaceAll(status.ToString(), {{path, ""}});
  if (status.IsIOError() &&
      (said.find("lock file") != std::string::npos || said.find("lock hold") != std::string::npos)) {
    return absl::FailedPreconditionError(absl::StrCat(what, "; is another daemon running on it?"));
  }
  return absl::UnavailableError(what);
}

// Big-endian, so that a scan comes in the order of the device.
std::string SlotKey(SlotId slot) {
  std::string key(kSlotKeyBytes, kSlotPrefix);
  for (size_t i = 0; i < sizeof(uint32_t); ++i) {
    key[1 + i] = static_cast<char>(slot.value() >> (8 * (sizeof(uint32_t) - 1 - i)));
  }
  return key;
}

SlotId SlotOfKey(const rocksdb::Slice& key) {
  uint32_t value = 0;
  for (size_t i = 1; i < kSlotKeyBytes; ++i) value = value << 8 | static_cast<uint8_t>(key[i]);
  return SlotId(value);
}

std::string TombstoneKey(const OwnerUidHash& owner) {
  std::string key(1, kTombstonePrefix);
  key.append(reinterpret_cast<const char*>(owner.data()), owner.size());
  return key;
}

// Big-endian, so that a scan comes in the order they were opened in.
std::string ErasureKey(uint64_t id) {
  std::string key(kErasureKeyBytes, kErasurePrefix);
  for (size_t i = 0; i < sizeof(id); ++i) key[1 + i] = static_cast<char>(id >> (8 * (sizeof(id) - 1 - i)));
  return key;
}

uint64_t ErasureOfKey(const rocksdb::Slice& key) {
  uint64_t id = 0;
  for (size_t i = 1; i < kErasureKeyBytes; ++i) id = id << 8 | static_cast<uint8_t>(key[i]);
  return id;
}

std::span<const std::byte> BytesOf(const rocksdb::Slice& slice) {
  return {reinterpret_cast<const std::byte*>(slice.data()), slice.size()};
}

// The packaged RocksDB asserts that it never appends to its own LOG file after a failed append, so a full disk would
// end the process: it gets no such file. What it has to say goes where our lines go.
class LogLines : public rocksdb::Logger {
 public:
  LogLines() : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}
  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    char line[512];
    std::vsnprintf(line, sizeof(line), format, arguments);
    Log(LogLevel::kWarning, "rocksdb", line);
  }
};

rocksdb::Options DatabaseOptions() {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(kCatalogBlockCacheBytes);
  table.cache_index_and_filter_blocks = true;
  rocksdb::Options options;
  options.create_if_missing = true;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.write_buffer_size = kCatalogMemtableBytes;
  options.max_write_buffer_number = 2;
  options.max_total_wal_size = kCatalogWalBytesMax;
  options.max_open_files = kCatalogOpenFilesMax;
  options.compression = rocksdb::kNoCompression;  // hashes do not compress
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.info_log = std::make_shared<LogLines>();
  options.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

// Numbers of the folders beside `path` that were set aside, ascending.
std::vector<uint32_t> SetAsideNumbers(const std::filesystem::path& path) {
  std::vector<uint32_t> numbers;
  const std::string prefix = path.filename().string() + kSetAsideSuffix;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path(), error)) {
    const std::string name = entry.path().filename().string();
    uint32_t number = 0;
    if (name.starts_with(prefix) && absl::SimpleAtoi(name.substr(prefix.size()), &number)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace

RocksStore::RocksStore(const CatalogOptions& options)
    : options_(options), batch_(std::make_unique<rocksdb::WriteBatch>()) {}

RocksStore::~RocksStore() = default;

absl::StatusOr<std::unique_ptr<RocksStore>> RocksStore::Open(const CatalogOptions& options) {
  std::unique_ptr<RocksStore> store(new RocksStore(options));
  KV_RETURN_IF_ERROR(store->OpenFolder(SetAsideWhen::kUnusable));
  store->made_anew_ = false;
  absl::Status read = store->ReadTombstones();
  if (read.ok()) read = store->ReadErasures();
  // What is damaged is set aside at the next Reopen. What a disk does not bring now it may bring at the next start: it
  // is not to be forgotten what was to be erased.
  if (!read.ok() && !absl::IsDataLoss(read)) return read;
  if (!read.ok()) Log(LogLevel::kError, "catalog", "what was erased cannot be read: ", std::string(read.message()));
  return store;
}

absl::Status RocksStore::OpenFolder(SetAsideWhen when) {
  absl::Status status = OpenUsable(when);
  if (absl::IsResourceExhausted(status) && GiveUpBallast()) {
    db_.reset();
    return OpenUsable(when);
  }
  if (status.ok()) TakeBallast();
  return status;
}

absl::Status RocksStore::OpenUsable(SetAsideWhen when) {
  absl::Status status = OpenDatabase();
  if (status.ok()) status = CheckMeta();
  // Another folder would be as full, or as much in use.
  if (status.ok() || absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status)) return status;
  if (when == SetAsideWhen::kDamaged && !absl::IsDataLoss(status)) return status;
  db_.reset();
  KV_RETURN_IF_ERROR(SetAside(status));
  KV_RETURN_IF_ERROR(OpenDatabase());
  return CheckMeta();
}

absl::Status RocksStore::OpenDatabase() {
  std::error_code error;
  std::filesystem::create_directories(options_.path, error);
  if (error) {
    const std::string what = absl::StrCat("catalog ", options_.path, ": cannot make the folder: ", error.message());
    if (error == std::errc::no_space_on_device) return absl::ResourceExhaustedError(what);
    return absl::UnavailableError(what);
  }
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(DatabaseOptions(), options_.path, &db);
  db_.reset(db);
  std::string value;
  kept_time_ms_ = 0;
  if (status.ok() && db_->Get(rocksdb::ReadOptions(), kTimeKey, &value).ok() && value.size() == sizeof(kept_time_ms_))
    std::memcpy(&kept_time_ms_, value.data(), sizeof(kept_time_ms_));
  return ToStatus(status, options_.path);
}

// Without it a disk that others filled would keep the database closed, and with it the tier. Where there is no room for
// it, there is none to hold back.
void RocksStore::TakeBallast() const {
  const std::string path = options_.path + kBallastSuffix;
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd.valid() && ::fallocate(fd.get(), 0, 0, static_cast<off_t>(kCatalogBallastBytes)) != 0) ::unlink(path.c_str());
}

bool RocksStore::GiveUpBallast() const {
  if (::unlink((options_.path + kBallastSuffix).c_str()) != 0) return false;
  Log(LogLevel::kWarning, "catalog", options_.path, ": the disk is full; what was held back for that is given up");
  return true;
}

absl::Status RocksStore::CheckMeta() {
  std::string value;
  const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), kMetaKey, &value);
  if (!status.ok() && !status.IsNotFound()) return ToStatus(status, options_.path);
  if (status.IsNotFound()) {
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
    it->SeekToFirst();
    if (it->Valid()) return absl::DataLossError("the database has records but says nothing about its device");
    KV_RETURN_IF_ERROR(ToStatus(it->status(), options_.path));
    // Until a scan of the headers is at its end, however many starts that takes.
    incomplete_ = made_anew_ = true;
    return PutMeta(false);
  }
  uint32_t version = 0;
  if (value.size() < sizeof(version) + 1) return absl::DataLossError("the database's description is cut short");
  std::memcpy(&version, value.data(), sizeof(version));
  if (version != kCatalogVersion && version != kKeylessCatalogVersion) {
    return absl::DataLossError(
        absl::StrCat("the database has format version ", version, ", this build uses ", kCatalogVersion));
  }
  const std::string device = value.substr(sizeof(version) + 1);
  if (device != options_.device_id) {
    return absl::DataLossError(absl::StrCat("the database is about device ", device, ", not ", options_.device_id));
  }
  // MarkComplete writes our version. An open writes nothing: failing, it would set aside what is to be kept.
  incomplete_ = value[sizeof(version)] == 0 || version == kKeylessCatalogVersion;
  return absl::OkStatus();
}

absl::Status RocksStore::MarkComplete() {
  if (db_ == nullptr) return Closed();
  return made_anew_ ? absl::OkStatus() : CloseOnFailure(PutMeta(true));
}

absl::Status RocksStore::ReadTombstones() {
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  const rocksdb::Slice first(&kTombstonePrefix, 1);
  for (it->Seek(first); it->Valid() && it->key().starts_with(first); it->Next()) {
    OwnerUidHash owner;
    int64_t before = 0;
    if (it->value().size() != sizeof(before) || it->key().size() != 1 + owner.size()) continue;
    std::memcpy(owner.data(), it->key().data() + 1, owner.size());
    std::memcpy(&before, it->value().data(), sizeof(before));
    tombstones_[owner] = before;
  }
  const absl::Status status = ToStatus(it->status(), options_.path);
  it.reset();  // before the database may be closed
  return CloseOnFailure(status);
}

absl::Status RocksStore::PutMeta(bool complete) {
  std::string value(sizeof(kCatalogVersion), '\0');
  std::memcpy(value.data(), &kCatalogVersion, sizeof(kCatalogVersion));
  value.push_back(complete ? 1 : 0);
  value += options_.device_id;
  rocksdb::WriteOptions synced;
  synced.sync = true;
  return ToStatus(db_->Put(synced, kMetaKey, value), options_.path);
}

// The folder is kept for a look, under another name; of several only the newest.
absl::Status RocksStore::SetAside(const absl::Status& why) {
  const std::filesystem::path path = std::filesystem::absolute(options_.path).lexically_normal();
  const std::vector<uint32_t> numbers = SetAsideNumbers(path);
  const uint32_t number = numbers.empty() ? 1 : numbers.back() + 1;
  const std::string target = absl::StrCat(path.string(), kSetAsideSuffix, number);
  std::error_code error;
  std::filesystem::rename(path, target, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("catalog ", options_.path, " is unusable (", why.message(),
                                               ") and cannot be renamed to ", target, ": ", error.message(),
                                               "; move it away by hand"));
  }
  Log(LogLevel::kError, "catalog", options_.path, " is unusable (", std::string(why.message()), "): set aside as ",
      target, ", starting a new one; the headers of the device are read instead");
  for (const uint32_t old : numbers) {
    if (old + kCatalogSetAsideMax <= number) {
      std::filesystem::remove_all(absl::StrCat(path.string(), kSetAsideSuffix, old), error);
    }
  }
  return absl::OkStatus();
}

void RocksStore::Put(const CatalogRecord& record) {
  KeepTime(std::max(record.header.first_commit_ms, record.header.last_access_ms));
  std::byte value[kBlockRecordBytes];
  EncodeBlockRecord(record.header, value);
  batch_->Put(SlotKey(record.slot), rocksdb::Slice(reinterpret_cast<const char*>(value), sizeof(value)));
}

absl::Status RocksStore::Refresh(SlotId slot, const RecordTimes& times) {
  if (db_ == nullptr) return Closed();
  std::string value;
  const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), SlotKey(slot), &value);
  if (found.IsNotFound()) return absl::OkStatus();
  if (!found.ok()) return CloseOnFailure(ToStatus(found, options_.path));
  absl::StatusOr<BlockHeader> header = DecodeBlockRecord(BytesOf(value));
  if (!header.ok()) return absl::OkStatus();  // the next load drops it
  header->last_access_ms = times.last_access_ms;
  header->pinned_until_s = times.pinned_until_s;
  Put({slot, *header});
  return absl::OkStatus();
}

void RocksStore::KeepTime(int64_t wall_ms) {
  if (wall_ms <= kept_time_ms_) return;
  kept_time_ms_ = wall_ms;
  batch_->Put(kTimeKey, rocksdb::Slice(reinterpret_cast<const char*>(&wall_ms), sizeof(wall_ms)));
}

void RocksStore::PutErasure(const ErasureRecord& record) {
  erasures_[record.id] = record;
  batch_->Put(ErasureKey(record.id), EncodeErasure(record));
}

void RocksStore::EndErasure(uint64_t id) {
  erasures_.erase(id);
  owed_ends_.insert(id);
  batch_->Delete(ErasureKey(id));
}

std::vector<ErasureRecord> RocksStore::Erasures() const {
  std::vector<ErasureRecord> erasures;
  erasures.reserve(erasures_.size());
  for (const auto& [id, erasure] : erasures_) erasures.push_back(erasure);
  return erasures;
}

absl::Status RocksStore::ReadErasures() {
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  const rocksdb::Slice first(&kErasurePrefix, 1);
  for (it->Seek(first); it->Valid() && it->key().starts_with(first); it->Next()) {
    if (it->key().size() != kErasureKeyBytes) continue;
    const uint64_t id = ErasureOfKey(it->key());
    absl::StatusOr<ErasureRecord> erasure = DecodeErasure(id, {it->value().data(), it->value().size()});
    if (erasure.ok()) {
      erasures_[id] = *std::move(erasure);
    } else {
      Log(LogLevel::kError, "catalog", "a receipt is lost: ", std::string(erasure.status().message()));
    }
  }
  const absl::Status status = ToStatus(it->status(), options_.path);
  it.reset();  // before the database may be closed
  return CloseOnFailure(status);
}

void RocksStore::Delete(SlotId slot) {
  owed_deletes_.insert(slot.value());
  batch_->Delete(SlotKey(slot));
}

size_t RocksStore::collected() const { return batch_->Count(); }

absl::Status RocksStore::Closed() const {
  return absl::UnavailableError(absl::StrCat("catalog ", options_.path, " is closed after a failure"));
}

// The packaged RocksDB asserts that nobody syncs or appends to a log after an append to it failed, and it may refuse
// writes long after there is space again: what failed is closed at once and opened anew.
absl::Status RocksStore::CloseOnFailure(absl::Status status) {
  damaged_ = damaged_ || absl::IsDataLoss(status);
  if (!status.ok()) db_.reset();
  return status;
}

absl::Status RocksStore::Commit(bool sync) {
  if (batch_->Count() == 0) return absl::OkStatus();
  if (db_ == nullptr) {
    batch_->Clear();
    return Closed();
  }
  rocksdb::WriteOptions options;
  options.sync = sync;
  const rocksdb::Status status = db_->Write(options, batch_.get());
  batch_->Clear();
  if (status.ok()) {
    owed_deletes_.clear();
    owed_ends_.clear();
  }
  return CloseOnFailure(ToStatus(status, options_.path));
}

void RocksStore::Discard() { batch_->Clear(); }

void RocksStore::CollectTombstone(const OwnerUidHash& owner, int64_t before_wall_ms) {
  const rocksdb::Slice value(reinterpret_cast<const char*>(&before_wall_ms), sizeof(before_wall_ms));
  batch_->Put(TombstoneKey(owner), value);
}

absl::Status RocksStore::PutTombstone(const OwnerUidHash& owner, int64_t before_wall_ms) {
  const auto known = tombstones_.find(owner);
  const int64_t before = known == tombstones_.end() ? before_wall_ms : std::max(known->second, before_wall_ms);
  // First: what cannot be written now holds all the same, and a Reopen puts it.
  tombstones_[owner] = before;
  CollectTombstone(owner, before);
  return Commit(true);
}

absl::Status RocksStore::Sync() {
  if (db_ == nullptr) return Closed();
  return CloseOnFailure(ToStatus(db_->SyncWAL(), options_.path));
}

absl::Status RocksStore::Load(absl::FunctionRef<bool(std::vector<CatalogRecord>)> batch) {
  if (db_ == nullptr) return Closed();
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options));
  const rocksdb::Slice first_slot(&kSlotPrefix, 1);
  std::vector<CatalogRecord> records;
  uint64_t unreadable = 0, condemned_seen = 0;
  const auto covered = [&](const BlockHeader& header) {
    const auto tombstone = tombstones_.find(header.identity.owner);
    return tombstone != tombstones_.end() && header.first_commit_ms < tombstone->second;
  };
  for (const bool condemned : {false, true}) {
    // A search begun anew forgets what went wrong in the last one.
    if (condemned && (condemned_seen == 0 || !it->status().ok())) break;
    for (it->Seek(first_slot); it->Valid() && it->key().starts_with(first_slot); it->Next()) {
      const absl::StatusOr<BlockHeader> header = DecodeBlockRecord(BytesOf(it->value()));
      if (!header.ok() || it->key().size() != kSlotKeyBytes) {
        if (condemned) continue;
        ++unreadable;
        // What is too much for one batch is left for the next start.
        if (batch_->Count() < kCatalogBatchOpsMax) batch_->Delete(it->key());
        continue;
      }
      if (covered(*header) != condemned) {
        ++condemned_seen;
        continue;
      }
      records.push_back({SlotOfKey(it->key()), *header, condemned});
      if (records.size() < kRecoveryBatchMax) continue;
      if (!batch(std::exchange(records, {}))) return absl::CancelledError("closing");
    }
  }
  const absl::Status status = ToStatus(it->status(), options_.path);
  it.reset();  // before the database may be closed
  KV_RETURN_IF_ERROR(CloseOnFailure(status));
  if (unreadable > 0) Log(LogLevel::kWarning, "catalog", unreadable, " records are unreadable and are dropped");
  if (!records.empty() && !batch(std::move(records))) return absl::CancelledError("closing");
  return Commit(false);
}

absl::Status RocksStore::Reopen() {
  batch_->Clear();
  db_.reset();
  if (damaged_) KV_RETURN_IF_ERROR(SetAside(absl::DataLossError("a part of it could not be read")));
  damaged_ = false;
  absl::Status status = OpenFolder(SetAsideWhen::kDamaged);
  if (!status.ok()) {
    db_.reset();
    return status;
  }
  return PutOwed();
}

absl::Status RocksStore::PutOwed() {
  for (const uint64_t id : owed_ends_) batch_->Delete(ErasureKey(id));
  for (const uint32_t slot : owed_deletes_) batch_->Delete(SlotKey(SlotId(slot)));
  for (const auto& [id, erasure] : erasures_) batch_->Put(ErasureKey(id), EncodeErasure(erasure));
  for (const auto& [owner, before] : tombstones_) CollectTombstone(owner, before);
  return Commit(true);
}

}  // namespace kvartal::tier
