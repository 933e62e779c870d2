// Sockets that outlive or leave the process that connected them.
#include <fcntl.h>
#include <sys/wait.h>

#include <array>

#include "tests/integration/attach_hostile_fixture.h"
#include "tests/support/fd_passing.h"

namespace kvartal::attach {
namespace {

// Runs `body` in a child and waits for it; the daemon stays here. True when the child exited with 0.
bool InChild(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(HostileTest, AnInheritedSocketKeepsItsIdentityAndBothEndsMayWrite) {
  StartWithBystander();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 2);
  ClientFrame from_child = LookupFrame(ns, 1, 2);
  from_child.set_request_id(70);
  ASSERT_TRUE(InChild([&] { return client.Send(from_child); }));
  ClientFrame from_parent = LookupFrame(ns, 1, 1);
  from_parent.set_request_id(71);
  EXPECT_TRUE(client.Send(from_parent));
  Spin();
  const std::vector<ServerFrame> answers = Drain(client);
  ASSERT_EQ(answers.size(), 2u) << "one each";
  EXPECT_EQ(answers[0].looked_up().matched(), 2u);
  EXPECT_EQ(answers[1].request_id(), 71u);
  for (const SessionInfo& session : server_->stats().session_list) {
    EXPECT_EQ(session.pid, static_cast<uint32_t>(::getpid())) << "as of connect";
  }
  client.fds.clear();
  client.Close();
  Spin();
  EXPECT_EQ(Now().sessions, before_.sessions);
}

TEST_F(HostileTest, AClientThatWasCutKnowsThoughACopyOfTheDaemonHasItsSocket) {
  StartWithBystander();
  RawClient client(Path("red"));
  Attach(client);
  std::array<int, 2> go{};
  ASSERT_EQ(::pipe2(go.data(), O_CLOEXEC), 0);
  UniqueFd go_read(go[0]), go_write(go[1]);
  const pid_t copy = ::fork();
  if (copy == 0) {
    go_write.reset();
    char byte;
    [[maybe_unused]] const ssize_t got = ::read(go_read.get(), &byte, 1);
    ::_exit(0);
  }
  ASSERT_TRUE(client.SendBytes("\xff"));
  Spin();
  const std::vector<ServerFrame> said = Drain(client);
  ASSERT_FALSE(said.empty());
  EXPECT_EQ(said.back().error().code(), v1::Error::BAD_FRAME) << "what it has yet to read is there";
  EXPECT_TRUE(client.ended());
  go_write.reset();
  ASSERT_EQ(::waitpid(copy, nullptr, 0), copy);
}

// The kernel closes the sockets of a process, then tells of its end; where another holds one of them, it only tells.
TEST_F(HostileTest, WhatAKilledProcessWasFillingIsGivenBackAtOnce) {
  dram_bytes_ = 4 * kMiB;
  StartWithBystander();
  if (!OpenPeerPidfd(bystander_->fd()).valid()) GTEST_SKIP() << "this kernel has no SO_PEERPIDFD";
  rules_[0].tier(TierKind::kDram).limit_bytes = 2 * kMiB;
  engine_->ApplyPolicy(Table());
  const size_t all = 2 * kMiB / kTestBlockBytes;
  for (const bool held_elsewhere : {false, true, false}) {
    std::array<int, 2> pair{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
    UniqueFd ours(pair[0]), theirs(pair[1]);
    const pid_t child = ::fork();
    if (child == 0) {
      RawClient client(Path("red"));
      testing::SendFd(theirs.get(), client.fd());
      for (;;) ::pause();
    }
    RawClient client(testing::ReceiveFd(ours.get()));
    ASSERT_TRUE(client.connected());
    Attach(client);
    const std::string outcomes = Reserve(client, OpenNamespace(client), 100, all).outcomes();
    EXPECT_EQ(outcomes, std::string(all, '\0')) << "the slots of the one before";
    if (!held_elsewhere) client.Close();
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    Spin();
    client.fds.clear();
  }
  EXPECT_EQ(Cuts(CutReason::kPeerExited), 1u);
  ExpectNothingLeft();
}

TEST_F(HostileTest, WhenTheAttestedProcessIsGoneItsSocketIsNobodys) {
  StartWithBystander();
  if (!OpenPeerPidfd(bystander_->fd()).valid()) GTEST_SKIP() << "this kernel has no SO_PEERPIDFD";
  std::array<int, 2> pair{}, go{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
  ASSERT_EQ(::pipe2(go.data(), O_CLOEXEC), 0);
  UniqueFd ours(pair[0]), theirs(pair[1]), go_read(go[0]), go_write(go[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    // Connects, says Attach, hands its socket over, and lives until it is told to go.
    go_write.reset();
    RawClient client(Path("red"));
    ClientFrame frame = Frame(1);
    frame.mutable_attach()->set_version(1);
    client.Send(frame);
    testing::SendFd(theirs.get(), client.fd());
    char byte;
    [[maybe_unused]] const ssize_t got = ::read(go_read.get(), &byte, 1);
    ::_exit(0);
  }
  go_read.reset();
  UniqueFd inherited = testing::ReceiveFd(ours.get());
  ASSERT_TRUE(inherited.valid());
  Spin();
  EXPECT_EQ(server_->stats().attached, 2u);
  go_write.reset();
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  Spin();
  EXPECT_EQ(server_->stats().attached, 1u) << "though its socket is still open here";
  EXPECT_EQ(Cuts(CutReason::kPeerExited), 1u);
  ours.reset();
  theirs.reset();
  inherited.reset();
  ExpectNothingLeft();
}

}  // namespace
}  // namespace kvartal::attach
