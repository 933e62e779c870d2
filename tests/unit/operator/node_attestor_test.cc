#include "operator/process/node_attestor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/token_issuer.h"

namespace kvartal::process {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kNowMs = 1'800'000'000'000;
constexpr int64_t kEndMs = kNowMs + 600'000;

class NodeAttestorTest : public ::testing::Test {
 protected:
  NodeAttestorTest() {
    issuer_.AddKey("a", "RS256");
    attestor_.SetKeys(testing::kTestIssuer, issuer_.Jwks());
  }
  std::string Token(const std::string& ns, const std::string& account, const std::string& audience) const {
    nlohmann::json claims = issuer_.Claims(ns, account, "kvartal-daemon-x", kEndMs);
    claims["aud"] = {audience};
    return issuer_.Sign(claims, "a");
  }
  std::string WhyNot(const std::string& token, int64_t now_ms = kNowMs) const {
    const auto node = attestor_.NodeOf(token, now_ms);
    return node.ok() ? "it is " + *node : std::string(node.status().message());
  }

  testing::TokenIssuer issuer_;
  NodeAttestor attestor_{{"kvartal/daemon", "kvartal-operator"}};
};

TEST_F(NodeAttestorTest, ADaemonsTokenNamesTheNodeOfItsPod) {
  EXPECT_EQ(WhyNot(Token("kvartal", "daemon", "kvartal-operator")), "it is node-1");
}

TEST_F(NodeAttestorTest, AnotherAccountIsNoDaemon) {
  EXPECT_THAT(WhyNot(Token("team", "daemon", "kvartal-operator")), HasSubstr("ServiceAccount team/daemon"));
  EXPECT_THAT(WhyNot(Token("kvartal", "vllm", "kvartal-operator")), HasSubstr("run as kvartal/daemon"));
}

TEST_F(NodeAttestorTest, ATokenForSomebodyElseOrOfAnotherTimeIsRefused) {
  EXPECT_THAT(WhyNot(Token("kvartal", "daemon", "kvartal")), HasSubstr("audience"));
  EXPECT_FALSE(attestor_.NodeOf(Token("kvartal", "daemon", "kvartal-operator"), kEndMs + 120'000).ok());
  EXPECT_THAT(WhyNot(""), HasSubstr("policyStream.tokenFile"));
  EXPECT_FALSE(attestor_.NodeOf("a.b.c", kNowMs).ok());
}

TEST_F(NodeAttestorTest, WithoutKeysNobodyIsAnyNode) {
  NodeAttestor fresh{{"kvartal/daemon", "kvartal-operator"}};
  EXPECT_TRUE(absl::IsUnavailable(fresh.NodeOf(Token("kvartal", "daemon", "kvartal-operator"), kNowMs).status()));
}

TEST_F(NodeAttestorTest, ABadKeySetTakesNothingAway) {
  attestor_.SetKeys("https://another", "{}");
  EXPECT_EQ(WhyNot(Token("kvartal", "daemon", "kvartal-operator")), "it is node-1");
}

}  // namespace
}  // namespace kvartal::process
