// What the C ABI takes, what it refuses before anything is sent, and what it leaves in the caller's variables.
#include <gmock/gmock.h>

#include <cstddef>

#include "tests/unit/client/client_fixture.h"

namespace kvartal::client {
namespace {

using ::testing::HasSubstr;

class ArgumentsTest : public ClientFixture {};

TEST_F(ArgumentsTest, BadArgumentsAreNeverSent) {
  uint32_t matched;
  kv_lease* lease;
  const std::vector<Key> keys = Chain(1);
  const auto frames = [this] {
    return server.count("lookup") + server.count("reserve") + server.count("open_namespace");
  };
  const int before = frames();
  kv_client* c = client.get();
  EXPECT_EQ(kv_lookup(c, ns, nullptr, 1, 0, &lease, &matched, nullptr, kPatient), KV_INVALID_ARGUMENT);
  EXPECT_EQ(kv_lookup(c, ns, keys[0].data(), 1, 0, nullptr, &matched, nullptr, kPatient), KV_INVALID_ARGUMENT);
  EXPECT_EQ(kv_lookup(nullptr, ns, keys[0].data(), 1, 0, &lease, &matched, nullptr, kPatient), KV_INVALID_ARGUMENT);
  EXPECT_EQ(kv_lookup(c, 77, keys[0].data(), 1, 0, &lease, &matched, nullptr, kPatient), KV_INVALID_ARGUMENT);
  EXPECT_EQ(kv_lookup(c, ns, keys[0].data(), UINT32_MAX, 0, &lease, &matched, nullptr, kPatient), KV_INVALID_ARGUMENT);
  EXPECT_EQ(kv_lookup(c, ns, nullptr, 0, 0, &lease, &matched, nullptr, kPatient), KV_OK);
  for (const kv_layout& layout : {kv_layout{0, 1, 1}, kv_layout{1, 0, 1}, kv_layout{1, 65, 1}, kv_layout{1, 1, 0},
                                  kv_layout{1, 2, 17u << 20}, kv_layout{1, 64, UINT32_MAX}}) {
    EXPECT_EQ(client.OpenNamespace(Digest{3}, layout, kPatient).status, KV_INVALID_ARGUMENT);
  }
  kv_slot slot;
  EXPECT_EQ(client.Reserve({.ns = ns, .shard = 1, .keys = keys}, {&slot, 1}, kPatient), KV_INVALID_ARGUMENT);
  EXPECT_EQ(client.Reserve({.ns = ns, .keys = {}}, {&slot, 1}, kPatient), KV_INVALID_ARGUMENT);
  EXPECT_EQ(frames(), before);
  kv_release(c, nullptr, 0);
  kv_detach(nullptr);
}

// A program that looks at no status still finds nothing in what it was given back.
TEST_F(ArgumentsTest, WhatACallGivesBackIsSetAlsoWhenItFails) {
  const std::vector<Key> keys = Chain(1);
  const kv_layout bad = {0, 1, 1};
  kv_namespace none = 7;
  EXPECT_EQ(kv_open_namespace(client.get(), Digest{3}.data(), &bad, &none, kPatient), KV_INVALID_ARGUMENT);
  EXPECT_EQ(none, kv_namespace{KV_NAMESPACE_NONE});
  EXPECT_NE(ns, none) << "the first namespace is not what an ignored failure leaves";

  kv_lease* lease = reinterpret_cast<kv_lease*>(8);
  uint32_t matched = 7;
  uint64_t request = 7;
  EXPECT_EQ(kv_lookup(client.get(), none, keys[0].data(), 1, 0, &lease, &matched, &request, kPatient),
            KV_INVALID_ARGUMENT);
  EXPECT_THAT(client.error(), HasSubstr("kv_open_namespace"));
  EXPECT_EQ(lease, nullptr);
  EXPECT_EQ(matched, 0u);
  EXPECT_EQ(request, 0u);

  kv_reserve_args args{};
  args.struct_size = sizeof(args);
  args.ns = ns;
  args.keys = keys[0].data();
  args.count = 1;
  for (kv_client* each : {client.get(), static_cast<kv_client*>(nullptr)}) {
    args.shard = 1;  // of a namespace with one
    kv_slot slot = {&slot, 7, KV_GRANTED};
    EXPECT_EQ(kv_reserve(each, &args, &slot, kPatient), KV_INVALID_ARGUMENT);
    EXPECT_EQ(slot.data, nullptr);
    EXPECT_EQ(slot.reservation, 0u);
    EXPECT_EQ(slot.outcome, KV_SLOT_REFUSED);
  }
  Group group;
  group.fill(7);
  EXPECT_EQ(kv_group(nullptr, group.data()), KV_INVALID_ARGUMENT);
  EXPECT_EQ(group, Group{});
}

// No daemon can ever appear there, so waiting for one would be for ever.
TEST_F(ArgumentsTest, ASocketPathThatNoSystemTakesIsTheCallersFault) {
  Client other;
  EXPECT_EQ(other.Attach("/" + std::string(107, 'x')), KV_INVALID_ARGUMENT);
  EXPECT_FALSE(other);
  EXPECT_THAT(other.error(), HasSubstr("longer than the 107 bytes"));
  EXPECT_EQ(other.Attach("/" + std::string(106, 'x')), KV_UNAVAILABLE);
  EXPECT_TRUE(other);
}

TEST_F(ArgumentsTest, AFileWhereTheSocketShouldBeIsCalledThat) {
  Client other;
  EXPECT_EQ(other.Attach("/proc/self/status"), KV_UNAVAILABLE);
  EXPECT_THAT(other.error(), HasSubstr("this is no socket"));
}

TEST_F(ArgumentsTest, OlderCallersPassSmallerStructs) {
  kv_options options{};
  options.struct_size = offsetof(kv_options, client_name);
  const std::string path = server.socket_path();
  options.socket_path = path.c_str();
  options.client_name = reinterpret_cast<const char*>(8);  // beyond what the caller's struct has: never read
  options.join_group = reinterpret_cast<const uint8_t*>(8);
  kv_client* old = nullptr;
  ASSERT_EQ(kv_attach(&options, &old), KV_OK);
  kv_detach(old);
  options.struct_size = 0;
  EXPECT_EQ(kv_attach(&options, &old), KV_INVALID_ARGUMENT);
  EXPECT_EQ(old, nullptr);

  const std::vector<Key> keys = Chain(1);
  kv_reserve_args args{};
  args.struct_size = offsetof(kv_reserve_args, parent_key);
  args.ns = ns;
  args.keys = keys[0].data();
  args.count = 1;
  args.parent_key = reinterpret_cast<const uint8_t*>(8);
  kv_slot slot;
  EXPECT_EQ(kv_reserve(client.get(), &args, &slot, kPatient), KV_OK);
  args.struct_size -= 1;
  EXPECT_EQ(kv_reserve(client.get(), &args, &slot, kPatient), KV_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvartal::client
