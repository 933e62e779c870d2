// The admin door over a real socket, with a faked node behind it on a real loop.
#include "daemon/control/admin_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <future>
#include <string>
#include <thread>

#include "daemon/base/clock.h"
#include "daemon/base/limits.h"
#include "daemon/base/unique_fd.h"
#include "daemon/control/admin.grpc.pb.h"

namespace kvartal::control {
namespace {

namespace pb = admin::v1;
using ::testing::HasSubstr;

// A node whose slow answers the test gives by hand.
class FakeNode : public AdminBackend {
 public:
  NodeView View() override {
    ++views;
    on_thread = std::this_thread::get_id();
    return view;
  }
  void Drop(const std::string& tenant, Done<uint64_t> done) override {
    dropped.push_back(tenant);
    if (tenant == "unknown") {
      done(absl::NotFoundError("no tenant unknown; there are: a/b"));
      return;
    }
    pending_drop = std::move(done);
    drop_arrived.set_value();
  }
  void Drain(Done<bool> done) override { done(true); }
  void ReloadPolicy(Done<PolicyReload> done) override {
    if (!reload_error.ok()) return done(reload_error);
    done(PolicyReload{"v2", {"a limit above capacity"}});
  }
  void CheckInvariants(Done<uint64_t> done) override { done(absl::InternalError("dram: 4096 bytes too many")); }

  NodeView view;
  int views = 0;
  std::thread::id on_thread;
  std::vector<std::string> dropped;
  Done<uint64_t> pending_drop;
  std::promise<void> drop_arrived;
  absl::Status reload_error;
};

class AdminServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/kvartal-admin-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/admin.sock";
    loop_ = *EventLoop::Create(&clock_);
    auto server = AdminServer::Start(path_, loop_.get(), &node_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    thread_ = std::thread([this] { loop_->Run(); });
    stub_ = pb::Admin::NewStub(grpc::CreateChannel("unix:" + path_, grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    server_.reset();
    loop_->Stop();
    if (thread_.joinable()) thread_.join();
    std::filesystem::remove_all(folder_);
  }
  void OnLoop(std::function<void()> work) {
    std::promise<void> done;
    loop_->Post([&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }

  SystemClock clock_;
  std::string folder_, path_;
  FakeNode node_;
  std::unique_ptr<EventLoop> loop_;
  std::thread thread_;
  std::unique_ptr<AdminServer> server_;
  std::unique_ptr<pb::Admin::Stub> stub_;
};

TEST_F(AdminServerTest, OnlyTheOwnerMayConnect) {
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST_F(AdminServerTest, AnswersFromTheLoopThread) {
  node_.view.version = "1.2.3";
  node_.view.engine.entries = 7;
  grpc::ClientContext context;
  pb::StatusReply reply;
  const grpc::Status status = stub_->GetStatus(&context, {}, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.version(), "1.2.3");
  EXPECT_EQ(reply.entries(), 7u);
  EXPECT_EQ(reply.pid(), static_cast<uint64_t>(::getpid()));
  EXPECT_EQ(node_.on_thread, thread_.get_id());
}

TEST_F(AdminServerTest, AWaitingDropDoesNotHoldUpOthers) {
  std::promise<grpc::Status> dropped;
  pb::DropReply drop_reply;
  std::thread dropper([&] {
    grpc::ClientContext context;
    pb::DropRequest request;
    request.set_tenant("a/b");
    dropped.set_value(stub_->Drop(&context, request, &drop_reply));
  });
  node_.drop_arrived.get_future().wait();

  grpc::ClientContext context;
  pb::StatusReply reply;
  EXPECT_TRUE(stub_->GetStatus(&context, {}, &reply).ok());

  OnLoop([&] { node_.pending_drop(uint64_t{4096}); });
  const grpc::Status status = dropped.get_future().get();
  dropper.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(drop_reply.bytes(), 4096u);
}

TEST_F(AdminServerTest, ErrorsArriveWithCodeAndText) {
  grpc::ClientContext drop_context;
  pb::DropRequest request;
  request.set_tenant("unknown");
  pb::DropReply drop_reply;
  const grpc::Status dropped = stub_->Drop(&drop_context, request, &drop_reply);
  EXPECT_EQ(dropped.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(dropped.error_message(), HasSubstr("there are: a/b"));

  OnLoop([&] { node_.reload_error = absl::InvalidArgumentError("p.yaml:3:5: unknown key"); });
  grpc::ClientContext reload_context;
  pb::ReloadPolicyReply reload_reply;
  const grpc::Status reloaded = stub_->ReloadPolicy(&reload_context, {}, &reload_reply);
  EXPECT_EQ(reloaded.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(reloaded.error_message(), HasSubstr("p.yaml:3:5"));

  grpc::ClientContext check_context;
  pb::CheckInvariantsReply check_reply;
  EXPECT_EQ(stub_->CheckInvariants(&check_context, {}, &check_reply).error_code(), grpc::StatusCode::INTERNAL);
}

// The liveness probe asks by this door, too, and a daemon that does not answer it is started again.
TEST_F(AdminServerTest, CallersThatGoAwayKeepNoThread) {
  bool full = false;
  for (int i = 0; i < kAdminThreadsMax && !full; ++i) {
    std::future<void> arrived;
    OnLoop([&] {
      node_.drop_arrived = {};
      arrived = node_.drop_arrived.get_future();
    });
    grpc::ClientContext context;
    std::promise<grpc::StatusCode> ended;
    std::thread dropper([&] {
      pb::DropRequest request;
      request.set_tenant("a/b");
      pb::DropReply reply;
      ended.set_value(stub_->Drop(&context, request, &reply).error_code());
    });
    std::future<grpc::StatusCode> end = ended.get_future();
    while (arrived.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready && !full)
      full = end.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    context.TryCancel();
    dropper.join();
  }
  // Nobody ever answers those Drops.
  grpc::Status status;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  do {
    grpc::ClientContext context;
    pb::StatusReply reply;
    status = stub_->GetStatus(&context, {}, &reply);
  } while (!status.ok() && std::chrono::steady_clock::now() < until);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(AdminServerTest, AnEmptyDropNeverReachesTheNode) {
  grpc::ClientContext context;
  pb::DropReply reply;
  EXPECT_EQ(stub_->Drop(&context, {}, &reply).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  OnLoop([&] { EXPECT_TRUE(node_.dropped.empty()); });
}

TEST_F(AdminServerTest, AStuckLoopIsADeadlineAndTheRequestIsNotCarriedOutLater) {
  std::promise<void> stuck, go_on;
  loop_->Post([&] {
    stuck.set_value();
    go_on.get_future().wait();
  });
  stuck.get_future().wait();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  pb::DropRequest request;
  request.set_tenant("a/b");
  pb::DropReply reply;
  EXPECT_EQ(stub_->Drop(&context, request, &reply).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // The client's own deadline may run out a moment before the handler's; the server is stopped so that the handler has
  // given up.
  server_.reset();
  go_on.set_value();
  OnLoop([&] { EXPECT_TRUE(node_.dropped.empty()); });
}

TEST_F(AdminServerTest, StoppingEndsWaitingCallsAndUnlinksTheSocket) {
  std::promise<grpc::Status> dropped;
  std::thread dropper([&] {
    grpc::ClientContext context;
    pb::DropRequest request;
    request.set_tenant("a/b");
    pb::DropReply reply;
    dropped.set_value(stub_->Drop(&context, request, &reply));
  });
  node_.drop_arrived.get_future().wait();
  server_.reset();
  EXPECT_EQ(dropped.get_future().get().error_code(), grpc::StatusCode::UNAVAILABLE);
  dropper.join();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(AdminServerTest, ASecondServerDoesNotStealTheSocket) {
  const auto second = AdminServer::Start(path_, loop_.get(), &node_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(path_));
  grpc::ClientContext context;
  pb::StatusReply reply;
  EXPECT_TRUE(stub_->GetStatus(&context, {}, &reply).ok());
}

TEST_F(AdminServerTest, ADeadSocketIsReplaced) {
  const std::string path = folder_ + "/dead.sock";
  {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path));
  const auto server = AdminServer::Start(path, loop_.get(), &node_);
  EXPECT_TRUE(server.ok()) << server.status();
}

TEST(CheckSocketFree, ALongPathIsRefusedWithItsLimit) {
  const absl::Status status = CheckSocketFree("/tmp/" + std::string(120, 'x'));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("107"));
}

TEST(CheckSocketFree, ASeqpacketListenerCountsAsSomebody) {
  char folder[] = "/tmp/kvartal-probe-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/s";
  const UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(fd.get(), 1), 0);
  EXPECT_EQ(CheckSocketFree(path).code(), absl::StatusCode::kAlreadyExists);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvartal::control
