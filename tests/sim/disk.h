// One disk of the node, with its catalog beside it: faults, queue, trouble and what it holds are its own.
// Confined to the thread of the simulation. Invariant: what outlives a crash, and the time it is absent, is its bytes
// and its catalog's folder, nothing else.
#pragma once

#include <map>
#include <memory>
#include <span>

#include "tests/sim/lying_devices.h"
#include "tests/sim/plan.h"
#include "tests/sim/random.h"
#include "tests/support/fake_block_file.h"
#include "tests/support/fake_catalog.h"
#include "tests/support/manual_executor.h"

namespace kvartal::sim {

inline constexpr uint32_t kQuestionsMax = 60;  // of an engine at work, until it sees that a disk hangs

class Disk {
 public:
  Disk(const Plan& plan, uint32_t place);
  ~Disk();

  // For the boot of that number. The catalog goes to who joins them, and ends with him.
  void Open(uint64_t boot);
  std::unique_ptr<tier::NvmeCatalog> OpenCatalog();
  // After whoever used them.
  void Close();
  bool is_open() const { return file_ != nullptr; }
  // Another one, empty, is in its place. REQUIRES: it is closed.
  void Replace();

  // kill -9, or worse, while it is open; the second half is for when it is closed.
  void Kill(bool power_cut, Random* random);
  void CutPower() { file_->CutPower(); }
  void LoseRecentRecords() { catalog_disk_->records = synced_records_; }
  void LoseCatalog();
  void SyncCatalog() { synced_records_ = catalog_disk_->records; }

  // --- trouble
  void Hold();
  void HoldCatalog() { catalog_->Hold(); }
  void FailCatalogWrites() { catalog_->FailWrites(absl::ResourceExhaustedError("no space left")); }
  // It is told to hang, and goes on: a disk whose latest transfers are slow.
  void Hang(uint32_t after_questions = 0);
  void EndTrouble();
  void FailLost();
  // What it has had for too long is overdue, where disks are told apart by that.
  void NoteTime(int64_t now_ms);

  uint32_t place() const { return place_; }
  device::BlockFile* file() { return lying_file_.get(); }
  Executor* catalog_executor() { return catalog_queue_.get(); }
  size_t pending() const { return file_->Pending(); }
  bool overdue() const { return overdue_; }
  size_t backlog() const { return disk_queue_->queued(); }
  testing::ManualExecutor* disk_queue() { return disk_queue_.get(); }
  testing::ManualExecutor* catalog_queue() { return catalog_queue_.get(); }
  const testing::CatalogDisk& records() const { return *catalog_disk_; }
  std::span<const std::byte> bytes() const { return {disk_->bytes.data(), disk_->bytes.size()}; }

 private:
  const Plan& plan_;
  const uint32_t place_;
  Random random_;
  std::shared_ptr<testing::FakeDisk> disk_;
  std::shared_ptr<testing::CatalogDisk> catalog_disk_;
  std::map<uint32_t, tier::BlockHeader> synced_records_;

  std::unique_ptr<testing::ManualExecutor> disk_queue_, catalog_queue_;
  std::unique_ptr<testing::FakeBlockFile> file_;
  std::unique_ptr<LyingFile> lying_file_;
  testing::FakeCatalog* catalog_ = nullptr;  // while it is open
  bool held_ = false;
  bool overdue_ = false;
  bool told_to_hang_ = false;
  int64_t at_work_ms_ = 0;  // when it last had nothing that it does not let go of
};

}  // namespace kvartal::sim
