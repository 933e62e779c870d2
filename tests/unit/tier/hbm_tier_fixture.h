// Two GPUs of fake memory, a tier on each, and who hears of their slabs.
// Confined to the thread of the test.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/base/clock.h"
#include "daemon/tier/hbm_tier.h"
#include "tests/support/fake_slab_memory.h"
#include "tests/support/manual_executor.h"

namespace kvartal::tier {

struct HeardOfSlabs : public SlabObserver {
  void OnGranted(const SlabInfo& slab) override { granted.push_back(slab); }
  void OnRecall(const SlabInfo& slab) override { recalled.push_back(slab); }
  void OnLetGo(DomainId domain) override { let_go.push_back(domain); }

  std::vector<SlabInfo> granted, recalled;
  std::vector<DomainId> let_go;
};

class HbmTierTest : public ::testing::Test {
 protected:
  static constexpr DomainId kA{0}, kB{3};
  static constexpr PeerId kPod{7}, kOtherPod{8};
  static constexpr uint32_t kSlot = 512 * kKiB;
  static constexpr int kGpus[] = {0, 1};

  HbmTierTest() {
    for (HbmTier* tier : {&tier_, &other_gpu_}) {
      tier->OpenDomain(kA, kGpus);
      tier->OpenDomain(kB, kGpus);
    }
  }
  // Whatever a test does: nobody reaches bytes of another, and the driver gets none back.
  ~HbmTierTest() override {
    EXPECT_EQ(memory_.counts().dirty_exports, 0u);
    EXPECT_EQ(memory_.counts().dirty_releases, 0u);
  }

  static std::optional<absl::Status> StartGrow(HbmTier& tier, DomainId domain, uint64_t bytes,
                                               std::optional<absl::Status>* result) {
    tier.Grow(domain, kSlot, bytes, [result](absl::Status status) { *result = std::move(status); });
    return *result;
  }
  absl::Status Grow(HbmTier& tier, DomainId domain, uint64_t bytes) {
    std::optional<absl::Status> result;
    StartGrow(tier, domain, bytes, &result);
    executor_.RunAll();
    KV_CHECK(result.has_value());
    return *result;
  }
  // A slab that is there, with a descriptor of it at `peer`.
  SlabId Granted(DomainId domain, uint64_t bytes, PeerId peer) {
    KV_CHECK(Grow(tier_, domain, bytes).ok());
    const SlabId slab = heard_.granted.back().id;
    KV_CHECK(tier_.Grant(domain, slab, peer).ok());
    return slab;
  }
  SlabState StateOf(DomainId domain, SlabId id) const {
    for (const SlabInfo& slab : tier_.slabs(domain)) {
      if (slab.id == id) return slab.state;
    }
    return SlabState::kFree;
  }
  uint64_t Shrink(DomainId domain, uint64_t keep = 0) {
    return tier_.Shrink(domain, keep, [this] { ++shrinks_ended_; });
  }

  static constexpr uint64_t kCapacity = 64 * kMiB;
  testing::ManualExecutor executor_;
  testing::FakeSlabMemory memory_{&executor_};
  ManualClock clock_;
  HeardOfSlabs heard_;
  HbmTier tier_{&memory_, 0, kCapacity, &clock_, &heard_};
  HbmTier other_gpu_{&memory_, 1, kCapacity, &clock_, &heard_};
  int shrinks_ended_ = 0;
};

}  // namespace kvartal::tier
