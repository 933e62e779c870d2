// Every verb's round trip through the C ABI.
#include <gmock/gmock.h>

#include "client/libkvartal/client_limits.h"
#include "tests/unit/client/client_fixture.h"

namespace kvartal::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class VerbsTest : public ClientFixture {};

TEST_F(VerbsTest, AttachTellsTenantAndGroup) {
  EXPECT_TRUE(client.connected());
  EXPECT_EQ(client.tenant(), "team/scripted");
  Group group;
  ASSERT_EQ(client.GetGroup(&group), KV_OK);
  Client peer;
  ASSERT_EQ(peer.Attach(server.socket_path(), "peer", &group, kPatient), KV_OK);
  Group joined;
  ASSERT_EQ(peer.GetGroup(&joined), KV_OK);
  EXPECT_EQ(joined, group);
}

TEST_F(VerbsTest, AttachToAnUnknownGroupGivesNoClientAndSaysWhy) {
  const Group unknown = {9};
  Client peer;
  EXPECT_EQ(peer.Attach(server.socket_path(), "peer", &unknown, kPatient), KV_NOT_FOUND);
  EXPECT_FALSE(peer);
  EXPECT_THAT(peer.error(), HasSubstr("no such engine group"));
}

TEST_F(VerbsTest, DeniedGivesNoClient) {
  Spoil([](Server::Answer* answer) {
    answer->clear_attached();
    answer->mutable_error()->set_code(attach::v1::Error::DENIED);
    answer->mutable_error()->set_message("uid 7 is nobody's subject");
  });
  Client stranger;
  EXPECT_EQ(stranger.Attach(server.socket_path(), "", nullptr, kPatient), KV_DENIED);
  EXPECT_FALSE(stranger);
  EXPECT_THAT(stranger.error(), HasSubstr("nobody's subject"));
}

TEST_F(VerbsTest, MissIsOkWithoutLease) {
  const Client::Found found = client.Lookup(ns, Chain(3), 0, kPatient);
  EXPECT_EQ(found.status, KV_OK);
  EXPECT_EQ(found.matched, 0u);
  EXPECT_FALSE(found.lease);
  EXPECT_NE(found.request, 0u);
}

TEST_F(VerbsTest, StoredBytesAreReadInPlace) {
  Store(Chain(4));
  Client::Found found = client.Lookup(ns, Chain(5), 0, kPatient);
  ASSERT_EQ(found.matched, 4u);
  for (uint32_t i = 0; i < 4; ++i) {
    const kv_block& block = found.lease.blocks()[i];
    ASSERT_EQ(block.tier, KV_TIER_DRAM);
    const auto* bytes = static_cast<const uint8_t*>(block.data);
    EXPECT_EQ(bytes[0], i + 1);
    EXPECT_EQ(bytes[kShardBytes - 1], i + 1);
    EXPECT_TRUE(found.lease.Valid(i));
  }
  EXPECT_FALSE(found.lease.Valid(4));
  EXPECT_EQ(server.live_leases(), 1u);
  found.lease.Release();
  EXPECT_TRUE(server.WaitFor([](const auto& counts) { return counts.contains("release"); }));
  EXPECT_EQ(server.live_leases(), 0u);
}

TEST_F(VerbsTest, ShardsLieOneAfterAnother) {
  const Client::Opened opened = client.OpenNamespace(Digest{2}, {16, 2, 5000}, kPatient);
  ASSERT_EQ(opened.status, KV_OK);
  const std::vector<Key> keys = Chain(1);
  kv_slot slot;
  ASSERT_EQ(client.Reserve({.ns = opened.ns, .shard = 1, .keys = keys}, {&slot, 1}, kPatient), KV_OK);
  std::memset(slot.data, 0x5A, 5000);
  ASSERT_EQ(client.Commit({&slot, 1}, 1, kPatient).count, 1u);
  const Client::Found found = client.Lookup(opened.ns, keys, 0, kPatient);
  ASSERT_EQ(found.matched, 1u);
  const auto* first = static_cast<const uint8_t*>(found.lease.blocks()[0].data);
  EXPECT_EQ(found.lease.Shard(0, 0), first);
  EXPECT_EQ(found.lease.Shard(0, 1), first + 8192);
  EXPECT_EQ(first[8192], 0x5A);
  EXPECT_EQ(found.lease.Shard(0, 2), nullptr);
  EXPECT_EQ(found.lease.Shard(1, 0), nullptr);
}

TEST_F(VerbsTest, LongChainIsOneRequestOnOneLease) {
  const std::vector<Key> keys = Chain(2500);
  for (uint32_t i = 0; i < 2500; i += 500) Store({keys.begin() + i, keys.begin() + i + 500});
  std::vector<uint64_t> requests, leases;
  server.SetScript([&](const Server::Request& request, Server::Answer*) {
    if (request.has_lookup()) {
      requests.push_back(request.lookup().request());
      leases.push_back(request.lookup().lease());
      EXPECT_EQ(request.lookup().prompt_tokens(), 2500u * 16);
    }
    return Fate::kSend;
  });
  const Client::Found found = client.Lookup(ns, keys, 0, kPatient);
  ASSERT_EQ(found.matched, 2500u);
  EXPECT_EQ(server.live_leases(), 1u);
  EXPECT_THAT(requests, ElementsAre(0u, found.request, found.request));
  EXPECT_EQ(leases[0], 0u);
  EXPECT_NE(leases[1], 0u);
  EXPECT_EQ(leases[1], leases[2]);
}

TEST_F(VerbsTest, LongChainStopsAtTheGap) {
  Store(Chain(1000));
  const int before = server.count("lookup");
  EXPECT_EQ(client.Lookup(ns, Chain(3000), 0, kPatient).matched, 1000u);
  EXPECT_EQ(server.count("lookup"), before + 1);
}

TEST_F(VerbsTest, LoadBringsBlocksIntoDram) {
  Store(Chain(3));
  server.MoveBlocksToNvme();
  Client::Found found = client.Lookup(ns, Chain(3), 0, kPatient);
  ASSERT_EQ(found.matched, 3u);
  EXPECT_EQ(found.lease.blocks()[2].tier, KV_TIER_NVME);
  EXPECT_EQ(found.lease.blocks()[2].data, nullptr);
  EXPECT_FALSE(found.lease.Valid(2));
  const Lease::Loaded loaded = found.lease.Load(1, 2, kPatient);
  ASSERT_EQ(loaded.status, KV_OK);
  EXPECT_EQ(loaded.count, 2u);
  EXPECT_EQ(found.lease.blocks()[0].data, nullptr);
  EXPECT_EQ(*static_cast<const uint8_t*>(found.lease.blocks()[2].data), 3);
  EXPECT_TRUE(found.lease.Valid(2));
}

TEST_F(VerbsTest, PrefetchIsToldInFramesAndWaitsForNothing) {
  std::vector<Key> keys = Chain(2000);
  for (uint32_t i = 0; i < 2000; i += 500) Store({keys.begin() + i, keys.begin() + i + 500});
  server.MoveBlocksToNvme();
  Client::Found found = client.Lookup(ns, keys, 0, kPatient);
  ASSERT_EQ(found.matched, 2000u);
  std::vector<std::pair<uint32_t, uint32_t>> told;
  server.SetScript([&](const Server::Request& request, Server::Answer*) {
    if (request.has_load() && request.request_id() == 0)
      told.emplace_back(request.load().first(), request.load().count());
    return Fate::kSend;
  });
  EXPECT_EQ(found.lease.Prefetch(1, 2000), KV_INVALID_ARGUMENT);
  EXPECT_EQ(found.lease.Prefetch(1, 1999), KV_OK);
  EXPECT_EQ(found.lease.Load(0, 1, kPatient).status, KV_OK) << "the next answer is the next request's";
  EXPECT_THAT(told, ElementsAre(std::pair(1u, 1024u), std::pair(1025u, 975u)));
}

TEST_F(VerbsTest, ADeadlineIsToldAndWhatIsLateIsAMiss) {
  Store(Chain(3));
  server.MoveBlocksToNvme();
  Client::Found found = client.Lookup(ns, Chain(3), 0, kPatient);
  std::vector<uint32_t> deadlines;
  server.SetScript([&](const Server::Request& request, Server::Answer* answer) {
    if (request.has_reserve()) deadlines.push_back(request.reserve().deadline_ms());
    if (!request.has_load()) return Fate::kSend;
    deadlines.push_back(request.load().deadline_ms());
    answer->mutable_loaded()->mutable_offsets()->Truncate(1);
    answer->mutable_loaded()->mutable_generations()->Truncate(1);
    answer->mutable_loaded()->set_count(1);
    answer->mutable_loaded()->set_refusal("late");
    return Fate::kSend;
  });
  const Lease::Loaded late = found.lease.Load(0, 3, kPatient);
  EXPECT_EQ(late.status, KV_UNAVAILABLE);
  EXPECT_EQ(late.count, 1u) << "what was there in time";
  EXPECT_TRUE(client.connected());
  kv_slot slot;
  const std::vector<Key> more = Chain(1, 100);
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = more}, {&slot, 1}, kPatient), KV_OK);
  ASSERT_EQ(deadlines.size(), 2u);
  for (const uint32_t told_ms : deadlines) {
    EXPECT_LE(told_ms, kPatient - kAnswerMarginMs) << "the answer has to travel";
    EXPECT_GT(told_ms, kPatient / 2);
  }
}

TEST_F(VerbsTest, LoadTellsTheWindowAndTheLoss) {
  Store(Chain(3));
  server.MoveBlocksToNvme();
  Client::Found found = client.Lookup(ns, Chain(3), 0, kPatient);
  auto shorten_to = [this](int count, bool lost) {
    Spoil([=](Server::Answer* answer) {
      if (!answer->has_loaded()) return;
      answer->mutable_loaded()->mutable_offsets()->Truncate(count);
      answer->mutable_loaded()->mutable_generations()->Truncate(count);
      answer->mutable_loaded()->set_count(static_cast<uint32_t>(count));
      answer->mutable_loaded()->set_lost(lost);
      if (!lost) answer->mutable_loaded()->set_refusal("tenant_limit");
    });
  };
  shorten_to(2, false);
  Lease::Loaded loaded = found.lease.Load(0, 3, kPatient);
  EXPECT_EQ(loaded.status, KV_OK);
  EXPECT_EQ(loaded.count, 2u);
  EXPECT_EQ(client.refusal(), "tenant_limit");
  shorten_to(0, false);
  EXPECT_EQ(found.lease.Load(2, 1, kPatient).status, KV_REFUSED);
  shorten_to(1, true);
  loaded = found.lease.Load(0, 3, kPatient);
  EXPECT_EQ(loaded.status, KV_LOST);
  EXPECT_EQ(loaded.count, 1u);
}

TEST_F(VerbsTest, LoadOutsideTheLeaseIsRefusedHere) {
  Store(Chain(3));
  Client::Found found = client.Lookup(ns, Chain(3), 0, kPatient);
  EXPECT_EQ(found.lease.Load(0, 4, kPatient).status, KV_INVALID_ARGUMENT);
  EXPECT_EQ(found.lease.Load(4, 0, kPatient).status, KV_INVALID_ARGUMENT);
  EXPECT_EQ(found.lease.Load(1, UINT32_MAX, kPatient).status, KV_INVALID_ARGUMENT);
  found.lease.ReleaseFront(2);
  EXPECT_EQ(found.lease.Load(1, 1, kPatient).status, KV_INVALID_ARGUMENT);
  EXPECT_EQ(found.lease.Load(2, 1, kPatient).status, KV_OK);
  EXPECT_EQ(server.count("load"), 1);
}

TEST_F(VerbsTest, AReleaseTravelsWithTheNextCall) {
  Store(Chain(2));
  for (int i = 0; i < 3; ++i) {
    Client::Found found = client.Lookup(ns, Chain(2), 0, kPatient);
    ASSERT_EQ(found.matched, 2u);
    EXPECT_EQ(server.live_leases(), 1u) << "the one before went back with this lookup";
  }
  ASSERT_EQ(client.Renew(kPatient), KV_OK);
  EXPECT_EQ(server.live_leases(), 0u);
}

TEST_F(VerbsTest, AReleaseNeedsNoFurtherCall) {
  Store(Chain(1));
  client.Lookup(ns, Chain(1), 0, kPatient).lease.Release();
  EXPECT_TRUE(server.WaitFor([](const auto& counts) { return counts.contains("release"); }));
  EXPECT_EQ(server.live_leases(), 0u);
  // And again when nothing has been called for long: the keeper sleeps by now.
  Client::Found found = client.Lookup(ns, Chain(1), 0, kPatient);
  ASSERT_TRUE(server.WaitFor([](const auto& counts) { return counts.at("lookup") == 2; }));
  found.lease.Release();
  EXPECT_TRUE(server.WaitFor([](const auto& counts) { return counts.at("release") == 2; }));
}

TEST_F(VerbsTest, ManyReleasesDoNotWaitForACall) {
  Store(Chain(1));
  std::vector<Client::Found> held;
  for (size_t i = 0; i < 2 * kHeldReleasesMax; ++i) held.push_back(client.Lookup(ns, Chain(1), 0, kPatient));
  EXPECT_EQ(server.live_leases(), 2 * kHeldReleasesMax);
  held.clear();
  EXPECT_TRUE(
      server.WaitFor([](const auto& counts) { return counts.contains("release") && counts.at("release") >= 2; }));
  EXPECT_EQ(server.live_leases(), 0u);
}

TEST_F(VerbsTest, ADetachedRankLeavesNoLeaseBehindInItsGroup) {
  Store(Chain(1));
  Group group;
  ASSERT_EQ(client.GetGroup(&group), KV_OK);
  {
    Client peer;
    ASSERT_EQ(peer.Attach(server.socket_path(), "peer", &group, kPatient), KV_OK);
    const Client::Opened opened = peer.OpenNamespace(Digest{1}, {16, 1, kShardBytes}, kPatient);
    ASSERT_EQ(opened.status, KV_OK);
    ASSERT_EQ(peer.Lookup(opened.ns, Chain(1), 0, kPatient).matched, 1u);
  }
  EXPECT_TRUE(server.WaitFor([](const auto& counts) { return counts.contains("detach"); }));
  EXPECT_EQ(server.live_leases(), 0u);
}

TEST_F(VerbsTest, ReleaseFromTheFrontKeepsTheRest) {
  Store(Chain(4));
  std::vector<uint32_t> counts;
  server.SetScript([&](const Server::Request& request, Server::Answer*) {
    if (request.has_release()) counts.push_back(request.release().count());
    return Fate::kSend;
  });
  Client::Found found = client.Lookup(ns, Chain(4), 0, kPatient);
  found.lease.ReleaseFront(1);
  EXPECT_EQ(found.lease.blocks()[0].data, nullptr);
  EXPECT_FALSE(found.lease.Valid(0));
  EXPECT_TRUE(found.lease.Valid(1));
  found.lease.ReleaseFront(3);
  EXPECT_FALSE(found.lease);
  ASSERT_TRUE(server.WaitFor([](const auto& seen) { return seen.contains("release") && seen.at("release") == 2; }));
  EXPECT_THAT(counts, ElementsAre(1u, 0u));
}

TEST_F(VerbsTest, ABorrowedLeaseEndsWithTheLastBlockThatWasBorrowed) {
  Store(Chain(4));
  const Client::Found owner = client.Lookup(ns, Chain(4), 0, kPatient);
  const auto borrow = [&] {
    kv_lease* borrowed = nullptr;
    EXPECT_EQ(kv_borrow(client.get(), ns, kv_lease_id(owner.lease.get()), 1, 3, &borrowed, kPatient), KV_OK);
    return Lease(client.get(), borrowed);
  };
  for (const std::vector<uint32_t>& parts :
       std::vector<std::vector<uint32_t>>{{1, 2}, {3}, {UINT32_MAX}, {1, UINT32_MAX}}) {
    Lease borrowed = borrow();
    for (const uint32_t part : parts) {
      EXPECT_TRUE(borrowed);
      borrowed.ReleaseFront(part);
    }
    ASSERT_FALSE(borrowed) << "the library has freed it";
  }
  EXPECT_TRUE(owner.lease.Valid(0));
}

TEST_F(VerbsTest, ReclaimedSlotIsNoLongerValid) {
  Store(Chain(1));
  const Client::Found found = client.Lookup(ns, Chain(1), 0, kPatient);
  ASSERT_TRUE(found.lease.Valid(0));
  server.RaiseGenerations();
  EXPECT_FALSE(found.lease.Valid(0));
}

TEST_F(VerbsTest, ReserveTellsWhatExistsAndWhatIsRefused) {
  Store(Chain(2));
  const std::vector<Key> keys = Chain(4);
  std::vector<kv_slot> slots(4);
  Spoil([](Server::Answer* answer) {
    if (!answer->has_reserved()) return;
    (*answer->mutable_reserved()->mutable_outcomes())[3] = 2;
    answer->mutable_reserved()->set_refusal("tenant_limit");
  });
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = keys}, slots, kPatient), KV_OK);
  EXPECT_EQ(slots[0].outcome, KV_EXISTS);
  EXPECT_EQ(slots[0].data, nullptr);
  EXPECT_EQ(slots[2].outcome, KV_GRANTED);
  EXPECT_EQ(slots[3].outcome, KV_SLOT_REFUSED);
  EXPECT_EQ(slots[3].reservation, 0u);
  EXPECT_EQ(client.refusal(), "tenant_limit");
  const Client::Committed committed = client.Commit(slots, 0, kPatient);
  EXPECT_EQ(committed.status, KV_OK);
  EXPECT_EQ(committed.count, 1u);
}

TEST_F(VerbsTest, ReserveOfNothingGrantedIsRefused) {
  Spoil([](Server::Answer* answer) {
    if (!answer->has_reserved()) return;
    answer->mutable_reserved()->set_outcomes("\2");
    answer->mutable_reserved()->set_refusal("capacity");
  });
  kv_slot slot;
  const std::vector<Key> keys = Chain(1);
  EXPECT_EQ(client.Reserve({.ns = ns, .keys = keys}, {&slot, 1}, kPatient), KV_REFUSED);
  EXPECT_EQ(client.refusal(), "capacity");
  EXPECT_THAT(client.error(), HasSubstr("capacity"));
}

TEST_F(VerbsTest, CommitTwiceAndAfterAbortIsNotFound) {
  const std::vector<Key> keys = Chain(2);
  std::vector<kv_slot> slots(2);
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = keys}, slots, kPatient), KV_OK);
  EXPECT_EQ(client.Abort({&slots[1], 1}, kPatient), KV_OK);
  const Client::Committed committed = client.Commit(slots, 0, kPatient);
  EXPECT_EQ(committed.status, KV_NOT_FOUND);
  EXPECT_EQ(committed.count, 1u);
  EXPECT_EQ(client.Abort(slots, kPatient), KV_NOT_FOUND);
  EXPECT_EQ(client.Lookup(ns, keys, 0, kPatient).matched, 1u);
}

TEST_F(VerbsTest, PinAndRenew) {
  Store(Chain(1));
  Client::Found found = client.Lookup(ns, Chain(1), 0, kPatient);
  EXPECT_EQ(found.lease.Pin(1'800'000'000'000, kPatient), KV_OK);
  EXPECT_EQ(client.Renew(kPatient), KV_OK);
  Spoil([](Server::Answer* answer) {
    answer->clear_pinned();
    answer->mutable_error()->set_code(attach::v1::Error::REFUSED);
    answer->mutable_error()->set_refusal("tenant_limit");
  });
  EXPECT_EQ(found.lease.Pin(1, kPatient), KV_REFUSED);
  EXPECT_EQ(client.refusal(), "tenant_limit");
}

TEST_F(VerbsTest, AHintIsToldAndWaitsForNothing) {
  Store(Chain(2));
  Client::Found found = client.Lookup(ns, Chain(2), 0, kPatient);
  std::vector<std::pair<uint64_t, int>> told;
  server.SetScript([&](const Server::Request& request, Server::Answer*) {
    if (request.has_hint()) told.emplace_back(request.hint().lease(), request.hint().what());
    return Fate::kSend;
  });
  EXPECT_EQ(found.lease.Hint(KV_HINT_WAITING), KV_OK);
  EXPECT_EQ(found.lease.Hint(KV_HINT_ENDED), KV_OK);
  EXPECT_EQ(found.lease.Hint(static_cast<kv_hint_what>(3)), KV_INVALID_ARGUMENT);
  EXPECT_EQ(client.Renew(kPatient), KV_OK) << "the next answer is the next request's";
  const uint64_t lease = kv_lease_id(found.lease.get());
  EXPECT_THAT(told, ElementsAre(std::pair(lease, int{attach::v1::Hint::WAITING}),
                                std::pair(lease, int{attach::v1::Hint::ENDED})));
}

TEST_F(VerbsTest, DurableIsCountedAndTold) {
  std::vector<uint64_t> told;
  client.OnDurable([](void* context, uint64_t r) { static_cast<std::vector<uint64_t>*>(context)->push_back(r); },
                   &told);
  Server::Answer durable;
  durable.mutable_durable()->add_reservations(11);
  durable.mutable_durable()->add_reservations(12);
  server.Say(durable);
  uint64_t total = 0;
  while (total < 2) {
    const Client::Polled polled = client.Poll(kPatient);
    ASSERT_EQ(polled.status, KV_OK);
    total = polled.durable;
  }
  EXPECT_THAT(told, ElementsAre(11u, 12u));
  server.Say(durable);
  ASSERT_EQ(client.Renew(kPatient), KV_OK);
  EXPECT_EQ(client.Poll(0).durable, 4u);
}

TEST_F(VerbsTest, SameDigestIsTheSameNamespaceAndAnotherLayoutIsRefused) {
  EXPECT_EQ(client.OpenNamespace(Digest{1}, kLayout, kPatient).ns, ns);
  EXPECT_EQ(client.OpenNamespace(Digest{1}, {16, 1, 4096}, kPatient).status, KV_INVALID_ARGUMENT);
  EXPECT_EQ(server.count("open_namespace"), 1);
}

TEST_F(VerbsTest, AClosedNamespaceIsAskedAboutNoMoreAndItsNumberIsFree) {
  Client::Found found = client.Lookup(ns, Chain(1), 0, kPatient);
  EXPECT_EQ(client.CloseNamespace(ns), KV_OK);
  EXPECT_TRUE(server.WaitFor([](const auto& seen) { return seen.contains("close_namespace"); }));
  EXPECT_EQ(client.CloseNamespace(ns), KV_INVALID_ARGUMENT);
  EXPECT_EQ(client.Lookup(ns, Chain(1), 0, kPatient).status, KV_INVALID_ARGUMENT);
  found.lease.Release();
  const Client::Opened other = client.OpenNamespace(Digest{9}, kLayout, kPatient);
  EXPECT_EQ(other.status, KV_OK);
  EXPECT_EQ(other.ns, ns);
  EXPECT_EQ(client.Lookup(other.ns, Chain(1), 0, kPatient).status, KV_OK);
  EXPECT_EQ(server.count("open_namespace"), 2);
  EXPECT_EQ(server.count("close_namespace"), 1);
}

}  // namespace
}  // namespace kvartal::client
