// Well-behaved clients through the whole door: every verb, over real sockets and the real engine.
#include <sys/mman.h>

#include <atomic>

#include "tests/integration/attach_fixture.h"

namespace kvartal::attach {
namespace {

using Code = v1::Error;

TEST_F(AttachTest, AttachGrantsTheArenaAndAReadOnlyGenerationTable) {
  Start();
  RawClient client(Path("red"));
  const Attached attached = Attach(client);
  EXPECT_EQ(attached.group.size(), 16u);
  ASSERT_EQ(client.fds.size(), 2u);
  const uint64_t arena_bytes = attached.grant.arena_bytes();
  ASSERT_GT(arena_bytes, 0u);
  EXPECT_TRUE(Mapping::Shared(client.fds[0].get(), arena_bytes, PROT_READ | PROT_WRITE, MAP_NORESERVE).ok());
  const uint64_t table_bytes = arena_bytes / kSlotAlignBytes * sizeof(uint32_t);
  EXPECT_TRUE(Mapping::Shared(client.fds[1].get(), table_bytes, PROT_READ).ok());
  EXPECT_FALSE(Mapping::Shared(client.fds[1].get(), table_bytes, PROT_READ | PROT_WRITE).ok())
      << "a client that could write generations could pass stale bytes for good ones";
}

TEST_F(AttachTest, WhatOneSessionStoresAnotherOfTheTenantReadsInPlace) {
  Start();
  RawClient writer(Path("red"));
  const Attached granted = Attach(writer);
  const uint32_t ns = OpenNamespace(writer);
  const v1::Reserved reserved = Reserve(writer, ns, 1, 3);
  ASSERT_EQ(reserved.outcomes(), std::string(3, '\0'));
  const Mapping arena =
      *Mapping::Shared(writer.fds[0].get(), granted.grant.arena_bytes(), PROT_READ | PROT_WRITE, MAP_NORESERVE);
  for (int i = 0; i < 3; ++i) std::memset(arena.data() + reserved.offsets(i), 'A' + i, kTestBlockBytes);

  RawClient reader(Path("red"));
  Attach(reader);
  ASSERT_EQ(OpenNamespace(reader), ns) << "the same digest of the same tenant";
  EXPECT_EQ(Lookup(reader, ns, 1, 3).matched(), 0u) << "nothing is visible before its commit";
  EXPECT_EQ(Commit(writer, reserved.reservations()), std::string(3, '\0'));

  const v1::LookedUp found = Lookup(reader, ns, 1, 5);
  ASSERT_EQ(found.matched(), 3u);
  EXPECT_NE(found.lease(), 0u);
  EXPECT_EQ(found.tiers(), std::string(3, '\1'));
  const Mapping view = *Mapping::Shared(reader.fds[0].get(), granted.grant.arena_bytes(), PROT_READ, MAP_NORESERVE);
  const uint64_t table_bytes = granted.grant.arena_bytes() / kSlotAlignBytes * sizeof(uint32_t);
  const Mapping table = *Mapping::Shared(reader.fds[1].get(), table_bytes, PROT_READ);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(view.data()[found.offsets(i)], std::byte('A' + i));
    uint32_t generation;
    std::memcpy(&generation, table.data() + found.offsets(i) / kSlotAlignBytes * sizeof(uint32_t), sizeof(generation));
    EXPECT_EQ(generation, found.generations(i));
  }
  EXPECT_EQ(engine_->stats().leased_blocks, 3u);
  Release(reader, found.lease(), 2);
  EXPECT_EQ(engine_->stats().leased_blocks, 1u);
  Release(reader, found.lease());
  EXPECT_EQ(engine_->stats().leased_blocks, 0u);
}

TEST_F(AttachTest, ALookupMayGoOnInTheSameLease) {
  Start();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 4);
  const v1::LookedUp first = Lookup(client, ns, 1, 2);
  const v1::LookedUp second = Lookup(client, ns, 3, 5, first.lease());
  EXPECT_EQ(second.lease(), first.lease());
  EXPECT_EQ(second.matched(), 2u);
  EXPECT_EQ(server_->stats().session_list[0].leases, 1u);
  EXPECT_EQ(server_->stats().session_list[0].leased_blocks, 4u);
  const v1::LookedUp miss = Lookup(client, ns, 900, 2);
  EXPECT_EQ(miss.matched(), 0u);
  EXPECT_EQ(miss.lease(), 0u) << "a miss leases nothing";
  Release(client, first.lease());
  EXPECT_EQ(engine_->stats().leased_blocks, 0u);
}

TEST_F(AttachTest, LeasesGivenBackWithARequestAreFreeBeforeItIsAnswered) {
  Start();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 4);
  const v1::LookedUp first = Lookup(client, ns, 1, 2);
  const v1::LookedUp second = Lookup(client, ns, 1, 4);
  ClientFrame frame = LookupFrame(ns, 900, 1);
  frame.add_released(first.lease());
  frame.add_released(second.lease());
  frame.add_released(12'345);  // expired meanwhile: no mistake
  EXPECT_EQ(Ask(client, frame).looked_up().matched(), 0u);
  EXPECT_EQ(engine_->stats().leased_blocks, 0u);

  ClientFrame unknown = LookupFrame(ns, 1, 2, first.lease());
  EXPECT_EQ(AskForError(client, unknown).code(), Code::NOT_FOUND) << "given back before its own frame is looked at";
  RawClient stranger(Path("red"));
  Attach(stranger);
  const v1::LookedUp third = Lookup(client, ns, 1, 2);
  ClientFrame theft;
  theft.mutable_renew();
  theft.add_released(third.lease());
  EXPECT_TRUE(Ask(stranger, theft).has_renewed());
  EXPECT_EQ(engine_->stats().leased_blocks, 2u) << "the lease of another group";
}

TEST_F(AttachTest, ReservedMemoryIsToldBeforeTheAnswerThatUsesIt) {
  Start();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  unasked_.clear();
  const v1::Reserved reserved = Reserve(client, ns, 1, 1);
  ASSERT_EQ(unasked_.size(), 1u) << "the grant comes first";
  const v1::MemoryGrant& grant = unasked_[0].memory_grant();
  ASSERT_EQ(grant.offsets_size(), 1);
  EXPECT_FALSE(grant.has_fds());
  EXPECT_GE(reserved.offsets(0), grant.offsets(0));
  EXPECT_LT(reserved.offsets(0), grant.offsets(0) + grant.bytes(0));
}

TEST_F(AttachTest, RanksOfOneGroupCommitTheShardsOfABlock) {
  Start();
  RawClient rank0(Path("red"));
  const Attached first = Attach(rank0);
  RawClient rank1(Path("red"));
  EXPECT_EQ(Attach(rank1, first.group).group, first.group);
  EXPECT_EQ(server_->stats().groups, 1u);
  const uint32_t ns = OpenNamespace(rank0, 's', 2);
  EXPECT_EQ(AskForError(rank1, ReserveFrame(ns, 1, 1, 1)).code(), Code::NOT_FOUND) << "a session opens for itself";
  ASSERT_EQ(OpenNamespace(rank1, 's', 2), ns);
  const v1::Reserved shard0 = Reserve(rank0, ns, 1, 1, 0);
  const v1::Reserved shard1 = Reserve(rank1, ns, 1, 1, 1);
  ASSERT_EQ(shard1.outcomes(), std::string(1, '\0'));
  EXPECT_EQ(shard0.reservations(0), shard1.reservations(0));
  EXPECT_EQ(shard1.offsets(0), shard0.offsets(0) + kTestBlockBytes);
  EXPECT_EQ(Commit(rank0, shard0.reservations(), 0), std::string(1, '\1'));
  EXPECT_EQ(Lookup(rank0, ns, 1, 1).matched(), 0u);
  EXPECT_EQ(server_->stats().session_list[0].filling_blocks, 1u);
  EXPECT_EQ(Commit(rank1, shard1.reservations(), 1), std::string(1, '\0'));
  EXPECT_EQ(Lookup(rank0, ns, 1, 1).matched(), 1u);
  EXPECT_EQ(server_->stats().session_list[0].filling_blocks, 0u);
}

TEST_F(AttachTest, AbortFreesTheSlotsAtOnce) {
  Start();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  const v1::Reserved reserved = Reserve(client, ns, 1, 4);
  ClientFrame frame;
  for (uint64_t reservation : reserved.reservations()) frame.mutable_abort()->add_reservations(reservation);
  EXPECT_EQ(Ask(client, frame).aborted().count(), 4u);
  EXPECT_EQ(Ask(client, frame).aborted().count(), 0u) << "once";
  EXPECT_EQ(Now().filling_blocks, 0u);
  EXPECT_EQ(Commit(client, reserved.reservations()), std::string(4, '\2')) << "commit after abort is not filling";
  EXPECT_EQ(Lookup(client, ns, 1, 4).matched(), 0u);
}

TEST_F(AttachTest, LoadBringsBlocksBackFromDisk) {
  rules_[0].tier(TierKind::kDram).limit_bytes = 8 * kMiB;
  Start(true);
  RawClient client(Path("red"));
  const Attached attached = Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 20);
  for (uint64_t first = 1000; first < 1300; first += 20)
    Store(client, ns, first, 20);  // pushes the first ones out of DRAM
  const v1::LookedUp found = Lookup(client, ns, 1, 20);
  ASSERT_EQ(found.matched(), 20u);
  ASSERT_EQ(found.tiers(), std::string(20, '\2')) << "all on nvme";
  ClientFrame load;
  load.mutable_load()->set_lease(found.lease());
  load.mutable_load()->set_first(2);
  load.mutable_load()->set_count(10);
  const ServerFrame answer = Ask(client, load);
  ASSERT_TRUE(answer.has_loaded()) << answer.error().message();
  EXPECT_EQ(answer.loaded().first(), 2u);
  EXPECT_EQ(answer.loaded().count(), 10u);
  EXPECT_EQ(answer.loaded().offsets_size(), 10);
  EXPECT_FALSE(answer.loaded().lost());

  load.mutable_load()->set_first(15);
  EXPECT_EQ(AskForError(client, load).code(), Code::BAD_ARGUMENT) << "beyond the lease";
  Release(client, found.lease(), 5);
  load.mutable_load()->set_first(2);
  EXPECT_EQ(AskForError(client, load).code(), Code::BAD_ARGUMENT) << "released already";
  Release(client, found.lease());
  EXPECT_EQ(AskForError(client, load).code(), Code::NOT_FOUND);
}

TEST_F(AttachTest, DurableIsToldInFewFrames) {
  Start(true);
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  const v1::Reserved reserved = Reserve(client, ns, 1, 50);
  unasked_.clear();
  Commit(client, reserved.reservations());
  Spin();
  std::vector<uint64_t> durable;
  for (const ServerFrame& frame : Drain(client)) unasked_.push_back(frame);
  for (const ServerFrame& frame : unasked_) {
    durable.insert(durable.end(), frame.durable().reservations().begin(), frame.durable().reservations().end());
  }
  std::sort(durable.begin(), durable.end());
  EXPECT_EQ(durable, std::vector<uint64_t>(reserved.reservations().begin(), reserved.reservations().end()));
  EXPECT_LT(unasked_.size(), 10u) << "not a frame a block";
}

TEST_F(AttachTest, LeasesLiveByRenewal) {
  Start();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 2);
  const v1::LookedUp kept = Lookup(client, ns, 1, 2);
  const v1::LookedUp dropped = Lookup(client, ns, 1, 1);
  AdvanceMs(kLeaseMsDefault / 2);
  ClientFrame renew;
  renew.mutable_renew()->add_leases(kept.lease());
  EXPECT_EQ(Ask(client, renew).renewed().count(), 1u);
  AdvanceMs(kLeaseMsDefault / 2 + kTickMs);
  EXPECT_EQ(server_->stats().leases_expired, 1u);
  EXPECT_EQ(engine_->stats().leased_blocks, 2u);
  EXPECT_EQ(AskForError(client, LookupFrame(ns, 1, 1, dropped.lease())).code(), Code::NOT_FOUND);
  renew.mutable_renew()->clear_leases();
  EXPECT_EQ(Ask(client, renew).renewed().count(), 1u) << "all that live";
  AdvanceMs(kLeaseMsDefault + kTickMs);
  EXPECT_EQ(engine_->stats().leased_blocks, 0u);
  EXPECT_EQ(Ask(client, renew).renewed().count(), 0u);
}

TEST_F(AttachTest, PinIsKeptWithinTheGuaranteeAndRefusedAboveIt) {
  rules_[0].tier(TierKind::kDram).guarantee_bytes = 4 * kTestBlockBytes;
  Start();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 8);
  ClientFrame pin;
  pin.mutable_pin()->set_until_wall_ms(static_cast<uint64_t>(clock_.WallMs()) + 60'000);
  pin.mutable_pin()->set_lease(Lookup(client, ns, 1, 4).lease());
  EXPECT_TRUE(Ask(client, pin).has_pinned());
  pin.mutable_pin()->set_lease(Lookup(client, ns, 1, 8).lease());
  const v1::Error refused = AskForError(client, pin);
  EXPECT_EQ(refused.code(), Code::REFUSED);
  EXPECT_EQ(refused.refusal(), "tenant_limit");
}

TEST_F(AttachTest, ALimitIsAnAnswerWithItsName) {
  rules_[0].tier(TierKind::kDram).limit_bytes = 0;
  Start();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  const v1::Reserved reserved = Reserve(client, ns, 1, 2);
  EXPECT_EQ(reserved.outcomes(), std::string(2, '\2'));
  EXPECT_EQ(reserved.refusal(), "no_tier");
  EXPECT_EQ(reserved.reservations(0), 0u);
  EXPECT_EQ(Now().filling_blocks, 0u);
}

TEST_F(AttachTest, DetachAndEofEndASessionAlike) {
  Start();
  const Balance before = Warm();
  for (const bool detach : {true, false}) {
    RawClient client(Path("red"));
    Attach(client);
    const uint32_t ns = OpenNamespace(client);
    Reserve(client, ns, 1, 8);
    ClientFrame frame;
    frame.mutable_detach();
    if (detach) {
      ASSERT_TRUE(client.Send(frame));
    }
    client.fds.clear();
    client.Close();
    Spin();
    if (!detach) AdvanceMs(2'500);  // this process lives, and may be writing still
    EXPECT_EQ(Now(), before);
  }
  EXPECT_EQ(Cuts(CutReason::kDetached), 1u);
  EXPECT_EQ(Cuts(CutReason::kPeerClosed), 3u) << "two of them of the warming up";
  const AttachStats stats = server_->stats();
  EXPECT_EQ(stats.reclaims, 4u);
  EXPECT_EQ(stats.reclaimed_blocks, 16u);
  EXPECT_EQ(stats.recent_reclaim_us.size(), 4u);
}

TEST_F(AttachTest, AGroupLivesAsLongAsItsLastSession) {
  Start();
  RawClient first(Path("red"));
  const Attached attached = Attach(first);
  RawClient second(Path("red"));
  Attach(second, attached.group);
  const uint32_t ns = OpenNamespace(first);
  const v1::Reserved reserved = Reserve(first, ns, 1, 2), left = Reserve(first, ns, 100, 2);
  EXPECT_EQ(Commit(second, reserved.reservations()), std::string(2, '\0')) << "what is reserved is the group's";
  const uint64_t lease = Lookup(first, ns, 1, 2).lease();
  first.Close();
  Spin();
  EXPECT_EQ(server_->stats().groups, 1u);
  EXPECT_EQ(Commit(second, left.reservations()), std::string(2, '\2')) << "nobody is there to write it";
  ClientFrame renew;
  renew.mutable_renew()->add_leases(lease);
  EXPECT_EQ(Ask(second, renew).renewed().count(), 1u) << "what is leased is the group's";
  second.Close();
  Spin();
  EXPECT_EQ(server_->stats().groups, 0u);
  RawClient late(Path("red"));
  ClientFrame frame;
  frame.mutable_attach()->set_version(1);
  frame.mutable_attach()->set_group(attached.group);
  EXPECT_EQ(AskForError(late, frame).code(), Code::NOT_FOUND);
}

TEST_F(AttachTest, DrainSaysGoodbyeRefusesAttachesAndGoesOnReading) {
  Start();
  RawClient client(Path("red"));
  Attach(client);
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 1, 2);
  server_->Drain();
  Spin();
  const std::vector<ServerFrame> said = Drain(client);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_TRUE(said[0].has_goodbye());
  EXPECT_EQ(Lookup(client, ns, 1, 2).matched(), 2u);
  RawClient late(Path("red"));
  ClientFrame frame;
  frame.mutable_attach()->set_version(1);
  const v1::Error refused = AskForError(late, frame);
  EXPECT_EQ(refused.code(), Code::REFUSED);
  EXPECT_EQ(refused.refusal(), "draining");
}

TEST_F(AttachTest, APolicyThatDropsATenantCutsItsSessionsOnly) {
  Start();
  RawClient red(Path("red"));
  Attach(red);
  Reserve(red, OpenNamespace(red), 1, 4);
  RawClient blue(Path("blue"));
  Attach(blue);
  const uint32_t blue_ns = OpenNamespace(blue);
  rules_.erase(rules_.begin());
  engine_->ApplyPolicy(Table());
  server_->OnPolicyChanged();
  Spin();
  const std::vector<ServerFrame> said = Drain(red);
  ASSERT_FALSE(said.empty());
  EXPECT_TRUE(said.back().has_goodbye());
  EXPECT_TRUE(red.ended());
  EXPECT_EQ(Cuts(CutReason::kPolicy), 1u);
  EXPECT_EQ(Lookup(blue, blue_ns, 1, 1).matched(), 0u) << "blue goes on";
  RawClient again(Path("red"));
  ClientFrame frame;
  frame.mutable_attach()->set_version(1);
  EXPECT_EQ(AskForError(again, frame).code(), Code::DENIED);
  EXPECT_EQ(Denials(DenialReason::kUnknownDoor), 1u);
}

TEST_F(AttachTest, ATenantMadeAnewUnderItsNameIsAnotherTenant) {
  Start();
  RawClient red(Path("red"));
  const Attached attached = Attach(red);
  Store(red, OpenNamespace(red), 1, 4);
  RawClient unattached(Path("red"));
  RawClient blue(Path("blue"));
  Attach(blue);
  const uint32_t blue_ns = OpenNamespace(blue);
  // Other limits are no other tenant.
  rules_[0].tier(TierKind::kDram).limit_bytes = 32 * kMiB;
  engine_->ApplyPolicy(Table());
  server_->OnPolicyChanged();
  EXPECT_EQ(Cuts(CutReason::kPolicy), 0u);

  rules_[0].uid = "another object of that name";
  engine_->ApplyPolicy(Table());
  server_->OnPolicyChanged();
  Spin();
  const std::vector<ServerFrame> said = Drain(red);
  ASSERT_FALSE(said.empty());
  EXPECT_TRUE(said.back().has_goodbye());
  EXPECT_TRUE(red.ended());
  EXPECT_EQ(Cuts(CutReason::kPolicy), 1u);
  EXPECT_EQ(Lookup(blue, blue_ns, 1, 1).matched(), 0u) << "blue goes on";
  Attach(unattached);
  RawClient late(Path("red"));
  ClientFrame frame;
  frame.mutable_attach()->set_version(1);
  frame.mutable_attach()->set_group(attached.group);
  EXPECT_EQ(AskForError(late, frame).code(), Code::NOT_FOUND) << "nobody joins what the old one held";
  server_->OnPolicyChanged();
  EXPECT_EQ(Cuts(CutReason::kPolicy), 1u) << "once";
}

TEST_F(AttachTest, ATenantThatIsErasedHasNoSessionsAndGetsNone) {
  Start();
  const Balance before = Warm();
  RawClient red(Path("red"));
  const Attached attached = Attach(red);
  RawClient rank(Path("red"));
  Attach(rank, attached.group);
  const uint32_t ns = OpenNamespace(red);
  Store(red, ns, 1, 4);
  EXPECT_EQ(Lookup(red, ns, 1, 4).matched(), 4u);
  Reserve(rank, OpenNamespace(rank), 100, 8);
  RawClient unattached(Path("red"));
  RawClient blue(Path("blue"));
  Attach(blue);
  const uint32_t blue_ns = OpenNamespace(blue);
  Store(blue, blue_ns, 1, 4);

  ASSERT_TRUE(server_->BeginDrop("team/red"));
  EXPECT_FALSE(server_->BeginDrop("team/red")) << "one at a time";
  Spin();
  for (RawClient* cut : {&red, &rank}) {
    const std::vector<ServerFrame> said = Drain(*cut);
    ASSERT_FALSE(said.empty());
    EXPECT_TRUE(said.back().has_goodbye());
    EXPECT_TRUE(cut->ended());
    cut->fds.clear();
    cut->Close();
  }
  EXPECT_EQ(Cuts(CutReason::kErased), 2u);
  EXPECT_EQ(Now().leased_blocks, 0u);
  EXPECT_EQ(Now().filling_blocks, 0u);
  RawClient late(Path("red"));
  ClientFrame frame;
  frame.mutable_attach()->set_version(1);
  for (RawClient* refused : {&unattached, &late}) {
    const v1::Error error = AskForError(*refused, frame);
    EXPECT_EQ(error.code(), Code::REFUSED);
    EXPECT_EQ(error.refusal(), "draining");
    EXPECT_NE(error.message().find("erased"), std::string::npos) << error.message();
  }
  EXPECT_EQ(Denials(DenialReason::kErasing), 2u);
  EXPECT_EQ(Lookup(blue, blue_ns, 1, 4).matched(), 4u) << "blue goes on";

  absl::StatusOr<uint64_t> bytes = absl::UnknownError("not done");
  engine_->DropTenant(engine_->FindTenant("team/red"), [&](absl::StatusOr<uint64_t> erased) { bytes = erased; });
  AdvanceMs(30 * kTickMs);  // whoever was cut off while it filled a slot may be at it for a while
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_GE(*bytes, 4 * kTestBlockBytes);
  server_->EndDrop("team/red");
  Attach(late);
  EXPECT_EQ(Lookup(late, OpenNamespace(late), 1, 4).matched(), 0u);
  EXPECT_EQ(Lookup(blue, blue_ns, 1, 4).matched(), 4u);
  for (RawClient* client : {&late, &unattached, &blue}) {
    client->fds.clear();
    client->Close();
  }
  Spin();
  EXPECT_EQ(Now().open_fds, before.open_fds);
}

TEST_F(AttachTest, SessionsAreListedForPeople) {
  Start();
  RawClient client(Path("red"));
  const Attached attached = Attach(client);
  RawClient silent(Path("blue"));
  AdvanceMs(1000);
  const AttachStats stats = server_->stats();
  ASSERT_EQ(stats.session_list.size(), 2u);
  EXPECT_EQ(stats.attached, 1u);
  const SessionInfo& info = stats.session_list[0];
  EXPECT_EQ(info.tenant, "team/red");
  EXPECT_EQ(info.attestor, "socket");
  EXPECT_EQ(info.client, "test");
  EXPECT_EQ(info.uid, ::getuid());
  EXPECT_EQ(info.pid, static_cast<uint32_t>(::getpid()));
  EXPECT_EQ(info.group, NameToHex(attached.group, 4));
  EXPECT_EQ(info.age_ms, 1000u);
  EXPECT_EQ(stats.session_list[1].tenant, "") << "not attached";
}

}  // namespace
}  // namespace kvartal::attach
