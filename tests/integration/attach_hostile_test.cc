// Wrong and hostile clients: each is answered or cut off, costs only itself, and leaves nothing behind.

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "tests/integration/attach_hostile_fixture.h"

namespace kvartal::attach {
namespace {

using Code = v1::Error;

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

TEST_F(HostileTest, AClientMayHaveAnyName) {
  StartWithBystander();
  RawClient client(Path("red"));
  // As SerializeAsString makes it of an Attach whose name is no UTF-8.
  ClientFrame frame = Frame(1);
  frame.mutable_attach()->set_version(1);
  frame.mutable_attach()->set_client("_\n_");
  std::string bytes = frame.SerializeAsString();
  bytes.replace(bytes.find("_\n_"), 3, "\xff\n\xfe");
  ASSERT_TRUE(client.SendBytes(bytes));
  Spin();
  EXPECT_TRUE(Answer(client, 1).has_attached());
  const std::vector<SessionInfo> sessions = server_->stats().session_list;
  EXPECT_TRUE(std::any_of(sessions.begin(), sessions.end(), [](const SessionInfo& info) {
    return info.client == "???";
  })) << "and it draws on no terminal";
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
  ClientFrame hint;
  hint.mutable_hint()->set_lease(lease_);
  hint.mutable_hint()->set_what(v1::Hint::ENDED);
  EXPECT_TRUE(client.Send(hint));
  EXPECT_EQ(Commit(client, theirs.reservations()), std::string("\3"));
  ClientFrame abort;
  abort.mutable_abort()->add_reservations(theirs.reservations(0));
  EXPECT_EQ(Ask(client, abort).aborted().count(), 0u);
  EXPECT_EQ(server_->stats().not_yours, 1u);
  EXPECT_GE(server_->stats().not_found, 8u) << "the hint of a foreign lease, too, is one of nobody's";
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

// Connects to one door over and over. The first burst stays, silent; of the others every end is closed again.
class ConnectStorm {
 public:
  static constexpr size_t kConnects = 10'000;

  ConnectStorm(const std::string& path, const std::function<void()>& let_daemon_run) {
    for (size_t made = 0; made < kConnects; made += kBurst) {
      std::vector<RawClient> burst;
      for (size_t i = 0; i < kBurst; ++i) {
        burst.emplace_back(path);
        EXPECT_TRUE(burst.back().connected());
        if (i % kBacklog == kBacklog - 1) let_daemon_run();
      }
      (made == 0 ? silent_ : last_) = std::move(burst);
    }
    let_daemon_run();
  }
  RawClient& last() { return last_.back(); }

 private:
  static constexpr size_t kBurst = 500;
  static constexpr size_t kBacklog = 50;
  std::vector<RawClient> silent_, last_;
};

TEST_F(HostileTest, TenThousandConnectsCostOthersNothing) {
  TakeAllFiles();
  StartWithBystander();
  {
    // Of one tenant: bounded by its own sessions. The bystander's tenant can still attach, and read.
    ConnectStorm red(Path("red"), [this] { Spin(); });
    EXPECT_EQ(server_->stats().sessions, 1u + rules_[0].max_sessions);
    EXPECT_EQ(Denials(DenialReason::kTenantSessions), ConnectStorm::kConnects - rules_[0].max_sessions);
    const std::vector<ServerFrame> said = Drain(red.last());
    ASSERT_EQ(said.size(), 1u);
    EXPECT_EQ(said[0].error().code(), Code::REFUSED);
    EXPECT_TRUE(red.last().ended());
    {
      RawClient another(Path("blue"));
      Attach(another);
    }
    const v1::LookedUp found = Lookup(*bystander_, bystander_ns_, 1, 4);
    EXPECT_EQ(found.matched(), 4u);
    Release(*bystander_, found.lease());
    // Of strangers: bounded together.
    ConnectStorm strangers(Path("shared"), [this] { Spin(); });
    EXPECT_EQ(server_->stats().sessions, 1u + rules_[0].max_sessions + kStrangersMax);
    // The silent ones are cut in time, though their ends stay open.
    AdvanceMs(kAttachDeadlineMs + kTickMs);
    EXPECT_EQ(server_->stats().sessions, 1u);
    EXPECT_EQ(Cuts(CutReason::kSilent), rules_[0].max_sessions + kStrangersMax);
  }
  ExpectNothingLeft();
}

TEST_F(HostileTest, ATenantThatMayHaveAllSessionsLeavesOthersAFew) {
  TakeAllFiles();
  StartWithBystander();
  rules_[0].max_sessions = kSessionsMax;
  engine_->ApplyPolicy(Table());
  const size_t kept = kSessionsFloor * (rules_.size() - 1) - 1;  // the bystander is there
  std::vector<RawClient> greedy;
  while (Denials(DenialReason::kNodeSessions) == 0 && greedy.size() < kSessionsMax) {
    for (int i = 0; i < 50; ++i) greedy.emplace_back(Path("red"));
    Spin();
  }
  EXPECT_EQ(server_->stats().sessions, kSessionsMax - kept);
  std::vector<RawClient> others;
  for (size_t i = 1; i < kSessionsFloor; ++i) {
    others.emplace_back(Path("blue"));
    Attach(others.back());
  }
  greedy.clear();
  others.clear();
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

TEST_F(HostileTest, DurablesForASessionThatReadsLateWaitAndAreToldTogether) {
  StartWithBystander(true);
  RawClient scheduler(Path("red"));
  const Attached attached = Attach(scheduler);
  RawClient worker(Path("red"));
  Attach(worker, attached.group);
  const uint32_t ns = OpenNamespace(worker);
  // More rounds with a durable block each than kernel and outbox together take frames.
  constexpr uint64_t kRounds = 700;
  for (uint64_t i = 0; i < kRounds; ++i) Store(worker, ns, 1000 + i, 1);
  EXPECT_EQ(Cuts(CutReason::kTooSlow), 0u);
  size_t told = 0, frames = 0;
  for (std::vector<ServerFrame> said = Drain(scheduler); !said.empty(); said = Drain(scheduler)) {
    for (const ServerFrame& frame : said) {
      told += static_cast<size_t>(frame.durable().reservations_size());
      frames += frame.has_durable() ? 1 : 0;
    }
    Spin();
  }
  EXPECT_EQ(told, kRounds);
  EXPECT_LT(frames, kRounds);
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
  OutlastRest();
  ExpectNothingLeft();
}

TEST_F(HostileTest, BlocksAGroupIsFillingAreBoundedWhateverItCommits) {
  constexpr uint32_t kSmallBlock = 4 * kKiB;
  dram_bytes_ = 2 * kFillingBlocksPerGroupMax * kSmallBlock;
  rules_[0].tier(TierKind::kDram).limit_bytes = dram_bytes_;
  rules_[0].tier(TierKind::kDram).guarantee_bytes = 0;
  StartWithBystander();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client, 'f', 1, kSmallBlock);
  v1::Reserved reserved;
  for (uint64_t first = 0; first < kFillingBlocksPerGroupMax; first += kReservePerFrameMax) {
    reserved = Reserve(client, ns, 1000 + first, kReservePerFrameMax);
    ASSERT_EQ(reserved.outcomes(), std::string(kReservePerFrameMax, '\0')) << first;
    // A shard that the block does not have: it goes on filling.
    ASSERT_EQ(Commit(client, reserved.reservations(), 1), std::string(kReservePerFrameMax, '\2'));
  }
  EXPECT_EQ(AskForError(client, ReserveFrame(ns, 1, 1)).refusal(), "group_limit");
  // What is stored or aborted makes room, once.
  const std::vector<uint64_t> stored(reserved.reservations().begin(), reserved.reservations().begin() + 2);
  EXPECT_EQ(Commit(client, stored), std::string(2, '\0'));
  EXPECT_EQ(Commit(client, stored), std::string(2, '\2'));
  ClientFrame abort;
  abort.mutable_abort()->add_reservations(reserved.reservations(2));
  EXPECT_EQ(Ask(client, abort).aborted().count(), 1u);
  EXPECT_EQ(Commit(client, std::vector<uint64_t>{reserved.reservations(2)}), std::string("\2"));
  EXPECT_EQ(AskForError(client, ReserveFrame(ns, 1, 4)).refusal(), "group_limit");
  EXPECT_EQ(RefusedAtTheDoor("group_limit"), 2u) << "each refusal is counted by its reason";
  EXPECT_EQ(Reserve(client, ns, 1, 3).outcomes(), std::string(3, '\0'));
}

TEST_F(HostileTest, LeasesThatExpireTogetherAreGivenBackInTurns) {
  Start();
  RawClient red(Path("red")), blue(Path("blue"));
  // The same key 1024 times in a frame; red leaves far more than is given back in a tick.
  const auto lease = [this](RawClient& client, uint32_t frames) {
    Attach(client);
    const uint32_t ns = OpenNamespace(client);
    Store(client, ns, 1, 1);
    ClientFrame frame = LookupFrame(ns, 1, 1);
    std::string keys;
    for (uint32_t i = 0; i < kKeysPerFrameMax; ++i) keys += KeyBytes(1);
    frame.mutable_lookup()->set_keys(keys);
    for (uint32_t i = 0; i < frames; ++i) {
      ASSERT_EQ(Ask(client, frame).looked_up().matched(), kKeysPerFrameMax);
    }
  };
  const auto leased = [this](const std::string& tenant) {
    uint32_t blocks = 0;
    for (const SessionInfo& info : server_->stats().session_list) {
      if (info.tenant == tenant) blocks += info.leased_blocks;
    }
    return blocks;
  };
  lease(red, 20);
  lease(blue, 2);
  ASSERT_EQ(leased("team/red"), 20 * kKeysPerFrameMax);
  AdvanceMs(kLeaseMsDefault - kTickMs);
  ASSERT_EQ(leased("team/red") + leased("team/blue"), 22 * kKeysPerFrameMax);
  AdvanceMs(kTickMs);
  EXPECT_EQ(leased("team/blue"), 0u) << "it does not wait behind the other";
  EXPECT_EQ(leased("team/red"), 22 * kKeysPerFrameMax - kLeaseTickWorkMax) << "all groups together";
  AdvanceMs(kTickMs);
  EXPECT_EQ(leased("team/red"), 22 * kKeysPerFrameMax - 2 * kLeaseTickWorkMax);
  AdvanceMs(kTickMs);
  EXPECT_EQ(leased("team/red"), 0u);
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

}  // namespace
}  // namespace kvartal::attach
