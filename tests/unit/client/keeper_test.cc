// What the background thread does while the program does something else.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <set>

#include "tests/unit/client/client_fixture.h"

namespace kvartal::client {
namespace {

class KeeperTest : public ClientFixture {
 protected:
  void SetUp() override {
    server.SetLeaseMs(30);
    ClientFixture::SetUp();
  }
};

TEST_F(KeeperTest, RenewsTheLeasesThatAreHeldAndNoOthers) {
  Store(Chain(2));
  Client::Found kept = client.Lookup(ns, Chain(1), 0, kPatient);
  Client::Found released = client.Lookup(ns, Chain(2), 0, kPatient);
  std::multiset<uint64_t> renewed;
  std::vector<uint64_t> leases;
  server.SetScript([&](const Server::Request& request, Server::Answer*) {
    if (request.has_renew()) renewed.insert(request.renew().leases().begin(), request.renew().leases().end());
    if (request.has_release()) {
      leases.push_back(request.release().lease());
      renewed.clear();
    }
    return Fate::kSend;
  });
  released.lease.Release();
  ASSERT_TRUE(server.WaitFor([&](const auto&) { return !leases.empty() && renewed.size() >= 3; }));
  server.SetScript(nullptr);
  EXPECT_EQ(renewed.count(leases[0]), 0u);
  EXPECT_EQ(std::set<uint64_t>(renewed.begin(), renewed.end()).size(), 1u);
}

TEST_F(KeeperTest, SaysNothingWhenNothingIsHeld) {
  Store(Chain(1));
  Client::Found found = client.Lookup(ns, Chain(1), 0, kPatient);
  ASSERT_TRUE(server.WaitFor([](const auto& counts) { return counts.contains("renew"); }));
  found.lease.Release();
  ASSERT_TRUE(server.WaitFor([](const auto& counts) { return counts.contains("release"); }));
  // The thread may have been on its way once; a talkative one would go on through a hundred round trips of ours.
  const int before = server.count("renew");
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(client.Lookup(ns, Chain(1, 500), 0, kPatient).status, KV_OK);
    ::usleep(1000);
  }
  EXPECT_LE(server.count("renew"), before + 1);
}

TEST_F(KeeperTest, RenewsWhileACallWaits) {
  Store(Chain(1));
  Client::Found found = client.Lookup(ns, Chain(1), 0, kPatient);
  const int before = server.count("renew");
  Doom([](const Server::Request& request) { return request.has_load(); }, Fate::kHold);
  std::thread other([&] {
    server.WaitFor([&](const auto& counts) { return counts.contains("renew") && counts.at("renew") >= before + 3; });
    server.ReleaseHeld();
  });
  EXPECT_EQ(found.lease.Load(0, 1, kPatient).status, KV_OK);
  other.join();
  EXPECT_GE(server.count("renew"), before + 3);
}

TEST_F(KeeperTest, ReadsForAProgramThatDoesNot) {
  // Far more than a socket's queue takes: all of it is there only if somebody reads meanwhile.
  Server::Answer durable;
  for (int i = 0; i < 1000; ++i) durable.mutable_durable()->add_reservations(static_cast<uint64_t>(i) + 1);
  int sent = 0;
  for (int tries = 0; tries < 20'000 && sent < 300; ++tries) {
    if (server.Say(durable)) {
      ++sent;
    } else {
      ::usleep(1000);
    }
  }
  ASSERT_EQ(sent, 300);
  EXPECT_EQ(client.Poll(kPatient).durable, 300'000u);
}

TEST_F(KeeperTest, SeesTheEndOfASessionNobodyUses) {
  server.CutConnections();
  for (int i = 0; i < 20'000 && client.connected(); ++i) ::usleep(500);
  EXPECT_FALSE(client.connected());
}

TEST_F(KeeperTest, PopulatesGrantedRanges) {
  // The grant of the attach covers the first 2 MiB; the slot leads to its pages.
  const std::vector<Key> keys = Chain(1);
  kv_slot slot;
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = keys}, {&slot, 1}, kPatient), KV_OK);
  unsigned char present[2] = {0, 0};
  for (int i = 0; i < 20'000 && (present[0] & present[1] & 1) == 0; ++i) {
    ASSERT_EQ(::mincore(slot.data, kShardBytes, present), 0);
    ::usleep(500);
  }
  EXPECT_EQ(present[0] & present[1] & 1, 1);
}

}  // namespace
}  // namespace kvartal::client
