// Between two ends of a connection on this machine.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::testing {

// Passes on what either end says. Once it swallows, both see a connection that is up and brings nothing.
// Made and used by the thread of the test; passes on from one of its own.
// Invariant: what it has not passed on it has not read.
class Relay {
 public:
  explicit Relay(int to_port) : to_port_(to_port), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    KV_CHECK(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    KV_CHECK(::listen(listener_.get(), 4) == 0);
    KV_CHECK(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~Relay() {
    ending_ = true;
    thread_.join();
  }
  int port() const { return port_; }
  void Swallow() { swallowing_ = true; }
  // Of the node: HTTP/2 frames that come by themselves and ask for an answer.
  int pings() const { return pings_; }

 private:
  void Run() {
    std::vector<std::pair<UniqueFd, UniqueFd>> pairs;  // of the node, of the operator
    while (!ending_) {
      std::vector<pollfd> waiting = {{listener_.get(), POLLIN, 0}};
      for (const auto& [node, server] : pairs) {
        waiting.push_back({node.get(), POLLIN, 0});
        waiting.push_back({server.get(), POLLIN, 0});
      }
      const nfds_t asked = swallowing_ ? 1 : waiting.size();
      if (::poll(waiting.data(), asked, 20) <= 0) continue;
      for (size_t i = 1; i < asked; ++i) {
        const auto& [node, server] = pairs[(i - 1) / 2];
        if (waiting[i].revents != 0)
          Pass(i % 2 == 1 ? node.get() : server.get(), i % 2 == 1 ? server.get() : node.get());
      }
      if ((waiting[0].revents & POLLIN) != 0 && !swallowing_) pairs.push_back(Accept());
    }
  }
  std::pair<UniqueFd, UniqueFd> Accept() {
    UniqueFd node(::accept(listener_.get(), nullptr, nullptr)), server(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(to_port_));
    KV_CHECK(::connect(server.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    return {std::move(node), std::move(server)};
  }
  void Pass(int from, int to) {
    std::array<char, 4096> bytes{};
    const ssize_t got = ::recv(from, bytes.data(), bytes.size(), 0);
    if (got <= 0) {
      ::shutdown(to, SHUT_WR);
      return;
    }
    constexpr ssize_t kPingBytes = 17;
    constexpr char kPingType = 6;
    if (got == kPingBytes && bytes[3] == kPingType && bytes[4] == 0) ++pings_;
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t more = ::send(to, bytes.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (more <= 0) return;
      sent += more;
    }
  }

  const int to_port_;
  const UniqueFd listener_;
  int port_ = 0;
  std::atomic<bool> ending_{false}, swallowing_{false};
  std::atomic<int> pings_{0};
  std::thread thread_;
};

}  // namespace kvartal::testing
