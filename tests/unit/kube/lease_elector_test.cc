#include "operator/kube/lease_elector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tests/unit/kube/kube_loop.h"

namespace kvartal::kube {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LeaseElectorTest : public testing::KubeLoop {
 protected:
  LeaseElectorTest() {
    const ObjectKey key = {"system", "operator"};
    elector_ = std::make_unique<LeaseElector>(
        &client(), loop_.get(), &clock_, key, LeaderElection(key, "me", 1),
        LeaseElector::Sink{[this] { words_.push_back("leading"); }, [this] { words_.push_back("lost"); }});
    elector_->Start();
    RunDue();
  }
  // Takes what was written as the server would.
  void Accept(int version) {
    nlohmann::json lease = nlohmann::json::parse(transport_.requests.back().body);
    lease["metadata"]["resourceVersion"] = std::to_string(version);
    transport_.Answer(200, lease.dump());
    lease_ = lease.dump();
    RunDue();
  }
  void Lead() {
    transport_.Answer(404, "");
    RunDue();
    EXPECT_EQ(transport_.requests.back().method, "POST");
    Accept(1);
  }

  std::unique_ptr<LeaseElector> elector_;
  std::vector<std::string> words_;
  std::string lease_;
};

TEST_F(LeaseElectorTest, LeadsAndRenews) {
  Lead();
  EXPECT_THAT(words_, ElementsAre("leading"));
  for (int i = 2; i < 30; ++i) {
    Advance(kLeaseRetryMs);
    ASSERT_EQ(transport_.requests.back().method, "GET");
    transport_.Answer(200, lease_);
    RunDue();
    ASSERT_EQ(transport_.requests.back().method, "PUT");
    Accept(i);
    ASSERT_TRUE(elector_->leading());
  }
  EXPECT_THAT(words_, ElementsAre("leading"));
}

// Were it to wait behind hundreds of statuses, no replica would ever lead for long.
TEST_F(LeaseElectorTest, CallsThatWaitForTheirTurnsDoNotDelayIt) {
  Lead();
  const size_t before = transport_.requests.size();
  constexpr int kOthers = 500;
  for (int i = 0; i < kOthers; ++i) {
    ApiRequest other;
    other.target = "/api/v1/pods";
    client().Call(std::move(other), [](const auto&, const auto&) {});
  }
  Advance(kLeaseRetryMs);
  const auto begin = transport_.requests.begin() + static_cast<ptrdiff_t>(before);
  EXPECT_LT(transport_.requests.end() - begin, kOthers) << "some wait still";
  EXPECT_TRUE(std::any_of(begin, transport_.requests.end(), [](const auto& request) {
    return request.target.find("/leases/operator") != std::string::npos;
  }));
}

// A call that hangs must not keep the news from us.
TEST_F(LeaseElectorTest, LosingIsToldThoughNobodyAnswers) {
  Lead();
  Advance(kLeaseRenewMs);
  EXPECT_FALSE(elector_->leading());
  Advance(1000);
  EXPECT_THAT(words_, ElementsAre("leading", "lost"));
  transport_.requests.clear();
  Advance(60'000);
  EXPECT_THAT(words_, ElementsAre("leading", "lost"));
  EXPECT_THAT(transport_.requests, IsEmpty());  // and no way back
}

TEST_F(LeaseElectorTest, ReleaseGivesTheLeaseUpAndEndsInAnyCase) {
  Lead();
  bool done = false;
  elector_->Release([&] { done = true; });
  RunDue();
  EXPECT_FALSE(elector_->leading());
  EXPECT_EQ(transport_.requests.back().method, "PUT");
  EXPECT_EQ(nlohmann::json::parse(transport_.requests.back().body)["spec"]["holderIdentity"], "");
  EXPECT_FALSE(done);
  Advance(kLeaseCallMs);  // nobody answers
  EXPECT_TRUE(done);
}

TEST_F(LeaseElectorTest, WhoDoesNotLeadHasNothingToGive) {
  bool done = false;
  elector_->Release([&] { done = true; });
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace kvartal::kube
