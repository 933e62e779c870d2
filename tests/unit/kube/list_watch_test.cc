// List and watch as values in and out; each case names what went wrong elsewhere without it.
#include "operator/kube/list_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace kvartal::kube {
namespace {

using Kind = WatchEvent::Kind;
using Verb = NextRequest::Verb;
using ::testing::ElementsAre;

nlohmann::json Object(const std::string& name, const std::string& version) {
  return {{"metadata", {{"name", name}, {"resourceVersion", version}}}};
}
nlohmann::json Page(const std::string& version, std::vector<nlohmann::json> items, const std::string& more = "") {
  return {{"metadata", {{"resourceVersion", version}, {"continue", more}}}, {"items", std::move(items)}};
}
std::string Line(const std::string& type, const nlohmann::json& object) {
  return nlohmann::json{{"type", type}, {"object", object}}.dump();
}
std::string ErrorLine(int code, const std::string& reason, const std::string& message = "") {
  return Line("ERROR", {{"kind", "Status"}, {"code", code}, {"reason", reason}, {"message", message}});
}
ApiError Error(ErrorKind kind, std::optional<int64_t> retry_after_ms = std::nullopt) {
  return {kind, 0, "", retry_after_ms};
}
std::vector<Kind> KindsOf(const ListWatchStep& step) {
  std::vector<Kind> kinds;
  for (const WatchEvent& event : step.events) kinds.push_back(event.kind);
  return kinds;
}

class ListWatchTest : public ::testing::Test {
 protected:
  // Listed at version 10 and watching.
  void Watching() {
    machine_.Start();
    const ListWatchStep step = machine_.OnPage(Page("10", {Object("a", "7")}), now_ms_);
    ASSERT_TRUE(step.next && step.next->verb == Verb::kWatch);
    machine_.OnWatchSent(now_ms_);
  }

  int64_t now_ms_ = 5'000'000;
  ListWatch machine_{42};
};

TEST_F(ListWatchTest, TheFirstListComesFromTheServersCache) {
  const NextRequest first = machine_.Start();
  EXPECT_EQ(first.verb, Verb::kList);
  EXPECT_EQ(first.resource_version, "0");
  EXPECT_FALSE(first.paged);  // a page of a cached list is not a page
  EXPECT_EQ(first.after_ms, 0);
}

// A list of the cache may be older than what another process has seen already: what is new there would be missing here.
TEST_F(ListWatchTest, WhatMustNotBeStaleIsListedFromTheStoreEveryTime) {
  machine_ = ListWatch(42, {}, true);
  NextRequest next = machine_.Start();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(next.verb, Verb::kList);
    EXPECT_EQ(next.resource_version, "");
    EXPECT_TRUE(next.paged);
    const ListWatchStep page = machine_.OnPage(Page("10", {Object("a", "7")}, "more"), now_ms_);
    EXPECT_EQ(page.next->continue_token, "more");
    ASSERT_EQ(machine_.OnPage(Page("10", {Object("b", "8")}), now_ms_).next->verb, Verb::kWatch);
    machine_.OnWatchSent(now_ms_);
    next = *machine_.OnLine(ErrorLine(410, "Expired"), now_ms_).next;
  }
}

// Whoever makes objects says how large they are.
TEST_F(ListWatchTest, APageThatIsTooMuchIsAskedForAgainSmallerAndTheListGoesOn) {
  machine_ = ListWatch(42, {}, true);
  EXPECT_EQ(machine_.Start().page_items, kListPageItems);
  EXPECT_EQ(machine_.OnPage(Page("10", {Object("a", "7")}, "more"), now_ms_).next->page_items, kListPageItems);
  for (const ErrorKind kind : {ErrorKind::kTooLargeAnswer, ErrorKind::kDeadline}) {
    ListWatchStep step = machine_.OnListError(Error(kind), now_ms_);
    EXPECT_TRUE(step.events.empty());
    EXPECT_EQ(step.next->verb, Verb::kList);
    EXPECT_EQ(step.next->page_items, kSmallPageItems);
    EXPECT_EQ(step.next->continue_token, "more") << "what was listed already is not asked for again";
    EXPECT_EQ(step.next->after_ms > 0, kind == ErrorKind::kDeadline) << "what is too large is no fault of the server";
    int64_t items = kSmallPageItems;
    for (int i = 0; i < 6; ++i) {
      step = machine_.OnPage(Page("10", {Object("b", "8")}, "more"), now_ms_);
      EXPECT_THAT(KindsOf(step), ElementsAre(Kind::kInitApply)) << "the same list";
      items = std::min(2 * items, kListPageItems);
      EXPECT_EQ(step.next->page_items, items);
    }
    EXPECT_EQ(items, kListPageItems);
  }
  EXPECT_EQ(machine_.OnPage(Page("10", {}), now_ms_).next->verb, Verb::kWatch);
  EXPECT_EQ(machine_.stats().lists, 1u);
}

TEST_F(ListWatchTest, AListThatIsTooMuchForOneAnswerComesInPages) {
  EXPECT_FALSE(machine_.Start().paged);
  const NextRequest next = *machine_.OnListError(Error(ErrorKind::kTooLargeAnswer), now_ms_).next;
  EXPECT_TRUE(next.paged);
  EXPECT_EQ(next.page_items, kSmallPageItems);
  EXPECT_EQ(next.resource_version, "");
  // One that is too much even so begins anew, each time later.
  const NextRequest anew = *machine_.OnListError(Error(ErrorKind::kTooLargeAnswer), now_ms_).next;
  EXPECT_EQ(anew.continue_token, "");
  EXPECT_EQ(anew.page_items, kListPageItems);
  EXPECT_GE(anew.after_ms, kWatchBackoffMinMs);
}

TEST_F(ListWatchTest, OfWhatIsNotWantedNothingIsHandedOutAndErrorsAreUnderstood) {
  const nlohmann::json wanted = {{"metadata", {{"name", true}, {"resourceVersion", true}}}};
  machine_ = ListWatch(42, {}, false, wanted);
  Watching();
  nlohmann::json large = Object("b", "11");
  large["spec"]["containers"] = nlohmann::json::array({{{"name", "x"}}});
  large["status"]["message"] = "y";
  const ListWatchStep step = machine_.OnLine(Line("ADDED", large), now_ms_);
  ASSERT_EQ(step.events.size(), 1u);
  EXPECT_EQ(step.events[0].object, Object("b", "11"));
  const nlohmann::json too_many = {{"kind", "Status"}, {"code", 429}, {"details", {{"retryAfterSeconds", 77}}}};
  EXPECT_GE(machine_.OnLine(Line("ERROR", too_many), now_ms_).next->after_ms, 77'000);
}

TEST_F(ListWatchTest, AListIsInitThenObjectsThenDoneThenAWatchFromItsVersion) {
  machine_.Start();
  const ListWatchStep step = machine_.OnPage(Page("10", {Object("a", "7"), Object("b", "9")}), now_ms_);
  EXPECT_THAT(KindsOf(step), ElementsAre(Kind::kInit, Kind::kInitApply, Kind::kInitApply, Kind::kInitDone));
  ASSERT_TRUE(step.next.has_value());
  EXPECT_EQ(step.next->verb, Verb::kWatch);
  EXPECT_EQ(step.next->resource_version, "10");
  EXPECT_EQ(step.next->after_ms, 0);
}

TEST_F(ListWatchTest, WatchesAskToLiveFiveToTenMinutesEachDifferently) {
  Watching();
  std::set<int64_t> seen;
  for (int i = 0; i < 200; ++i) {
    machine_.OnWatchSent(now_ms_);
    now_ms_ += 400'000;
    const ListWatchStep step = machine_.OnWatchEnd(ApiError(), now_ms_);
    ASSERT_GE(step.next->timeout_seconds, 300);
    ASSERT_LE(step.next->timeout_seconds, 600);
    seen.insert(step.next->timeout_seconds);
  }
  EXPECT_GT(seen.size(), 50u);
}

// A quiet resource goes stale otherwise and every reconnect is a 410 (kubernetes-client/python #2223).
TEST_F(ListWatchTest, BookmarksMoveTheVersionAWatchResumesFrom) {
  Watching();
  EXPECT_TRUE(machine_.OnLine(Line("BOOKMARK", Object("", "500")), now_ms_).events.empty());
  now_ms_ += 300'000;
  const ListWatchStep step = machine_.OnWatchEnd(ApiError(), now_ms_);
  EXPECT_EQ(step.next->verb, Verb::kWatch);
  EXPECT_EQ(step.next->resource_version, "500");
  EXPECT_EQ(step.next->after_ms, 0);
  EXPECT_EQ(machine_.stats().bookmarks, 1u);
}

TEST_F(ListWatchTest, EventsAreAppliesAndDeletes) {
  Watching();
  EXPECT_THAT(KindsOf(machine_.OnLine(Line("ADDED", Object("b", "11")), now_ms_)), ElementsAre(Kind::kApply));
  EXPECT_THAT(KindsOf(machine_.OnLine(Line("MODIFIED", Object("b", "12")), now_ms_)), ElementsAre(Kind::kApply));
  EXPECT_THAT(KindsOf(machine_.OnLine(Line("DELETED", Object("b", "13")), now_ms_)), ElementsAre(Kind::kDelete));
  EXPECT_EQ(machine_.resource_version(), "13");
}

// 410 in its two forms. Resuming from an ERROR object's version, or losing what was deleted meanwhile, are the bugs of
// python-base #199 and #57, task_processing #223, airflow #30425.
TEST_F(ListWatchTest, A410InTheStreamListsAgainFromTheLastVersionSeen) {
  Watching();
  machine_.OnLine(Line("MODIFIED", Object("a", "20")), now_ms_);
  const ListWatchStep step = machine_.OnLine(ErrorLine(410, "Expired", "too old resource version: 20 (99)"), now_ms_);
  EXPECT_TRUE(step.events.empty());
  ASSERT_TRUE(step.next.has_value());
  EXPECT_EQ(step.next->verb, Verb::kList);
  EXPECT_EQ(step.next->resource_version, "20");
  EXPECT_GE(step.next->after_ms, kWatchBackoffMinMs);
  EXPECT_EQ(machine_.stats().expired, 1u);
}

TEST_F(ListWatchTest, A410OnTheRequestListsAgainFromTheLastVersionSeen) {
  Watching();
  const ListWatchStep step = machine_.OnWatchEnd(Error(ErrorKind::kExpired), now_ms_);
  EXPECT_EQ(step.next->verb, Verb::kList);
  EXPECT_EQ(step.next->resource_version, "10");
}

TEST_F(ListWatchTest, WhenThatVersionIsExpiredTooTheStoreIsListedInPagesAtOnce) {
  for (const ErrorKind kind : {ErrorKind::kExpired, ErrorKind::kTooLargeVersion}) {
    machine_ = ListWatch(7);
    Watching();
    machine_.OnWatchEnd(Error(ErrorKind::kExpired), now_ms_);
    ListWatchStep step = machine_.OnListError(Error(kind), now_ms_);
    EXPECT_EQ(step.next->verb, Verb::kList);
    EXPECT_EQ(step.next->resource_version, "");
    EXPECT_TRUE(step.next->paged);
    EXPECT_EQ(step.next->after_ms, 0);
    // The same answer to that is a failure like any other: no hot loop.
    step = machine_.OnListError(Error(kind), now_ms_);
    EXPECT_GE(step.next->after_ms, kWatchBackoffMinMs);
  }
}

TEST_F(ListWatchTest, PagesAreOneList) {
  Watching();
  machine_.OnWatchEnd(Error(ErrorKind::kExpired), now_ms_);
  machine_.OnListError(Error(ErrorKind::kExpired), now_ms_);
  ListWatchStep step = machine_.OnPage(Page("90", {Object("a", "7")}, "more"), now_ms_);
  EXPECT_THAT(KindsOf(step), ElementsAre(Kind::kInit, Kind::kInitApply));
  EXPECT_EQ(step.next->continue_token, "more");
  EXPECT_EQ(step.next->resource_version, "");
  step = machine_.OnPage(Page("90", {Object("b", "8")}), now_ms_);
  EXPECT_THAT(KindsOf(step), ElementsAre(Kind::kInitApply, Kind::kInitDone));
  EXPECT_EQ(step.next->verb, Verb::kWatch);
  EXPECT_EQ(step.next->resource_version, "90");
  // The next list may come from the cache again.
  EXPECT_EQ(machine_.OnWatchEnd(Error(ErrorKind::kExpired), now_ms_).next->resource_version, "90");
}

TEST_F(ListWatchTest, AContinueTokenThatExpiredStartsTheListOver) {
  Watching();
  machine_.OnWatchEnd(Error(ErrorKind::kExpired), now_ms_);
  machine_.OnListError(Error(ErrorKind::kExpired), now_ms_);
  machine_.OnPage(Page("90", {Object("gone", "7")}, "more"), now_ms_);
  ListWatchStep step = machine_.OnListError(Error(ErrorKind::kExpired), now_ms_);
  EXPECT_EQ(step.next->continue_token, "");
  step = machine_.OnPage(Page("95", {Object("a", "7")}), now_ms_);
  EXPECT_THAT(KindsOf(step), ElementsAre(Kind::kInit, Kind::kInitApply, Kind::kInitDone));
}

// An object of an ERROR has no version, and python-base #199 went on from "None".
TEST_F(ListWatchTest, AVersionThatIsNotThereIsNotTaken) {
  Watching();
  machine_.OnLine(Line("MODIFIED", {{"metadata", {{"name", "a"}}}}), now_ms_);
  machine_.OnLine(Line("BOOKMARK", {{"metadata", {{"resourceVersion", nullptr}}}}), now_ms_);
  EXPECT_EQ(machine_.resource_version(), "10");
}

TEST_F(ListWatchTest, ALineThatIsNoEventEndsTheWatchAndIsTriedAgainLater) {
  for (const char* line : {"", "{", "[]", "{\"type\":\"ADDED\"}", "{\"type\":\"OTHER\",\"object\":{}}", "\xff\xfe"}) {
    machine_ = ListWatch(3);
    Watching();
    const ListWatchStep step = machine_.OnLine(line, now_ms_);
    ASSERT_TRUE(step.next.has_value()) << line;
    EXPECT_EQ(step.next->verb, Verb::kWatch) << line;
    EXPECT_EQ(step.next->resource_version, "10") << line;
    EXPECT_GE(step.next->after_ms, kWatchBackoffMinMs) << line;
  }
}

// A version that the server cannot go on from, and an event that cannot be read, are met again by every watch from
// there: only a list leads past them.
TEST_F(ListWatchTest, BadEndsInARowLeadToANewList) {
  for (const std::string& line : {ErrorLine(500, "InternalError", "etcd event without its previous value"),
                                  ErrorLine(403, "Forbidden"), ErrorLine(400, "BadRequest"), std::string("{")}) {
    machine_ = ListWatch(3);
    Watching();
    for (int i = 1; i < kBadWatchEndsMax; ++i) {
      EXPECT_EQ(machine_.OnLine(line, now_ms_).next->verb, Verb::kWatch) << line;
      // Between them the server may be away.
      EXPECT_EQ(machine_.OnWatchEnd(Error(ErrorKind::kTransport), now_ms_).next->verb, Verb::kWatch) << line;
      machine_.OnWatchSent(now_ms_);
    }
    const ListWatchStep step = machine_.OnLine(line, now_ms_);
    EXPECT_EQ(step.next->verb, Verb::kList) << line;
    EXPECT_GE(step.next->after_ms, kWatchBackoffMinMs) << line;
    // And from then on they are counted anew.
    machine_.OnPage(Page("12", {Object("a", "7")}), now_ms_);
    machine_.OnWatchSent(now_ms_);
    EXPECT_EQ(machine_.OnLine(line, now_ms_).next->verb, Verb::kWatch) << line;
  }
}

TEST_F(ListWatchTest, BadEndsWithProgressBetweenThemAreNotInARow) {
  Watching();
  for (int i = 0; i < 3 * kBadWatchEndsMax; ++i) {
    EXPECT_EQ(machine_.OnLine("{", now_ms_).next->verb, Verb::kWatch);
    machine_.OnWatchSent(now_ms_);
    machine_.OnLine(Line("MODIFIED", Object("a", std::to_string(11 + i))), now_ms_);
  }
}

// A server that is away or busy says nothing about the version: ten thousand replicas' lists would not help it.
TEST_F(ListWatchTest, AServerThatIsAwayOrBusyIsNotListed) {
  Watching();
  for (int i = 0; i < 3 * kBadWatchEndsMax; ++i) {
    for (const ErrorKind kind : {ErrorKind::kTransport, ErrorKind::kDeadline, ErrorKind::kTooManyRequests})
      EXPECT_EQ(machine_.OnWatchEnd(Error(kind), now_ms_).next->verb, Verb::kWatch);
  }
}

TEST_F(ListWatchTest, AListThatIsNoListIsAskedForAgainLater) {
  for (const char* page : {"{}", "[]", "null", "{\"items\":[],\"metadata\":{}}",
                           "{\"items\":7,\"metadata\":{\"resourceVersion\":\"1\"}}"}) {
    machine_ = ListWatch(3);
    machine_.Start();
    const ListWatchStep step = machine_.OnPage(nlohmann::json::parse(page), now_ms_);
    EXPECT_TRUE(step.events.empty()) << page;
    EXPECT_EQ(step.next->verb, Verb::kList) << page;
    EXPECT_GE(step.next->after_ms, kWatchBackoffMinMs) << page;
  }
}

// Neither a server that refuses connections nor one that ends watches at once is asked in a hot loop.
TEST_F(ListWatchTest, AWatchThatEndsAtOnceWithNothingSaidIsAFailure) {
  Watching();
  now_ms_ += 999;
  EXPECT_GE(machine_.OnWatchEnd(ApiError(), now_ms_).next->after_ms, kWatchBackoffMinMs);
  machine_.OnWatchSent(now_ms_);
  now_ms_ += 1000;
  EXPECT_EQ(machine_.OnWatchEnd(ApiError(), now_ms_).next->after_ms, 0);
  machine_.OnWatchSent(now_ms_);
  machine_.OnLine(Line("ADDED", Object("b", "11")), now_ms_);
  EXPECT_EQ(machine_.OnWatchEnd(ApiError(), now_ms_).next->after_ms, 0);
}

TEST_F(ListWatchTest, FailuresInARowWaitLongerUpToTheBoundAndAreForgottenAfterHealth) {
  Watching();
  int64_t floor_ms = kWatchBackoffMinMs;
  for (int i = 0; i < 12; ++i) {
    const int64_t wait_ms = machine_.OnWatchEnd(Error(ErrorKind::kTransport), now_ms_).next->after_ms;
    EXPECT_GE(wait_ms, floor_ms);
    EXPECT_LT(wait_ms, 2 * floor_ms);
    floor_ms = std::min(floor_ms * 2, kWatchBackoffMaxMs);
    now_ms_ += wait_ms;
  }
  now_ms_ += kWatchBackoffResetMs;
  EXPECT_LT(machine_.OnWatchEnd(Error(ErrorKind::kTransport), now_ms_).next->after_ms, 2 * kWatchBackoffMinMs);
}

TEST_F(ListWatchTest, ABusyServersWishIsKept) {
  Watching();
  EXPECT_GE(machine_.OnWatchEnd(Error(ErrorKind::kTooManyRequests, 17'000), now_ms_).next->after_ms, 17'000);
  machine_ = ListWatch(1);
  machine_.Start();
  EXPECT_GE(machine_.OnListError(Error(ErrorKind::kTooManyRequests, 17'000), now_ms_).next->after_ms, 17'000);
}

// Rights may come back, and the definition may be installed late.
TEST_F(ListWatchTest, WhatIsForbiddenOrMissingIsAskedForAgain) {
  for (const ErrorKind kind : {ErrorKind::kForbidden, ErrorKind::kNotFound, ErrorKind::kUnauthorized}) {
    machine_ = ListWatch(1);
    machine_.Start();
    const ListWatchStep step = machine_.OnListError(Error(kind), now_ms_);
    EXPECT_EQ(step.next->verb, Verb::kList);
    EXPECT_EQ(step.next->resource_version, "0");
    EXPECT_GE(step.next->after_ms, kWatchBackoffMinMs);
  }
}

}  // namespace
}  // namespace kvartal::kube
