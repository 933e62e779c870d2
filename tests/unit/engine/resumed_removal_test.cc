// A removal and what a restart does to it: its date stays its own, no block of the past is dated after it, and what
// could not be looked at is not certified.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

class ResumedRemovalTest : public EngineTest {
 protected:
  void StartOne() {
    options_.removed_grace_ms = 5000;
    Start({Rules("a/p", 16 * kMiB, 32 * kMiB)});
  }
  void Drop() {
    engine_->DropTenant(engine_->FindTenant("a/p"), [](const absl::StatusOr<uint64_t>&) {});
  }
};

// Else their records would outlive the removal when its deletions are lost.
TEST_F(ResumedRemovalTest, BlocksAreDatedBeforeItThoughTheClockWasSetBackOverARestart) {
  StartOne();
  AdvanceMs(10'000);
  Store("a/p", Open("a/p"), Chain(1, 6));
  Pump();
  clock_.SetWallBy(-30'000);
  Restart();
  ASSERT_EQ(Matched(Open("a/p"), Chain(1, 6)), 6u);
  file_->Hold();
  Drop();
  Pump();
  ASSERT_EQ(catalog_disk_->tombstones.size(), 1u);
  catalog_->Hold();
  file_->Release();
  AdvanceMs(300);
  ASSERT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  ASSERT_EQ(catalog_disk_->records.size(), 6u) << "of what is zeros already";
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 0u);
  AdvanceMs(500);
  EXPECT_TRUE(catalog_disk_->records.empty());
}

// Nor is the date of a block in the headers, all that is left when the catalog is lost, believed when it is to come.
TEST_F(ResumedRemovalTest, BlocksFoundByTheirHeadersAreDatedBeforeItToo) {
  StartOne();
  AdvanceMs(10'000);
  Store("a/p", Open("a/p"), Chain(1, 6));
  Pump();
  clock_.SetWallBy(-30'000);
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  Restart();
  ASSERT_EQ(Matched(Open("a/p"), Chain(1, 6)), 6u);
  file_->Hold();
  Drop();
  Pump();
  catalog_->Hold();
  file_->Release();
  AdvanceMs(300);
  ASSERT_EQ(catalog_disk_->records.size(), 6u);
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 0u);
}

}  // namespace
}  // namespace kvartal::engine
