// What is written to the disk, where, and what is not.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

class WritePathTest : public EngineTest {};

TEST_F(WritePathTest, APromotedBlockKeepsItsCopyAndAnEvictionThenWritesNothing) {
  Start({Rules("a/p", 4 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 16)), 16u);
  Pump();
  ASSERT_EQ(Store("a/p", ns, Chain(100, 16)), 16u);
  Pump();
  const uint64_t written = nvme_->counters().blocks_written;
  ASSERT_EQ(written, 32u);
  // Two chains that do not fit together take each other's place in memory, over and over.
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(LookupAndLoad("a/p", ns, Chain(1, 16)).count, 16u);
    EXPECT_EQ(LookupAndLoad("a/p", ns, Chain(100, 16)).count, 16u);
  }
  EXPECT_GT(TierStatsOf("a/p", TierKind::kDram).evictions(), 200u);
  EXPECT_EQ(nvme_->counters().blocks_written, written);
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::engine
