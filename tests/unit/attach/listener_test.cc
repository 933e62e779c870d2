#include "daemon/attach/listener.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/limits.h"

namespace kvartal::attach {
namespace {

class ListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/kvartal-listener-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    folder_ = path;
    door_ = {"red", folder_ + "/red.sock", 0620};
    loop_ = *EventLoop::Create(&clock_);
  }
  void TearDown() override {
    ::unlink(door_.path.c_str());
    ::rmdir(folder_.c_str());
  }

  absl::StatusOr<std::unique_ptr<Listener>> Open() {
    return Listener::Open(door_, loop_.get(), [this](UniqueFd fd, const Door& door) {
      accepted_.push_back(std::move(fd));
      last_door_ = door.name;
    });
  }
  UniqueFd Connect(int type = SOCK_SEQPACKET) {
    UniqueFd fd(::socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, door_.path.c_str(), sizeof(address.sun_path) - 1);
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) fd.reset();
    return fd;
  }

  std::string folder_;
  Door door_;
  SystemClock clock_;
  std::unique_ptr<EventLoop> loop_;
  std::vector<UniqueFd> accepted_;
  std::string last_door_;
};

TEST_F(ListenerTest, TakesConnectionsThroughItsDoor) {
  auto listener = Open();
  ASSERT_TRUE(listener.ok()) << listener.status();
  struct stat made{};
  ASSERT_EQ(::stat(door_.path.c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777, 0620u);
  const UniqueFd client = Connect();
  ASSERT_TRUE(client.valid());
  loop_->RunOnce(0);
  ASSERT_EQ(accepted_.size(), 1u);
  EXPECT_EQ(last_door_, "red");
  EXPECT_NE(::fcntl(accepted_[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(::fcntl(accepted_[0].get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(ListenerTest, ReplacesAStaleSocketOnly) {
  {
    // As after kill -9: the file stays, nobody listens.
    UniqueFd dead(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, door_.path.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  auto first = Open();
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Open();
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
  EXPECT_TRUE(Connect().valid()) << "the first one still answers";
}

TEST_F(ListenerTest, LeavesWhatIsNotASocketAlone) {
  UniqueFd file(::open(door_.path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  ASSERT_TRUE(file.valid());
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kFailedPrecondition);
  struct stat found{};
  EXPECT_EQ(::stat(door_.path.c_str(), &found), 0);
}

TEST_F(ListenerTest, RefusesAPathThatIsTooLong) {
  door_.path = folder_ + "/" + std::string(200, 'x');
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ListenerTest, RemovesItsFileButNotASuccessors) {
  {
    auto listener = Open();
  }
  struct stat found{};
  EXPECT_NE(::stat(door_.path.c_str(), &found), 0) << "gone with its listener";
  auto first = Open();
  ASSERT_EQ(::unlink(door_.path.c_str()), 0);
  auto second = Open();
  ASSERT_TRUE(second.ok());
  first->reset();
  EXPECT_EQ(::stat(door_.path.c_str(), &found), 0) << "the second one's file stays";
}

TEST_F(ListenerTest, AStormYieldsToOthers) {
  auto listener = Open();
  ASSERT_TRUE(listener.ok());
  std::vector<UniqueFd> clients;
  for (uint32_t i = 0; i < kAcceptsPerWakeMax + 10; ++i) clients.push_back(Connect());
  loop_->RunOnce(0);
  EXPECT_EQ(accepted_.size(), kAcceptsPerWakeMax);
  loop_->RunOnce(0);
  EXPECT_EQ(accepted_.size(), kAcceptsPerWakeMax + 10);
}

TEST_F(ListenerTest, WithoutAFreeFdConnectionsAreTurnedAway) {
  auto listener = Open();
  ASSERT_TRUE(listener.ok());
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(Connect());
  // No fd above the highest one in use may be opened.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<UniqueFd> hoard;
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(clients.back().get()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  for (UniqueFd fd(::dup(0)); fd.valid(); fd.reset(::dup(0))) hoard.push_back(std::move(fd));
  loop_->RunOnce(0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  hoard.clear();
  EXPECT_TRUE(accepted_.empty());
  EXPECT_GE((*listener)->out_of_fds(), 3u);
  char byte;
  EXPECT_EQ(::recv(clients[0].get(), &byte, 1, MSG_DONTWAIT), 0) << "closed, not left hanging";
  const UniqueFd later = Connect();
  (*listener)->Resume();
  loop_->RunOnce(0);
  EXPECT_EQ(accepted_.size(), 1u) << "works again once there are fds";
}

}  // namespace
}  // namespace kvartal::attach
