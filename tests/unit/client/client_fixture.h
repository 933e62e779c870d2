// A scripted daemon and clients of it, with the moves that most tests make.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "client/libkvartal/kvartal.hpp"
#include "tests/support/scripted_server.h"

namespace kvartal::client {

inline constexpr uint32_t kPatient = 20'000;  // a deadline that only a bug reaches
inline constexpr uint32_t kShort = 30;        // a deadline that is meant to pass
inline constexpr uint32_t kShardBytes = 8192;

inline Key KeyOf(uint32_t number) {
  Key key{};
  std::memcpy(key.data(), &number, sizeof(number));
  key[31] = 0xAB;
  return key;
}

inline std::vector<Key> Chain(uint32_t count, uint32_t first = 1) {
  std::vector<Key> keys;
  for (uint32_t i = 0; i < count; ++i) keys.push_back(KeyOf(first + i));
  return keys;
}

class ClientFixture : public ::testing::Test {
 public:
  using Request = kvartal::testing::ScriptedServer::Request;

 protected:
  using Server = kvartal::testing::ScriptedServer;
  using Fate = Server::Fate;

  static constexpr kv_layout kLayout = {16, 1, kShardBytes};

  void SetUp() override {
    ASSERT_EQ(client.Attach(server.socket_path(), "test", nullptr, kPatient), KV_OK) << client.error();
    ns = client.OpenNamespace(Digest{1}, kLayout, kPatient).ns;
  }

  // Stores the chain; block i is filled with bytes of value seed + i.
  void Store(const std::vector<Key>& keys, int seed = 1) {
    std::vector<kv_slot> slots(keys.size());
    ASSERT_EQ(client.Reserve({.ns = ns, .keys = keys}, slots, kPatient), KV_OK) << client.error();
    for (size_t i = 0; i < slots.size(); ++i) {
      ASSERT_EQ(slots[i].outcome, KV_GRANTED);
      std::memset(slots[i].data, seed + static_cast<int>(i), kShardBytes);
    }
    const Client::Committed committed = client.Commit(slots, 0, kPatient);
    ASSERT_EQ(committed.status, KV_OK) << client.error();
    ASSERT_EQ(committed.count, keys.size());
  }

  // A failed attempt puts the next one off; calls meanwhile answer at once.
  kv_status LookupUntilConnected(const std::vector<Key>& keys) {
    for (int i = 0; i < 20'000; ++i) {
      const Client::Found found = client.Lookup(ns, keys, 0, kPatient);
      if (found.status == KV_OK) return KV_OK;
      ::usleep(500);
    }
    return KV_UNAVAILABLE;
  }

  // The next request with this verb meets `fate`; all others are answered well.
  template <typename Has>
  void Doom(Has has, Fate fate) {
    server.SetScript([has, fate, done = false](const Server::Request& request, Server::Answer*) mutable {
      if (done || !has(request)) return Fate::kSend;
      done = true;
      return fate;
    });
  }
  // Every answer with this verb is changed before it is sent.
  template <typename Change>
  void Spoil(Change change) {
    server.SetScript([change](const Server::Request&, Server::Answer* answer) {
      change(answer);
      return Fate::kSend;
    });
  }

  Server server;
  Client client;
  kv_namespace ns = 0;
};

}  // namespace kvartal::client
