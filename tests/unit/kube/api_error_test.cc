#include "operator/kube/api_error.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "operator/kube/limits.h"

namespace kvartal::kube {
namespace {

ErrorKind KindOf(int code, const std::string& body) { return ErrorOfAnswer({code, std::nullopt}, body).kind; }

TEST(ApiErrorTest, WhatACallerActsOnIsToldApart) {
  EXPECT_EQ(KindOf(401, ""), ErrorKind::kUnauthorized);
  EXPECT_EQ(KindOf(403, ""), ErrorKind::kForbidden);
  EXPECT_EQ(KindOf(404, ""), ErrorKind::kNotFound);
  EXPECT_EQ(KindOf(409, R"({"kind":"Status","code":409,"reason":"AlreadyExists"})"), ErrorKind::kAlreadyExists);
  EXPECT_EQ(KindOf(409, R"({"kind":"Status","code":409,"reason":"Conflict"})"), ErrorKind::kConflict);
  EXPECT_EQ(KindOf(410, ""), ErrorKind::kExpired);
  EXPECT_EQ(KindOf(422, ""), ErrorKind::kInvalid);
  EXPECT_EQ(KindOf(429, ""), ErrorKind::kTooManyRequests);
  EXPECT_EQ(KindOf(503, "<html>no backend</html>"), ErrorKind::kServer);
  EXPECT_EQ(KindOf(302, ""), ErrorKind::kOther);
}

TEST(ApiErrorTest, AVersionTheServerDoesNotKnowYetIsToldByCauseOrByMessage) {
  EXPECT_EQ(KindOf(504, R"({"kind":"Status","code":504,"reason":"Timeout","details":{"causes":[
              {"reason":"ResourceVersionTooLarge","message":"x"}]}})"),
            ErrorKind::kTooLargeVersion);
  EXPECT_EQ(KindOf(504, R"({"kind":"Status","code":504,"message":"Too large resource version: 9, current: 5"})"),
            ErrorKind::kTooLargeVersion);
  EXPECT_EQ(KindOf(504, R"({"kind":"Status","code":504,"reason":"Timeout"})"), ErrorKind::kServer);
}

TEST(ApiErrorTest, AStatusInAWatchIsReadAsTheSame) {
  const ApiError error = ErrorOfStatus(
      nlohmann::json::parse(R"({"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"})"));
  EXPECT_EQ(error.kind, ErrorKind::kExpired);
  EXPECT_EQ(error.message, "too old resource version");
  EXPECT_EQ(ErrorOfStatus(nlohmann::json::parse(R"({"reason":"Expired"})")).kind, ErrorKind::kExpired);
}

TEST(ApiErrorTest, AStatusThatContradictsTheProtocolIsNotBelieved) {
  EXPECT_EQ(KindOf(403, R"({"kind":"Status","code":410,"reason":"Expired"})"), ErrorKind::kForbidden);
}

TEST(ApiErrorTest, AServersWishToWaitIsKeptWithinReason) {
  EXPECT_EQ(ErrorOfAnswer({429, 3000}, "").retry_after_ms, 3000);
  EXPECT_EQ(ErrorOfAnswer({429, 99'999'000}, "").retry_after_ms, kRetryAfterMsMax);
  EXPECT_EQ(ErrorOfAnswer({429, std::nullopt}, R"({"kind":"Status","code":429,"details":{"retryAfterSeconds":7}})")
                .retry_after_ms,
            7000);
  EXPECT_EQ(ErrorOfAnswer({500, std::nullopt}, "").retry_after_ms, std::nullopt);
}

TEST(ApiErrorTest, AnyBodyIsSafe) {
  for (const char* body : {"", "null", "[]", "7", "\"\"", "{", "\xff", R"({"kind":"Status"})",
                           R"({"kind":"Status","code":"410","details":7})", R"({"kind":["Status"]})"})
    EXPECT_EQ(KindOf(500, body), ErrorKind::kServer) << body;
}

}  // namespace
}  // namespace kvartal::kube
