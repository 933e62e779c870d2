// What the background thread does while the program does something else.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

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

class PopulateTest : public ClientFixture {
 protected:
  // The grant of an attach covers the first 2 MiB. Of them the daemon has taken the first half back meanwhile.
  static constexpr uint64_t kHalf = 1 << 20;

  void SetUp() override {
    server.FillArena(kHalf, kHalf);
    before_ = server.arena_pages();
    ClientFixture::SetUp();
  }

  // In the page table of this process, that is: touched by nobody but the keeper.
  static bool IsMapped(const std::byte* page) {
    const UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    uint64_t entry = 0;
    const auto at = reinterpret_cast<uintptr_t>(page) / Server::kPageBytes * sizeof(entry);
    EXPECT_EQ(::pread(pagemap.get(), &entry, sizeof(entry), static_cast<off_t>(at)), ssize_t{sizeof(entry)});
    return (entry >> 63) != 0;
  }

  uint64_t before_ = 0;
};

TEST_F(PopulateTest, MapsTheMemoryThatIsThereAndAllocatesNoneThatIsNot) {
  const std::vector<Key> keys = Chain(1);
  kv_slot slot;
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = keys}, {&slot, 1}, kPatient), KV_OK);
  const auto* const arena = static_cast<const std::byte*>(slot.data);
  const auto* const last = arena + 2 * kHalf - Server::kPageBytes;
  for (int i = 0; i < 20'000 && !IsMapped(last); ++i) ::usleep(500);
  ASSERT_TRUE(IsMapped(last));
  EXPECT_TRUE(IsMapped(arena + kHalf));
  EXPECT_EQ(server.arena_pages(), before_) << "a hole was filled, at the cost of this process";
}

}  // namespace
}  // namespace kvartal::client
