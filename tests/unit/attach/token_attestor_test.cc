#include "daemon/attach/token_attestor.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/token_issuer.h"

namespace kvartal::attach {
namespace {

using ::kvartal::testing::kTestIssuer;
using ::kvartal::testing::TokenIssuer;

constexpr int64_t kNowMs = 1'700'000'000'000;

class TokenAttestorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { issuer_ = new TokenIssuer(); }
  static void TearDownTestSuite() { delete issuer_; }

  static TokenAttestor Make(bool host_pids = false) {
    TokenAttestor attestor({"kvartal", "node-1", host_pids});
    attestor.SetKeys(kTestIssuer, *token::KeySet::Parse(issuer_->Jwks()));
    return attestor;
  }
  static std::string Token(const std::string& pod) { return issuer_->Token("team", "vllm", pod, kNowMs + 3'600'000); }
  static DenialReason Judge(const TokenAttestor& attestor, const std::string& pod, const std::string& peer_pod = "") {
    return attestor.Judge(Token(pod), {peer_pod}, kNowMs).denial;
  }
  static DenialReason JudgeSilent(const TokenAttestor& attestor, DenialReason silence) {
    return attestor.Judge(Token("chat-0"), {.uid = "", .silence = silence}, kNowMs).denial;
  }

  static inline TokenIssuer* issuer_ = nullptr;
};

TEST_F(TokenAttestorTest, TheKernelsWordOnThePodCounts) {
  const TokenAttestor attestor = Make();
  EXPECT_EQ(Judge(attestor, "chat-0", TokenIssuer::PodUid("chat-0")), DenialReason::kNone);
  EXPECT_EQ(Judge(attestor, "chat-0", TokenIssuer::PodUid("thief-0")), DenialReason::kForeignPod);
  EXPECT_EQ(Judge(attestor, "chat-0"), DenialReason::kNone) << "the daemon cannot see the peer's pid";
  EXPECT_EQ(JudgeSilent(attestor, DenialReason::kPodUnproven), DenialReason::kPodUnproven) << "it can, and does not";
  EXPECT_EQ(JudgeSilent(attestor, DenialReason::kPeerGone), DenialReason::kPeerGone) << "nobody is there to be a thief";
}

TEST_F(TokenAttestorTest, WhereTheKernelCanTellItsSilenceIsARefusal) {
  const TokenAttestor attestor = Make(true);
  EXPECT_EQ(Judge(attestor, "chat-0", TokenIssuer::PodUid("chat-0")), DenialReason::kNone);
  EXPECT_EQ(Judge(attestor, "chat-0", TokenIssuer::PodUid("thief-0")), DenialReason::kForeignPod);
  EXPECT_EQ(Judge(attestor, "chat-0"), DenialReason::kPodUnproven);
  EXPECT_EQ(JudgeSilent(attestor, DenialReason::kPodUnproven), DenialReason::kPodUnproven);
  EXPECT_EQ(JudgeSilent(attestor, DenialReason::kPeerGone), DenialReason::kPeerGone);
}

TEST_F(TokenAttestorTest, APodThatIsGoneIsRefusedAndOneNobodyKnowsOfIsNot) {
  TokenAttestor attestor = Make();
  const token::PodClaims chat0 = attestor.Judge(Token("chat-0"), {}, kNowMs).pod;
  EXPECT_FALSE(attestor.PodIsGone(chat0));
  attestor.SetGonePods({TokenIssuer::PodUid("chat-0")});
  EXPECT_EQ(Judge(attestor, "chat-0"), DenialReason::kPodGone);
  EXPECT_TRUE(attestor.PodIsGone(chat0));
  EXPECT_EQ(Judge(attestor, "chat-1"), DenialReason::kNone) << "newer than all that is known, which may be late";
  attestor.SetGonePods({TokenIssuer::PodUid("chat-1")});
  EXPECT_EQ(Judge(attestor, "chat-1"), DenialReason::kPodGone);
  EXPECT_EQ(Judge(attestor, "chat-0"), DenialReason::kNone) << "what is said last takes the place of all before";
}

// The order of the checks: a token that was not verified says nothing, of pods neither.
TEST_F(TokenAttestorTest, OfATokenNobodyVouchesForItIsNotToldWhetherItsPodIsGone) {
  TokenAttestor attestor = Make();
  attestor.SetGonePods({TokenIssuer::PodUid("chat-0")});
  EXPECT_EQ(attestor.Judge(TokenIssuer().Token("team", "vllm", "chat-0", kNowMs + 3'600'000), {}, kNowMs).denial,
            DenialReason::kTokenSignature);
}

TEST_F(TokenAttestorTest, RotatedKeysVouchFromOneMomentToTheNext) {
  TokenIssuer rotating;
  rotating.AddKey("key-2", "ES256");
  const nlohmann::json claims = rotating.Claims("team", "vllm", "chat-0", kNowMs + 3'600'000);
  const std::string by_old = rotating.Sign(claims, "key-1"), by_new = rotating.Sign(claims, "key-2");
  rotating.RemoveKey("key-1");
  TokenAttestor attestor({"kvartal", "node-1", false});
  EXPECT_EQ(attestor.Judge(by_new, {}, kNowMs).denial, DenialReason::kTokenUnknownKey) << "no keys yet";
  attestor.SetKeys(kTestIssuer, *token::KeySet::Parse(rotating.Jwks()));
  const TokenJudgement now = attestor.Judge(by_new, {}, kNowMs);
  EXPECT_EQ(now.denial, DenialReason::kNone) << now.why;
  EXPECT_EQ(attestor.Judge(by_old, {}, kNowMs).denial, DenialReason::kTokenUnknownKey);
  EXPECT_FALSE(attestor.KeyIsGone(now.pod));
  attestor.SetKeys(kTestIssuer, *token::KeySet::Parse(issuer_->Jwks()));
  EXPECT_TRUE(attestor.KeyIsGone(now.pod));
}

}  // namespace
}  // namespace kvartal::attach
