// List, watch and store together, over a transport by script: what a consumer hears when the server misbehaves.
#include "operator/kube/reflector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/kube/kube_loop.h"

namespace kvartal::kube {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string Object(const std::string& name, int version) {
  return absl::StrCat(R"({"metadata":{"name":")", name, R"(","namespace":"n","uid":"u-)", name,
                      R"(","resourceVersion":")", version, "\"}}");
}
std::string Page(int version, const std::string& items) {
  return absl::StrCat(R"({"metadata":{"resourceVersion":")", version, R"("},"items":[)", items, "]}");
}
std::string Event(const std::string& type, const std::string& object) {
  return absl::StrCat(R"({"type":")", type, R"(","object":)", object, "}\n");
}

class ReflectorTest : public testing::KubeLoop {
 protected:
  void Start() {
    ReflectorOptions options;
    options.type = {"kvartal.dev", "v1alpha1", "tenantkvpolicies", true};
    reflector_ = std::make_unique<Reflector>(
        &client(), loop_.get(), &clock_, options,
        [this](const ObjectChange& change) { changes_.push_back((change.deleted ? "-" : "+") + change.key.name); });
    reflector_->Start();
    RunDue();
  }
  // Listed, and watching with an open stream.
  void Watching(const std::string& items = Object("a", 5)) {
    Start();
    transport_.Answer(200, Page(10, items));
    RunDue();
    transport_.Head(200);
    changes_.clear();
  }
  const std::string& Target() const { return transport_.requests.back().target; }

  std::unique_ptr<Reflector> reflector_;
  std::vector<std::string> changes_;
};

TEST_F(ReflectorTest, ListsThenWatchesFromThere) {
  Start();
  EXPECT_EQ(Target(), "/apis/kvartal.dev/v1alpha1/tenantkvpolicies?resourceVersion=0");
  EXPECT_FALSE(reflector_->synced());
  transport_.Answer(200, Page(10, Object("a", 5)));
  EXPECT_TRUE(reflector_->synced());
  EXPECT_THAT(changes_, ElementsAre("+a"));
  RunDue();
  EXPECT_THAT(Target(), HasSubstr("watch=true"));
  EXPECT_THAT(Target(), HasSubstr("allowWatchBookmarks=true"));
  EXPECT_THAT(Target(), HasSubstr("resourceVersion=10"));
  transport_.Head(200);
  transport_.Bytes(Event("ADDED", Object("b", 11)));
  transport_.Bytes(Event("DELETED", Object("a", 12)));
  EXPECT_THAT(changes_, ElementsAre("+a", "+b", "-a"));
}

TEST_F(ReflectorTest, OfManyObjectsOnlyThoseThatMatchAreAskedForAndALittleOfEachIsKept) {
  ReflectorOptions options;
  options.type = {"", "v1", "pods", true};
  options.field_selector = "spec.nodeName!=,status.phase!=Failed";
  options.always_from_store = true;
  options.wanted = {{"metadata", {{"namespace", true}, {"name", true}, {"uid", true}, {"resourceVersion", true}}}};
  std::vector<nlohmann::json> kept;
  reflector_ = std::make_unique<Reflector>(&client(), loop_.get(), &clock_, options,
                                           [&](const ObjectChange& change) { kept.push_back(*change.object); });
  reflector_->Start();
  RunDue();
  const std::string selector = "fieldSelector=spec.nodeName%21%3D%2Cstatus.phase%21%3DFailed";
  EXPECT_EQ(Target(), absl::StrCat("/api/v1/pods?", selector, "&limit=500"));
  const std::string small = R"("metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"5"})";
  const std::string large = absl::StrCat("{", small, R"(,"spec":{"x":"y"}})");
  transport_.Answer(200,
                    absl::StrCat(R"({"metadata":{"resourceVersion":"10","continue":"more"},"items":[)", large, "]}"));
  RunDue();
  EXPECT_EQ(Target(), absl::StrCat("/api/v1/pods?", selector, "&limit=500&continue=more"));
  transport_.Answer(200, Page(10, ""));
  RunDue();
  EXPECT_THAT(Target(), HasSubstr(absl::StrCat("?", selector, "&watch=true")));
  transport_.Head(200);
  transport_.Bytes(Event("MODIFIED", large));
  transport_.Bytes(Event("DELETED", large));
  ASSERT_EQ(kept.size(), 3u);
  for (const nlohmann::json& object : kept) EXPECT_EQ(object, nlohmann::json::parse(absl::StrCat("{", small, "}")));
}

TEST_F(ReflectorTest, AnAnswerThatIsMoreThanWeTakeIsLeftAndComesInSmallPages) {
  Start();
  const std::string piece(kBodyBytesMax / 16, ' ');
  transport_.Head(200);
  for (int i = 0; i <= 16; ++i) transport_.Bytes(piece);
  EXPECT_EQ(transport_.open(), 0u);
  EXPECT_EQ(reflector_->last_error().kind, ErrorKind::kTooLargeAnswer);
  Advance(2 * kWatchBackoffMinMs);
  EXPECT_EQ(Target(), absl::StrCat("/apis/kvartal.dev/v1alpha1/tenantkvpolicies?limit=", kSmallPageItems));
  transport_.Answer(200, Page(10, Object("a", 5)));
  EXPECT_THAT(changes_, ElementsAre("+a"));
}

TEST_F(ReflectorTest, AWatchThatEndsCleanlyGoesOnWhereItWas) {
  Watching();
  transport_.Bytes(Event("MODIFIED", Object("a", 20)));
  Advance(400'000 / 2);
  transport_.End();
  RunDue();
  EXPECT_THAT(Target(), HasSubstr("resourceVersion=20"));
  EXPECT_THAT(Target(), HasSubstr("watch=true"));
  EXPECT_EQ(reflector_->stats().lists, 1u);
}

TEST_F(ReflectorTest, AfterA410WhatWasDeletedMeanwhileIsTold) {
  for (const bool in_stream : {true, false}) {
    reflector_.reset();
    transport_.requests.clear();
    Watching(absl::StrCat(Object("a", 5), ",", Object("b", 6)));
    if (in_stream) {
      transport_.Bytes(Event("ERROR", R"({"kind":"Status","code":410,"reason":"Expired"})"));
    } else {
      transport_.End();
      Advance(2000);
      transport_.Answer(410, R"({"kind":"Status","code":410,"reason":"Expired"})");
    }
    Advance(4000);
    EXPECT_THAT(Target(), Not(HasSubstr("watch=true")));
    EXPECT_THAT(Target(), HasSubstr("resourceVersion=10"));
    transport_.Answer(200, Page(50, absl::StrCat(Object("b", 6), ",", Object("c", 40))));
    EXPECT_THAT(changes_, ElementsAre("-a", "+c"));
    EXPECT_GE(reflector_->stats().expired, 1u);
  }
}

TEST_F(ReflectorTest, AHalfOpenWatchIsLeftAndNothingIsLost) {
  Watching();
  // The longest watch and its margin: a server that was frozen says nothing, and neither does TCP.
  Advance(kWatchSecondsMax * 1000 + kWatchMarginMs);
  EXPECT_EQ(reflector_->last_error().kind, ErrorKind::kDeadline);
  Advance(2000);
  EXPECT_THAT(Target(), HasSubstr("resourceVersion=10"));
  EXPECT_EQ(transport_.open(), 1u);
  transport_.Head(200);
  transport_.Bytes(Event("ADDED", Object("b", 11)));
  EXPECT_THAT(changes_, ElementsAre("+b"));
}

TEST_F(ReflectorTest, AServerThatIsAwayIsAskedLessAndLessAndFoundAgain) {
  Watching();
  transport_.End(absl::UnavailableError("reset"));
  const size_t before = transport_.requests.size();
  for (int64_t ms = 0; ms < 600'000; ms += 100) {
    Advance(100);
    if (transport_.open() > 0) transport_.End(absl::UnavailableError("connection refused"));
  }
  const size_t tries = transport_.requests.size() - before;
  EXPECT_GE(tries, 10u);  // at least every minute
  EXPECT_LE(tries, 25u);  // doubling to half a minute and more
  Advance(60'000);
  ASSERT_EQ(transport_.open(), 1u);
  transport_.Head(200);
  transport_.Bytes(Event("ADDED", Object("b", 11)));
  EXPECT_THAT(changes_, ElementsAre("+b"));
}

TEST_F(ReflectorTest, AServerThatEndsEveryWatchAtOnceIsNotAskedInAHotLoop) {
  Watching();
  const size_t before = transport_.requests.size();
  for (int64_t ms = 0; ms < 60'000; ms += 100) {
    if (transport_.open() > 0) {
      transport_.Head(200);
      transport_.End();
    }
    Advance(100);
  }
  EXPECT_LE(transport_.requests.size() - before, 10u);
}

// The server counts from when it accepted the watch. Counted from when we heard of that, a watch of one second that was
// quiet lived for less, and was taken for one that had failed.
TEST_F(ReflectorTest, AQuietWatchLivesFromWhenItWasSent) {
  Start();
  transport_.Answer(200, Page(10, Object("a", 5)));
  RunDue();
  Advance(40);
  transport_.Head(200);
  Advance(961);
  transport_.End();
  EXPECT_EQ(reflector_->stats().ended, 1u);
  EXPECT_EQ(reflector_->stats().broken, 0u);
}

TEST_F(ReflectorTest, DestroyedInAnyStateItIsSilent) {
  Start();
  reflector_.reset();
  EXPECT_EQ(transport_.open(), 0u);
  Watching();
  reflector_.reset();
  EXPECT_EQ(transport_.open(), 0u);
  Watching();
  transport_.End(absl::UnavailableError("reset"));  // waits for its next try
  reflector_.reset();
  transport_.requests.clear();
  Advance(10'000);
  EXPECT_THAT(transport_.requests, IsEmpty());
}

}  // namespace
}  // namespace kvartal::kube
