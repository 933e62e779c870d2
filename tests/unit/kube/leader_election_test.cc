#include "operator/kube/leader_election.h"

#include <gtest/gtest.h>

#include "operator/kube/json_fields.h"

namespace kvartal::kube {
namespace {

using Verb = LeaseRequest::Verb;

const ObjectKey kKey = {"system", "kvartal-operator"};
constexpr int64_t kWall = 1'770'000'000'123;

// A server with one lease and optimistic writes.
struct LeaseServer {
  nlohmann::json lease;  // null: none
  int version = 0;

  std::pair<ApiError, nlohmann::json> Serve(const LeaseRequest& request) {
    const auto fail = [](ErrorKind kind) { return std::pair(ApiError{kind, 0, "", std::nullopt}, nlohmann::json()); };
    if (request.verb == Verb::kGet) return lease.is_null() ? fail(ErrorKind::kNotFound) : std::pair(ApiError(), lease);
    if (request.verb == Verb::kCreate && !lease.is_null()) return fail(ErrorKind::kAlreadyExists);
    if (request.verb == Verb::kUpdate &&
        TextAt(request.lease, {"metadata", "resourceVersion"}) != TextAt(lease, {"metadata", "resourceVersion"}))
      return fail(ErrorKind::kConflict);
    lease = request.lease;
    lease["metadata"]["resourceVersion"] = std::to_string(++version);
    return {ApiError(), lease};
  }
};

struct Candidate {
  LeaderElection election;
  LeaseRequest next;
  explicit Candidate(const std::string& name, uint64_t seed = 1) : election(kKey, name, seed) {
    next = election.Start();
  }
  // One request and its answer.
  void Step(LeaseServer* server, int64_t now_ms) {
    const auto [error, lease] = server->Serve(next);
    next = election.OnAnswer(error, lease, now_ms, kWall);
  }
  // A whole round: until it waits.
  void Round(LeaseServer* server, int64_t now_ms) {
    do Step(server, now_ms);
    while (next.after_ms == 0);
  }
  void Fail(ErrorKind kind, int64_t now_ms) {
    next = election.OnAnswer({kind, 0, "", std::nullopt}, nullptr, now_ms, kWall);
  }
};

TEST(LeaderElectionTest, TheFirstOneMakesTheLeaseAndLeads) {
  LeaseServer server;
  Candidate a("a");
  a.Round(&server, 1000);
  EXPECT_TRUE(a.election.Leading(1000));
  EXPECT_EQ(server.lease["spec"]["holderIdentity"], "a");
  EXPECT_EQ(server.lease["spec"]["leaseDurationSeconds"], 15);
  EXPECT_EQ(server.lease["spec"]["renewTime"], "2026-02-02T02:40:00.123000Z");
  EXPECT_EQ(a.next.after_ms, kLeaseRetryMs);
}

// A server that asks for a pause gets it, but for the one try without which the lease would be lost.
TEST(LeaderElectionTest, AServerThatAsksForAPauseGetsItWhileTheLeaseLasts) {
  LeaseServer server;
  Candidate a("a"), b("b");
  a.Round(&server, 1000);
  const ApiError wait_a_little{ErrorKind::kTooManyRequests, 429, "", 3'500},
      wait_long = {ErrorKind::kTooManyRequests, 429, "", 60'000};
  a.next = a.election.OnAnswer(wait_a_little, nullptr, 2000, kWall);
  EXPECT_EQ(a.next.after_ms, 3'500);
  a.next = a.election.OnAnswer(wait_long, nullptr, 2500, kWall);
  EXPECT_EQ(2500 + a.next.after_ms, 1000 + kLeaseRenewMs - kLeaseCallMs);
  b.next = b.election.OnAnswer(wait_long, nullptr, 2000, kWall);
  EXPECT_EQ(b.next.after_ms, LeaseTimes().duration_ms) << "who is to take over does not sleep for longer";
}

TEST(LeaderElectionTest, OfTwoOnlyOneLeadsHoweverTheirRequestsInterleave) {
  for (uint64_t order = 0; order < 64; ++order) {
    LeaseServer server;
    Candidate a("a", 1), b("b", 2);
    for (int step = 0; step < 6; ++step) ((order >> step) & 1 ? a : b).Step(&server, 1000);
    a.Round(&server, 1500);
    b.Round(&server, 1500);
    EXPECT_EQ(a.election.Leading(1500) + b.election.Leading(1500), 1) << order;
  }
}

TEST(LeaderElectionTest, AClaimThatIsRenewedIsNeverTaken) {
  LeaseServer server;
  Candidate a("a"), b("b");
  a.Round(&server, 0);
  for (int64_t now_ms = 0; now_ms < 600'000; now_ms += 2000) {
    a.Round(&server, now_ms);
    server.lease["spec"]["renewTime"] = MicroTime(kWall + now_ms);
    b.Round(&server, now_ms);
    ASSERT_FALSE(b.election.Leading(now_ms));
    ASSERT_TRUE(a.election.Leading(now_ms));
  }
}

// The clocks of two nodes may differ by hours: a time written by one says nothing to the other.
TEST(LeaderElectionTest, AForeignClaimAgesOnOurClockFromWhenWeSawItChange) {
  LeaseServer server;
  Candidate a("a"), b("b");
  a.Round(&server, 0);
  server.lease["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z";
  b.Round(&server, 1'000'000);
  b.Round(&server, 1'000'000 + kLeaseDurationMs - 1);
  EXPECT_FALSE(b.election.Leading(1'000'000 + kLeaseDurationMs - 1));
  server.lease["spec"]["renewTime"] = "2099-01-01T00:00:00.000000Z";
  b.Round(&server, 1'000'000 + kLeaseDurationMs);
  EXPECT_FALSE(b.election.Leading(1'000'000 + kLeaseDurationMs));
  b.Round(&server, 1'000'000 + 2 * kLeaseDurationMs);
  EXPECT_TRUE(b.election.Leading(1'000'000 + 2 * kLeaseDurationMs));
  EXPECT_EQ(server.lease["spec"]["leaseTransitions"], 1);
}

TEST(LeaderElectionTest, WithoutRenewalLeadingEndsBeforeAnybodyElseMayBegin) {
  LeaseServer server;
  Candidate a("a");
  a.Round(&server, 0);
  for (int64_t now_ms = 2000; now_ms <= 8000; now_ms += 2000) a.Fail(ErrorKind::kTransport, now_ms);
  EXPECT_TRUE(a.election.Leading(kLeaseRenewMs - 1));
  EXPECT_FALSE(a.election.Leading(kLeaseRenewMs));
  EXPECT_TRUE(a.election.Lost(kLeaseRenewMs));
  // And there is no way back: what it did meanwhile may be undone.
  a.Round(&server, kLeaseRenewMs + 1);
  EXPECT_FALSE(a.election.Leading(kLeaseRenewMs + 1));
  EXPECT_TRUE(a.election.Lost(kLeaseRenewMs + 1));
}

// An answer may come long after the server has written.
TEST(LeaderElectionTest, ARenewalCountsFromWhenItWasAskedFor) {
  LeaseServer server;
  Candidate a("a");
  a.Step(&server, 0);     // not found
  a.Step(&server, 4000);  // created; heard of at 4000
  EXPECT_TRUE(a.election.Leading(kLeaseRenewMs - 1));
  EXPECT_FALSE(a.election.Leading(kLeaseRenewMs));
}

TEST(LeaderElectionTest, ALeaseThatWasGivenUpIsTakenAtOnce) {
  LeaseServer server;
  Candidate a("a"), b("b");
  a.Round(&server, 0);
  b.Round(&server, 0);
  const auto released = a.election.Release(1000, kWall);
  ASSERT_TRUE(released.has_value());
  EXPECT_EQ((*released)["spec"]["holderIdentity"], "");
  EXPECT_EQ((*released)["spec"]["leaseDurationSeconds"], 1);
  EXPECT_FALSE(a.election.Leading(1000));
  server.Serve({Verb::kUpdate, 0, *released});
  b.Round(&server, 1100);
  EXPECT_TRUE(b.election.Leading(1100));
  EXPECT_FALSE(b.election.Release(1100 + kLeaseRenewMs, kWall).has_value());  // lost meanwhile: not ours to give
}

TEST(LeaderElectionTest, CandidatesSpreadTheirTries) {
  LeaseServer server;
  Candidate a("a"), b("b", 7);
  a.Round(&server, 0);
  int64_t longest_ms = 0;
  for (int i = 0; i < 100; ++i) {
    b.Round(&server, i);
    ASSERT_GE(b.next.after_ms, kLeaseRetryMs);
    longest_ms = std::max(longest_ms, b.next.after_ms);
  }
  EXPECT_GT(longest_ms, 2 * kLeaseRetryMs);
  EXPECT_LE(longest_ms, static_cast<int64_t>(kLeaseRetryMs * (1 + kLeaseJitter)));
}

}  // namespace
}  // namespace kvartal::kube
