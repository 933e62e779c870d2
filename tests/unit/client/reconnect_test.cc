// Coming back: to the same daemon, to a new one, many times.
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/unit/client/client_fixture.h"

namespace kvartal::client {
namespace {

using ::testing::HasSubstr;

int OpenFds() {
  const std::filesystem::directory_iterator fds("/proc/self/fd");
  return static_cast<int>(std::distance(begin(fds), end(fds)));
}

// A mapping's memory can be read: a system call says so without a crash.
bool IsReadable(const void* data) {
  int pipe_fds[2];
  EXPECT_EQ(::pipe(pipe_fds), 0);
  const bool readable = ::write(pipe_fds[1], data, 1) == 1;
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
  return readable;
}

class ReconnectTest : public ClientFixture {
 protected:
  static uint8_t ByteAt(const void* data) { return *static_cast<const volatile uint8_t*>(data); }
  // The client is not called meanwhile.
  static bool BecomesZero(const void* data) {
    for (int i = 0; i < 20'000 && ByteAt(data) != 0; ++i) ::usleep(500);
    return ByteAt(data) == 0;
  }
  void Restart() {
    server.Kill();
    server.Start();
    ASSERT_EQ(LookupUntilConnected(Chain(1)), KV_OK);
  }
};

TEST_F(ReconnectTest, NamespacesAreOpenedAgainWhenUsed) {
  const kv_namespace other = client.OpenNamespace(Digest{2}, {16, 2, 4096}, kPatient).ns;
  Restart();
  EXPECT_EQ(server.count("open_namespace"), 3);
  EXPECT_EQ(client.Lookup(other, Chain(1), 0, kPatient).status, KV_OK);
  EXPECT_EQ(server.count("open_namespace"), 4);
  Store(Chain(2));
  EXPECT_EQ(client.Lookup(ns, Chain(2), 0, kPatient).matched, 2u);
}

// Of sessions that come and go in the calls of another thread.
TEST_F(ReconnectTest, WhetherItIsConnectedAnyThreadMayAsk) {
  std::atomic<bool> done{false};
  std::atomic<uint64_t> yes{0}, no{0};
  std::thread asker([&] {
    while (!done) ++(client.connected() ? yes : no);
  });
  for (int i = 0; i < 20'000 && (i < 100 || yes == 0 || no == 0); ++i) {
    server.CutConnections();
    EXPECT_EQ(LookupUntilConnected(Chain(1)), KV_OK);
  }
  done = true;
  asker.join();
  EXPECT_GT(yes, 0u);
  EXPECT_GT(no, 0u);
}

TEST_F(ReconnectTest, ForgottenNamespaceIsOpenedAgain) {
  Doom([](const Server::Request&) { return false; }, Fate::kSend);
  Spoil([](Server::Answer* answer) {
    if (!answer->has_looked_up()) return;
    answer->clear_looked_up();
    answer->mutable_error()->set_code(attach::v1::Error::NOT_FOUND);
  });
  EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kPatient).status, KV_NOT_FOUND);
  server.SetScript(nullptr);
  EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kPatient).status, KV_OK);
  EXPECT_EQ(server.count("open_namespace"), 2);
}

TEST_F(ReconnectTest, SameDaemonSameMemory) {
  Store(Chain(1));
  const Client::Found before = client.Lookup(ns, Chain(1), 0, kPatient);
  server.CutConnections();
  ASSERT_EQ(LookupUntilConnected(Chain(1)), KV_OK);
  const Client::Found after = client.Lookup(ns, Chain(1), 0, kPatient);
  ASSERT_EQ(after.matched, 1u);
  EXPECT_EQ(after.lease.blocks()[0].data, before.lease.blocks()[0].data);
  EXPECT_TRUE(before.lease.Valid(0));
  server.RaiseGenerations();
  EXPECT_FALSE(before.lease.Valid(0));
}

TEST_F(ReconnectTest, DeadDaemonsBytesStayWhileTheyAreRead) {
  Store(Chain(1), 0x42);
  Client::Found old = client.Lookup(ns, Chain(1), 0, kPatient);
  Restart();
  Store(Chain(1), 0x43);
  const auto* bytes = static_cast<const uint8_t*>(old.lease.blocks()[0].data);
  EXPECT_EQ(*bytes, 0x42);
  EXPECT_TRUE(old.lease.Valid(0));
  EXPECT_EQ(*static_cast<const uint8_t*>(client.Lookup(ns, Chain(1), 0, kPatient).lease.blocks()[0].data), 0x43);
  // Given back, its memory becomes zeros; the address stays good.
  old.lease.Release();
  for (int i = 0; i < 20'000 && *const_cast<const volatile uint8_t*>(bytes) != 0; ++i) ::usleep(500);
  EXPECT_EQ(*bytes, 0);
  *const_cast<uint8_t*>(bytes) = 1;
}

TEST_F(ReconnectTest, ADeadDaemonsMemoryGoesBackWithoutACall) {
  Store(Chain(1), 0x42);
  const void* const data = client.Lookup(ns, Chain(1), 0, kPatient).lease.blocks()[0].data;
  ASSERT_EQ(ByteAt(data), 0x42);
  server.Kill();
  EXPECT_TRUE(BecomesZero(data)) << "an idle program keeps memory that nobody is charged for";
}

TEST_F(ReconnectTest, ADeadDaemonsMemoryGoesBackWithTheLastLeaseOnIt) {
  Store(Chain(2), 0x42);
  Client::Found first = client.Lookup(ns, Chain(2), 0, kPatient);
  Client::Found last = client.Lookup(ns, Chain(2), 0, kPatient);
  const void* const data = last.lease.blocks()[0].data;
  server.Kill();
  for (int i = 0; i < 20'000 && client.connected(); ++i) ::usleep(500);
  ASSERT_FALSE(client.connected());
  first.lease.Release();
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(ByteAt(data), 0x42) << "a lease reads it still";
    ::usleep(1000);
  }
  EXPECT_TRUE(last.lease.Valid(0));
  last.lease.Release();
  EXPECT_TRUE(BecomesZero(data));
}

TEST_F(ReconnectTest, MemoryThatWasLetGoOfIsMappedAgainWhereTheDaemonLives) {
  Store(Chain(1), 0x42);
  const void* const data = client.Lookup(ns, Chain(1), 0, kPatient).lease.blocks()[0].data;
  server.CutConnections();
  ASSERT_TRUE(BecomesZero(data));
  ASSERT_EQ(LookupUntilConnected(Chain(1)), KV_OK);
  const Client::Found after = client.Lookup(ns, Chain(1), 0, kPatient);
  ASSERT_EQ(after.matched, 1u);
  EXPECT_EQ(ByteAt(after.lease.blocks()[0].data), 0x42);
  EXPECT_TRUE(after.lease.Valid(0));
}

TEST_F(ReconnectTest, LeasesOnManyDeadDaemonsDoNotKeepAllTheirMemory) {
  std::vector<Client::Found> held;
  for (int i = 0; i < 7; ++i) {
    Store(Chain(1), 0x10 + i);
    held.push_back(client.Lookup(ns, Chain(1), 0, kPatient));
    Restart();
  }
  // Four of the dead and the living one are whole; older ones are zeros, which is never called valid.
  const auto first_byte = [&](size_t i) {
    return *static_cast<const volatile uint8_t*>(held[i].lease.blocks()[0].data);
  };
  for (int i = 0; i < 20'000 && (first_byte(0) | first_byte(1) | first_byte(2)) != 0; ++i) ::usleep(500);
  for (size_t i = 0; i < held.size(); ++i) {
    const bool kept = i >= 3;
    EXPECT_EQ(held[i].lease.Valid(0), kept) << i;
    EXPECT_EQ(first_byte(i), kept ? 0x10 + i : 0) << i;
  }
}

TEST_F(ReconnectTest, OldReservationsNeverReachANewDaemon) {
  const std::vector<Key> keys = Chain(1);
  kv_slot old;
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = keys}, {&old, 1}, kPatient), KV_OK);
  Restart();
  // The new daemon counts from the start: the same number may be somebody's slot again.
  const std::vector<Key> others = Chain(1, 9);
  kv_slot fresh;
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = others}, {&fresh, 1}, kPatient), KV_OK);
  ASSERT_NE(old.data, fresh.data);
  const Client::Committed committed = client.Commit({&old, 1}, 0, kPatient);
  EXPECT_EQ(committed.status, KV_NOT_FOUND);
  EXPECT_EQ(committed.count, 0u);
  EXPECT_EQ(client.Abort({&old, 1}, kPatient), KV_NOT_FOUND);
  EXPECT_EQ(server.count("commit") + server.count("abort"), 0);
  EXPECT_EQ(server.filling_slots(), 1u);
  std::memset(old.data, 1, kShardBytes);  // a late write hurts nobody
}

TEST_F(ReconnectTest, NoCallWaitsForTheBackoff) {
  server.Kill();
  int waits = 0;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kPatient).status, KV_UNAVAILABLE);
    if (client.error().find("next attempt in") != std::string::npos) ++waits;
  }
  // A hundred calls in a row are far shorter than the sum of the back-offs of a hundred attempts.
  EXPECT_GT(waits, 50);
}

TEST_F(ReconnectTest, DaemonThatTakesAndCutsIsNotFlooded) {
  server.SetScript([](const Server::Request& request, Server::Answer*) {
    return request.has_attach() || request.has_grant_ack() ? Fate::kSend : Fate::kDie;
  });
  for (int i = 0; i < 100; ++i) EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kPatient).status, KV_UNAVAILABLE);
  EXPECT_LT(server.count("connect"), 20);
}

TEST_F(ReconnectTest, TheGroupIsJoinedAgainAndMadeAgainUnderItsName) {
  Group group;
  ASSERT_EQ(client.GetGroup(&group), KV_OK);
  Client peer;
  ASSERT_EQ(peer.Attach(server.socket_path(), "peer", &group, kPatient), KV_OK);
  Doom([](const Server::Request& request) { return request.has_lookup(); }, Fate::kDie);
  EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kPatient).status, KV_UNAVAILABLE);
  ASSERT_EQ(LookupUntilConnected(Chain(1)), KV_OK);
  Group again;
  ASSERT_EQ(client.GetGroup(&again), KV_OK);
  EXPECT_EQ(again, group);
  Restart();
  ASSERT_EQ(client.GetGroup(&again), KV_OK);
  EXPECT_EQ(again, group) << "the others of the engine will come with that name as well";
}

TEST_F(ReconnectTest, TwoHundredReconnectsLeakNothing) {
  Store(Chain(1));
  ASSERT_EQ(client.Lookup(ns, Chain(1), 0, kPatient).matched, 1u);
  // Both ends are in this process: three fds a session here, one there.
  const int before = OpenFds();
  for (int i = 0; i < 200; ++i) {
    server.CutConnections();
    ASSERT_EQ(LookupUntilConnected(Chain(1)), KV_OK);
  }
  EXPECT_LE(OpenFds(), before + 2);
}

TEST_F(ReconnectTest, OldAddressesStayReadableOverManyRestarts) {
  std::vector<const void*> addresses;
  for (int i = 0; i < 20; ++i) {
    Store(Chain(1));
    addresses.push_back(client.Lookup(ns, Chain(1), 0, kPatient).lease.blocks()[0].data);
    Restart();
  }
  for (const void* address : addresses) EXPECT_TRUE(IsReadable(address));
  client.Detach();
  for (const void* address : addresses) EXPECT_FALSE(IsReadable(address));
}

}  // namespace
}  // namespace kvartal::client
