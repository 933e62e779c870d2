#include "tests/fake_engine/fake_engine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "tests/support/daemon_process.h"

namespace kvartal::fake_engine {
namespace {

struct Model {
  const char* name;
  std::vector<LayerGroup> groups;
  uint32_t ranks;
  bool latent;
};

std::vector<Model> Models() {
  const LayerGroup full{"full", 4, 4, 16, 512}, window{"window", 3, 4, 32, 512}, latent{"latent", 4, 1, 16, 1152};
  return {{"grouped_heads", {full}, 1, false},
          {"two_ranks", {full}, 2, false},
          {"latent_two_ranks", {latent}, 2, true},
          {"hybrid_two_ranks", {full, window}, 2, false}};
}

const char* NameOf(kernels::PageOrder order) {
  static constexpr std::array kNames = {"LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"};
  return kNames[static_cast<size_t>(order)];
}

// KVARTAL_STORM_SEED, added to every seed below: another number is another run of each test. 0 when it is not set.
uint64_t StormSeed() {
  const char* const given = std::getenv("KVARTAL_STORM_SEED");
  return given == nullptr ? 0 : std::strtoull(given, nullptr, 10);
}

// Prompts that share prefixes as conversations do: each goes on from one before, from any of its turns.
class Prompts {
 public:
  Prompts(uint32_t chunk_tokens, uint64_t seed) : chunk_tokens_(chunk_tokens), random_(seed + StormSeed()) {}

  std::vector<uint32_t> Next() {
    std::vector<uint32_t> prompt;
    if (!made_.empty() && random_() % 4 != 0) {
      const std::vector<uint32_t>& before = made_[random_() % made_.size()];
      const size_t chunks = random_() % (before.size() / chunk_tokens_) + 1;
      prompt.assign(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(chunks * chunk_tokens_));
    }
    const size_t more = prompt.size() / chunk_tokens_ >= kChunksMax ? 0 : 1 + random_() % 3;
    for (size_t i = 0; i < more * chunk_tokens_; ++i) prompt.push_back(static_cast<uint32_t>(random_() % 50'000));
    made_.push_back(prompt);
    return prompt;
  }

 private:
  static constexpr size_t kChunksMax = 12;
  const uint32_t chunk_tokens_;
  std::mt19937_64 random_;
  std::vector<std::vector<uint32_t>> made_;
};

// Memory for a part of what is stored, so that it is evicted, loaded from NVMe and refused.
testing::DaemonOptions SmallNode() {
  testing::DaemonOptions options;
  options.dram_size = "64Mi";
  options.nvme_size = "64Mi";
  options.manifests = testing::TenantManifest("own", absl::StrCat("uid: ", ::getuid()), "8Mi", "16Mi");
  return options;
}

class FakeEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::cout << "KVARTAL_STORM_SEED=" << StormSeed() << std::endl;
    ASSERT_TRUE(daemon_.Start().ok());
  }

  std::unique_ptr<FakeEngine> Start(const Model& model, kernels::PageOrder order, uint64_t seed) {
    auto engine = FakeEngine::Start({.socket = daemon_.attach_socket(),
                                     .groups = model.groups,
                                     .ranks = model.ranks,
                                     .latent = model.latent,
                                     .order = order,
                                     .seed = seed + StormSeed()});
    EXPECT_TRUE(engine.ok()) << engine.status();
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  // Serves `requests` prompts to their end; `between` runs before each.
  static void Serve(FakeEngine* engine, Prompts* prompts, int requests, const std::function<void(int)>& between = {}) {
    for (int i = 0; i < requests; ++i) {
      if (between) between(i);
      engine->Submit(prompts->Next());
      engine->Step();
      engine->Step();
    }
    while (!engine->idle()) engine->Step();
  }

  testing::DaemonProcess daemon_{SmallNode()};
};

class FakeEngineModelTest : public FakeEngineTest, public ::testing::WithParamInterface<size_t> {};

TEST_P(FakeEngineModelTest, EveryPageOfEveryRequestIsRightInAnyOrderOfPages) {
  const Model model = Models()[GetParam()];
  EngineStats sum;
  for (const kernels::PageOrder order : kernels::kPageOrders) {
    // The same prompts again: what an engine of one order of pages stored, one of another loads.
    const auto engine = Start(model, order, 1 + static_cast<uint64_t>(order));
    ASSERT_NE(engine, nullptr);
    Prompts prompts(engine->chunk_tokens(), 7);
    Serve(engine.get(), &prompts, 60);
    const EngineStats& stats = engine->stats();
    EXPECT_EQ(stats.wrong, 0u) << NameOf(order);
    EXPECT_GT(stats.finished, 0u) << NameOf(order);
    // The first has nothing to load but its own.
    EXPECT_TRUE(order == kernels::PageOrder::kLBHNC || stats.loaded > 0) << NameOf(order);
    sum.preempted += stats.preempted;
    sum.aborted += stats.aborted;
    sum.shared += stats.shared;
    sum.stored += stats.stored;
    sum.given_back += stats.given_back;
    sum.gave_up_loading += stats.gave_up_loading;
  }
  // What the test is for did happen.
  EXPECT_GT(sum.preempted, 0u);
  EXPECT_GT(sum.aborted, 0u);
  EXPECT_GT(sum.shared, 0u);
  EXPECT_GT(sum.stored, 0u);
  EXPECT_GT(sum.given_back, 0u);
  EXPECT_GT(sum.gave_up_loading, 0u);
}

INSTANTIATE_TEST_SUITE_P(Models, FakeEngineModelTest, ::testing::Range(size_t{0}, Models().size()),
                         [](const auto& number) { return std::string(Models()[number.param].name); });

TEST_F(FakeEngineTest, ADaemonThatIsKilledCostsNoRightPage) {
  const Model model = Models()[1];
  const auto engine = Start(model, kernels::PageOrder::kBLHNC, 3);
  ASSERT_NE(engine, nullptr);
  Prompts prompts(engine->chunk_tokens(), 11);
  Serve(engine.get(), &prompts, 60, [&](int request) {
    if (request % 20 != 10) return;
    daemon_.Kill();
    const absl::Status started = daemon_.Start();
    ASSERT_TRUE(started.ok()) << started;
  });
  EXPECT_EQ(engine->stats().wrong, 0u);
  EXPECT_GT(engine->stats().loaded, 0u);
}

// The control of all others.
TEST_F(FakeEngineTest, AnEngineThatLoadsForAnotherRankIsFoundOut) {
  const Model model = Models()[1];
  auto engine = FakeEngine::Start({.socket = daemon_.attach_socket(),
                                   .groups = model.groups,
                                   .ranks = model.ranks,
                                   .order = kernels::PageOrder::kLBHNC,
                                   .seed = 4 + StormSeed(),
                                   .mixes_up_ranks = true});
  ASSERT_TRUE(engine.ok()) << engine.status();
  Prompts prompts((*engine)->chunk_tokens(), 17);
  Serve(engine->get(), &prompts, 60);
  EXPECT_GT((*engine)->stats().wrong, 0u);
}

TEST_F(FakeEngineTest, TwoEnginesAtOnceShareWhatTheyStore) {
  const Model model = Models()[3];
  const auto first = Start(model, kernels::PageOrder::kLBHNC, 5), second = Start(model, kernels::PageOrder::kBHLNC, 6);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  Prompts prompts(first->chunk_tokens(), 13), same_prompts(first->chunk_tokens(), 13);
  for (int i = 0; i < 60; ++i) {
    first->Submit(prompts.Next());
    second->Submit(same_prompts.Next());
    for (int step = 0; step < 2; ++step) {
      first->Step();
      second->Step();
    }
  }
  while (!first->idle()) first->Step();
  while (!second->idle()) second->Step();
  EXPECT_EQ(first->stats().wrong + second->stats().wrong, 0u);
  EXPECT_GT(first->stats().loaded + second->stats().loaded, 0u);
}

}  // namespace
}  // namespace kvartal::fake_engine
