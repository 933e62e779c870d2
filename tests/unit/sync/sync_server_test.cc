// The gRPC end before peers that nobody knows: what they can make the operator hold and wait for.
#include "operator/sync/sync_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "crds/policy_sync.grpc.pb.h"
#include "daemon/base/mutex.h"

namespace kvartal::sync {
namespace {

using ::testing::HasSubstr;

// A peer that begins a stream and says as much as it is told to.
// Thread-safe.
// Invariant: gRPC is done with it before it is destroyed.
class Peer final : public grpc::ClientBidiReactor<v1::NodeMessage, v1::OperatorMessage> {
 public:
  Peer(v1::PolicySync::Stub* stub, int messages) : left_(messages) {
    said_.mutable_hello()->set_node("n");
    stub->async()->Follow(&context_, this);
    StartRead(&heard_);
    if (left_ > 0) StartWrite(&said_);
    StartCall();
  }
  ~Peer() override {
    context_.TryCancel();
    MutexLock lock(mutex_);
    while (!done_) condition_.Wait(mutex_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void OnWriteDone(bool ok) override {
    if (ok && --left_ > 0) StartWrite(&said_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    ++reads_;
    StartRead(&heard_);
  }
  void OnDone(const grpc::Status& status) override {
    MutexLock lock(mutex_);
    status_ = status;
    done_ = true;
    condition_.NotifyAll();
  }
  bool AllSaid() const { return left_ == 0; }
  int reads() const { return reads_; }
  // Why it was ended; "": it was not.
  std::string Ended() const {
    MutexLock lock(mutex_);
    return done_ ? status_.error_message() : "";
  }

 private:
  grpc::ClientContext context_;
  v1::NodeMessage said_;
  v1::OperatorMessage heard_;
  std::atomic<int> left_, reads_ = 0;
  mutable Mutex mutex_;
  Condition condition_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
};

class SyncServerTest : public ::testing::Test {
 protected:
  SyncServerTest() : loop_(*EventLoop::Create(&clock_)) {
    auto server = SyncServer::Start({.address = "127.0.0.1:0", .cert_file = "", .key_file = ""}, loop_.get(),
                                    {.on_message =
                                         [this](StreamId stream, const std::string&, const v1::NodeMessage&) {
                                           ++handled_;
                                           last_ = stream;
                                           if (during_) during_();
                                         },
                                     .on_end = [this](StreamId) { ++ended_; }});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::PolicySync::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials()));
  }
  // False: not within what any test should wait.
  bool Run(const std::function<bool()>& until) {
    for (int round = 0; round < 3000 && !until(); ++round) loop_->RunOnce(10);
    return until();
  }

  ManualClock clock_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<SyncServer> server_;
  std::unique_ptr<v1::PolicySync::Stub> stub_;
  int handled_ = 0, ended_ = 0;
  StreamId last_ = 0;
  std::function<void()> during_;
};

// Each waited for the loop as soon as it came: a peer that nobody knew could fill the loop's queue, which ends the
// process.
TEST_F(SyncServerTest, OfOneStreamOneMessageWaitsForTheLoop) {
  constexpr int kMessages = 64;
  Peer peer(stub_.get(), kMessages);
  // While the first is handled, all the others arrive.
  during_ = [&] {
    while (!peer.AllSaid()) std::this_thread::yield();
    during_ = nullptr;
  };
  int most = 0;
  ASSERT_TRUE(Run([&, before = 0]() mutable {
    most = std::max(most, handled_ - std::exchange(before, handled_));
    return handled_ == kMessages;
  }));
  EXPECT_EQ(most, 1);
}

TEST_F(SyncServerTest, WhoSaysNothingIsLetGoAndWhoSpokeIsNot) {
  Peer speaks(stub_.get(), 1);
  ASSERT_TRUE(Run([&] { return handled_ == 1; }));
  {
    Peer silent(stub_.get(), 0);
    ASSERT_TRUE(Run([&] {
      clock_.AdvanceMs(kHelloMs);
      return !silent.Ended().empty();
    }));
    EXPECT_THAT(silent.Ended(), HasSubstr("no Hello in time"));
  }
  ASSERT_TRUE(Run([&] { return ended_ == 1; }));
  EXPECT_EQ(speaks.Ended(), "");
  server_->Send(last_, std::make_shared<v1::OperatorMessage>());
  EXPECT_TRUE(Run([&] { return speaks.reads() == 1; }));
}

TEST_F(SyncServerTest, StrangersBeyondTheBoundAreToldToComeAgainAndWhoIsKnownIsNone) {
  std::vector<std::unique_ptr<Peer>> known, strangers;
  for (int i = 0; i < 8; ++i) known.push_back(std::make_unique<Peer>(stub_.get(), 1));
  ASSERT_TRUE(Run([&] { return handled_ == 8; }));
  // The loop does not turn while they come.
  for (size_t i = 0; i < kStrangersMax + 3; ++i) strangers.push_back(std::make_unique<Peer>(stub_.get(), 0));
  const auto refused = [&] {
    size_t count = 0;
    for (const auto& peer : strangers) count += peer->Ended().find("come again") != std::string::npos;
    return count;
  };
  while (refused() < 3) std::this_thread::yield();
  EXPECT_EQ(refused(), 3u);
  EXPECT_EQ(server_->refused(), 3u);
  strangers.clear();
  ASSERT_TRUE(Run([&] { return ended_ == kStrangersMax; }));
  Peer later(stub_.get(), 1);
  EXPECT_TRUE(Run([&] { return handled_ == 9; })) << "there is room again";
  for (const auto& peer : known) EXPECT_EQ(peer->Ended(), "");
}

}  // namespace
}  // namespace kvartal::sync
