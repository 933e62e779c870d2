// libkvartal against the real attach server and engine over real shared memory, on a loop thread of its own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "client/libkvartal/kvartal.hpp"
#include "daemon/attach/attach_server.h"
#include "daemon/base/event_loop.h"
#include "daemon/device/host_memory.h"
#include "daemon/engine/cache_engine.h"
#include "daemon/tier/dram_tier.h"

namespace kvartal::client {
namespace {

constexpr uint32_t kPatient = 20'000;
constexpr uint32_t kShardBytes = 64 * kKiB;
constexpr kv_layout kLayout = {16, 1, kShardBytes};

// A node without a process around it: memory, engine, doors "red" and "blue", and the thread they live on.
class Node {
 public:
  explicit Node(const std::string& folder) {
    loop_ = *EventLoop::Create(&clock_);
    memory_ = device::NewMemfdMemory(loop_.get());
    dram_ = std::make_unique<tier::DramTier>(memory_.get(), 256 * kMiB);
    policy::NodeCapacity capacity;
    capacity.bytes[TierIndex(TierKind::kDram)] = 256 * kMiB;
    engine_ = std::make_unique<engine::CacheEngine>(
        engine::EngineOptions{}, engine::EngineDevices{.clock = &clock_, .dram = dram_.get()},
        policy::PolicyTable::FromRules({Rules("team/red", "red"), Rules("team/blue", "blue")}, capacity));
    attach::AttachOptions options;
    options.attest_uid = false;
    options.doors = {{"red", folder + "/red.sock", 0660}, {"blue", folder + "/blue.sock", 0660}};
    server_ = std::make_unique<attach::AttachServer>(options, loop_.get(), &clock_, engine_.get());
    EXPECT_TRUE(server_->Start().ok());
    Tick();
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~Node() {
    loop_->Stop();
    thread_.join();
    engine_->CheckInvariants();
    server_.reset();
    engine_.reset();
    dram_.reset();
    memory_.reset();
  }

  template <typename Ask>
  auto OnLoop(Ask ask) {
    std::promise<decltype(ask(*engine_))> answer;
    loop_->Post([&] { answer.set_value(ask(*engine_)); });
    return answer.get_future().get();
  }

 private:
  static policy::TenantRules Rules(const std::string& name, const std::string& door) {
    policy::TenantRules rules;
    rules.name = name;
    rules.uid = name;
    rules.tier(TierKind::kDram).limit_bytes = 128 * kMiB;
    rules.ttl_ms = {};
    rules.sockets = {door};
    return rules;
  }
  void Tick() {
    engine_->Tick();
    server_->Tick();
    loop_->RunAfterMs(kTickMs, [this] { Tick(); });
  }

  SystemClock clock_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<device::HostMemory> memory_;
  std::unique_ptr<tier::DramTier> dram_;
  std::unique_ptr<engine::CacheEngine> engine_;
  std::unique_ptr<attach::AttachServer> server_;
  std::thread thread_;
};

class ClientRealServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/kvartal-client-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    node_ = std::make_unique<Node>(folder_);
  }
  void TearDown() override {
    node_.reset();
    std::filesystem::remove_all(folder_);
  }

  Client Join(const std::string& door, kv_namespace* ns, const Group* group = nullptr) {
    Client client;
    EXPECT_EQ(client.Attach(folder_ + "/" + door + ".sock", "test", group, kPatient), KV_OK) << client.error();
    const Client::Opened opened = client.OpenNamespace(Digest{7}, kLayout, kPatient);
    EXPECT_EQ(opened.status, KV_OK) << client.error();
    *ns = opened.ns;
    return client;
  }
  // Until the client has found the server again.
  static kv_status AskUntilAnswered(Client& client, kv_namespace ns) {
    kv_status status = KV_UNAVAILABLE;
    for (int i = 0; i < 20'000 && status != KV_OK; ++i) {
      status = client.Lookup(ns, Chain(1), 0, kPatient).status;
      ::usleep(500);
    }
    return status;
  }
  static std::vector<Key> Chain(uint32_t count, uint8_t salt = 0) {
    std::vector<Key> keys(count);
    for (uint32_t i = 0; i < count; ++i) {
      for (size_t b = 0; b < keys[i].size(); ++b) keys[i][b] = static_cast<uint8_t>((i + 1) * 31 + b * 7 + salt);
      std::memcpy(keys[i].data(), &i, sizeof(i));
    }
    return keys;
  }
  static void Store(Client& client, kv_namespace ns, const std::vector<Key>& keys, int seed) {
    const Client::Found found = client.Lookup(ns, keys, 0, kPatient);
    ASSERT_EQ(found.status, KV_OK) << client.error();
    ASSERT_EQ(found.matched, 0u);
    std::vector<kv_slot> slots(keys.size());
    ASSERT_EQ(client.Reserve({.ns = ns, .keys = keys, .request = found.request}, slots, kPatient), KV_OK)
        << client.error();
    for (size_t i = 0; i < slots.size(); ++i) {
      ASSERT_EQ(slots[i].outcome, KV_GRANTED);
      std::memset(slots[i].data, seed + static_cast<int>(i), kShardBytes);
    }
    const Client::Committed committed = client.Commit(slots, 0, kPatient);
    ASSERT_EQ(committed.status, KV_OK) << client.error();
    ASSERT_EQ(committed.count, keys.size());
  }
  static void ExpectBytes(const Client::Found& found, int seed) {
    for (uint32_t i = 0; i < found.matched; ++i) {
      const kv_block& block = found.lease.blocks()[i];
      ASSERT_NE(block.data, nullptr);
      const std::vector<uint8_t> expected(kShardBytes, static_cast<uint8_t>(seed + static_cast<int>(i)));
      EXPECT_EQ(std::memcmp(block.data, expected.data(), kShardBytes), 0) << "block " << i;
      EXPECT_TRUE(found.lease.Valid(i));
    }
  }

  std::string folder_;
  std::unique_ptr<Node> node_;
};

TEST_F(ClientRealServerTest, AnEngineThatBeginsANewEpochAgainAndAgainIsServed) {
  kv_namespace ns;
  Client client = Join("red", &ns);
  Store(client, ns, Chain(1), 5);
  Client::Found kept = client.Lookup(ns, Chain(1), 0, kPatient);
  for (uint32_t epoch = 0; epoch < 1000; ++epoch) {
    ASSERT_EQ(client.CloseNamespace(ns), KV_OK) << client.error();
    Digest digest{8};
    std::memcpy(digest.data() + 1, &epoch, sizeof(epoch));
    const Client::Opened opened = client.OpenNamespace(digest, kLayout, kPatient);
    ASSERT_EQ(opened.status, KV_OK) << epoch << ": " << client.error();
    ns = opened.ns;
    if (epoch % 10 == 0) Store(client, ns, Chain(1), 7);
  }
  ExpectBytes(kept, 5);
  kept.lease.Release();
}

TEST_F(ClientRealServerTest, WhatOneClientStoresAnotherOfItsTenantReadsInPlace) {
  kv_namespace ns, peer_ns, stranger_ns;
  Client writer = Join("red", &ns);
  Client reader = Join("red", &peer_ns);
  Client stranger = Join("blue", &stranger_ns);
  EXPECT_EQ(writer.tenant(), "team/red");
  EXPECT_EQ(stranger.tenant(), "team/blue");

  const std::vector<Key> keys = Chain(32);
  Store(writer, ns, keys, 3);
  const Client::Found found = reader.Lookup(peer_ns, keys, 0, kPatient);
  ASSERT_EQ(found.matched, 32u);
  ExpectBytes(found, 3);
  EXPECT_EQ(stranger.Lookup(stranger_ns, keys, 0, kPatient).matched, 0u);
}

TEST_F(ClientRealServerTest, NothingIsSeenBeforeItsCommitOrAfterItsAbort) {
  kv_namespace ns;
  Client client = Join("red", &ns);
  const std::vector<Key> keys = Chain(4);
  std::vector<kv_slot> slots(4);
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = keys}, slots, kPatient), KV_OK) << client.error();
  EXPECT_EQ(client.Lookup(ns, keys, 0, kPatient).matched, 0u);
  EXPECT_EQ(client.Commit({slots.data(), 2}, 0, kPatient).count, 2u);
  EXPECT_EQ(client.Abort({slots.data() + 2, 2}, kPatient), KV_OK);
  EXPECT_EQ(client.Lookup(ns, keys, 0, kPatient).matched, 2u);
  EXPECT_EQ(client.Commit(slots, 0, kPatient).status, KV_NOT_FOUND);
}

TEST_F(ClientRealServerTest, AWorkerReadsTheLeaseThatItsSchedulerHolds) {
  kv_namespace ns, worker_ns, stranger_ns;
  Client scheduler = Join("red", &ns);
  Group group;
  ASSERT_EQ(scheduler.GetGroup(&group), KV_OK);
  Client worker = Join("red", &worker_ns, &group);
  Client stranger = Join("red", &stranger_ns);
  const std::vector<Key> keys = Chain(8);
  Store(scheduler, ns, keys, 3);
  Client::Found found = scheduler.Lookup(ns, keys, 0, kPatient);
  ASSERT_EQ(found.matched, 8u);

  const auto borrow = [id = kv_lease_id(found.lease.get())](Client& client, kv_namespace in, kv_lease** lease) {
    return kv_borrow(client.get(), in, id, 2, 5, lease, kPatient);
  };
  kv_lease* borrowed;
  uint32_t loaded;
  ASSERT_EQ(borrow(worker, worker_ns, &borrowed), KV_OK) << worker.error();
  EXPECT_EQ(kv_block_valid(borrowed, 2), 0) << "nothing was loaded yet";
  ASSERT_EQ(kv_load(worker.get(), borrowed, 2, 5, &loaded, kPatient), KV_OK) << worker.error();
  ASSERT_EQ(loaded, 5u);
  for (uint32_t i = 2; i < 7; ++i) {
    const void* const data = kv_lease_blocks(borrowed)[i].data;
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(std::memcmp(data, found.lease.blocks()[i].data, kShardBytes), 0) << "block " << i;
    EXPECT_EQ(kv_block_valid(borrowed, i), 1);
  }
  kv_release(worker.get(), borrowed, 0);
  ASSERT_EQ(worker.Renew(kPatient), KV_OK);  // whatever was to be given back has been
  const auto leased = [this] {
    return node_->OnLoop([](engine::CacheEngine& engine) { return engine.stats().leased_blocks; });
  };
  EXPECT_EQ(leased(), 8u) << "the worker gave back what is not its own";

  ASSERT_EQ(borrow(stranger, stranger_ns, &borrowed), KV_OK);
  EXPECT_EQ(kv_load(stranger.get(), borrowed, 2, 5, &loaded, kPatient), KV_NOT_FOUND) << "another group's lease";
  EXPECT_EQ(kv_lease_blocks(borrowed)[2].data, nullptr);
  kv_release(stranger.get(), borrowed, 0);

  found.lease.Release();
  ASSERT_EQ(scheduler.Renew(kPatient), KV_OK);
  ASSERT_EQ(borrow(worker, worker_ns, &borrowed), KV_OK);
  EXPECT_EQ(kv_load(worker.get(), borrowed, 2, 5, &loaded, kPatient), KV_NOT_FOUND) << "the lease had ended";
  kv_release(worker.get(), borrowed, 0);
}

TEST_F(ClientRealServerTest, LeasesComeBack) {
  kv_namespace ns;
  Client client = Join("red", &ns);
  const std::vector<Key> keys = Chain(2000);
  for (size_t i = 0; i < keys.size(); i += 500) {
    std::vector<kv_slot> slots(500);
    const std::vector<Key> part(keys.begin() + static_cast<ptrdiff_t>(i),
                                keys.begin() + static_cast<ptrdiff_t>(i) + 500);
    ASSERT_EQ(client.Reserve({.ns = ns,
                              .keys = part,
                              .parent = i == 0 ? nullptr : &keys[i - 1],
                              .first_depth = static_cast<uint32_t>(i)},
                             slots, kPatient),
              KV_OK)
        << client.error();
    ASSERT_EQ(client.Commit(slots, 0, kPatient).count, 500u);
  }
  const auto leased = [this] {
    return node_->OnLoop([](engine::CacheEngine& engine) { return engine.stats().leased_blocks; });
  };
  Client::Found found = client.Lookup(ns, keys, 0, kPatient);
  ASSERT_EQ(found.matched, 2000u);
  EXPECT_EQ(leased(), 2000u);
  const Lease::Loaded loaded = found.lease.Load(0, 2000, kPatient);
  EXPECT_EQ(loaded.status, KV_OK) << client.error();
  EXPECT_EQ(loaded.count, 2000u);
  found.lease.ReleaseFront(1500);
  ASSERT_EQ(client.Renew(kPatient), KV_OK);
  EXPECT_EQ(leased(), 500u);
  EXPECT_TRUE(found.lease.Valid(1999));
  found.lease.Release();
  ASSERT_EQ(client.Renew(kPatient), KV_OK);
  EXPECT_EQ(leased(), 0u);
}

TEST_F(ClientRealServerTest, SessionsOfOneEngineShareAGroup) {
  kv_namespace ns, worker_ns;
  Client scheduler = Join("red", &ns);
  Group group;
  ASSERT_EQ(scheduler.GetGroup(&group), KV_OK);
  Client worker = Join("red", &worker_ns, &group);
  // One reserves, the other commits.
  const std::vector<Key> keys = Chain(1);
  kv_slot slot;
  ASSERT_EQ(scheduler.Reserve({.ns = ns, .keys = keys}, {&slot, 1}, kPatient), KV_OK);
  EXPECT_EQ(scheduler.Commit({&slot, 1}, 0, kPatient).count, 1u);
  EXPECT_EQ(worker.Lookup(worker_ns, keys, 0, kPatient).matched, 1u);
  Client foreign;
  EXPECT_EQ(foreign.Attach(folder_ + "/blue.sock", "test", &group, kPatient), KV_DENIED);
}

TEST_F(ClientRealServerTest, RanksAreOneGroupAgainAfterTheServersRestart) {
  kv_namespace ns, worker_ns;
  Client scheduler = Join("red", &ns);
  Group group;
  ASSERT_EQ(scheduler.GetGroup(&group), KV_OK);
  Client worker = Join("red", &worker_ns, &group);
  node_.reset();
  node_ = std::make_unique<Node>(folder_);
  // Whoever comes back first: here the one that had joined.
  for (auto [client, in] : {std::pair(&worker, worker_ns), std::pair(&scheduler, ns)}) {
    ASSERT_EQ(AskUntilAnswered(*client, in), KV_OK) << client->error();
  }
  Group after;
  ASSERT_EQ(scheduler.GetGroup(&after), KV_OK);
  EXPECT_EQ(after, group);
  ASSERT_EQ(worker.GetGroup(&after), KV_OK);
  EXPECT_EQ(after, group);
}

TEST_F(ClientRealServerTest, ALeaseOfTheServerBeforeIsNotTakenForAnotherPrompts) {
  kv_namespace ns, worker_ns;
  Client scheduler = Join("red", &ns);
  Group group;
  ASSERT_EQ(scheduler.GetGroup(&group), KV_OK);
  Client worker = Join("red", &worker_ns, &group);
  Store(scheduler, ns, Chain(4), 3);
  Client::Found before = scheduler.Lookup(ns, Chain(4), 0, kPatient);
  ASSERT_EQ(before.matched, 4u);
  // What a worker may still have in its queue.
  const uint64_t id = kv_lease_id(before.lease.get());
  node_.reset();
  node_ = std::make_unique<Node>(folder_);
  ASSERT_EQ(AskUntilAnswered(scheduler, ns), KV_OK) << scheduler.error();
  const std::vector<Key> other = Chain(4, 99);
  Store(scheduler, ns, other, 50);
  const Client::Found after = scheduler.Lookup(ns, other, 0, kPatient);
  ASSERT_EQ(after.matched, 4u);
  ASSERT_EQ(AskUntilAnswered(worker, worker_ns), KV_OK) << worker.error();

  kv_lease* borrowed;
  uint32_t loaded;
  ASSERT_EQ(kv_borrow(worker.get(), worker_ns, kv_lease_id(after.lease.get()), 0, 4, &borrowed, kPatient), KV_OK);
  EXPECT_EQ(kv_load(worker.get(), borrowed, 0, 4, &loaded, kPatient), KV_OK) << "one group again: " << worker.error();
  kv_release(worker.get(), borrowed, 0);
  ASSERT_EQ(kv_borrow(worker.get(), worker_ns, id, 0, 4, &borrowed, kPatient), KV_OK);
  EXPECT_EQ(kv_load(worker.get(), borrowed, 0, 4, &loaded, kPatient), KV_NOT_FOUND) << "these are another prompt's";
  kv_release(worker.get(), borrowed, 0);
}

TEST_F(ClientRealServerTest, KilledServerIsAMissAndItsSuccessorIsFound) {
  kv_namespace ns;
  Client client = Join("red", &ns);
  const std::vector<Key> keys = Chain(8);
  Store(client, ns, keys, 11);
  Client::Found held = client.Lookup(ns, keys, 0, kPatient);
  ASSERT_EQ(held.matched, 8u);
  std::vector<kv_slot> unfinished(1);
  const std::vector<Key> other = Chain(1, 99);
  ASSERT_EQ(client.Reserve({.ns = ns, .keys = other}, unfinished, kPatient), KV_OK);

  node_.reset();
  for (int i = 0; i < 3; ++i) {
    const Client::Found found = client.Lookup(ns, keys, 0, kPatient);
    EXPECT_EQ(found.status, KV_UNAVAILABLE);
    EXPECT_EQ(found.matched, 0u);
  }
  EXPECT_EQ(client.Commit(unfinished, 0, kPatient).count, 0u);
  EXPECT_EQ(*static_cast<const uint8_t*>(held.lease.blocks()[0].data), 11);

  node_ = std::make_unique<Node>(folder_);
  ASSERT_EQ(AskUntilAnswered(client, ns), KV_OK) << client.error();
  EXPECT_EQ(held.lease.Load(0, 1, kPatient).status, KV_NOT_FOUND);
  EXPECT_EQ(client.Commit(unfinished, 0, kPatient).status, KV_NOT_FOUND);
  Store(client, ns, keys, 12);
  ExpectBytes(client.Lookup(ns, keys, 0, kPatient), 12);
}

}  // namespace
}  // namespace kvartal::client
