// What ends with the last session of a group, and with a tenant: through the real door.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/integration/attach_fixture.h"

namespace kvartal::attach {
namespace {

using policy::DropReason;

class AttachLifeTest : public AttachTest {
 protected:
  // Of a tenant, in DRAM.
  engine::TenantTierStats Dram(const std::string& tenant) const {
    for (const engine::TenantStats& stats : engine_->stats().tenants) {
      if (stats.name == tenant) return stats.tiers[TierIndex(TierKind::kDram)];
    }
    return {};
  }
  uint64_t Filling() const { return Now().filling_blocks; }
};

TEST_F(AttachLifeTest, ANamespaceIsRetiredWhenTheLastGroupThatOpenedItIsGone) {
  rules_[0].tier(TierKind::kNvme) = {};
  Start();
  const size_t fit = rules_[0].tier(TierKind::kDram).limit_bytes / kTestBlockBytes;
  RawClient first(Path("red")), second(Path("red")), other(Path("red"));
  Attach(first);
  Attach(second);
  Attach(other);
  const uint32_t old_ns = OpenNamespace(first, 'o'), new_ns = OpenNamespace(other, 'n');
  ASSERT_EQ(OpenNamespace(second, 'o'), old_ns);
  ASSERT_EQ(OpenNamespace(second, 'o'), old_ns) << "twice by one session";
  Store(other, new_ns, 1000, 32);  // the oldest of all
  for (size_t stored = 0; stored < fit - 32; stored += 32) Store(first, old_ns, stored, 32);

  first.Close();
  Spin();
  Store(other, new_ns, 2000, 32);
  EXPECT_EQ(Dram("team/red").drop(DropReason::kRetired).count, 0u) << "somebody has it open still";
  EXPECT_EQ(Lookup(second, old_ns, 0, 32).matched(), 32u);

  second.Close();
  Spin();
  Store(other, new_ns, 3000, 64);
  EXPECT_EQ(Dram("team/red").drop(DropReason::kRetired).count, 64u) << "now its blocks go first";
  EXPECT_EQ(Lookup(other, new_ns, 3000, 64).matched(), 64u);

  RawClient back(Path("red"));
  Attach(back);
  ASSERT_EQ(OpenNamespace(back, 'o'), old_ns);
  Store(other, new_ns, 4000, 32);
  EXPECT_EQ(Dram("team/red").drop(DropReason::kRetired).count, 64u) << "and is like any other once it is back";
}

ClientFrame CloseFrame(uint32_t ns) {
  ClientFrame frame;
  frame.mutable_close_namespace()->set_ns(ns);
  return frame;
}

TEST_F(AttachLifeTest, ASessionThatClosesANamespaceRetiresItForItself) {
  rules_[0].tier(TierKind::kNvme) = {};
  Start();
  const size_t fit = rules_[0].tier(TierKind::kDram).limit_bytes / kTestBlockBytes;
  RawClient scheduler(Path("red")), worker(Path("red"));
  const std::string group = Attach(scheduler).group;
  Attach(worker, group);
  const uint32_t old_ns = OpenNamespace(scheduler, 'o');
  ASSERT_EQ(OpenNamespace(worker, 'o'), old_ns);
  for (size_t stored = 0; stored < fit; stored += 32) Store(worker, old_ns, stored, 32);
  const uint64_t lease = Lookup(scheduler, old_ns, 0, 32).lease();
  ASSERT_NE(lease, 0u);

  ASSERT_TRUE(scheduler.Send(CloseFrame(old_ns)));
  const uint32_t new_ns = OpenNamespace(scheduler, 'n');
  EXPECT_NE(new_ns, old_ns) << "a session has it open still: its number is no other's";
  ClientFrame ask = LookupFrame(old_ns, 0, 32);
  EXPECT_EQ(Ask(scheduler, ask).error().code(), v1::Error::NOT_FOUND);
  EXPECT_EQ(Lookup(worker, old_ns, 32, 32).matched(), 32u) << "what a session opened is its own";
  Store(scheduler, new_ns, 5000, 32);
  EXPECT_EQ(Dram("team/red").drop(DropReason::kRetired).count, 0u);

  ASSERT_TRUE(worker.Send(CloseFrame(old_ns)));
  Store(scheduler, new_ns, 6000, 64);
  EXPECT_EQ(Dram("team/red").drop(DropReason::kRetired).count, 64u) << "dead blocks go first";
  ClientFrame renew;
  renew.mutable_renew()->add_leases(lease);
  EXPECT_EQ(Ask(scheduler, renew).renewed().count(), 1u) << "and a lease of them stays";
  ASSERT_TRUE(worker.Send(CloseFrame(old_ns)));
  ASSERT_TRUE(worker.Send(CloseFrame(123456)));
  Spin();
  EXPECT_FALSE(worker.Receive().has_value()) << "no answer, and no harm";
  EXPECT_FALSE(worker.ended());
}

TEST_F(AttachLifeTest, AnEngineMayStartAnewForEver) {
  Start();
  RawClient client(Path("red"));
  Attach(client);
  for (size_t epoch = 0; epoch < 3 * kNamespacesPerTenantMax; ++epoch) {
    ClientFrame open;
    open.mutable_open_namespace()->set_digest(KeyBytes(epoch));
    open.mutable_open_namespace()->set_tokens_per_block(16);
    open.mutable_open_namespace()->set_shard_count(1);
    open.mutable_open_namespace()->set_shard_bytes(kTestBlockBytes);
    const ServerFrame answer = Ask(client, open);
    ASSERT_TRUE(answer.has_namespace_opened()) << "epoch " << epoch << ": " << answer.error().message();
    Store(client, answer.namespace_opened().ns(), epoch, 1);
    ASSERT_TRUE(client.Send(CloseFrame(answer.namespace_opened().ns())));
  }
}

// Its scheduler lives on.
TEST_F(AttachLifeTest, WhatADeadRankWasFillingIsGivenBackAtOnce) {
  Start();
  RawClient scheduler(Path("red"));
  const std::string group = Attach(scheduler).group;
  RawClient rank(Path("red")), other(Path("red"));
  Attach(rank, group);
  Attach(other, group);
  const auto open = [&](RawClient& client) {
    ClientFrame frame;
    frame.mutable_open_namespace()->set_digest(std::string(32, 's'));
    frame.mutable_open_namespace()->set_tokens_per_block(16);
    frame.mutable_open_namespace()->set_shard_count(2);
    frame.mutable_open_namespace()->set_shard_bytes(kTestBlockBytes);
    return Ask(client, frame).namespace_opened().ns();
  };
  const auto reserve = [&](RawClient& client, uint64_t first, size_t count, uint32_t shard) {
    ClientFrame frame = ReserveFrame(open(client), first, count);
    frame.mutable_reserve()->set_shard(shard);
    return Ask(client, frame).reserved();
  };
  const auto commit = [&](RawClient& client, const v1::Reserved& reserved, uint32_t shard) {
    ClientFrame frame;
    *frame.mutable_commit()->mutable_reservations() = reserved.reservations();
    frame.mutable_commit()->set_shard(shard);
    return Ask(client, frame).committed().outcomes();
  };
  const v1::Reserved done = reserve(rank, 0, 4, 0), of_other = reserve(other, 0, 4, 1);
  ASSERT_EQ(commit(rank, done, 0), std::string(4, '\1'));
  const v1::Reserved open_fills = reserve(rank, 100, 4, 0);
  ASSERT_EQ(open_fills.outcomes(), std::string(4, '\0'));
  // Each session tells what its group fills.
  ASSERT_EQ(Filling(), 3 * 8u);
  rank.Close();
  Spin();
  EXPECT_EQ(Filling(), 2 * 4u) << "what it has committed waits for the other rank";
  EXPECT_EQ(commit(other, of_other, 1), std::string(4, '\0'));
  EXPECT_EQ(Filling(), 0u);
  RawClient again(Path("red"));
  Attach(again, group);
  EXPECT_EQ(reserve(again, 100, 4, 0).outcomes(), std::string(4, '\0')) << "the restarted rank is not in its own way";
}

TEST_F(AttachLifeTest, ARankThatAbortsSaysNothingOfWhatAnotherIsWriting) {
  dram_bytes_ = 2 * kMiB;
  Start();
  const size_t all = dram_bytes_ / (2 * kTestBlockBytes);
  RawClient rank0(Path("red")), rank1(Path("red"));
  const std::string group = Attach(rank0).group;
  Attach(rank1, group);
  const uint32_t ns = OpenNamespace(rank0, 's', 2);
  ASSERT_EQ(OpenNamespace(rank1, 's', 2), ns);
  const auto abort = [&](RawClient& client, const v1::Reserved& reserved) {
    ClientFrame frame;
    *frame.mutable_abort()->mutable_reservations() = reserved.reservations();
    return Ask(client, frame).aborted().count();
  };
  const v1::Reserved first = Reserve(rank0, ns, 0, all, 0);
  ASSERT_EQ(Reserve(rank1, ns, 0, all, 1).outcomes(), std::string(all, '\0'));
  ASSERT_EQ(Commit(rank0, first.reservations(), 0), std::string(all, '\1'));
  EXPECT_EQ(abort(rank0, first), all);
  EXPECT_EQ(Reserve(rank0, ns, 100, all, 0).outcomes(), std::string(all, '\2')) << "the other may be at it";
  AdvanceMs(2'500);
  const v1::Reserved second = Reserve(rank0, ns, 200, all, 0);
  ASSERT_EQ(Reserve(rank1, ns, 200, all, 1).outcomes(), std::string(all, '\0'));
  ASSERT_EQ(Commit(rank0, second.reservations(), 0), std::string(all, '\1'));
  EXPECT_EQ(abort(rank1, second), all);
  EXPECT_EQ(Reserve(rank0, ns, 300, all, 0).outcomes(), std::string(all, '\0')) << "nobody is";
}

// A thread of its program may be in the middle of a copy: libkvartal hangs up on a daemon that does not answer.
TEST_F(AttachLifeTest, WhatAPeerThatHungUpAndLivesWasFillingIsNobodysForAsLongAsItMayWrite) {
  dram_bytes_ = 2 * kMiB;
  Start();
  const size_t all = dram_bytes_ / kTestBlockBytes;
  RawClient other(Path("red"));
  Attach(other);
  const uint32_t ns = OpenNamespace(other);
  RawClient alone(Path("red"));
  Attach(alone);
  ASSERT_EQ(Reserve(alone, OpenNamespace(alone), 0, all).outcomes(), std::string(all, '\0'));
  ASSERT_EQ(::shutdown(alone.fd(), SHUT_RDWR), 0);
  Spin();
  ASSERT_EQ(Cuts(CutReason::kPeerClosed), 1u);
  EXPECT_EQ(Filling(), 0u) << "nobody will commit it";
  EXPECT_EQ(Reserve(other, ns, 100, all).outcomes(), std::string(all, '\2'));
  AdvanceMs(2'500);

  RawClient scheduler(Path("red")), rank(Path("red"));
  Attach(rank, Attach(scheduler).group);
  ASSERT_EQ(Reserve(rank, OpenNamespace(rank), 200, all).outcomes(), std::string(all, '\0')) << "it has had its time";
  rank.Close();
  Spin();
  EXPECT_EQ(Reserve(other, ns, 300, all).outcomes(), std::string(all, '\2')) << "also where its group lives on";
  AdvanceMs(2'500);

  RawClient polite(Path("red"));
  Attach(polite);
  ASSERT_EQ(Reserve(polite, OpenNamespace(polite), 400, all).outcomes(), std::string(all, '\0'));
  ClientFrame detach;
  detach.mutable_detach();
  ASSERT_TRUE(polite.Send(detach));
  Spin();
  EXPECT_EQ(Reserve(other, ns, 500, all).outcomes(), std::string(all, '\0')) << "it has said that it is done";
}

TEST_F(AttachLifeTest, ALateAttachHasItsOwnTimeForTheGrant) {
  Start();
  RawClient client(Path("red"));
  Spin();
  AdvanceMs(kAttachDeadlineMs - 2 * kTickMs);
  ClientFrame attach;
  attach.mutable_attach()->set_version(1);
  ASSERT_TRUE(Ask(client, attach).has_attached());
  AdvanceMs(kAttachDeadlineMs - 2 * kTickMs);
  Drain(client);
  EXPECT_FALSE(client.ended()) << "five seconds from its grant, not from its connect";
  AdvanceMs(4 * kTickMs);
  Drain(client);
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(server_->stats().cuts[static_cast<size_t>(CutReason::kUnacked)], 1u);
}

TEST_F(AttachLifeTest, AFillThatTheEngineEndedIsNotCountedAndItsCommitSaysSo) {
  dram_bytes_ = 64 * kMiB;
  Start();
  const size_t all = dram_bytes_ / kTestBlockBytes;
  RawClient red(Path("red")), blue(Path("blue"));
  Attach(red);
  Attach(blue);
  const uint32_t red_ns = OpenNamespace(red), blue_ns = OpenNamespace(blue);
  const v1::Reserved fills = Reserve(red, red_ns, 0, all);
  ASSERT_EQ(fills.outcomes(), std::string(all, '\0'));
  ClientFrame wanted = ReserveFrame(blue_ns, 0, 8);
  wanted.set_request_id(77);
  ASSERT_TRUE(blue.Send(wanted));
  Spin();
  ASSERT_EQ(Filling(), all) << "it is owed an extent, and waits";
  AdvanceMs((kFillTicksMax + 5) * kTickMs + 2'500);  // and whoever fills it may be at it still
  EXPECT_EQ(Answer(blue, 77).reserved().outcomes(), std::string(8, '\0'));
  const uint64_t ended = all + 8 - Filling();
  EXPECT_GT(ended, 0u);
  const std::string outcomes = Commit(red, fills.reservations());
  EXPECT_EQ(static_cast<uint64_t>(std::count(outcomes.begin(), outcomes.end(), '\2')), ended);
  EXPECT_EQ(static_cast<uint64_t>(std::count(outcomes.begin(), outcomes.end(), '\0')), all - ended);
  EXPECT_EQ(Filling(), 8u) << "the other tenant's";
}

TEST_F(AttachLifeTest, ALoadThatWaitsEndsWithItsClient) {
  Start(true);
  {
    RawClient red(Path("red"));
    Attach(red);
    Store(red, OpenNamespace(red), 0, 16);
  }
  Spin();
  rules_[0].ttl_ms[TierIndex(TierKind::kDram)] = 100;
  engine_->ApplyPolicy(Table());
  AdvanceMs(2000);
  ASSERT_EQ(Dram("team/red").charged_bytes, 0u) << "all of it is on NVMe alone";
  RawClient red(Path("red"));
  Attach(red);
  const v1::LookedUp found = Lookup(red, OpenNamespace(red), 0, 16);
  ASSERT_EQ(found.matched(), 16u);
  memory_->Hold();
  ClientFrame load;
  load.set_request_id(1);
  load.mutable_load()->set_lease(found.lease());
  load.mutable_load()->set_count(16);
  ASSERT_TRUE(red.Send(load));
  Spin();
  ASSERT_EQ(engine_->stats().waiting_requests, 1u);
  red.Close();
  Spin();
  EXPECT_EQ(engine_->stats().waiting_requests, 0u) << "nobody waits for it";
  EXPECT_EQ(engine_->stats().leased_blocks, 0u);
  memory_->Release();
  AdvanceMs(500);
  EXPECT_EQ(engine_->stats().loads_under_way, 0u);
}

TEST_F(AttachLifeTest, ALoadWithoutANumberReadsAheadAndHasNoAnswer) {
  rules_[0].tier(TierKind::kDram).limit_bytes = 8 * kMiB;
  Start(true);
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 20);
  for (uint64_t first = 1000; first < 1300; first += 20) Store(client, ns, first, 20);
  const v1::LookedUp found = Lookup(client, ns, 1, 20);
  ASSERT_EQ(found.tiers(), std::string(20, '\2')) << "all on nvme";
  const uint64_t reads = file_->counts().reads;
  Drain(client);
  ClientFrame ahead;
  ahead.mutable_load()->set_lease(found.lease());
  ahead.mutable_load()->set_count(10);
  ASSERT_TRUE(client.Send(ahead));
  ahead.mutable_load()->set_count(100);  // beyond the lease
  ASSERT_TRUE(client.Send(ahead));
  ahead.mutable_load()->set_lease(found.lease() + 1000);
  ASSERT_TRUE(client.Send(ahead));
  Spin();
  EXPECT_FALSE(client.Receive().has_value());
  EXPECT_EQ(file_->counts().reads, reads + 10);
  ClientFrame load;
  load.mutable_load()->set_lease(found.lease());
  load.mutable_load()->set_count(10);
  EXPECT_EQ(Ask(client, load).loaded().count(), 10u);
  EXPECT_EQ(file_->counts().reads, reads + 10) << "what was read ahead is not read again";
  Release(client, found.lease());
  Spin();
  EXPECT_EQ(engine_->stats().leased_blocks, 0u);
}

TEST_F(AttachLifeTest, WhatOnlyAClosedSessionWaitedForIsNotRead) {
  Start(true);
  RawClient red(Path("red"));
  Attach(red);
  const uint32_t ns = OpenNamespace(red);
  Store(red, ns, 0, 16);
  Spin();
  rules_[0].ttl_ms[TierIndex(TierKind::kDram)] = 100;
  engine_->ApplyPolicy(Table());
  AdvanceMs(2000);
  // Memory that stays: the reads are not to wait for it.
  const v1::Reserved kept = Reserve(red, ns, 1000, 16);
  ASSERT_EQ(kept.reservations_size(), 16);
  RawClient other(Path("red"));
  Attach(other);
  const v1::LookedUp found = Lookup(other, OpenNamespace(other), 0, 16);
  ASSERT_EQ(found.tiers(), std::string(16, '\2')) << "all of it is on NVMe alone";
  ClientFrame abort;
  for (const uint64_t reservation : kept.reservations()) abort.mutable_abort()->add_reservations(reservation);
  ASSERT_EQ(Ask(red, abort).aborted().count(), 16u);
  const uint64_t reads = file_->counts().reads;
  file_->Hold();
  ClientFrame load;
  load.set_request_id(1);
  load.mutable_load()->set_lease(found.lease());
  load.mutable_load()->set_count(16);
  ASSERT_TRUE(other.Send(load));
  Spin();
  ASSERT_EQ(engine_->stats().loads_under_way, 16u);
  other.Close();
  Spin();
  EXPECT_EQ(engine_->stats().loads_under_way, 0u);
  file_->Release();
  Spin();
  EXPECT_EQ(file_->counts().reads, reads);
  EXPECT_EQ(engine_->stats().leased_blocks, 0u);
}

TEST_F(AttachLifeTest, ATenantThatIsGoneLeavesNoDescriptorAndNoLine) {
  Start();
  Warm();
  const size_t fds = OpenFds();
  RawClient red(Path("red"));
  Attach(red);
  Store(red, OpenNamespace(red), 0, 16);
  red.fds.clear();
  std::vector<engine::DeletionReceipt> receipts;
  server_->SetDeletionObserver([&](const engine::DeletionReceipt& receipt, absl::AnyInvocable<void(bool)> kept) {
    receipts.push_back(receipt);
    kept(true);
  });
  const policy::TenantRules gone = rules_[0];
  rules_.erase(rules_.begin());
  engine_->ApplyPolicy(Table());
  server_->OnPolicyChanged();
  AdvanceMs(kRemovedGraceMs + 2000);
  red.Close();
  ASSERT_EQ(receipts.size(), 1u);
  EXPECT_EQ(receipts[0].blocks, 16u);
  EXPECT_EQ(engine_->stats().tenants.size(), 1u);
  EXPECT_EQ(OpenFds() + 2, fds) << "its arena and its generation table";
  rules_.push_back(gone);
  engine_->ApplyPolicy(Table());
  RawClient anew(Path("red"));
  Attach(anew);
  EXPECT_EQ(Lookup(anew, OpenNamespace(anew), 0, 16).matched(), 0u);
  EXPECT_EQ(Dram("team/red").charged_bytes, 0u);
}

TEST_F(AttachLifeTest, AFloodOfDenialsIsToldByItsNumber) {
  rules_.erase(rules_.begin());  // nobody stands behind the red door
  Start();
  uint64_t lines = 0, denials = 0;
  server_->SetDoorObserver([&](const DoorEvent& event) {
    ++lines;
    denials += event.repeated == 0 ? 1 : event.repeated;
    EXPECT_EQ(event.denial, DenialReason::kUnknownDoor);
  });
  ClientFrame attach;
  attach.mutable_attach()->set_version(1);
  for (int i = 0; i < 300; ++i) {
    RawClient stranger(Path("red"));
    stranger.Send(attach);
    Spin();
  }
  EXPECT_EQ(lines, 1u);
  AdvanceMs(2 * kAuditDenialPeriodMs);
  EXPECT_EQ(lines, 2u);
  EXPECT_EQ(denials, Denials(DenialReason::kUnknownDoor));
  EXPECT_EQ(denials, 300u);
}

}  // namespace
}  // namespace kvartal::attach
