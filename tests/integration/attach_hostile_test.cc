// Wrong and hostile clients: each is answered or cut off, costs only itself, and leaves nothing behind.
#include <fcntl.h>
#include <sys/wait.h>

#include <array>
#include <random>

#include "tests/integration/attach_fixture.h"

namespace kvartal::attach {
namespace {

using Code = v1::Error;

// A peer that must not notice anything. Checked at the end of every test.
class HostileTest : public AttachTest {
 protected:
  void StartWithBystander(bool with_nvme = false) {
    Start(with_nvme);
    Warm();
    bystander_ = std::make_unique<RawClient>(Path("blue"));
    Attach(*bystander_);
    bystander_ns_ = OpenNamespace(*bystander_);
    Store(*bystander_, bystander_ns_, 1, 4);
    lease_ = Lookup(*bystander_, bystander_ns_, 1, 4).lease();
    before_ = Now();
  }
  // The offender is gone: everything is as it was, and the bystander's lease, blocks and session are intact.
  void ExpectNothingLeft() {
    Spin();
    EXPECT_EQ(Now(), before_);
    ClientFrame renew;
    renew.mutable_renew()->add_leases(lease_);
    EXPECT_EQ(Ask(*bystander_, renew).renewed().count(), 1u);
    const v1::LookedUp found = Lookup(*bystander_, bystander_ns_, 1, 4);
    EXPECT_EQ(found.matched(), 4u);
    Release(*bystander_, found.lease());
    engine_->CheckInvariants();
  }
  void ExpectBadFrame(RawClient& client, BadFrame kind) {
    Spin();
    const std::vector<ServerFrame> said = Drain(client);
    ASSERT_FALSE(said.empty()) << BadFrameName(kind);
    EXPECT_EQ(said.back().error().code(), Code::BAD_FRAME);
    EXPECT_TRUE(client.ended());
    EXPECT_EQ(BadFrames(kind), 1u) << BadFrameName(kind);
    client.fds.clear();
    client.Close();
    ExpectNothingLeft();
  }

  std::unique_ptr<RawClient> bystander_;
  uint32_t bystander_ns_ = 0;
  uint64_t lease_ = 0;
  Balance before_{};
};

TEST_F(HostileTest, BadFramesEndTheirSessionAlone) {
  StartWithBystander();
  ClientFrame two_verbs;
  two_verbs.mutable_renew();
  two_verbs.mutable_release();
  const std::vector<std::pair<BadFrame, std::string>> frames = {
      {BadFrame::kGarbage, "\xff\xff\xff\xff\xff"},
      {BadFrame::kOversized, std::string(kFrameBytesMax + 1, 'x')},
      {BadFrame::kTwoVerbs, two_verbs.SerializeAsString()},
      {BadFrame::kEmpty, Frame(1).SerializeAsString()},
  };
  for (const auto& [kind, bytes] : frames) {
    RawClient client(Path("red"));
    Attach(client);
    Reserve(client, OpenNamespace(client), 1, 4);
    ASSERT_TRUE(client.SendBytes(bytes)) << BadFrameName(kind);
    ExpectBadFrame(client, kind);
  }
  RawClient client(Path("red"));
  Attach(client);
  ClientFrame renew;
  renew.mutable_renew();
  ASSERT_TRUE(client.SendWithFd(renew, STDERR_FILENO));
  ExpectBadFrame(client, BadFrame::kFds);
}

TEST_F(HostileTest, WhatIsUnderstoodAndWrongIsAnsweredAndTheSessionGoesOn) {
  StartWithBystander();
  RawClient client(Path("red"));
  EXPECT_EQ(AskForError(client, LookupFrame(0, 1, 1)).code(), Code::NOT_ATTACHED);
  ClientFrame attach;
  attach.mutable_attach()->set_version(99);
  EXPECT_EQ(AskForError(client, attach).code(), Code::UNSUPPORTED);
  Attach(client);
  attach.mutable_attach()->set_version(1);
  EXPECT_EQ(AskForError(client, attach).code(), Code::BAD_ARGUMENT) << "twice";
  const uint32_t ns = OpenNamespace(client);
  EXPECT_EQ(AskForError(client, LookupFrame(ns, 1, kKeysPerFrameMax + 1)).code(), Code::BAD_ARGUMENT);
  EXPECT_EQ(AskForError(client, LookupFrame(ns + 1000, 1, 1)).code(), Code::NOT_FOUND);
  EXPECT_EQ(AskForError(client, ReserveFrame(ns, 1, 1, 7)).code(), Code::BAD_ARGUMENT) << "a shard the layout lacks";
  ClientFrame layout;
  layout.mutable_open_namespace()->set_digest(std::string(32, 'd'));
  layout.mutable_open_namespace()->set_tokens_per_block(16);
  layout.mutable_open_namespace()->set_shard_count(1);
  layout.mutable_open_namespace()->set_shard_bytes(kTestBlockBytes * 2);
  EXPECT_EQ(AskForError(client, layout).code(), Code::BAD_ARGUMENT) << "another layout of an open digest";
  layout.mutable_open_namespace()->set_shard_bytes(UINT32_MAX);
  EXPECT_EQ(AskForError(client, layout).code(), Code::BAD_ARGUMENT);
  // request_id, then a verb of a newer protocol.
  ASSERT_TRUE(client.SendBytes(std::string("\x08\x7b\x82\x7d\x02hi", 7)));
  Spin();
  EXPECT_EQ(Answer(client, 123).error().code(), Code::UNSUPPORTED);
  Store(client, ns, 1, 2);
  EXPECT_EQ(Lookup(client, ns, 1, 2).matched(), 2u) << "after all that";
}

TEST_F(HostileTest, CommitTwiceAndCommitOfNonsenseChangeNothing) {
  StartWithBystander();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  const v1::Reserved reserved = Reserve(client, ns, 1, 2);
  EXPECT_EQ(Commit(client, std::vector<uint64_t>{reserved.reservations(0), reserved.reservations(0)}),
            std::string("\0\2", 2));
  EXPECT_EQ(Commit(client, std::vector<uint64_t>{reserved.reservations(1)}, 63), std::string("\2")) << "no such shard";
  EXPECT_EQ(Commit(client, std::vector<uint64_t>{reserved.reservations(1)}, UINT32_MAX), std::string("\2"));
  EXPECT_EQ(Commit(client, std::vector<uint64_t>{0, UINT64_MAX}), std::string("\2\2"));
  EXPECT_EQ(Lookup(client, ns, 1, 2).matched(), 1u);
}

TEST_F(HostileTest, WhatIsAnothersCannotBeNamed) {
  StartWithBystander();
  const v1::Reserved theirs = Reserve(*bystander_, bystander_ns_, 50, 1);
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client, 'r');
  ASSERT_NE(ns, bystander_ns_);
  EXPECT_EQ(AskForError(client, LookupFrame(bystander_ns_, 1, 4)).code(), Code::NOT_FOUND);
  EXPECT_EQ(AskForError(client, ReserveFrame(bystander_ns_, 60, 1)).code(), Code::NOT_FOUND);
  ClientFrame load;
  load.mutable_load()->set_lease(lease_);
  load.mutable_load()->set_count(1);
  EXPECT_EQ(AskForError(client, load).code(), Code::NOT_FOUND);
  ClientFrame pin;
  pin.mutable_pin()->set_lease(lease_);
  EXPECT_EQ(AskForError(client, pin).code(), Code::NOT_FOUND);
  EXPECT_EQ(AskForError(client, LookupFrame(ns, 1, 1, lease_)).code(), Code::NOT_FOUND);
  ClientFrame renew;
  renew.mutable_renew()->add_leases(lease_);
  EXPECT_EQ(Ask(client, renew).renewed().count(), 0u);
  Release(client, lease_);
  EXPECT_EQ(engine_->stats().leased_blocks, 4u) << "a foreign Release releases nothing";
  EXPECT_EQ(Commit(client, theirs.reservations()), std::string("\3"));
  ClientFrame abort;
  abort.mutable_abort()->add_reservations(theirs.reservations(0));
  EXPECT_EQ(Ask(client, abort).aborted().count(), 0u);
  EXPECT_EQ(server_->stats().not_yours, 1u);
  EXPECT_GE(server_->stats().not_found, 7u);
  EXPECT_EQ(Commit(*bystander_, theirs.reservations()), std::string(1, '\0')) << "still theirs to commit";
}

TEST_F(HostileTest, AGroupOfAnotherTenantCannotBeJoined) {
  StartWithBystander();
  RawClient red(Path("red"));
  const Attached attached = Attach(red);
  RawClient blue(Path("blue"));
  ClientFrame frame;
  frame.mutable_attach()->set_version(1);
  frame.mutable_attach()->set_group(attached.group);
  EXPECT_EQ(AskForError(blue, frame).code(), Code::DENIED);
  EXPECT_FALSE(blue.Receive().has_value());
  EXPECT_TRUE(blue.ended());
  EXPECT_EQ(Denials(DenialReason::kForeignGroup), 1u);
}

TEST_F(HostileTest, AnUnknownUidIsRefusedAndCounted) {
  StartWithBystander();
  RawClient stranger(Path("shared"));
  ClientFrame frame;
  frame.mutable_attach()->set_version(1);
  const v1::Error refused = AskForError(stranger, frame);
  EXPECT_EQ(refused.code(), Code::DENIED);
  EXPECT_NE(refused.message().find("uid"), std::string::npos);
  EXPECT_FALSE(stranger.Receive().has_value());
  EXPECT_TRUE(stranger.ended());
  EXPECT_TRUE(stranger.fds.empty());
  EXPECT_EQ(Denials(DenialReason::kUnknownUid), 1u);
  stranger.Close();
  ExpectNothingLeft();
}

TEST_F(HostileTest, ThousandsOfConnectsCostOthersNothing) {
  StartWithBystander();
  // Of one tenant: bounded by its own sessions. The bystander's tenant can still attach.
  std::vector<RawClient> storm;
  for (int i = 0; i < 1000; ++i) {
    storm.emplace_back(Path("red"));
    if (i % 50 == 0) Spin();
  }
  Spin();
  EXPECT_EQ(server_->stats().sessions, 1u + rules_[0].max_sessions);
  EXPECT_EQ(Denials(DenialReason::kTenantSessions), 1000u - rules_[0].max_sessions);
  const std::vector<ServerFrame> said = Drain(storm.back());
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].error().code(), Code::REFUSED);
  EXPECT_TRUE(storm.back().ended());
  {
    RawClient another(Path("blue"));
    Attach(another);
  }
  // Of strangers: bounded together.
  for (int i = 0; i < 1000; ++i) {
    storm.emplace_back(Path("shared"));
    if (i % 50 == 0) Spin();
  }
  Spin();
  EXPECT_EQ(server_->stats().sessions, 1u + rules_[0].max_sessions + kStrangersMax);
  // The silent ones are cut in time, though their ends stay open.
  AdvanceMs(kAttachDeadlineMs + kTickMs);
  EXPECT_EQ(server_->stats().sessions, 1u);
  EXPECT_EQ(Cuts(CutReason::kSilent), rules_[0].max_sessions + kStrangersMax);
  storm.clear();
  ExpectNothingLeft();
}

TEST_F(HostileTest, AClientThatDoesNotReadIsCutOff) {
  StartWithBystander();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 64);
  before_ = Now();
  before_.sessions -= 1;
  before_.groups -= 1;
  const ClientFrame lookup = LookupFrame(ns, 1, 64);
  for (int i = 0; i < 5000 && Cuts(CutReason::kTooSlow) == 0; ++i) {
    if (!client.Send(lookup)) break;
    loop_->RunOnce(0);
  }
  EXPECT_EQ(Cuts(CutReason::kTooSlow), 1u);
  client.fds.clear();
  client.Close();
  Spin();
  EXPECT_EQ(Now().leased_blocks, before_.leased_blocks);
  EXPECT_EQ(Now().sessions, before_.sessions);
  EXPECT_EQ(Now().groups, before_.groups);
}

TEST_F(HostileTest, DurablesOfAClientThatReadsLateDoNotCutItOff) {
  StartWithBystander(true);
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  uint64_t stored = 0;
  // Each block becomes durable in a round of its own, and nothing is read but the answers.
  for (uint64_t i = 0; i < 700; ++i) {
    Store(client, ns, 1 + i % 40, 1);
    ++stored;
    if (i % 40 == 39) {
      ClientFrame renew;
      renew.mutable_renew();
      ASSERT_TRUE(client.Send(renew));
      Spin();
      break;
    }
  }
  EXPECT_EQ(Cuts(CutReason::kTooSlow), 0u);
  EXPECT_GT(stored, 30u);
}

TEST_F(HostileTest, FdsInFlightToAClientThatDoesNotReadComeBack) {
  StartWithBystander();
  std::vector<RawClient> clients;
  for (int i = 0; i < 20; ++i) {
    clients.emplace_back(Path("red"));
    ClientFrame frame = Frame(1);
    frame.mutable_attach()->set_version(1);
    ASSERT_TRUE(clients.back().Send(frame));
  }
  Spin();
  EXPECT_EQ(server_->stats().attached, 21u);
  AdvanceMs(kAttachDeadlineMs + kTickMs);
  EXPECT_EQ(Cuts(CutReason::kUnacked), 20u);
  EXPECT_EQ(server_->stats().attached, 1u);
  clients.clear();  // never having read: the kernel drops the fds with the sockets
  ExpectNothingLeft();
}

TEST_F(HostileTest, PendingRequestsOfOneSessionAreBounded) {
  StartWithBystander();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client, 'p');
  memory_->Hold();
  for (uint64_t i = 1; i <= kPendingPerSessionMax + 3; ++i) {
    ClientFrame frame = ReserveFrame(ns, i, 1);
    frame.set_request_id(1000 + i);
    ASSERT_TRUE(client.Send(frame));
  }
  Spin();
  const std::vector<ServerFrame> refused = Drain(client);
  ASSERT_EQ(refused.size(), 3u);
  EXPECT_EQ(refused[0].error().refusal(), "queue_full");
  memory_->Release();
  Spin();
  EXPECT_EQ(Drain(client).size(), kPendingPerSessionMax + 1) << "the others, and the grant of their memory";
  client.fds.clear();
  client.Close();
  ExpectNothingLeft();
}

TEST_F(HostileTest, LeasesOfOneGroupAreBounded) {
  StartWithBystander();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 1);
  const Balance stored = Now();
  for (size_t i = 0; i < kLeasesPerGroupMax; ++i) {
    ASSERT_TRUE(client.Send(LookupFrame(ns, 1, 1)));
    loop_->RunOnce(0);
    Drain(client);
  }
  const v1::Error refused = AskForError(client, LookupFrame(ns, 1, 1));
  EXPECT_EQ(refused.code(), Code::REFUSED);
  EXPECT_EQ(refused.refusal(), "group_limit");
  AdvanceMs(kLeaseMsDefault + kTickMs);
  EXPECT_EQ(Now().leased_blocks, 0u) << "of the bystander, too: it did not renew";
  EXPECT_EQ(Now().charged_bytes, stored.charged_bytes);
  EXPECT_EQ(Lookup(client, ns, 1, 1).matched(), 1u);
}

TEST_F(HostileTest, OneBlockLeasedMoreOftenThanCanBeCounted) {
  StartWithBystander(true);
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 1);
  // The same key 1024 times in a frame.
  ClientFrame frame = LookupFrame(ns, 1, 1);
  const std::string key = frame.lookup().keys();
  std::string keys;
  for (uint32_t i = 0; i < kKeysPerFrameMax; ++i) keys += key;
  frame.mutable_lookup()->set_keys(keys);
  uint64_t lease = 0;
  for (int i = 0; i < 80; ++i) {
    const ServerFrame answer = Ask(client, frame);
    if (answer.looked_up().matched() > 0) lease = answer.looked_up().lease();
  }
  ClientFrame load;
  load.mutable_load()->set_lease(lease);
  load.mutable_load()->set_count(1);
  Ask(client, load);
  client.fds.clear();
  client.Close();
  Spin();
  EXPECT_EQ(Now().leased_blocks, before_.leased_blocks);
}

// --- death

// What a client does in its life, one step after another. It may die after any of them.
class DyingClient {
 public:
  static constexpr int kSteps = 9;
  DyingClient(const std::string& path, uint64_t first_key) : client(path), first(first_key) {}

  ClientFrame FrameOf(int step, uint32_t ns, const std::vector<uint64_t>& reservations, uint64_t lease) const {
    ClientFrame frame;
    frame.set_request_id(static_cast<uint64_t>(step) + 1);
    switch (step) {
      case 0:
        frame.mutable_attach()->set_version(1);
        break;
      case 1:
        frame.mutable_grant_ack();
        break;
      case 2:
        frame.mutable_open_namespace()->set_digest(std::string(32, 'x'));
        frame.mutable_open_namespace()->set_tokens_per_block(16);
        frame.mutable_open_namespace()->set_shard_count(1);
        frame.mutable_open_namespace()->set_shard_bytes(kTestBlockBytes);
        break;
      case 3:
        frame.mutable_reserve()->set_ns(ns);
        frame.mutable_reserve()->set_keys(ChainBytes(first, 8));
        break;
      case 4:
        for (size_t i = 0; i < reservations.size() / 2; ++i) frame.mutable_commit()->add_reservations(reservations[i]);
        break;
      case 5:
        if (!reservations.empty()) frame.mutable_abort()->add_reservations(reservations.back());
        break;
      case 6:
        frame.mutable_lookup()->set_ns(ns);
        frame.mutable_lookup()->set_keys(ChainBytes(first, 8));
        break;
      case 7:
        frame.mutable_load()->set_lease(lease);
        frame.mutable_load()->set_count(2);
        break;
      case 8:
        frame.mutable_release()->set_lease(lease);
        frame.mutable_release()->set_count(1);
        break;
    }
    return frame;
  }

  RawClient client;
  const uint64_t first;
};

class DeathTest : public HostileTest, public ::testing::WithParamInterface<std::tuple<int, bool, bool>> {};

TEST_P(DeathTest, LeavesOnlyWhatWasCommitted) {
  const auto [last_step, reads, memory_held] = GetParam();
  StartWithBystander(true);
  const uint64_t entries_before = engine_->stats().entries;
  DyingClient dying(Path("red"), 1000);
  uint32_t ns = 0;
  uint64_t lease = 0;
  std::vector<uint64_t> reservations;
  for (int step = 0; step <= last_step; ++step) {
    if (step == 3 && memory_held) memory_->Hold();
    if (!dying.client.Send(dying.FrameOf(step, ns, reservations, lease))) break;
    // A client that reads waits for its answer; one that does not has died with the answer unread, or the request unseen.
    if (step == last_step && !reads) break;
    Spin();
    while (const auto frame = dying.client.Receive()) {
      if (frame->has_namespace_opened()) ns = frame->namespace_opened().ns();
      if (frame->has_looked_up()) lease = frame->looked_up().lease();
      for (uint64_t reservation : frame->reserved().reservations()) reservations.push_back(reservation);
    }
  }
  dying.client.fds.clear();
  dying.client.Close();
  Spin();
  memory_->Release();
  // Memory that was being populated for the dead arrives now, belongs to nobody, and goes back within a second or two.
  AdvanceMs(2 * kEmptyTicksMax * kTickMs);
  const Balance after = Now();
  EXPECT_EQ(after.sessions, before_.sessions);
  EXPECT_EQ(after.groups, before_.groups);
  EXPECT_EQ(after.leased_blocks, before_.leased_blocks);
  EXPECT_EQ(after.filling_blocks, 0u);
  EXPECT_EQ(after.waiting_reserves, 0u);
  EXPECT_EQ(after.open_fds, before_.open_fds);
  // Of eight reserved blocks the first four were committed at step 4, if it was reached with reservations in hand.
  const bool committed = last_step >= 4 && !memory_held;
  EXPECT_EQ(engine_->stats().entries, entries_before + (committed ? 4 : 0));
  RawClient reaper(Path("red"));
  Attach(reaper);
  const uint32_t reaper_ns = OpenNamespace(reaper, 'x');
  EXPECT_EQ(Lookup(reaper, reaper_ns, 1000, 8).matched(), committed ? 4u : 0u);
  // A peer's reaper that commits what the dead one left makes nothing visible.
  if (!reservations.empty()) {
    EXPECT_EQ(Commit(reaper, reservations), std::string(reservations.size(), '\2'));
    EXPECT_EQ(Lookup(reaper, reaper_ns, 1000, 8).matched(), committed ? 4u : 0u);
  }
  if (!committed) {
    reaper.fds.clear();
    reaper.Close();
    ExpectNothingLeft();
  }
}

INSTANTIATE_TEST_SUITE_P(AfterEveryStep, DeathTest,
                         ::testing::Combine(::testing::Range(0, DyingClient::kSteps), ::testing::Bool(),
                                            ::testing::Bool()));

TEST_F(HostileTest, ASessionThatDiesWhileItsReserveWaitsLeavesNothingToItsGroup) {
  StartWithBystander();
  RawClient scheduler(Path("red"));
  const Attached attached = Attach(scheduler);
  const Balance group_alone = Now();
  {
    RawClient worker(Path("red"));
    Attach(worker, attached.group);
    const uint32_t ns = OpenNamespace(worker);
    memory_->Hold();
    ASSERT_TRUE(worker.Send(ReserveFrame(ns, 1, 8)));
    Spin();
  }
  Spin();
  EXPECT_EQ(server_->stats().groups, 2u) << "the scheduler's group lives on";
  memory_->Release();
  Spin();
  const uint32_t ns = OpenNamespace(scheduler);
  EXPECT_EQ(Now().filling_blocks, 0u);
  EXPECT_EQ(Now().sessions, group_alone.sessions);
  EXPECT_EQ(Reserve(scheduler, ns, 1, 8).outcomes(), std::string(8, '\0')) << "free again, not busy";
}

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

TEST_F(HostileTest, WhenTheAttestedProcessIsGoneItsSocketIsNobodys) {
  StartWithBystander();
  if (!OpenPeerPidfd(bystander_->fd()).valid()) GTEST_SKIP() << "this kernel has no SO_PEERPIDFD";
  // The child connects and attaches; its socket is handed to us and stays open after the child is gone.
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
  UniqueFd ours(pair[0]), theirs(pair[1]);
  std::array<int, 2> go{};
  ASSERT_EQ(::pipe2(go.data(), O_CLOEXEC), 0);
  UniqueFd go_read(go[0]), go_write(go[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    go_write.reset();
    RawClient client(Path("red"));
    ClientFrame frame = Frame(1);
    frame.mutable_attach()->set_version(1);
    RawClient* courier = &client;
    bool ok = client.Send(frame);
    // Hands its socket over.
    iovec part{&ok, sizeof(ok)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = courier->fd();
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    ::sendmsg(theirs.get(), &message, 0);
    char byte;
    [[maybe_unused]] const ssize_t got = ::read(go_read.get(), &byte, 1);
    ::_exit(0);
  }
  go_read.reset();
  char byte;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ASSERT_GT(::recvmsg(ours.get(), &message, MSG_CMSG_CLOEXEC), 0);
  int passed = -1;
  std::memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(passed));
  UniqueFd inherited(passed);
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

// Frames that are right, wrong and mangled, from several sessions at once, with deaths in between: the books balance.
TEST_F(HostileTest, ARandomCrowdLeavesNothingBehind) {
  rules_[0].tier(TierKind::kDram).limit_bytes = 8 * kMiB;
  StartWithBystander(true);
  std::mt19937 random(20261129);
  struct Member {
    std::unique_ptr<DyingClient> dying;
    std::vector<uint64_t> leases, reservations;
  };
  std::vector<Member> crowd(6);
  uint32_t ns = bystander_ns_ + 1;
  size_t leases_seen = 0, reservations_seen = 0;
  auto any = [&](const std::vector<uint64_t>& own, const std::vector<uint64_t>& foreign) -> uint64_t {
    const std::vector<uint64_t>& from = random() % 5 == 0 ? foreign : own;
    return from.empty() ? lease_ : from[random() % from.size()];
  };
  for (int round = 0; round < 3000; ++round) {
    Member& one = crowd[random() % crowd.size()];
    if (one.dying == nullptr || random() % 60 == 0) {
      one = {std::make_unique<DyingClient>(Path("red"), 1 + random() % 300), {}, {}};
      for (int step = 0; step < 3; ++step) one.dying->client.Send(one.dying->FrameOf(step, 0, {}, 0));
    }
    RawClient& client = one.dying->client;
    const Member& other = crowd[random() % crowd.size()];
    std::vector<uint64_t> reservations;
    for (int i = 0; i < 4; ++i) reservations.push_back(any(one.reservations, other.reservations));
    std::string bytes =
        one.dying->FrameOf(2 + static_cast<int>(random() % 7), ns, reservations, any(one.leases, other.leases))
            .SerializeAsString();
    if (random() % 20 == 0) {
      for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    client.SendBytes(bytes);
    if (random() % 3 == 0) loop_->RunOnce(0);
    if (random() % 50 == 0) AdvanceMs(kTickMs * (1 + random() % 20));
    while (const auto frame = client.Receive()) {
      if (frame->has_namespace_opened()) ns = frame->namespace_opened().ns();
      if (frame->looked_up().lease() != 0) {
        one.leases.push_back(frame->looked_up().lease());
        ++leases_seen;
      }
      for (const uint64_t reservation : frame->reserved().reservations()) {
        if (reservation == 0) continue;
        one.reservations.push_back(reservation);
        ++reservations_seen;
      }
    }
    client.fds.clear();
    if (client.ended()) one = {};
    if (round % 10 == 0) {
      ClientFrame renew;
      renew.mutable_renew();
      ASSERT_EQ(Ask(*bystander_, renew).renewed().count(), 1u);
    }
  }
  EXPECT_GT(leases_seen, 50u) << "the crowd got things done";
  EXPECT_GT(reservations_seen, 500u);
  crowd.clear();
  Spin();
  const Balance after = Now();
  EXPECT_EQ(after.sessions, before_.sessions);
  EXPECT_EQ(after.groups, before_.groups);
  EXPECT_EQ(after.leased_blocks, before_.leased_blocks);
  EXPECT_EQ(after.waiting_reserves, 0u);
  EXPECT_EQ(after.open_fds, before_.open_fds);
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::attach
