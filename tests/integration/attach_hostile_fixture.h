// A daemon with a bystander: a session of another tenant that must not notice what the offender of a test does.
#pragma once

#include "tests/integration/attach_fixture.h"

namespace kvartal::attach {

class HostileTest : public AttachTest {
 protected:
  void StartWithBystander(bool with_nvme = false) {
    Start(with_nvme);
    Warm();
    bystander_ = std::make_unique<RawClient>(Path("blue"));
    Attach(*bystander_);
    bystander_ns_ = OpenNamespace(*bystander_);
    Store(*bystander_, bystander_ns_, 1, 4);
    lease_ = Lookup(*bystander_, bystander_ns_, 1, 4).lease();
    before_ = Now();
  }
  // The offender is gone: everything is as it was, and the bystander's lease, blocks and session are intact.
  void ExpectNothingLeft() {
    Spin();
    EXPECT_EQ(Now(), before_);
    ClientFrame renew;
    renew.mutable_renew()->add_leases(lease_);
    EXPECT_EQ(Ask(*bystander_, renew).renewed().count(), 1u);
    const v1::LookedUp found = Lookup(*bystander_, bystander_ns_, 1, 4);
    EXPECT_EQ(found.matched(), 4u);
    Release(*bystander_, found.lease());
    engine_->CheckInvariants();
  }
  void ExpectBadFrame(RawClient& client, BadFrame kind) {
    Spin();
    const std::vector<ServerFrame> said = Drain(client);
    ASSERT_FALSE(said.empty()) << BadFrameName(kind);
    EXPECT_EQ(said.back().error().code(), v1::Error::BAD_FRAME);
    EXPECT_TRUE(client.ended());
    EXPECT_EQ(BadFrames(kind), 1u) << BadFrameName(kind);
    client.fds.clear();
    client.Close();
    OutlastRest();
    ExpectNothingLeft();
  }
  // Slots that somebody who was cut off, or hung up and lives, was filling are nobody's for a while.
  void OutlastRest() {
    for (int i = 0; i < 2; ++i) {
      AdvanceMs(1100);
      ClientFrame renew;
      renew.mutable_renew()->add_leases(lease_);
      EXPECT_EQ(Ask(*bystander_, renew).renewed().count(), 1u);
    }
  }

  std::unique_ptr<RawClient> bystander_;
  uint32_t bystander_ns_ = 0;
  uint64_t lease_ = 0;
  Balance before_{};
};

// What a client does in its life, one step after another. It may die after any of them.
class DyingClient {
 public:
  static constexpr int kSteps = 9;
  DyingClient(const std::string& path, uint64_t first_key) : client(path), first(first_key) {}

  ClientFrame FrameOf(int step, uint32_t ns, const std::vector<uint64_t>& reservations, uint64_t lease) const {
    ClientFrame frame;
    frame.set_request_id(static_cast<uint64_t>(step) + 1);
    switch (step) {
      case 0:
        frame.mutable_attach()->set_version(1);
        break;
      case 1:
        frame.mutable_grant_ack();
        break;
      case 2:
        frame.mutable_open_namespace()->set_digest(std::string(32, 'x'));
        frame.mutable_open_namespace()->set_tokens_per_block(16);
        frame.mutable_open_namespace()->set_shard_count(1);
        frame.mutable_open_namespace()->set_shard_bytes(kTestBlockBytes);
        break;
      case 3:
        frame.mutable_reserve()->set_ns(ns);
        frame.mutable_reserve()->set_keys(ChainBytes(first, 8));
        break;
      case 4:
        for (size_t i = 0; i < reservations.size() / 2; ++i) frame.mutable_commit()->add_reservations(reservations[i]);
        break;
      case 5:
        if (!reservations.empty()) frame.mutable_abort()->add_reservations(reservations.back());
        break;
      case 6:
        frame.mutable_lookup()->set_ns(ns);
        frame.mutable_lookup()->set_keys(ChainBytes(first, 8));
        break;
      case 7:
        frame.mutable_load()->set_lease(lease);
        frame.mutable_load()->set_count(2);
        break;
      case 8:
        frame.mutable_release()->set_lease(lease);
        frame.mutable_release()->set_count(1);
        break;
    }
    return frame;
  }

  RawClient client;
  const uint64_t first;
};

}  // namespace kvartal::attach
