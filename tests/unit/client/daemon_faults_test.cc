// A daemon that dies, hangs, is late or is not there: every call comes back with KV_UNAVAILABLE, and later ones work
// again.
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <map>

#include "client/libkvartal/client_limits.h"
#include "tests/unit/client/client_fixture.h"

namespace kvartal::client {
namespace {

using ::testing::HasSubstr;

class DaemonFaultsTest : public ClientFixture {};

TEST_F(DaemonFaultsTest, AbsentDaemonIsAMissUntilOneAppears) {
  server.Kill();
  Client early;
  ASSERT_EQ(early.Attach(server.socket_path(), "early", nullptr, kPatient), KV_UNAVAILABLE);
  ASSERT_TRUE(early);
  EXPECT_FALSE(early.connected());
  EXPECT_THAT(early.error(), HasSubstr("is kvartald running"));
  Group group;
  EXPECT_EQ(early.GetGroup(&group), KV_UNAVAILABLE);
  const Client::Opened opened = early.OpenNamespace(Digest{5}, kLayout, kPatient);
  EXPECT_EQ(opened.status, KV_UNAVAILABLE);
  Client::Found found = early.Lookup(opened.ns, Chain(2), 0, kPatient);
  EXPECT_EQ(found.status, KV_UNAVAILABLE);
  EXPECT_EQ(found.matched, 0u);
  EXPECT_FALSE(found.lease);
  EXPECT_THAT(early.error(), HasSubstr("next attempt in"));

  server.Start();
  for (int i = 0; i < 20'000 && found.status != KV_OK; ++i) {
    found = early.Lookup(opened.ns, Chain(2), 0, kPatient);
    ::usleep(500);
  }
  EXPECT_EQ(found.status, KV_OK);
  EXPECT_TRUE(early.connected());
}

TEST_F(DaemonFaultsTest, StaleSocketFileIsAMiss) {
  // What a killed daemon leaves behind: a socket nobody listens on.
  const std::string path = server.socket_path();
  server.Kill();
  server.Start();
  const std::string left = path + ".left";
  ASSERT_EQ(::rename(path.c_str(), left.c_str()), 0);
  server.Kill();
  Client late;
  EXPECT_EQ(late.Attach(left, "late", nullptr, kPatient), KV_UNAVAILABLE);
  EXPECT_THAT(late.error(), HasSubstr("kvartald is not"));
  ::unlink(left.c_str());
}

TEST_F(DaemonFaultsTest, HungDaemonCostsTheDeadlineAndNoMore) {
  server.Hang(true);
  Client patient;
  EXPECT_EQ(patient.Attach(server.socket_path(), "hung", nullptr, kShort), KV_UNAVAILABLE);
  EXPECT_TRUE(patient);
  EXPECT_THAT(patient.error(), HasSubstr("deadline"));
  EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kShort).status, KV_UNAVAILABLE);
  EXPECT_TRUE(client.connected());
  // Silence for long enough is as good as death: calls stop paying for it.
  for (int i = 0; i < 8; ++i) EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kShort).status, KV_UNAVAILABLE);
  EXPECT_FALSE(client.connected());
  server.Hang(false);
  EXPECT_EQ(LookupUntilConnected(Chain(1)), KV_OK);
}

TEST_F(DaemonFaultsTest, ALeaseGivenBackToADaemonThatTakesNothingIsToldLater) {
  const std::vector<Key> keys = Chain(1024);
  Store(keys);
  Client::Found long_one = client.Lookup(ns, keys, 0, kPatient);
  Client::Found given_back = client.Lookup(ns, Chain(1), 0, kPatient);
  ASSERT_EQ(server.live_leases(), 2u);
  server.Hang(true);
  for (int i = 0; i < 1023; ++i) long_one.lease.ReleaseFront(1);  // frames that nobody answers fill the socket's queue
  given_back.lease.Release();
  ASSERT_EQ(client.Lookup(ns, Chain(1), 0, kShort).status, KV_UNAVAILABLE);
  ASSERT_THAT(client.error(), HasSubstr("takes no more requests"));
  server.Hang(false);
  for (int i = 0; i < 20'000 && server.live_leases() > 1; ++i) ::usleep(500);
  EXPECT_EQ(server.live_leases(), 1u) << "it would be held until it expires";
}

class UntoldTest : public DaemonFaultsTest {
 protected:
  // Frames that nobody reads fill the socket's queue: from then on the daemon takes nothing.
  void FillQueue() {
    const std::vector<Key> keys = Chain(kBlocks, 10'000);
    Store(keys);
    filler_ = client.Lookup(ns, keys, 0, kPatient);
    ASSERT_EQ(filler_.matched, kBlocks);
    server.Hang(true);
    for (uint32_t i = 0; i < kBlocks - 1; ++i) filler_.lease.ReleaseFront(1);
    ASSERT_EQ(client.Renew(kShort), KV_UNAVAILABLE);
    ASSERT_THAT(client.error(), HasSubstr("takes no more requests"));
  }

  static constexpr uint32_t kBlocks = 1024;
  Client::Found filler_;
};

TEST_F(UntoldTest, AWindowGivenBackIsToldBeforeTheNextRequest) {
  ASSERT_NO_FATAL_FAILURE(FillQueue());
  uint32_t released = 0, released_before_load = 0;
  server.SetScript([&](const Server::Request& request, Server::Answer*) {
    if (request.has_release()) released += request.release().count();
    if (request.has_load()) released_before_load = released;
    return Fate::kSend;
  });
  server.Hang(false);
  EXPECT_EQ(filler_.lease.Load(kBlocks - 1, 1, kPatient).status, KV_OK) << client.error();
  server.SetScript(nullptr);
  EXPECT_EQ(released_before_load, kBlocks - 1);
}

TEST_F(UntoldTest, AWindowGivenBackIsToldWithoutACall) {
  ASSERT_NO_FATAL_FAILURE(FillQueue());
  std::atomic<uint32_t> released{0};
  server.SetScript([&](const Server::Request& request, Server::Answer*) {
    if (request.has_release()) released += request.release().count();
    return Fate::kSend;
  });
  server.Hang(false);
  for (int i = 0; i < 20'000 && released < kBlocks - 1; ++i) ::usleep(500);
  EXPECT_EQ(released, kBlocks - 1);
  server.SetScript(nullptr);
}

TEST_F(UntoldTest, LateSlotsAreHandedBackWhenTheDaemonTakesIt) {
  const std::vector<Key> keys = Chain(2, 5000);
  std::vector<kv_slot> slots(2);
  Doom([](const Server::Request& request) { return request.has_reserve() && request.reserve().keys().size() == 64; },
       Fate::kHold);
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = keys}, slots, kShort), KV_UNAVAILABLE);
  ASSERT_NO_FATAL_FAILURE(FillQueue());
  ASSERT_EQ(server.filling_slots(), 2u);
  server.ReleaseHeld();
  client.Poll(0);  // whoever reads it, it has been read now
  server.Hang(false);
  for (int i = 0; i < 20'000 && server.filling_slots() > 0; ++i) ::usleep(500);
  EXPECT_EQ(server.filling_slots(), 0u) << "they stay charged until the session ends";
}

TEST_F(UntoldTest, SlotsThatCouldNotBeCommittedInTimeAreGivenBack) {
  const std::vector<Key> keys = Chain(3000, 50'000);
  std::vector<kv_slot> slots(keys.size());
  for (size_t first = 0; first < keys.size(); first += 1000) {
    const auto part = std::span(keys).subspan(first, 1000);
    ASSERT_EQ(client.Reserve({.ns = ns, .keys = part}, std::span(slots).subspan(first, 1000), kPatient), KV_OK);
  }
  ASSERT_EQ(slots.back().outcome, KV_GRANTED);
  ASSERT_NO_FATAL_FAILURE(FillQueue());
  EXPECT_EQ(client.Commit(slots, 0, kShort).status, KV_UNAVAILABLE);
  ASSERT_THAT(client.error(), HasSubstr("takes no more requests"));
  ASSERT_EQ(server.filling_slots(), slots.size());
  server.Hang(false);
  for (int i = 0; i < 20'000 && server.filling_slots() > 0; ++i) ::usleep(500);
  EXPECT_EQ(server.filling_slots(), 0u) << "they stay charged, and their keys busy, until the session ends";
  EXPECT_EQ(client.Lookup(ns, keys, 0, kPatient).matched, 0u) << "what is said to have failed has";
}

TEST_F(UntoldTest, SlotsThatCouldNotBeAbortedInTimeAreAbortedLater) {
  const std::vector<Key> keys = Chain(3, 50'000);
  std::vector<kv_slot> slots(keys.size());
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = keys}, slots, kPatient), KV_OK);
  ASSERT_NO_FATAL_FAILURE(FillQueue());
  EXPECT_EQ(client.Abort(slots, kShort), KV_UNAVAILABLE);
  ASSERT_EQ(server.filling_slots(), slots.size());
  server.Hang(false);
  for (int i = 0; i < 20'000 && server.filling_slots() > 0; ++i) ::usleep(500);
  EXPECT_EQ(server.filling_slots(), 0u);
}

TEST_F(DaemonFaultsTest, OfACommitThatIsNotAnsweredTheSlotsThatWereNotSentAreGivenBack) {
  const std::vector<Key> keys = Chain(2000);
  std::vector<kv_slot> slots(keys.size());
  for (const size_t first : {0, 1000}) {
    const auto part = std::span(keys).subspan(first, 1000);
    ASSERT_EQ(client.Reserve({.ns = ns, .keys = part}, std::span(slots).subspan(first, 1000), kPatient), KV_OK);
  }
  Doom([](const Server::Request& request) { return request.has_commit(); }, Fate::kDrop);
  EXPECT_EQ(client.Commit(slots, 0, kShort).status, KV_UNAVAILABLE);
  for (int i = 0; i < 20'000 && server.filling_slots() > 0; ++i) ::usleep(500);
  EXPECT_EQ(server.filling_slots(), 0u);
  EXPECT_EQ(client.Lookup(ns, keys, 0, kPatient).matched, 1024u) << "what it was told and did not answer it has done";
}

TEST_F(UntoldTest, AClosedNamespaceIsToldBeforeItIsOpenedAgain) {
  ASSERT_NO_FATAL_FAILURE(FillQueue());
  ASSERT_EQ(client.CloseNamespace(ns), KV_OK);
  std::vector<std::string> order;
  server.SetScript([&](const Server::Request& request, Server::Answer*) {
    if (request.has_close_namespace()) order.emplace_back("close");
    if (request.has_open_namespace()) order.emplace_back("open");
    return Fate::kSend;
  });
  server.Hang(false);
  EXPECT_EQ(client.OpenNamespace(Digest{1}, kLayout, kPatient).status, KV_OK) << client.error();
  server.SetScript(nullptr);
  EXPECT_THAT(order, ::testing::ElementsAre("close", "open"));
}

TEST_F(UntoldTest, ADaemonThatTakesNothingIsGivenUpBeforeWhatItIsToHearGrowsWithoutEnd) {
  Store(Chain(2), 1);
  std::vector<Client::Found> windows;
  for (size_t i = 0; i <= kUntoldFramesMax; ++i) windows.push_back(client.Lookup(ns, Chain(2), 0, kPatient));
  ASSERT_NO_FATAL_FAILURE(FillQueue());
  for (Client::Found& window : windows) window.lease.ReleaseFront(1);
  EXPECT_FALSE(client.connected());
  server.Hang(false);
  EXPECT_EQ(LookupUntilConnected(Chain(2)), KV_OK);
}

TEST_F(DaemonFaultsTest, UnreadRequestsEndAtTheDeadlineToo) {
  // The socket's queue fills up: from then on it is the send that has to give up.
  server.Hang(true);
  const std::vector<Key> keys = Chain(1024);
  kv_status status = KV_OK;
  for (int i = 0; i < 200 && client.connected(); ++i) status = client.Lookup(ns, keys, 0, 1).status;
  EXPECT_EQ(status, KV_UNAVAILABLE);
  EXPECT_FALSE(client.connected());
}

TEST_F(DaemonFaultsTest, LateAnswerIsNotTakenForTheNextOne) {
  Store(Chain(3), 1);
  Doom([](const Server::Request& request) { return request.has_lookup(); }, Fate::kHold);
  EXPECT_EQ(client.Lookup(ns, Chain(3), 0, kShort).status, KV_UNAVAILABLE);
  EXPECT_TRUE(client.connected());
  ASSERT_EQ(server.held_answers(), 1u);
  ASSERT_EQ(server.live_leases(), 1u);
  server.ReleaseHeld();
  // The next request of the same kind asks for a chain that is one block long.
  const Client::Found found = client.Lookup(ns, Chain(1), 0, kPatient);
  ASSERT_EQ(found.status, KV_OK);
  EXPECT_EQ(found.matched, 1u);
  // The lease nobody waits for any more is handed back; the one in hand stays.
  ASSERT_TRUE(server.WaitFor([](const auto& counts) { return counts.contains("release"); }));
  EXPECT_EQ(server.live_leases(), 1u);
}

TEST_F(DaemonFaultsTest, LateSlotsAreHandedBack) {
  const std::vector<Key> keys = Chain(2);
  std::vector<kv_slot> slots(2);
  Doom([](const Server::Request& request) { return request.has_reserve(); }, Fate::kHold);
  EXPECT_EQ(client.Reserve({.ns = ns, .keys = keys}, slots, kShort), KV_UNAVAILABLE);
  EXPECT_EQ(slots[0].outcome, KV_SLOT_REFUSED);
  EXPECT_EQ(slots[0].data, nullptr);
  EXPECT_EQ(server.filling_slots(), 2u);
  server.ReleaseHeld();
  EXPECT_EQ(client.Renew(kPatient), KV_OK);
  ASSERT_TRUE(server.WaitFor([](const auto& counts) { return counts.contains("abort"); }));
  EXPECT_EQ(server.filling_slots(), 0u);
}

TEST_F(DaemonFaultsTest, LateAnswerIsHandedBackByTheKeeperWhenNoCallComes) {
  Store(Chain(1));
  Doom([](const Server::Request& request) { return request.has_lookup(); }, Fate::kHold);
  EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kShort).status, KV_UNAVAILABLE);
  server.ReleaseHeld();
  ASSERT_TRUE(server.WaitFor([](const auto& counts) { return counts.contains("release"); }));
  EXPECT_EQ(server.live_leases(), 0u);
}

TEST_F(DaemonFaultsTest, DeadlineInALongChainGivesWhatMatched) {
  Store(Chain(1024));
  Store(Chain(6, 1025));
  server.SetScript([](const Server::Request& request, Server::Answer*) {
    return request.has_lookup() && request.lookup().lease() != 0 ? Fate::kDrop : Fate::kSend;
  });
  Client::Found found = client.Lookup(ns, Chain(1030), 0, 300);
  ASSERT_EQ(found.status, KV_OK);
  EXPECT_EQ(found.matched, 1024u);
  EXPECT_TRUE(found.lease.Valid(1023));
}

// Each step of a session at which a daemon may die, and the call that meets it.
struct DeathCase {
  const char* name;
  std::function<bool(const ClientFixture::Request&)> at;
  std::function<kv_status(Client&, kv_namespace, Lease&, std::vector<kv_slot>&)> call;
};

class DeathTest : public ClientFixture, public ::testing::WithParamInterface<DeathCase> {};

TEST_P(DeathTest, IsUnavailableThenWorksAgain) {
  Store(Chain(2));
  Client::Found found = client.Lookup(ns, Chain(2), 0, kPatient);
  std::vector<kv_slot> slots(1);
  const std::vector<Key> more = Chain(1, 50);
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = more}, slots, kPatient), KV_OK);
  Doom(GetParam().at, Fate::kDie);
  EXPECT_EQ(GetParam().call(client, ns, found.lease, slots), KV_UNAVAILABLE);
  EXPECT_FALSE(client.connected());
  EXPECT_THAT(client.error(), HasSubstr("closed the connection"));
  EXPECT_EQ(client.Lookup(ns, Chain(2), 0, kPatient).status, KV_OK) << client.error();
  // What belonged to the lost session is never sent to the new one.
  const int sent = server.count("load") + server.count("pin") + server.count("commit") + server.count("abort");
  EXPECT_EQ(found.lease.Load(0, 1, kPatient).status, KV_NOT_FOUND);
  EXPECT_EQ(found.lease.Pin(1, kPatient), KV_NOT_FOUND);
  EXPECT_EQ(server.count("load") + server.count("pin") + server.count("commit") + server.count("abort"), sent);
  // And what was read is still there.
  EXPECT_EQ(*static_cast<const uint8_t*>(found.lease.blocks()[1].data), 2);
}

INSTANTIATE_TEST_SUITE_P(
    EachStep, DeathTest,
    ::testing::Values(
        DeathCase{"open", [](const auto& r) { return r.has_open_namespace(); },
                  [](Client& c, kv_namespace, Lease&, auto&) {
                    return c.OpenNamespace(Digest{9}, {1, 1, 64}, kPatient).status;
                  }},
        DeathCase{"lookup", [](const auto& r) { return r.has_lookup(); },
                  [](Client& c, kv_namespace ns, Lease&, auto&) { return c.Lookup(ns, Chain(2), 0, kPatient).status; }},
        DeathCase{"load", [](const auto& r) { return r.has_load(); },
                  [](Client&, kv_namespace, Lease& l, auto&) { return l.Load(0, 2, kPatient).status; }},
        DeathCase{"pin", [](const auto& r) { return r.has_pin(); },
                  [](Client&, kv_namespace, Lease& l, auto&) { return l.Pin(1, kPatient); }},
        DeathCase{"renew", [](const auto& r) { return r.has_renew(); },
                  [](Client& c, kv_namespace, Lease&, auto&) { return c.Renew(kPatient); }},
        DeathCase{"reserve", [](const auto& r) { return r.has_reserve(); },
                  [](Client& c, kv_namespace ns, Lease&, auto& slots) {
                    const std::vector<Key> keys = Chain(1, 60);
                    std::vector<kv_slot> fresh(slots.size());
                    return c.Reserve({.ns = ns, .keys = keys}, fresh, kPatient);
                  }},
        DeathCase{"commit", [](const auto& r) { return r.has_commit(); },
                  [](Client& c, kv_namespace, Lease&, auto& slots) { return c.Commit(slots, 0, kPatient).status; }},
        DeathCase{"abort", [](const auto& r) { return r.has_abort(); },
                  [](Client& c, kv_namespace, Lease&, auto& slots) { return c.Abort(slots, kPatient); }}),
    [](const auto& tested) { return tested.param.name; });

TEST_F(DaemonFaultsTest, DeathDuringAttachIsUnavailable) {
  Doom([](const Server::Request& request) { return request.has_attach(); }, Fate::kDie);
  Client unlucky;
  EXPECT_EQ(unlucky.Attach(server.socket_path(), "", nullptr, kPatient), KV_UNAVAILABLE);
  EXPECT_TRUE(unlucky);
}

TEST_F(DaemonFaultsTest, DeathAfterReleaseAndAckAreQuiet) {
  Store(Chain(1));
  Client::Found found = client.Lookup(ns, Chain(1), 0, kPatient);
  server.CutConnections();
  found.lease.Release();  // goes nowhere, raises no signal
  EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kPatient).status, KV_UNAVAILABLE);
  Doom([](const Server::Request& request) { return request.has_grant_ack(); }, Fate::kDie);
  EXPECT_EQ(LookupUntilConnected(Chain(1)), KV_OK);
}

TEST_F(DaemonFaultsTest, TheDaemonsReasonReachesTheCaller) {
  Server::Answer error;
  error.mutable_error()->set_code(attach::v1::Error::TOO_SLOW);
  error.mutable_error()->set_message("the client did not read");
  server.Say(error);
  server.CutConnections();
  EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kPatient).status, KV_UNAVAILABLE);
  EXPECT_THAT(client.error(), HasSubstr("did not read"));
}

TEST_F(DaemonFaultsTest, DrainingDaemonIsAskedAgainLater) {
  Spoil([](Server::Answer* answer) {
    if (!answer->has_attached()) return;
    answer->clear_attached();
    answer->mutable_error()->set_code(attach::v1::Error::REFUSED);
    answer->mutable_error()->set_message("the daemon is draining");
  });
  Client late;
  EXPECT_EQ(late.Attach(server.socket_path(), "", nullptr, kPatient), KV_UNAVAILABLE);
  EXPECT_TRUE(late);
  EXPECT_THAT(late.error(), HasSubstr("draining"));
}

}  // namespace
}  // namespace kvartal::client
