// The client over a transport by script, on a loop whose clock stands still: time passes when the test says so.
#include "operator/kube/api_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/scratch_dir.h"
#include "tests/unit/kube/kube_loop.h"

namespace kvartal::kube {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ApiClientTest : public testing::KubeLoop {
 protected:
  void Get(const std::string& target = "/x") {
    ApiRequest request;
    request.target = target;
    client().Call(std::move(request), [this](const ApiError& error, const nlohmann::json& body) {
      ++answers_;
      error_ = error;
      body_ = body;
    });
    RunDue();
  }
  void Watch(int64_t deadline_ms = 315'000) {
    watch_ = client().Watch("/x?watch=true", deadline_ms,
                            {[this](std::string_view line) { words_.push_back(std::string(line)); },
                             [this](const ApiError& error) { words_.push_back("end " + error.ToString()); }});
    RunDue();
  }

  int answers_ = 0;
  ApiError error_;
  nlohmann::json body_;
  ApiClient::CallId watch_ = 0;
  std::vector<std::string> words_;
};

TEST_F(ApiClientTest, AnAnswerInPiecesIsOneAnswer) {
  Get();
  transport_.Head(200);
  transport_.Bytes("{\"a\"");
  transport_.Bytes(":1}");
  EXPECT_EQ(answers_, 0);
  transport_.End();
  EXPECT_EQ(answers_, 1);
  EXPECT_TRUE(error_.ok());
  EXPECT_EQ(body_["a"], 1);
}

TEST_F(ApiClientTest, HalfAnAnswerIsNone) {
  Get();
  transport_.Head(200);
  transport_.Bytes("{\"a\":1}");
  transport_.End(absl::UnavailableError("reset"));
  EXPECT_EQ(error_.kind, ErrorKind::kTransport);
  Get();
  transport_.Answer(200, "{\"a\":");
  EXPECT_EQ(error_.kind, ErrorKind::kBadAnswer);
}

TEST_F(ApiClientTest, AnAnswerThatNeverComesEndsAtTheDeadline) {
  Get();
  Advance(kCallDeadlineMs - 1);
  EXPECT_EQ(answers_, 0);
  Advance(1);
  EXPECT_EQ(answers_, 1);
  EXPECT_EQ(error_.kind, ErrorKind::kDeadline);
  // And what is left of it is let go, as of a connection that is dead.
  EXPECT_EQ(transport_.open(), 0u);
  EXPECT_EQ(transport_.failed, 1u);
}

// Half-open connections say nothing, and a watch without a deadline of its own is blind for ever (kopf #585 and #810,
// python #801).
TEST_F(ApiClientTest, AWatchEndsAtItsDeadlineWhateverItHeard) {
  Watch(315'000);
  transport_.Head(200);
  Advance(300'000);
  transport_.Bytes("{}\n");
  Advance(14'999);
  EXPECT_THAT(words_, ElementsAre("{}"));
  Advance(1);
  EXPECT_THAT(words_, ElementsAre("{}", HasSubstr("deadline")));
  EXPECT_EQ(transport_.open(), 0u);
  EXPECT_EQ(transport_.failed, 1u);
}

// A fixed timeout of thirty seconds kills healthy quiet watches (kubernetes-client/javascript #3020).
TEST_F(ApiClientTest, AQuietWatchLivesLongerThanACall) {
  Watch();
  transport_.Head(200);
  Advance(kCallDeadlineMs * 5);
  EXPECT_THAT(words_, IsEmpty());
  EXPECT_EQ(transport_.open(), 1u);
}

TEST_F(ApiClientTest, AWatchThatEndsIsCleanOnlyBetweenLines) {
  Watch();
  transport_.Head(200);
  transport_.Bytes("{\"a\":1}\n{\"b\"");
  transport_.Bytes(":2}\n");
  transport_.End();
  EXPECT_THAT(words_, ElementsAre("{\"a\":1}", "{\"b\":2}", "end ok"));
  words_.clear();
  Watch();
  transport_.Head(200);
  transport_.Bytes("{\"a\":1}\n{\"b\"");
  transport_.End();
  EXPECT_THAT(words_, ElementsAre("{\"a\":1}", HasSubstr("within a line")));
}

TEST_F(ApiClientTest, ARefusedWatchSaysWhy) {
  Watch();
  transport_.Answer(410, R"({"kind":"Status","code":410,"reason":"Expired","message":"too old"})");
  EXPECT_THAT(words_, ElementsAre("end expired (410): too old"));
}

TEST_F(ApiClientTest, ACancelledWatchHearsNothingEvenOfTheSamePiece) {
  watch_ = client().Watch("/x", 1000,
                          {[this](std::string_view line) {
                             words_.push_back(std::string(line));
                             client().Cancel(watch_);
                           },
                           [this](const ApiError&) { words_.push_back("end"); }});
  RunDue();
  transport_.Head(200);
  transport_.Bytes("{}\n{}\n{}\n");
  transport_.End();
  Advance(2000);
  EXPECT_THAT(words_, ElementsAre("{}"));
}

TEST_F(ApiClientTest, ALineWithoutEndEndsTheWatch) {
  Watch();
  transport_.Head(200);
  transport_.Bytes(std::string(kWatchLineBytesMax + 1, 'x'));
  EXPECT_THAT(words_, ElementsAre(HasSubstr("bad_answer")));
}

TEST_F(ApiClientTest, A401IsTriedOnceMoreWithATokenThatIsNewer) {
  const testing::ScratchDir dir;
  std::ofstream(dir.File("token")) << "one";
  UseToken({dir.File("token"), ""});
  Get();
  EXPECT_EQ(transport_.requests.back().bearer_token, "one");
  std::ofstream(dir.File("token"), std::ios::trunc) << "two";
  transport_.Answer(401, "");
  ASSERT_EQ(transport_.requests.size(), 2u);
  EXPECT_EQ(transport_.requests.back().bearer_token, "two");
  EXPECT_EQ(answers_, 0);
  std::ofstream(dir.File("token"), std::ios::trunc) << "three";
  transport_.Answer(401, "");
  EXPECT_EQ(transport_.requests.size(), 2u);  // once
  EXPECT_EQ(error_.kind, ErrorKind::kUnauthorized);
  Get();
  transport_.Answer(401, "");  // read meanwhile by the second refusal, or not: one more try at most
  EXPECT_LE(transport_.requests.size(), 4u);
}

// Nothing of the first try is left in the second: it was told as refused, and as one that had an answer.
TEST_F(ApiClientTest, ASecondTryThatBreaksIsNotTheRefusalOfTheFirst) {
  const testing::ScratchDir dir;
  std::ofstream(dir.File("token")) << "one";
  UseToken({dir.File("token"), ""});
  Get();
  std::ofstream(dir.File("token"), std::ios::trunc) << "two";
  transport_.Head(401);
  ASSERT_EQ(transport_.requests.size(), 2u);
  transport_.End(absl::UnavailableError("reset"));
  EXPECT_EQ(answers_, 1);
  EXPECT_EQ(error_.kind, ErrorKind::kTransport);
  EXPECT_EQ(client().stats().requests.at({"GET", 0}), 1u);
}

TEST_F(ApiClientTest, WithoutANewerTokenA401IsAnAnswer) {
  UseToken({"", "fixed"});
  Get();
  transport_.Answer(401, "");
  EXPECT_EQ(transport_.requests.size(), 1u);
  EXPECT_EQ(error_.kind, ErrorKind::kUnauthorized);
}

TEST_F(ApiClientTest, ABurstOfCallsIsSpreadAndNoneIsLost) {
  for (int i = 0; i < 50; ++i) Get();
  EXPECT_EQ(transport_.requests.size(), static_cast<size_t>(kCallsBurst));
  Advance(500);
  EXPECT_EQ(transport_.requests.size(), static_cast<size_t>(kCallsBurst + kCallsPerSecond / 2) - 1);
  Advance(600);
  EXPECT_EQ(transport_.requests.size(), 50u);
  EXPECT_EQ(client().stats().delayed, 20u);
}

TEST_F(ApiClientTest, WhatWouldWaitTooLongIsRefused) {
  const auto most = static_cast<size_t>(kCallsBurst + kCallsPerSecond * kCallDelayMsMax / 1000);
  for (size_t i = 0; i < most + 10; ++i) Get();
  EXPECT_GE(answers_, 10);
  EXPECT_LE(answers_, 12);
  EXPECT_EQ(error_.kind, ErrorKind::kBusy);
}

TEST_F(ApiClientTest, StatusIsAppliedByItsOwnerToTheStatusPartAlone) {
  const ResourceType type = {"kvartal.dev", "v1alpha1", "tenantkvpolicies", true};
  client().ApplyStatus(type, {{"metadata", {{"namespace", "a"}, {"name", "b"}}}}, "kvartal-operator",
                       [](const ApiError&, const nlohmann::json&) {});
  RunDue();
  const HttpRequest& request = transport_.requests.back();
  EXPECT_EQ(request.method, "PATCH");
  EXPECT_EQ(
      request.target,
      "/apis/kvartal.dev/v1alpha1/namespaces/a/tenantkvpolicies/b/status?force=true&fieldManager=kvartal-operator");
  EXPECT_EQ(request.content_type, "application/apply-patch+yaml");
}

// A replica that was frozen past its lease finds what waited for its turn before it finds that its lease is over.
TEST_F(ApiClientTest, WhatIsForALeaderIsNotSentOnceAnotherMayLead) {
  bool leading = true;
  client().SetLeading([&] { return leading; });
  for (int i = 0; i < static_cast<int>(kCallsBurst); ++i) Get();  // the next has to wait for its turn
  ApiRequest request;
  request.method = "PATCH";
  request.as_leader = true;
  client().Call(std::move(request), [this](const ApiError& error, const nlohmann::json&) {
    ++answers_;
    error_ = error;
  });
  leading = false;
  Advance(1000);
  EXPECT_EQ(transport_.requests.size(), static_cast<size_t>(kCallsBurst));
  EXPECT_EQ(answers_, 1);
  EXPECT_EQ(error_.kind, ErrorKind::kBusy);
  Get();
  EXPECT_EQ(transport_.requests.back().method, "GET") << "who does not lead may read, and claim the lease";
}

TEST_F(ApiClientTest, AnswersAreCountedByMethodAndCode) {
  Get();
  transport_.Answer(200, "{}");
  Get();
  transport_.Answer(503, "");
  Get();
  transport_.End(absl::UnavailableError("refused"));
  const auto& counts = client().stats().requests;
  EXPECT_EQ(counts.at({"GET", 200}), 1u);
  EXPECT_EQ(counts.at({"GET", 503}), 1u);
  EXPECT_EQ(counts.at({"GET", 0}), 1u);
}

}  // namespace
}  // namespace kvartal::kube
