// A daemon that breaks the protocol: the connection is dropped, the call is KV_UNAVAILABLE, and no pointer is made of
// it.
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <thread>

#include "tests/unit/client/client_fixture.h"

namespace kvartal::client {
namespace {

using ::testing::HasSubstr;

using Answer = kvartal::testing::ScriptedServer::Answer;

class BrokenDaemonTest : public ClientFixture {
 protected:
  void ExpectDropped(kv_status status, int line = __builtin_LINE()) {
    SCOPED_TRACE(line);
    EXPECT_EQ(status, KV_UNAVAILABLE);
    EXPECT_FALSE(client.connected());
    EXPECT_THAT(client.error(), HasSubstr("broke the protocol"));
    server.SetScript(nullptr);
    EXPECT_EQ(LookupUntilConnected(Chain(1)), KV_OK);
  }
};

struct Lie {
  const char* name;
  std::function<void(Answer*)> tell;
};

class LookupLieTest : public BrokenDaemonTest, public ::testing::WithParamInterface<Lie> {};

TEST_P(LookupLieTest, DropsTheConnection) {
  Store(Chain(2));
  Spoil([](Answer* answer) {
    if (answer->has_looked_up()) GetParam().tell(answer);
  });
  const Client::Found found = client.Lookup(ns, Chain(2), 0, kPatient);
  EXPECT_EQ(found.matched, 0u);
  EXPECT_FALSE(found.lease);
  ExpectDropped(found.status);
}

INSTANTIATE_TEST_SUITE_P(
    All, LookupLieTest,
    ::testing::Values(
        Lie{"too_many", [](Answer* a) { a->mutable_looked_up()->set_matched(3); }},
        Lie{"more_than_asked",
            [](Answer* a) {
              a->mutable_looked_up()->set_matched(3);
              a->mutable_looked_up()->mutable_tiers()->push_back(1);
              a->mutable_looked_up()->add_offsets(0);
              a->mutable_looked_up()->add_generations(0);
            }},
        Lie{"huge", [](Answer* a) { a->mutable_looked_up()->set_matched(UINT32_MAX); }},
        Lie{"few_tiers", [](Answer* a) { a->mutable_looked_up()->mutable_tiers()->pop_back(); }},
        Lie{"few_offsets", [](Answer* a) { a->mutable_looked_up()->mutable_offsets()->RemoveLast(); }},
        Lie{"few_generations", [](Answer* a) { a->mutable_looked_up()->mutable_generations()->RemoveLast(); }},
        Lie{"no_lease", [](Answer* a) { a->mutable_looked_up()->set_lease(0); }},
        Lie{"unknown_tier", [](Answer* a) { (*a->mutable_looked_up()->mutable_tiers())[1] = 9; }},
        Lie{"negative_tier", [](Answer* a) { (*a->mutable_looked_up()->mutable_tiers())[1] = '\xFF'; }},
        Lie{"offset_behind_the_end",
            [](Answer* a) { a->mutable_looked_up()->set_offsets(1, kvartal::testing::ScriptedServer::kArenaBytes); }},
        Lie{"slot_across_the_end",
            [](Answer* a) {
              a->mutable_looked_up()->set_offsets(1, kvartal::testing::ScriptedServer::kArenaBytes - 4096);
            }},
        Lie{"offset_wraps", [](Answer* a) { a->mutable_looked_up()->set_offsets(1, ~uint64_t{4095}); }},
        Lie{"offset_askew", [](Answer* a) { a->mutable_looked_up()->set_offsets(1, 8); }},
        Lie{"another_verb",
            [](Answer* a) {
              a->clear_looked_up();
              a->mutable_pinned();
            }},
        Lie{"nothing", [](Answer* a) { a->clear_looked_up(); }}),
    [](const auto& tested) { return tested.param.name; });

class ReserveLieTest : public BrokenDaemonTest, public ::testing::WithParamInterface<Lie> {};

TEST_P(ReserveLieTest, DropsTheConnection) {
  Spoil([](Answer* answer) {
    if (answer->has_reserved()) GetParam().tell(answer);
  });
  const std::vector<Key> keys = Chain(2);
  std::vector<kv_slot> slots(2);
  const kv_status status = client.Reserve({.ns = ns, .keys = keys}, slots, kPatient);
  for (const kv_slot& slot : slots) EXPECT_EQ(slot.data, nullptr);
  ExpectDropped(status);
}

INSTANTIATE_TEST_SUITE_P(
    All, ReserveLieTest,
    ::testing::Values(
        Lie{"few_outcomes", [](Answer* a) { a->mutable_reserved()->mutable_outcomes()->pop_back(); }},
        Lie{"unknown_outcome", [](Answer* a) { (*a->mutable_reserved()->mutable_outcomes())[1] = '\x80'; }},
        Lie{"few_reservations", [](Answer* a) { a->mutable_reserved()->mutable_reservations()->RemoveLast(); }},
        Lie{"no_reservation", [](Answer* a) { a->mutable_reserved()->set_reservations(1, 0); }},
        Lie{"offset_behind_the_end",
            [](Answer* a) { a->mutable_reserved()->set_offsets(1, kvartal::testing::ScriptedServer::kArenaBytes); }},
        Lie{"nothing", [](Answer* a) { a->clear_reserved(); }}),
    [](const auto& tested) { return tested.param.name; });

TEST_F(BrokenDaemonTest, WrongCountsInOtherAnswers) {
  Store(Chain(1));
  Client::Found found = client.Lookup(ns, Chain(1), 0, kPatient);
  Spoil([](Answer* answer) {
    if (answer->has_loaded()) answer->mutable_loaded()->set_count(2);
  });
  ExpectDropped(found.lease.Load(0, 1, kPatient).status);

  const std::vector<Key> keys = Chain(1, 9);
  kv_slot slot;
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = keys}, {&slot, 1}, kPatient), KV_OK);
  Spoil([](Answer* answer) {
    if (answer->has_committed()) answer->mutable_committed()->set_outcomes("");
  });
  ExpectDropped(client.Commit({&slot, 1}, 0, kPatient).status);

  const std::vector<Key> others = Chain(1, 10);
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = others}, {&slot, 1}, kPatient), KV_OK);
  Spoil([](Answer* answer) {
    if (answer->has_aborted()) answer->mutable_aborted()->set_count(2);
  });
  ExpectDropped(client.Abort({&slot, 1}, kPatient));

  Spoil([](Answer* answer) {
    if (answer->has_namespace_opened()) answer->mutable_namespace_opened()->set_slot_bytes(4096);
  });
  ExpectDropped(client.OpenNamespace(Digest{8}, {1, 2, 4096}, kPatient).status);
}

TEST_F(BrokenDaemonTest, GarbageEndsTheSession) {
  server.SendRaw("\xFF\xFF\xFF\xFF garbage");
  ExpectDropped(client.Lookup(ns, Chain(1), 0, kPatient).status);
}

TEST_F(BrokenDaemonTest, AMessageItDoesNotKnowIsPassedOver) {
  server.SendRaw(std::string("\x6A\x00", 2));                // field 13, which there was once
  server.SendRaw(std::string("\xC2\x3E\x04\x0A\x02xx", 7));  // field 1000, which nobody has yet
  EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kPatient).status, KV_OK) << client.error();
  EXPECT_EQ(server.connections(), 1);
  EXPECT_EQ(server.count("connect"), 1);
}

TEST_F(BrokenDaemonTest, OversizedFrameEndsTheSession) {
  server.SendRaw(std::string((64 << 10) + 1, '\0'));
  ExpectDropped(client.Lookup(ns, Chain(1), 0, kPatient).status);
}

TEST_F(BrokenDaemonTest, EmptyFrameReadsLikeAnEnd) {
  server.SendRaw("");
  EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kPatient).status, KV_UNAVAILABLE);
}

TEST_F(BrokenDaemonTest, TalkWithoutAnAnswerDoesNotHoldACallForEver) {
  std::atomic<bool> done{false};
  server.SetScript(
      [](const Server::Request& request, Answer*) { return request.has_lookup() ? Fate::kDrop : Fate::kSend; });
  std::thread talker([&] {
    Answer goodbye;
    goodbye.mutable_goodbye()->set_reason("soon");
    while (!done) server.Say(goodbye);
  });
  EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kShort).status, KV_UNAVAILABLE);
  done = true;
  talker.join();
}

TEST_F(BrokenDaemonTest, NonsenseInAttachedIsUnavailable) {
  for (const auto& lie : std::vector<std::function<void(Answer*)>>{
           [](Answer* a) { a->mutable_attached()->set_version(0); },
           [](Answer* a) { a->mutable_attached()->set_group("short"); },
           [](Answer* a) { a->mutable_attached()->set_daemon_epoch(std::string(1000, 'e')); },
           [](Answer* a) { a->clear_attached(); }}) {
    Spoil([&](Answer* answer) {
      if (answer->has_attached()) lie(answer);
    });
    Client confused;
    EXPECT_EQ(confused.Attach(server.socket_path(), "", nullptr, kPatient), KV_UNAVAILABLE);
    EXPECT_FALSE(confused.connected());
  }
}

struct BadGrant {
  const char* name;
  kvartal::testing::ScriptedServer::GrantShape shape;
  const char* says;
};
class BadGrantTest : public BrokenDaemonTest, public ::testing::WithParamInterface<BadGrant> {};

TEST_P(BadGrantTest, IsNeverMapped) {
  server.CutConnections();
  server.SetGrantShape(GetParam().shape);
  EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kPatient).status, KV_UNAVAILABLE);
  // The first call after the loss meets the grant while it waits for its own answer.
  std::string said;
  for (int i = 0; i < 20'000 && said.find(GetParam().says) == std::string::npos; ++i) {
    EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kPatient).status, KV_UNAVAILABLE);
    said = client.error();
    ::usleep(500);
  }
  EXPECT_THAT(said, HasSubstr(GetParam().says));
  server.SetGrantShape({});
  EXPECT_EQ(LookupUntilConnected(Chain(1)), KV_OK);
}

constexpr uint64_t kBytes = kvartal::testing::ScriptedServer::kArenaBytes;
INSTANTIATE_TEST_SUITE_P(
    All, BadGrantTest,
    ::testing::Values(BadGrant{"no_fds", {0, kBytes, kBytes, 0}, "0 fds instead of 2"},
                      BadGrant{"one_fd", {1, kBytes, kBytes, 0}, "1 fds instead of 2"},
                      BadGrant{"surplus_fds", {4, kBytes, kBytes, 0}, "4 fds instead of 2"},
                      BadGrant{"flood_of_fds", {30, kBytes, kBytes, 0}, "fds were lost"},
                      BadGrant{"short_arena_file", {2, kBytes, kBytes / 2, 0}, "smaller than"},
                      BadGrant{"short_generations", {2, 2 * kBytes, 2 * kBytes, 0}, "does not cover"},
                      BadGrant{"arena_may_shrink", {.arena_sealed = false}, "not sealed"},
                      BadGrant{"generations_may_shrink", {.generations_sealed = false}, "not sealed"},
                      BadGrant{"empty", {2, 0, kBytes, 0}, "cannot be"},
                      BadGrant{"askew", {2, kBytes - 1, kBytes, 0}, "cannot be"},
                      BadGrant{"absurd", {2, uint64_t{1} << 60, kBytes, 0}, "cannot be"},
                      BadGrant{"range_outside", {2, kBytes, kBytes, kBytes}, "outside its arena"}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace kvartal::client
