// Pods that attach by the token of their ServiceAccount, before the real attach server, engine and loop.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/attach_fixture.h"
#include "tests/support/fd_passing.h"
#include "tests/support/token_issuer.h"

namespace kvartal::attach {
namespace {

using ::kvartal::testing::kTestIssuer;
using ::kvartal::testing::TokenIssuer;
using ::testing::HasSubstr;

constexpr int64_t kTenMinutesMs = 600'000;
constexpr const char* kOutsideOfPods = "0::/system.slice/cron.service\n";

class AttachTokenTest : public AttachTest {
 protected:
  static void SetUpTestSuite() {
    issuer_ = new TokenIssuer();
    issuer_->AddKey("key-2", "ES256");
  }
  static void TearDownTestSuite() { delete issuer_; }

  void SetUp() override {
    AttachTest::SetUp();
    rules_[0].service_accounts = {"team/red"};
    rules_[1].service_accounts = {"team/blue"};
    options_.attest_uid = false;
    options_.tokens = {"kvartal", "node-1", false};
    options_.read_cgroup = [this](uint32_t) { return cgroup_; };
  }
  void StartWithKeys(bool with_nvme = false) {
    Start(with_nvme);
    server_->SetTokenKeys(kTestIssuer, *token::KeySet::Parse(issuer_->Jwks()));
    server_->SetDoorObserver([this](const DoorEvent& event) {
      told_ += absl::StrCat(absl::string_view(event.tenant.data(), event.tenant.size()), " ",
                            absl::string_view(event.attestor.data(), event.attestor.size()), " ",
                            absl::string_view(event.pod.data(), event.pod.size()), " ",
                            absl::string_view(event.why.data(), event.why.size()),
                            event.cut == CutReason::kNone ? "" : CutReasonName(event.cut), "\n");
    });
  }

  std::string Token(const std::string& account, const std::string& pod, int64_t lifetime_ms = kTenMinutesMs) const {
    return issuer_->Token("team", account, pod, clock_.WallMs() + lifetime_ms);
  }
  static ClientFrame AttachFrame(const std::string& token, const std::string& group = "") {
    ClientFrame frame;
    frame.mutable_attach()->set_version(1);
    frame.mutable_attach()->set_token(token);
    frame.mutable_attach()->set_group(group);
    return frame;
  }
  ServerFrame AttachBy(RawClient& client, const std::string& token, const std::string& group = "") {
    const ServerFrame answer = Ask(client, AttachFrame(token, group));
    if (!answer.has_attached()) return answer;
    for (const ServerFrame& more : Drain(client)) EXPECT_TRUE(more.has_memory_grant());
    ClientFrame ack;
    ack.mutable_grant_ack();
    EXPECT_TRUE(client.Send(ack));
    Spin();
    return answer;
  }
  ServerFrame RenewBy(RawClient& client, const std::string& token) {
    ClientFrame frame;
    frame.mutable_renew()->set_token(token);
    return Ask(client, frame);
  }
  // Attaches, expects a refusal for that reason, and that nothing is left of it.
  void ExpectRefused(const std::string& token, DenialReason reason) {
    const uint64_t before = Denials(reason);
    RawClient client(Path("shared"));
    const ServerFrame answer = AttachBy(client, token);
    EXPECT_EQ(answer.error().code(), v1::Error::DENIED) << DenialReasonName(reason);
    EXPECT_EQ(Denials(reason), before + 1) << DenialReasonName(reason) << ": " << answer.error().message();
    EXPECT_FALSE(client.Receive().has_value());
    EXPECT_TRUE(client.ended()) << DenialReasonName(reason);
  }
  // What the kernel would say of a peer in that pod.
  void PeersAreIn(const std::string& pod) {
    cgroup_ = "0::/kubepods/burstable/pod" + TokenIssuer::PodUid(pod) + "/0123\n";
  }

  static inline TokenIssuer* issuer_ = nullptr;
  std::string cgroup_ = kOutsideOfPods, told_;
};

TEST_F(AttachTokenTest, APodIsTheTenantOfItsServiceAccount) {
  StartWithKeys();
  RawClient red(Path("shared")), blue(Path("shared"));
  const ServerFrame as_red = AttachBy(red, Token("red", "chat-0")), as_blue = AttachBy(blue, Token("blue", "code-0"));
  EXPECT_EQ(as_red.attached().tenant(), "team/red") << as_red.error().message();
  EXPECT_EQ(as_blue.attached().tenant(), "team/blue");
  EXPECT_EQ(as_red.attached().identity_ms(), uint64_t{kTenMinutesMs});
  EXPECT_THAT(told_, HasSubstr("team/red k8s-token team/chat-0"));
  const uint32_t ns = OpenNamespace(red);
  Store(red, ns, 0, 4);
  EXPECT_EQ(Lookup(red, ns, 0, 4).matched(), 4u);
  EXPECT_EQ(Lookup(blue, OpenNamespace(blue), 0, 4).matched(), 0u) << "the same keys, and another tenant's";
}

TEST_F(AttachTokenTest, WhatVouchesForNobodyIsRefusedWithItsReason) {
  StartWithKeys();
  const int64_t expires = clock_.WallMs() + kTenMinutesMs;
  const auto claims = [&] { return issuer_->Claims("team", "red", "chat-0", expires); };
  const std::string good = Token("red", "chat-0");
  nlohmann::json elsewhere = claims(), other_audience = claims(), other_issuer = claims(), unbound = claims();
  elsewhere["kubernetes.io"]["node"]["name"] = "node-2";
  other_audience["aud"] = {"https://kubernetes.default.svc"};
  other_issuer["iss"] = "https://other";
  unbound["kubernetes.io"].erase("pod");
  TokenIssuer stranger;
  ExpectRefused("", DenialReason::kNoToken);
  ExpectRefused("garbage", DenialReason::kTokenMalformed);
  ExpectRefused(good.substr(0, good.size() / 2), DenialReason::kTokenMalformed);
  ExpectRefused(std::string(kTokenBytesMax, '\xFF'), DenialReason::kTokenMalformed);
  ExpectRefused(issuer_->Sign(claims(), "key-1", {{"alg", "none"}, {"kid", "key-1"}}), DenialReason::kTokenAlgorithm);
  ExpectRefused(issuer_->Sign(claims(), "key-1", {{"alg", "RS256"}, {"kid", "key-0"}}), DenialReason::kTokenUnknownKey);
  ExpectRefused(stranger.Sign(claims(), "key-1"), DenialReason::kTokenSignature);
  ExpectRefused(issuer_->Sign(other_issuer, "key-1"), DenialReason::kTokenIssuer);
  ExpectRefused(issuer_->Sign(other_audience, "key-1"), DenialReason::kTokenAudience);
  ExpectRefused(Token("red", "chat-0", -1000), DenialReason::kTokenExpired);
  ExpectRefused(Token("red", "chat-0", 2 * 3'600'000), DenialReason::kTokenNotYetValid);
  ExpectRefused(issuer_->Sign(unbound, "key-1"), DenialReason::kTokenNotPodBound);
  ExpectRefused(issuer_->Sign(elsewhere, "key-1"), DenialReason::kForeignNode);
  ExpectRefused(Token("nobody", "chat-0"), DenialReason::kUnknownServiceAccount);
  ExpectRefused(issuer_->Token("other", "red", "chat-0", expires), DenialReason::kUnknownServiceAccount);
  EXPECT_EQ(server_->stats().sessions, 0u);
  EXPECT_EQ(told_.find(good.substr(0, 20)), std::string::npos) << "no token is ever told";
  RawClient client(Path("shared"));
  EXPECT_TRUE(AttachBy(client, good).has_attached()) << "the positive control";
}

TEST_F(AttachTokenTest, ATokenThatIsTooLongIsAnArgumentError) {
  StartWithKeys();
  RawClient client(Path("shared"));
  EXPECT_EQ(AskForError(client, AttachFrame(std::string(kTokenBytesMax + 1, 'a'))).code(), v1::Error::BAD_ARGUMENT);
  EXPECT_TRUE(AttachBy(client, Token("red", "chat-0")).has_attached()) << "the session goes on";
}

TEST_F(AttachTokenTest, AnotherPodsTokenIsRefusedByTheKernelsWord) {
  StartWithKeys();
  PeersAreIn("thief-0");
  ExpectRefused(Token("red", "chat-0"), DenialReason::kForeignPod);
  PeersAreIn("chat-0");
  RawClient client(Path("shared"));
  EXPECT_TRUE(AttachBy(client, Token("red", "chat-0")).has_attached());
  PeersAreIn("thief-0");
  EXPECT_EQ(RenewBy(client, Token("red", "chat-0")).error().code(), v1::Error::DENIED) << "also on renewal";
}

TEST_F(AttachTokenTest, WhereTheKernelCanTellAReplayFromOutsideOfPodsIsRefused) {
  options_.tokens->host_pids = true;
  StartWithKeys();
  ExpectRefused(Token("red", "chat-0"), DenialReason::kPodUnproven);
  cgroup_ = "";
  ExpectRefused(Token("red", "chat-0"), DenialReason::kPeerGone);
  PeersAreIn("chat-0");
  RawClient client(Path("shared"));
  EXPECT_TRUE(AttachBy(client, Token("red", "chat-0")).has_attached());
}

TEST_F(AttachTokenTest, APeerThatHidesItsPodIsRefusedAlsoWhereTheKernelNeedNotTell) {
  StartWithKeys();
  cgroup_ = "0::/kubepods/pod" + TokenIssuer::PodUid("thief-0") + "/a/pod" + TokenIssuer::PodUid("chat-0") + "/b\n";
  ExpectRefused(Token("red", "chat-0"), DenialReason::kPodUnproven);
  cgroup_ = "";
  ExpectRefused(Token("red", "chat-0"), DenialReason::kPeerGone);
  PeersAreIn("chat-0");
  RawClient client(Path("shared"));
  ASSERT_TRUE(AttachBy(client, Token("red", "chat-0")).has_attached());
  cgroup_ = "";
  EXPECT_EQ(RenewBy(client, Token("red", "chat-0")).error().code(), v1::Error::DENIED) << "also on renewal";
}

TEST_F(AttachTokenTest, AProcessThatLeavesItsSocketToAnotherTakesItsPodWithIt) {
  StartWithKeys();
  RawClient probe(Path("shared"));
  if (!OpenPeerPidfd(probe.fd()).valid()) GTEST_SKIP() << "this kernel has no SO_PEERPIDFD";
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
  UniqueFd ours(pair[0]), theirs(pair[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    RawClient client(Path("shared"));
    testing::SendFd(theirs.get(), client.fd());
    ::_exit(0);
  }
  const UniqueFd inherited = testing::ReceiveFd(ours.get());
  ASSERT_TRUE(inherited.valid());
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  Spin();
  // Its pid may be anybody's now: of a process outside of pods, or of the very pod.
  const std::string bytes = [this] {
    ClientFrame frame = AttachFrame(Token("red", "chat-0"));
    frame.set_request_id(1);
    return frame.SerializeAsString();
  }();
  ASSERT_EQ(::send(inherited.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  Spin();
  EXPECT_EQ(Denials(DenialReason::kPeerGone), 1u);
  EXPECT_EQ(server_->stats().attached, 0u);
}

TEST_F(AttachTokenTest, ADoorAndATokenHaveToAgree) {
  StartWithKeys();
  RawClient same(Path("red")), other(Path("red")), without(Path("red"));
  EXPECT_EQ(AttachBy(same, Token("red", "chat-0")).attached().tenant(), "team/red");
  EXPECT_EQ(AttachBy(other, Token("blue", "code-0")).error().code(), v1::Error::DENIED);
  EXPECT_EQ(Denials(DenialReason::kDisagreement), 1u);
  EXPECT_EQ(AttachBy(without, "").attached().tenant(), "team/red") << "a door vouches by itself";
  RawClient bad(Path("red"));
  EXPECT_EQ(AttachBy(bad, "garbage").error().code(), v1::Error::DENIED) << "what is shown has to be good";
}

TEST_F(AttachTokenTest, SessionsOfAnEngineGroupAreAttestedAlike) {
  StartWithKeys();
  RawClient scheduler(Path("shared")), worker(Path("shared")), thief(Path("shared")), by_door(Path("red"));
  const std::string group = AttachBy(scheduler, Token("red", "chat-0")).attached().group();
  EXPECT_EQ(AttachBy(worker, Token("red", "chat-0"), group).attached().group(), group);
  EXPECT_EQ(AttachBy(thief, Token("blue", "code-0"), group).error().code(), v1::Error::DENIED);
  EXPECT_EQ(AttachBy(by_door, "", group).error().code(), v1::Error::DENIED) << "known by the door alone";
}

TEST_F(AttachTokenTest, TwoExpiriesUnderLoadCostAPodThatRenewsNothing) {
  StartWithKeys();
  RawClient client(Path("shared"));
  ASSERT_TRUE(AttachBy(client, Token("red", "chat-0")).has_attached());
  const uint32_t ns = OpenNamespace(client);
  Store(client, ns, 0, 8);
  uint64_t lookups = 0, expiries_passed = 0;
  const v1::LookedUp kept = Lookup(client, ns, 0, 8);
  for (int round = 0; round < 3; ++round) {
    // As kubelet does: a newer token after four fifths of the time.
    for (int64_t passed = 0; passed < kTenMinutesMs * 4 / 5; passed += 5000) {
      AdvanceMs(5000);
      ClientFrame renew;
      renew.mutable_renew()->add_leases(kept.lease());
      ASSERT_EQ(Ask(client, renew).renewed().count(), 1u);
      const v1::LookedUp found = Lookup(client, ns, 0, 8);
      ASSERT_EQ(found.matched(), 8u) << "round " << round << " after " << passed << " ms";
      Release(client, found.lease());
      ++lookups;
    }
    const ServerFrame renewed = RenewBy(client, Token("red", "chat-0"));
    ASSERT_TRUE(renewed.has_renewed()) << renewed.error().message();
    EXPECT_EQ(renewed.renewed().identity_ms(), uint64_t{kTenMinutesMs});
    EXPECT_EQ(renewed.renewed().count(), 0u) << "a token alone renews no lease";
    ++expiries_passed;
  }
  EXPECT_EQ(lookups, 3u * 96);
  EXPECT_GE(expiries_passed, 2u) << "24 minutes with tokens of 10";
  EXPECT_EQ(server_->stats().token_renewals, 3u);
  EXPECT_EQ(Cuts(CutReason::kExpired), 0u);
}

TEST_F(AttachTokenTest, ASessionEndsWhenItsTokenDoes) {
  StartWithKeys();
  RawClient client(Path("shared"));
  ASSERT_TRUE(AttachBy(client, Token("red", "chat-0", 10'000)).has_attached());
  const uint32_t ns = OpenNamespace(client);
  const v1::Reserved filling = Reserve(client, ns, 0, 2);
  AdvanceMs(9'900);
  EXPECT_EQ(Cuts(CutReason::kExpired), 0u);
  AdvanceMs(200);
  EXPECT_EQ(Cuts(CutReason::kExpired), 1u);
  const std::vector<ServerFrame> last = Drain(client);
  ASSERT_FALSE(last.empty());
  EXPECT_THAT(last.back().goodbye().reason(), HasSubstr("expired"));
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(Now().filling_blocks, 0u) << "what it was filling went with it";
  ExpectRefused(Token("red", "chat-0", 0), DenialReason::kTokenExpired);
}

TEST_F(AttachTokenTest, ARenewalThatIsRefusedTakesNothingAway) {
  StartWithKeys();
  RawClient client(Path("shared"));
  ASSERT_TRUE(AttachBy(client, Token("red", "chat-0", 60'000)).has_attached());
  AdvanceMs(30'000);
  EXPECT_EQ(RenewBy(client, Token("red", "chat-1")).error().code(), v1::Error::DENIED) << "of another pod";
  EXPECT_EQ(RenewBy(client, Token("blue", "chat-0")).error().code(), v1::Error::DENIED) << "of another account";
  EXPECT_EQ(RenewBy(client, "garbage").error().code(), v1::Error::DENIED);
  EXPECT_EQ(RenewBy(client, Token("red", "chat-0", -1)).error().code(), v1::Error::DENIED);
  EXPECT_EQ(RenewBy(client, Token("red", "chat-0", 10'000)).renewed().identity_ms(), 30'000u) << "an older one";
  AdvanceMs(29'000);
  EXPECT_TRUE(RenewBy(client, Token("red", "chat-0", 60'000)).has_renewed());
  AdvanceMs(30'000);
  EXPECT_EQ(Cuts(CutReason::kExpired), 0u);
}

TEST_F(AttachTokenTest, ATokenThatHardlyEverEndsIsNoOverflow) {
  StartWithKeys();
  RawClient client(Path("shared"));
  nlohmann::json claims = issuer_->Claims("team", "red", "chat-0", kTokenSecondsMax * 1000);
  claims.erase("nbf");
  const ServerFrame answer = AttachBy(client, issuer_->Sign(claims, "key-1"));
  ASSERT_TRUE(answer.has_attached()) << answer.error().message();
  EXPECT_EQ(answer.attached().identity_ms(), uint64_t{kSecondsMax} * 1000);
  AdvanceMs(1000);
  EXPECT_EQ(Cuts(CutReason::kExpired), 0u);
}

TEST_F(AttachTokenTest, AClockThatIsSetBackLetsNoTokenLiveLonger) {
  StartWithKeys();
  RawClient client(Path("shared"));
  ASSERT_TRUE(AttachBy(client, Token("red", "chat-0", 60'000)).has_attached());
  clock_.SetWallBy(-86'400'000);
  AdvanceMs(60'100);
  EXPECT_EQ(Cuts(CutReason::kExpired), 1u);
}

TEST_F(AttachTokenTest, RotatedKeysTakeEffectAtOnce) {
  StartWithKeys();
  TokenIssuer rotated;  // key-1 made anew, as after a compromise
  const std::string by_new = rotated.Token("team", "red", "chat-0", clock_.WallMs() + kTenMinutesMs);
  ExpectRefused(by_new, DenialReason::kTokenSignature);
  RawClient by_key1(Path("shared")), by_key2(Path("shared"));
  ASSERT_TRUE(AttachBy(by_key1, Token("red", "chat-0")).has_attached());
  ASSERT_TRUE(AttachBy(by_key2, issuer_->Sign(issuer_->Claims("team", "red", "chat-1", clock_.WallMs() + kTenMinutesMs),
                                              "key-2"))
                  .has_attached());
  server_->SetTokenKeys(kTestIssuer, *token::KeySet::Parse(rotated.Jwks()));
  Spin();
  EXPECT_EQ(server_->stats().attached, 1u) << "key-2 has left, and who came by it";
  EXPECT_EQ(Cuts(CutReason::kPolicy), 1u);
  RawClient client(Path("shared"));
  EXPECT_TRUE(AttachBy(client, by_new).has_attached());
  EXPECT_EQ(server_->stats().token_keys, 1u);
}

TEST_F(AttachTokenTest, SessionsOfADeletedPodEnd) {
  StartWithKeys();
  RawClient gone(Path("shared")), stays(Path("shared"));
  ASSERT_TRUE(AttachBy(gone, Token("red", "chat-0")).has_attached());
  ASSERT_TRUE(AttachBy(stays, Token("red", "chat-1")).has_attached());
  told_.clear();
  server_->SetGonePods({TokenIssuer::PodUid("chat-0")});
  Spin();
  EXPECT_EQ(server_->stats().attached, 1u);
  EXPECT_EQ(Cuts(CutReason::kPodGone), 1u);
  EXPECT_THAT(told_, HasSubstr("team/red k8s-token team/chat-0 pod_gone")) << "for the audit log";
  const std::optional<ServerFrame> last = gone.Receive();
  ASSERT_TRUE(last.has_value());
  EXPECT_THAT(last->goodbye().reason(), HasSubstr("not on this node any more"));
  ExpectRefused(Token("red", "chat-0"), DenialReason::kPodGone);
  server_->SetGonePods({TokenIssuer::PodUid("chat-0")});
  Spin();
  EXPECT_EQ(Cuts(CutReason::kPodGone), 1u) << "who is not there is not ended again";
  EXPECT_TRUE(RenewBy(stays, Token("red", "chat-1")).has_renewed());
}

TEST_F(AttachTokenTest, APolicyThatNoLongerNamesTheAccountEndsItsSessions) {
  StartWithKeys();
  RawClient red(Path("shared")), blue(Path("shared"));
  ASSERT_TRUE(AttachBy(red, Token("red", "chat-0")).has_attached());
  ASSERT_TRUE(AttachBy(blue, Token("blue", "code-0")).has_attached());
  rules_[0].service_accounts.clear();
  engine_->ApplyPolicy(Table());
  server_->OnPolicyChanged();
  Spin();
  EXPECT_EQ(server_->stats().attached, 1u);
  ExpectRefused(Token("red", "chat-0"), DenialReason::kUnknownServiceAccount);
}

TEST_F(AttachTokenTest, PodsCountAgainstTheirTenantFromTheirAttachOn) {
  rules_[0].max_sessions = 2;
  StartWithKeys();
  RawClient first(Path("shared")), second(Path("shared")), third(Path("shared"));
  ASSERT_TRUE(AttachBy(first, Token("red", "chat-0")).has_attached());
  ASSERT_TRUE(AttachBy(second, Token("red", "chat-1")).has_attached());
  EXPECT_EQ(AttachBy(third, Token("red", "chat-2")).error().refusal(), "tenant_limit");
  first.Close();
  Spin();
  RawClient fourth(Path("shared"));
  EXPECT_TRUE(AttachBy(fourth, Token("red", "chat-2")).has_attached());
}

TEST_F(AttachTokenTest, SilentConnectionsKeepNobodyOut) {
  StartWithKeys();
  std::vector<std::unique_ptr<RawClient>> silent;
  for (size_t i = 0; i < kUnidentifiedMax + 200; ++i) {
    silent.push_back(std::make_unique<RawClient>(Path("shared")));
    ASSERT_TRUE(silent.back()->connected());
    if (i % 64 == 0) Spin();
  }
  Spin();
  RawClient client(Path("shared"));
  EXPECT_TRUE(AttachBy(client, Token("red", "chat-0")).has_attached());
  EXPECT_LE(server_->stats().sessions, kUnidentifiedMax + 1);
  EXPECT_GE(Cuts(CutReason::kSilent), 200u);
}

TEST_F(AttachTokenTest, ATenantThatTakesAllItMayLeavesPodsWithTokensTheirs) {
  TakeAllFiles();
  rules_[0].max_sessions = kSessionsMax;
  rules_[1].max_sessions = 2;
  rules_.resize(2);
  StartWithKeys();
  std::vector<RawClient> greedy;
  while (Denials(DenialReason::kNodeSessions) == 0 && greedy.size() < kSessionsMax) {
    for (int i = 0; i < 50; ++i) greedy.emplace_back(Path("red"));
    Spin();
  }
  EXPECT_EQ(server_->stats().sessions, kSessionsMax - 2) << "what the other may never have is not kept for it";
  // Who says nothing takes what is left, and keeps nobody out.
  RawClient silent(Path("shared")), another(Path("shared")), third(Path("shared"));
  Spin();
  EXPECT_EQ(server_->stats().sessions, kSessionsMax);
  EXPECT_EQ(Cuts(CutReason::kSilent), 1u);
  RawClient blue(Path("shared"));
  EXPECT_EQ(AttachBy(blue, Token("blue", "code-0")).attached().tenant(), "team/blue");
  RawClient red(Path("shared"));
  EXPECT_EQ(AttachBy(red, Token("red", "chat-0")).error().refusal(), "queue_full");
  RawClient too(Path("shared"));
  EXPECT_EQ(AttachBy(too, Token("blue", "code-1")).attached().tenant(), "team/blue");
}

TEST_F(AttachTokenTest, ASecondAttachBringsNoOtherIdentity) {
  StartWithKeys();
  RawClient client(Path("shared"));
  ClientFrame newer = AttachFrame(Token("red", "chat-0"));
  newer.mutable_attach()->set_version(99);
  EXPECT_EQ(AskForError(client, newer).code(), v1::Error::UNSUPPORTED) << "identified, and not attached";
  EXPECT_EQ(AskForError(client, AttachFrame(Token("blue", "code-0"))).code(), v1::Error::DENIED);
  EXPECT_EQ(AttachBy(client, Token("red", "chat-0", 2 * kTenMinutesMs)).attached().tenant(), "team/red");
  AdvanceMs(kTenMinutesMs + 1000);
  EXPECT_EQ(Cuts(CutReason::kExpired), 0u) << "the newer of its tokens counts";
  AdvanceMs(kTenMinutesMs);
  EXPECT_EQ(Cuts(CutReason::kExpired), 1u);
}

TEST_F(AttachTokenTest, WhereTokensAreNotLookedAtTheyAreIgnored) {
  options_.tokens.reset();
  options_.attest_uid = true;
  Start();
  server_->SetTokenKeys(kTestIssuer, *token::KeySet::Parse(issuer_->Jwks()));
  RawClient red(Path("red")), shared(Path("shared"));
  const ServerFrame answer = AttachBy(red, "garbage");
  EXPECT_EQ(answer.attached().tenant(), "team/red");
  EXPECT_EQ(answer.attached().identity_ms(), 0u);
  EXPECT_TRUE(RenewBy(red, "garbage").has_renewed());
  EXPECT_EQ(AttachBy(shared, Token("red", "chat-0")).error().code(), v1::Error::DENIED);
  EXPECT_EQ(Denials(DenialReason::kUnknownUid), 1u);
}

}  // namespace
}  // namespace kvartal::attach
