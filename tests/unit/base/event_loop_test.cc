#include "daemon/base/event_loop.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <memory>
#include <thread>
#include <vector>

namespace kvartal {
namespace {

using ::testing::ElementsAre;

UniqueFd ReadyFd() { return UniqueFd(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)); }

void Drain(int fd) {
  uint64_t value;
  ASSERT_EQ(::read(fd, &value, sizeof(value)), static_cast<ssize_t>(sizeof(value)));
}

class EventLoopTest : public ::testing::Test {
 protected:
  void SetUp() override { loop_ = *EventLoop::Create(&clock_); }

  ManualClock clock_;
  std::unique_ptr<EventLoop> loop_;
};

TEST_F(EventLoopTest, AReadyFdIsServedOnceARound) {
  const UniqueFd fd = ReadyFd();
  int calls = 0;
  ASSERT_TRUE(loop_->Add(fd.get(), EPOLLIN, [&](uint32_t events) { calls += (events & EPOLLIN) != 0 ? 1 : 100; }).ok());
  loop_->RunOnce(0);
  loop_->RunOnce(0);
  EXPECT_EQ(calls, 2);
  Drain(fd.get());
  loop_->RunOnce(0);
  EXPECT_EQ(calls, 2);
}

TEST_F(EventLoopTest, ACallbackMayRemoveItsOwnFd) {
  const UniqueFd fd = ReadyFd();
  auto alive = std::make_shared<int>(0);
  ASSERT_TRUE(loop_
                  ->Add(fd.get(), EPOLLIN,
                        [this, number = fd.get(), alive](uint32_t) {
                          loop_->Remove(number);
                          ++*alive;  // the captures must still be there
                        })
                  .ok());
  loop_->RunOnce(0);
  loop_->RunOnce(0);
  EXPECT_EQ(*alive, 1);
  EXPECT_EQ(alive.use_count(), 1) << "the callback was not released";
}

TEST_F(EventLoopTest, AnFdRemovedByAnotherCallbackOfTheRoundIsNotServed) {
  const UniqueFd fds[2] = {ReadyFd(), ReadyFd()};
  int calls = 0;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(loop_
                    ->Add(fds[i].get(), EPOLLIN,
                          [&, other = fds[1 - i].get()](uint32_t) {
                            ++calls;
                            loop_->Remove(other);
                          })
                    .ok());
  }
  loop_->RunOnce(0);
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, AnFdNumberReusedInARoundDoesNotGetItsPredecessorsEvents) {
  const UniqueFd fds[2] = {ReadyFd(), ReadyFd()};
  const UniqueFd silent(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  int old_calls = 0;
  int new_calls = 0;
  // Whichever comes first closes the other and puts a silent fd under its number.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(loop_
                    ->Add(fds[i].get(), EPOLLIN,
                          [&, own = fds[i].get(), other = fds[1 - i].get()](uint32_t) {
                            ++old_calls;
                            loop_->Remove(own);
                            loop_->Remove(other);
                            ASSERT_EQ(::dup3(silent.get(), other, O_CLOEXEC), other);
                            ASSERT_TRUE(loop_->Add(other, EPOLLIN, [&](uint32_t) { ++new_calls; }).ok());
                          })
                    .ok());
  }
  loop_->RunOnce(0);
  EXPECT_EQ(old_calls, 1);
  EXPECT_EQ(new_calls, 0) << "an event of the closed fd reached its successor";
  // The successor is served from the next round on.
  const uint64_t one = 1;
  ASSERT_EQ(::write(silent.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  loop_->RunOnce(0);
  EXPECT_EQ(new_calls, 1);
}

TEST_F(EventLoopTest, AddingAnFdTwiceFailsAndKeepsTheFirst) {
  const UniqueFd fd = ReadyFd();
  int first = 0;
  int second = 0;
  ASSERT_TRUE(loop_->Add(fd.get(), EPOLLIN, [&](uint32_t) { ++first; }).ok());
  EXPECT_FALSE(loop_->Add(fd.get(), EPOLLIN, [&](uint32_t) { ++second; }).ok());
  loop_->RunOnce(0);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 0);
}

TEST_F(EventLoopTest, ModifyChangesWhatIsWaitedFor) {
  const UniqueFd fd = ReadyFd();
  uint32_t seen = 0;
  ASSERT_TRUE(loop_->Add(fd.get(), EPOLLIN, [&](uint32_t events) { seen |= events; }).ok());
  ASSERT_TRUE(loop_->Modify(fd.get(), EPOLLOUT).ok());
  loop_->RunOnce(0);
  EXPECT_EQ(seen, static_cast<uint32_t>(EPOLLOUT));
  loop_->Remove(fd.get());
  EXPECT_FALSE(loop_->Modify(fd.get(), EPOLLIN).ok());
}

TEST_F(EventLoopTest, TimersRunWhenDueInOrderOfDueTimeThenOfCreation) {
  std::vector<int> ran;
  loop_->RunAfterMs(20, [&] { ran.push_back(3); });
  loop_->RunAfterMs(10, [&] { ran.push_back(1); });
  loop_->RunAfterMs(10, [&] { ran.push_back(2); });
  clock_.AdvanceMs(9);
  loop_->RunOnce(0);
  EXPECT_TRUE(ran.empty());
  clock_.AdvanceMs(1);
  loop_->RunOnce(0);
  EXPECT_THAT(ran, ElementsAre(1, 2));
  clock_.AdvanceMs(10);
  loop_->RunOnce(0);
  EXPECT_THAT(ran, ElementsAre(1, 2, 3));
}

TEST_F(EventLoopTest, ACancelledTimerNeverRunsNotEvenInItsOwnRound) {
  std::vector<int> ran;
  EventLoop::TimerId second = 0;
  loop_->RunAfterMs(5, [&] {
    ran.push_back(1);
    loop_->CancelTimer(second);
  });
  second = loop_->RunAfterMs(5, [&] { ran.push_back(2); });
  const EventLoop::TimerId third = loop_->RunAfterMs(5, [&] { ran.push_back(3); });
  loop_->CancelTimer(third);
  loop_->CancelTimer(third);  // again: nothing happens
  clock_.AdvanceMs(100);
  loop_->RunOnce(0);
  loop_->RunOnce(0);
  EXPECT_THAT(ran, ElementsAre(1));
}

TEST_F(EventLoopTest, PostsOfManyThreadsAllRunAndKeepTheOrderOfEach) {
  constexpr int kThreads = 4;
  constexpr int kPosts = 1000;
  std::vector<int> next(kThreads, 0);
  bool in_order = true;
  int left = kThreads * kPosts;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kPosts; ++i) {
        loop_->Post([&, t, i] {
          in_order = in_order && next[static_cast<size_t>(t)]++ == i;
          if (--left == 0) loop_->Stop();
        });
      }
    });
  }
  loop_->Run();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(left, 0);
  EXPECT_TRUE(in_order);
}

TEST_F(EventLoopTest, ACallbackPostedByACallbackWakesTheNextRound) {
  int depth = 0;
  loop_->Post([&] {
    ++depth;
    loop_->Post([&] { ++depth; });
  });
  loop_->RunOnce(-1);
  EXPECT_EQ(depth, 1);
  loop_->RunOnce(-1);
  EXPECT_EQ(depth, 2);
}

TEST_F(EventLoopTest, AStopThatComesBeforeRunEndsIt) {
  loop_->Stop();
  loop_->Run();
}

TEST_F(EventLoopTest, AnotherThreadStopsALoopThatWaits) {
  std::thread stopper([this] { loop_->Stop(); });
  loop_->Run();
  stopper.join();
}

TEST(EventLoopClockTest, ATimerEndsAWaitWithoutLimit) {
  const SystemClock clock;
  const std::unique_ptr<EventLoop> loop = *EventLoop::Create(&clock);
  bool fired = false;
  loop->RunAfterMs(1, [&] { fired = true; });
  while (!fired) loop->RunOnce(-1);
}

}  // namespace
}  // namespace kvartal
