#include "tests/sim/disk.h"

#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::sim {
namespace {

constexpr uint64_t kSeedsApart = 7919;  // of the disks of a node

}  // namespace

Disk::Disk(const Plan& plan, uint32_t place)
    : plan_(plan),
      place_(place),
      random_(plan.seed + place * kSeedsApart),
      disk_(testing::MakeFakeDisk(plan.disk_bytes(place))),
      catalog_disk_(std::make_shared<testing::CatalogDisk>()) {}

Disk::~Disk() = default;

void Disk::Open(uint64_t boot) {
  disk_queue_ = std::make_unique<testing::ManualExecutor>();
  catalog_queue_ = std::make_unique<testing::ManualExecutor>();
  auto file = testing::FakeBlockFile::Open(disk_, disk_queue_.get());
  KV_CHECK(file.ok());
  file_ = *std::move(file);
  const uint64_t seed = plan_.seed + boot + place_ * kSeedsApart;
  file_->SetQueueMax(plan_.disk_queue_max);
  if ((plan_.faulty_disks & tier::SetOfDisk(place_)) != 0) file_->SetFaultRates(plan_.disk_faults, seed);
  file_->SetReorder(plan_.reorder, seed);
  lying_file_ = std::make_unique<LyingFile>(file_.get(), plan_.planted, disk_queue_.get());
  held_ = overdue_ = told_to_hang_ = false;
}

std::unique_ptr<tier::NvmeCatalog> Disk::OpenCatalog() {
  auto catalog = std::make_unique<testing::FakeCatalog>(catalog_queue_.get(), catalog_disk_);
  catalog->SetQueueMax(plan_.catalog_queue_max);
  catalog_ = catalog.get();
  return catalog;
}

void Disk::Close() {
  catalog_ = nullptr;
  lying_file_.reset();
  file_.reset();
  disk_queue_.reset();
  catalog_queue_.reset();
}

void Disk::Replace() {
  KV_CHECK(!is_open());
  disk_ = testing::MakeFakeDisk(plan_.disk_bytes(place_));
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  synced_records_.clear();
}

void Disk::Kill(bool power_cut, Random* random) {
  file_->Kill(random->Next());
  if (power_cut) file_->LoseRecentWrites(random->Next());
}

// Salts lie in a file of their own.
void Disk::LoseCatalog() {
  auto salts = std::move(catalog_disk_->salts);
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  catalog_disk_->salts = std::move(salts);
}

void Disk::Hold() {
  held_ = true;
  file_->Hold();
}

void Disk::Hang(uint32_t after_questions) {
  overdue_ = told_to_hang_ = true;
  if (after_questions == 0) file_->SetOverdue(1);
  file_->SetOverdueAfter(after_questions);
}

void Disk::EndTrouble() {
  held_ = told_to_hang_ = false;
  file_->Release();
  FailLost();
  catalog_->Release();
  catalog_->FailWrites(absl::OkStatus());
}

void Disk::FailLost() {
  if (!held_ && !told_to_hang_) {
    overdue_ = false;
    file_->SetOverdue(0);
  }
  file_->FailLost();
}

void Disk::NoteTime(int64_t now_ms) {
  const bool keeps = (held_ && file_->Pending() > 0) || file_->Lost() > 0;
  if (!keeps) at_work_ms_ = now_ms;
  if (overdue_ || now_ms - at_work_ms_ < kIoDeadlineMs) return;
  overdue_ = true;
  file_->SetOverdueAfter(random_.Between(1, kQuestionsMax));
}

}  // namespace kvartal::sim
