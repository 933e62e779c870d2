// Feeds of policy and what is at their other ends: a folder, and a real operator's end on a port of this machine.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "daemon/base/units.h"
#include "daemon/control/folder_feed.h"
#include "daemon/control/stream_feed.h"
#include "operator/sync/fleet.h"
#include "operator/sync/sync_server.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::control {

inline constexpr policy::NodeCapacity kNode = {{0, kGiB, 4 * kGiB}};
inline constexpr int64_t kPatienceNs = 60'000'000'000;
inline constexpr int kKeepaliveMs = 1'000;  // gRPC asks no more often

inline std::string PolicyText(const std::string& limit) {
  return "apiVersion: kvartal.dev/v1alpha1\nkind: TenantKVPolicy\nmetadata: {name: cache, namespace: a}\n"
         "spec: {subjects: [{uid: 1}], pools: [{poolRef: p, perNode: {dram: {limit: " +
         limit + "}}}]}\n";
}

// The other end of a feed, and how to make another one of the same.
class Source {
 public:
  virtual ~Source() = default;
  virtual void Put(const std::string& manifest) = 0;
  virtual std::unique_ptr<PolicyFeed> NewFeed() = 0;
};

class FolderSource : public Source {
 public:
  explicit FolderSource(EventLoop*, const Clock*) {}
  void Put(const std::string& manifest) override {
    std::ofstream(scratch_.File("a.yaml"), std::ios::trunc) << manifest;
  }
  std::unique_ptr<PolicyFeed> NewFeed() override { return std::make_unique<FolderFeed>(scratch_.path(), kNode); }

 private:
  const testing::ScratchDir scratch_;
};

// A real operator's end on a port of this machine.
class StreamSource : public Source {
 public:
  StreamSource(EventLoop* loop, const Clock* clock)
      : loop_(loop),
        clock_(clock),
        fleet_(clock, {.send = [this](auto stream, auto message) { server_->Send(stream, std::move(message)); },
                       .close = [this](auto stream, const auto& why) { server_->Close(stream, why); },
                       .on_progress = [](const std::string&) {}}) {
    Listen("127.0.0.1:0");
  }
  void Put(const std::string& manifest) override {
    crds::PolicySet set;
    set.Put("TenantKVPolicy/a/cache", manifest, "");
    PutSet(set);
  }
  void PutSet(const crds::PolicySet& set) {
    auto node = std::make_shared<reconcile::CompiledNode>();
    node->set = set;
    node->Seal();
    fleet_.SetTargets({{"n1", node}});
  }
  std::unique_ptr<PolicyFeed> NewFeed() override { return NewFeedOn(kNode, port_); }
  std::unique_ptr<PolicyFeed> NewFeedOn(const policy::NodeCapacity& capacity, int port) {
    StreamFeedOptions options;
    options.stream.address = "127.0.0.1:" + std::to_string(port);
    options.stream.keepalive_ms = options.stream.keepalive_timeout_ms = kKeepaliveMs;
    options.keep_in = scratch_.path();
    options.node = "n1";
    options.program = "test";
    options.redial_ms = 20;
    return std::make_unique<StreamFeed>(std::move(options), capacity, clock_);
  }
  int port() const { return port_; }
  void Listen(const std::string& address) {
    auto server = sync::SyncServer::Start(
        {.address = address, .cert_file = "", .key_file = "", .keepalive_ms = kKeepaliveMs}, loop_,
        {.on_message =
             [this](auto stream, const std::string&, const auto& message) {
               streams_.insert(stream);
               fleet_.OnMessage(stream, "", message);
             },
         .on_end = [this](auto stream) { EndStream(stream); }});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = server_->port();
  }
  // As an operator that ends: the streams it had are gone, and so is what it knew of them.
  void GoAway() {
    server_.reset();
    while (!streams_.empty()) EndStream(*streams_.begin());
  }
  void ComeBack() { Listen("127.0.0.1:" + std::to_string(port_)); }
  sync::Fleet& fleet() { return fleet_; }
  const testing::ScratchDir& scratch() const { return scratch_; }

 private:
  void EndStream(sync::StreamId stream) {
    streams_.erase(stream);
    fleet_.OnEnd(stream);
  }

  EventLoop* const loop_;
  const Clock* const clock_;
  const testing::ScratchDir scratch_;
  int port_ = 0;
  std::set<sync::StreamId> streams_;
  std::unique_ptr<sync::SyncServer> server_;
  sync::Fleet fleet_;
};

// Offers, as NodePolicy takes them.
class FeedLoop {
 public:
  FeedLoop() : loop_(*EventLoop::Create(&clock_)) {}
  PolicyFeed::Offer Taker() {
    return [this](absl::StatusOr<LoadedPolicy> read) {
      ++offers_;
      if (!read.ok()) return read.status();
      limit_ = LimitOf(*read);
      limits_ = LimitsOf(*read);
      refused_ = read->refused;
      capacity_waits_ = read->capacity_waits;
      return absl::OkStatus();
    };
  }
  bool Until(const std::function<bool()>& reached) {
    const int64_t until_ns = clock_.MonotonicNs() + kPatienceNs;
    while (!reached()) {
      if (clock_.MonotonicNs() > until_ns) return false;
      loop_->RunOnce(20);
    }
    return true;
  }
  static uint64_t LimitOf(const LoadedPolicy& loaded) {
    return loaded.table->tenants().empty() ? 0 : loaded.table->tenants()[0].tier(TierKind::kDram).limit_bytes;
  }

  static std::map<std::string, uint64_t> LimitsOf(const LoadedPolicy& loaded) {
    std::map<std::string, uint64_t> limits;
    for (const policy::TenantRules& rules : loaded.table->tenants())
      limits[rules.name] = rules.tier(TierKind::kDram).limit_bytes;
    return limits;
  }

  const SystemClock clock_;
  std::unique_ptr<EventLoop> loop_;
  int offers_ = 0;
  uint64_t limit_ = 0;  // that is in force
  std::map<std::string, uint64_t> limits_;
  std::string refused_;
  bool capacity_waits_ = false;
};

}  // namespace kvartal::control
