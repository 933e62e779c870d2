#include "daemon/token/pod_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "daemon/base/limits.h"
#include "tests/support/token_issuer.h"

namespace kvartal::token {
namespace {

using ::kvartal::testing::kTestIssuer;
using ::kvartal::testing::TokenIssuer;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kNowMs = 1'700'000'000'000;
constexpr int64_t kHourMs = 3'600'000;

// One authority for all cases: making RSA keys takes its time.
class PodTokenTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    issuer_ = new TokenIssuer();
    issuer_->AddKey("key-2", "ES256");
  }
  static void TearDownTestSuite() { delete issuer_; }

  static TokenVerdict Verify(const std::string& token, int64_t now_ms = kNowMs) {
    return VerifyToken(token, *KeySet::Parse(issuer_->Jwks()), {kTestIssuer, "kvartal", "node-1"}, now_ms);
  }
  static json Claims() { return issuer_->Claims("team", "vllm", "chat-0", kNowMs + kHourMs); }
  // The fault of an otherwise good token.
  static TokenFault FaultOf(const std::function<void(json*)>& change) {
    json claims = Claims();
    change(&claims);
    return Verify(issuer_->Sign(claims, "key-1")).fault;
  }

  static inline TokenIssuer* issuer_ = nullptr;
};

TEST_F(PodTokenTest, AGoodTokenSaysWhoItsBearerIs) {
  for (const char* kid : {"key-1", "key-2"}) {
    const TokenVerdict verdict = Verify(issuer_->Sign(Claims(), kid));
    ASSERT_EQ(verdict.fault, TokenFault::kNone) << kid << ": " << verdict.why;
    EXPECT_EQ(verdict.claims.ns, "team");
    EXPECT_EQ(verdict.claims.service_account, "vllm");
    EXPECT_EQ(verdict.claims.pod_name, "chat-0");
    EXPECT_EQ(verdict.claims.pod_uid, TokenIssuer::PodUid("chat-0"));
    EXPECT_EQ(verdict.claims.node, "node-1");
    EXPECT_EQ(verdict.claims.kid, kid);
    EXPECT_EQ(verdict.claims.expires_wall_ms, kNowMs + kHourMs);
  }
}

TEST_F(PodTokenTest, WhatIsNotMeantForThisNodeIsRefused) {
  EXPECT_EQ(FaultOf([](json*) {}), TokenFault::kNone) << "the positive control";
  EXPECT_EQ(FaultOf([](json* c) { (*c)["iss"] = "https://other.cluster"; }), TokenFault::kIssuer);
  EXPECT_EQ(FaultOf([](json* c) { c->erase("iss"); }), TokenFault::kIssuer);
  EXPECT_EQ(FaultOf([](json* c) { (*c)["aud"] = {"https://kubernetes.default.svc"}; }), TokenFault::kAudience);
  EXPECT_EQ(FaultOf([](json* c) { (*c)["aud"] = {{{"kvartal", "kvartal"}}}; }), TokenFault::kAudience);
  EXPECT_EQ(FaultOf([](json* c) { c->erase("aud"); }), TokenFault::kAudience);
  EXPECT_EQ(FaultOf([](json* c) { (*c)["aud"] = "kvartal"; }), TokenFault::kNone) << "a list of one may be a text";
  EXPECT_EQ(FaultOf([](json* c) { (*c)["aud"] = {"other", "kvartal"}; }), TokenFault::kNone);
  EXPECT_EQ(FaultOf([](json* c) { (*c)["kubernetes.io"]["node"]["name"] = "node-2"; }), TokenFault::kForeignNode);
  EXPECT_EQ(FaultOf([](json* c) { (*c)["kubernetes.io"].erase("node"); }), TokenFault::kForeignNode);
  EXPECT_EQ(FaultOf([](json* c) { (*c)["kubernetes.io"].erase("pod"); }), TokenFault::kNotPodBound);
  EXPECT_EQ(FaultOf([](json* c) { (*c)["kubernetes.io"]["pod"] = "chat-0"; }), TokenFault::kNotPodBound);
  EXPECT_EQ(FaultOf([](json* c) { c->erase("kubernetes.io"); }), TokenFault::kMalformed);
  EXPECT_EQ(FaultOf([](json* c) { (*c)["sub"] = "system:serviceaccount:other:vllm"; }), TokenFault::kMalformed)
      << "two parts of it say different things";
}

TEST_F(PodTokenTest, ATokenHoldsFromItsBeginningToItsEnd) {
  const std::string token = issuer_->Sign(Claims(), "key-1");
  EXPECT_EQ(Verify(token, kNowMs + kHourMs - 1).fault, TokenFault::kNone);
  EXPECT_EQ(Verify(token, kNowMs + kHourMs).fault, TokenFault::kExpired);
  EXPECT_EQ(Verify(token, kNowMs - kTokenLeewaySeconds * 1000).fault, TokenFault::kNone) << "a server's clock ahead";
  EXPECT_EQ(Verify(token, kNowMs - kTokenLeewaySeconds * 1000 - 1).fault, TokenFault::kNotYetValid);
  for (const json& never : {json(nullptr), json("soon"), json(-1), json(1.5e9), json(UINT64_MAX)}) {
    EXPECT_EQ(FaultOf([&](json* c) { (*c)["exp"] = never; }), TokenFault::kMalformed) << never;
    EXPECT_EQ(FaultOf([&](json* c) { (*c)["nbf"] = never; }), TokenFault::kMalformed) << never;
  }
  EXPECT_EQ(FaultOf([](json* c) { c->erase("exp"); }), TokenFault::kMalformed);
  EXPECT_EQ(FaultOf([](json* c) { c->erase("nbf"); }), TokenFault::kNone);
}

TEST_F(PodTokenTest, TheKeyDecidesTheAlgorithmAndNotTheToken) {
  const json claims = Claims();
  EXPECT_EQ(Verify(issuer_->Sign(claims, "key-1", {{"alg", "none"}, {"kid", "key-1"}})).fault, TokenFault::kAlgorithm);
  EXPECT_EQ(Verify(issuer_->Sign(claims, "key-1", {{"kid", "key-1"}})).fault, TokenFault::kAlgorithm);
  EXPECT_EQ(Verify(issuer_->Sign(claims, "key-1", {{"alg", "RS512"}, {"kid", "key-1"}})).fault, TokenFault::kAlgorithm);
  EXPECT_EQ(Verify(issuer_->Sign(claims, "key-2", {{"alg", "RS256"}, {"kid", "key-1"}})).fault, TokenFault::kSignature)
      << "signed by a key of the set, under the name of another";
  EXPECT_EQ(Verify(issuer_->Sign(claims, "key-1", {{"alg", "RS256"}, {"kid", "key-1"}, {"crit", {"exp"}}})).fault,
            TokenFault::kMalformed)
      << "it says that it is only understood by who knows more";

  // Unsigned altogether, as a library would take it that believes the header.
  const std::string none =
      TokenIssuer::Base64Url(R"({"alg":"none","kid":"key-1"})") + "." + TokenIssuer::Base64Url(claims.dump()) + ".";
  EXPECT_EQ(Verify(none).fault, TokenFault::kMalformed);
  // Signed with what everybody may read: the public key as the secret of an HMAC.
  const std::string confused =
      TokenIssuer::Base64Url(R"({"alg":"HS256","kid":"key-1"})") + "." + TokenIssuer::Base64Url(claims.dump());
  const std::string mac = TokenIssuer::Hs256(confused, issuer_->PublicPem("key-1"));
  EXPECT_EQ(Verify(confused + "." + TokenIssuer::Base64Url(mac)).fault, TokenFault::kAlgorithm);
}

TEST_F(PodTokenTest, NobodyElsesSignatureCounts) {
  TokenIssuer stranger;
  EXPECT_EQ(Verify(stranger.Sign(Claims(), "key-1")).fault, TokenFault::kSignature) << "the kid is no proof";
  stranger.AddKey("key-9", "ES256");
  EXPECT_EQ(Verify(stranger.Sign(Claims(), "key-9")).fault, TokenFault::kUnknownKey);
  EXPECT_EQ(VerifyToken(issuer_->Sign(Claims(), "key-1"), KeySet(), {kTestIssuer, "kvartal", ""}, kNowMs).fault,
            TokenFault::kUnknownKey)
      << "without keys nobody is believed";
}

TEST_F(PodTokenTest, AnyChangeOfATokenIsSeen) {
  for (const char* kid : {"key-1", "key-2"}) {
    const std::string good = issuer_->Sign(Claims(), kid);
    ASSERT_EQ(Verify(good).fault, TokenFault::kNone);
    size_t changed = 0;
    // The last digit may have bits that mean nothing; all others count.
    for (size_t at = 0; at + 1 < good.size(); at += 7) {
      std::string token = good;
      token[at] = token[at] == 'A' ? 'B' : 'A';
      if (token == good) continue;
      ++changed;
      EXPECT_NE(Verify(token).fault, TokenFault::kNone) << kid << " at " << at;
    }
    EXPECT_GT(changed, 50u);
    for (size_t length = 0; length < good.size(); length += 11) {
      EXPECT_NE(Verify(good.substr(0, length)).fault, TokenFault::kNone) << kid << " cut to " << length;
    }
  }
}

TEST_F(PodTokenTest, GarbageIsMalformedWhateverItsSize) {
  const std::string good = issuer_->Sign(Claims(), "key-1");
  const std::vector<std::string> garbage = {"",
                                            ".",
                                            "..",
                                            "a.b",
                                            "a.b.c.d",
                                            good + ".",
                                            "." + good,
                                            good + " ",
                                            good + "\n",
                                            good + "=",
                                            "Bearer " + good,
                                            std::string(100, '\0'),
                                            std::string(kTokenBytesMax, '.'),
                                            good + std::string(kTokenBytesMax, 'A')};
  for (const std::string& token : garbage)
    EXPECT_EQ(Verify(token).fault, TokenFault::kMalformed) << token.substr(0, 40);
  // Well signed, and nothing that could be read.
  for (const json& payload : {json::array({1, 2}), json("text"), json(nullptr)}) {
    EXPECT_EQ(Verify(issuer_->Sign(payload, "key-1")).fault, TokenFault::kMalformed);
  }
  // Written as text: who makes it of JSON values needs as deep a stack as who reads it without care.
  json claims = Claims();
  claims["aud"] = "AUD";
  const std::string deep = std::string(4000, '[') + "1" + std::string(4000, ']');
  const std::string payload = absl::StrReplaceAll(claims.dump(), {{"\"AUD\"", deep}});
  const json header = {{"alg", "RS256"}, {"kid", "key-1"}};
  EXPECT_EQ(Verify(issuer_->SignPayload(payload, "key-1", header)).fault, TokenFault::kAudience);
}

TEST_F(PodTokenTest, WhatIsSaidOfARefusalHoldsNothingOfTheToken) {
  json claims = Claims();
  claims["iss"] = "https://forged.example/secret";
  const TokenVerdict verdict = Verify(issuer_->Sign(claims, "key-1"));
  ASSERT_EQ(verdict.fault, TokenFault::kIssuer);
  EXPECT_THAT(verdict.why, Not(HasSubstr("forged")));
  const TokenVerdict unknown = Verify(issuer_->Sign(Claims(), "key-1", {{"alg", "RS256"}, {"kid", "forged"}}));
  ASSERT_EQ(unknown.fault, TokenFault::kUnknownKey);
  EXPECT_THAT(unknown.why, Not(HasSubstr("forged")));
}

}  // namespace
}  // namespace kvartal::token
