#include "daemon/base/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace kvartal {
namespace {

// Keeps the one thread of a pool busy until opened.
class Gate {
 public:
  WorkerPool::Work Wait() {
    return [this, opened = opened_.get_future().share()] {
      entered_.set_value();
      opened.wait();
    };
  }
  void UntilEntered() { entered_.get_future().wait(); }
  void Open() { opened_.set_value(); }

 private:
  std::promise<void> entered_;
  std::promise<void> opened_;
};

TEST(WorkerPoolTest, OneThreadRunsWorkInTheOrderOfSubmission) {
  std::vector<int> ran;
  {
    WorkerPool pool("order", 1, 1000);
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pool.TrySubmit([&ran, i] { ran.push_back(i); }));
  }
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(ran, expected);
}

TEST(WorkerPoolTest, AFullQueueRefusesAndTheRefusedWorkNeverRuns) {
  Gate gate;
  std::atomic<int> ran{0};
  std::atomic<int> refused_ran{0};
  {
    WorkerPool pool("full", 1, 2);
    ASSERT_TRUE(pool.TrySubmit(gate.Wait()));
    gate.UntilEntered();
    EXPECT_TRUE(pool.TrySubmit([&] { ++ran; }));
    EXPECT_TRUE(pool.TrySubmit([&] { ++ran; }));
    EXPECT_FALSE(pool.TrySubmit([&] { ++refused_ran; }));
    EXPECT_EQ(pool.Pending(), 3u);
    gate.Open();
  }
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(refused_ran, 0);
}

TEST(WorkerPoolTest, DestructionRunsWhatWasAccepted) {
  std::atomic<int> ran{0};
  Gate gate;
  {
    WorkerPool pool("ending", 1, 100);
    ASSERT_TRUE(pool.TrySubmit(gate.Wait()));
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(pool.TrySubmit([&] { ++ran; }));
    gate.Open();
  }
  EXPECT_EQ(ran, 50);
}

TEST(WorkerPoolTest, WorkAndItsCapturesAreGoneWhenItNoLongerCountsAsPending) {
  auto captured = std::make_shared<int>(0);
  WorkerPool pool("captures", 2, 10);
  ASSERT_TRUE(pool.TrySubmit([captured] { ++*captured; }));
  while (pool.Pending() > 0) std::this_thread::yield();
  EXPECT_EQ(*captured, 1);
  EXPECT_EQ(captured.use_count(), 1);
}

TEST(WorkerPoolTest, TheKernelKnowsItsThreadsByName) {
  std::promise<std::string> name;
  WorkerPool pool("a-name-that-is-too-long", 1, 1);
  ASSERT_TRUE(pool.TrySubmit([&] {
    char text[32] = {};
    pthread_getname_np(pthread_self(), text, sizeof(text));
    name.set_value(text);
  }));
  EXPECT_EQ(name.get_future().get(), "a-name-that-is-");
}

}  // namespace
}  // namespace kvartal
