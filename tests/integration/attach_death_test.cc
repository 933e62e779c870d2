// Clients that die after any step of their life, alone or in a crowd.
#include <random>
#include <tuple>

#include "tests/integration/attach_hostile_fixture.h"

namespace kvartal::attach {
namespace {

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
    // One that does not read dies with its answer unread, or its request unseen.
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
  OutlastRest();  // this process lives
  const Balance after = Now();
  EXPECT_EQ(after.sessions, before_.sessions);
  EXPECT_EQ(after.groups, before_.groups);
  EXPECT_EQ(after.leased_blocks, before_.leased_blocks);
  EXPECT_EQ(after.filling_blocks, 0u);
  EXPECT_EQ(after.waiting_requests, 0u);
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

TEST_F(HostileTest, WhenTheLastSessionOfAGroupEndsItsNamespacesAreTheFirstToPay) {
  rules_[0].max_entries = 20;
  Start();
  RawClient stays(Path("red"));
  Attach(stays);
  const uint32_t old_ns = OpenNamespace(stays, 'o');
  Store(stays, old_ns, 1, 10);
  RawClient scheduler(Path("red"));
  const Attached attached = Attach(scheduler);
  RawClient worker(Path("red"));
  Attach(worker, attached.group);
  const uint32_t young_ns = OpenNamespace(scheduler, 'y');
  ASSERT_EQ(OpenNamespace(worker, 'y'), young_ns) << "counted once a group";
  Store(scheduler, young_ns, 1, 10);
  const auto dropped = [this] {
    return engine_->stats().tenants[0].tiers[TierIndex(TierKind::kDram)].drop(policy::DropReason::kEntryCap).count;
  };
  scheduler.Close();
  Spin();
  Store(stays, old_ns, 100, 2);
  EXPECT_EQ(dropped(), 2u);
  worker.Close();
  Spin();
  Store(stays, old_ns, 200, 8);
  EXPECT_EQ(dropped(), 10u);
  EXPECT_EQ(Lookup(stays, old_ns, 1, 10).matched(), 8u)
      << "two went while the worker had the other namespace open; then younger blocks did, that nobody has open";
  EXPECT_EQ(Lookup(stays, old_ns, 200, 8).matched(), 8u);
}

// Frames that are right, wrong and mangled, from several sessions at once, with deaths in between.
class CrowdTest : public HostileTest {
 protected:
  struct Member {
    std::unique_ptr<DyingClient> dying;
    std::vector<uint64_t> leases, reservations;
  };

  // Mostly its own, sometimes another member's.
  uint64_t Any(const std::vector<uint64_t>& own, const std::vector<uint64_t>& foreign) {
    const std::vector<uint64_t>& from = random_() % 5 == 0 ? foreign : own;
    return from.empty() ? lease_ : from[random_() % from.size()];
  }
  void Act(Member* one, const Member& other) {
    if (one->dying == nullptr || random_() % 60 == 0) {
      *one = {std::make_unique<DyingClient>(Path("red"), 1 + random_() % 300), {}, {}};
      for (int step = 0; step < 3; ++step) one->dying->client.Send(one->dying->FrameOf(step, 0, {}, 0));
    }
    std::vector<uint64_t> reservations;
    for (int i = 0; i < 4; ++i) reservations.push_back(Any(one->reservations, other.reservations));
    const int step = 2 + static_cast<int>(random_() % 7);
    std::string bytes =
        one->dying->FrameOf(step, ns_, reservations, Any(one->leases, other.leases)).SerializeAsString();
    if (random_() % 20 == 0) {
      for (int i = 0; i < 3; ++i) bytes[random_() % bytes.size()] = static_cast<char>(random_());
    }
    one->dying->client.SendBytes(bytes);
  }
  void Read(Member* one) {
    RawClient& client = one->dying->client;
    while (const auto frame = client.Receive()) {
      if (frame->has_namespace_opened()) ns_ = frame->namespace_opened().ns();
      if (frame->looked_up().lease() != 0) {
        one->leases.push_back(frame->looked_up().lease());
        ++leases_seen_;
      }
      for (const uint64_t reservation : frame->reserved().reservations()) {
        if (reservation == 0) continue;
        one->reservations.push_back(reservation);
        ++reservations_seen_;
      }
    }
    client.fds.clear();
    if (client.ended()) *one = {};
  }

  std::mt19937 random_{20261129};
  uint32_t ns_ = 0;
  size_t leases_seen_ = 0, reservations_seen_ = 0;
};

TEST_F(CrowdTest, LeavesNothingBehind) {
  rules_[0].tier(TierKind::kDram).limit_bytes = 8 * kMiB;
  StartWithBystander(true);
  std::vector<Member> crowd(6);
  for (int round = 0; round < 3000; ++round) {
    Member& one = crowd[random_() % crowd.size()];
    Act(&one, crowd[random_() % crowd.size()]);
    if (random_() % 3 == 0) loop_->RunOnce(0);
    if (random_() % 50 == 0) AdvanceMs(kTickMs * (1 + random_() % 20));
    Read(&one);
    if (round % 10 == 0) {
      ClientFrame renew;
      renew.mutable_renew();
      ASSERT_EQ(Ask(*bystander_, renew).renewed().count(), 1u);
    }
  }
  EXPECT_GT(leases_seen_, 50u) << "the crowd got things done";
  EXPECT_GT(reservations_seen_, 500u);
  crowd.clear();
  Spin();
  OutlastRest();
  const Balance after = Now();
  EXPECT_EQ(after.sessions, before_.sessions);
  EXPECT_EQ(after.groups, before_.groups);
  EXPECT_EQ(after.leased_blocks, before_.leased_blocks);
  EXPECT_EQ(after.waiting_requests, 0u);
  EXPECT_EQ(after.open_fds, before_.open_fds);
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::attach
