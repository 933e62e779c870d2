#include "daemon/attach/peer_identity.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

namespace kvartal::attach {
namespace {

std::shared_ptr<const policy::PolicyTable> Policy() {
  policy::TenantRules red;
  red.name = "team/red";
  red.uids = {1001, 1002};
  red.sockets = {"red"};
  policy::TenantRules blue;
  blue.name = "team/blue";
  blue.uids = {2001};
  policy::TenantRules green;
  green.name = "team/green";
  green.sockets = {"green"};
  green.service_accounts = {"team/vllm", "team/sglang"};
  return policy::PolicyTable::FromRules({red, blue, green}, {});
}

Attestation By(uint32_t uid, const std::string& door, bool attest_uid = true) {
  return Attest(*Policy(), {{.uid = uid, .gid = 0, .pid = 1}, door, std::nullopt}, {attest_uid, false});
}

Attestation ByToken(const std::string& ns, const std::string& account, uint32_t uid = 9, const std::string& door = "") {
  token::PodClaims pod;
  pod.ns = ns;
  pod.service_account = account;
  pod.pod_name = "chat-0";
  return Attest(*Policy(), {{.uid = uid, .gid = 0, .pid = 1}, door, pod}, {true, true});
}

TEST(PeerIdentityTest, TheSharedDoorVouchesByUid) {
  EXPECT_EQ(By(1002, "").tenant, "team/red");
  EXPECT_EQ(By(1002, "").attestor, "uid");
  EXPECT_EQ(By(2001, "").tenant, "team/blue");
  const Attestation unknown = By(9, "");
  EXPECT_EQ(unknown.tenant, "");
  EXPECT_EQ(unknown.denial, DenialReason::kUnknownUid);
  EXPECT_NE(unknown.why.find("uid 9"), std::string::npos) << unknown.why;
}

TEST(PeerIdentityTest, RootIsNobodyUnlessAPolicyNamesIt) { EXPECT_EQ(By(0, "").denial, DenialReason::kUnknownUid); }

TEST(PeerIdentityTest, ADoorVouchesByItself) {
  EXPECT_EQ(By(9, "green").tenant, "team/green") << "a uid nobody claims does not speak against the door";
  EXPECT_EQ(By(9, "green").attestor, "socket");
  EXPECT_EQ(By(9, "red").tenant, "team/red") << "the subjects of a policy are alternatives";
  EXPECT_EQ(By(1001, "red").tenant, "team/red");
  EXPECT_EQ(By(9, "violet").denial, DenialReason::kUnknownDoor);
}

TEST(PeerIdentityTest, AttestorsThatDisagreeVouchForNobody) {
  EXPECT_EQ(By(2001, "red").denial, DenialReason::kDisagreement);
  EXPECT_EQ(By(2001, "red").tenant, "");
  EXPECT_EQ(By(2001, "red", false).tenant, "team/red") << "the uid attestor is off and says nothing";
}

TEST(PeerIdentityTest, TheSharedDoorNeedsTheUidAttestor) {
  EXPECT_EQ(By(1001, "", false).denial, DenialReason::kNoAttestor);
}

TEST(PeerIdentityTest, AVerifiedTokenVouchesForTheServiceAccountOfItsNamespace) {
  EXPECT_EQ(ByToken("team", "vllm").tenant, "team/green");
  EXPECT_EQ(ByToken("team", "vllm").attestor, "k8s-token");
  EXPECT_EQ(ByToken("other", "vllm").denial, DenialReason::kUnknownServiceAccount) << "another namespace's vllm";
  EXPECT_EQ(ByToken("team", "default").denial, DenialReason::kUnknownServiceAccount);
  EXPECT_EQ(ByToken("team/vllm", "").denial, DenialReason::kUnknownServiceAccount);
}

TEST(PeerIdentityTest, ATokenAgreesWithWhateverElseVouchesOrNobodyDoes) {
  EXPECT_EQ(ByToken("team", "vllm", 9, "green").tenant, "team/green");
  EXPECT_EQ(ByToken("team", "vllm", 9, "red").denial, DenialReason::kDisagreement);
  EXPECT_EQ(ByToken("team", "vllm", 2001).denial, DenialReason::kDisagreement) << "uid 2001 is team/blue's";
  const Attestation unknown = ByToken("team", "nobody", 9, "green");
  EXPECT_EQ(unknown.denial, DenialReason::kUnknownServiceAccount) << "a token that vouches for nobody is no help";
}

TEST(PeerIdentityTest, WhereTokensAreLookedAtAPeerWithoutOneIsToldSo) {
  const Attestation none = Attest(*Policy(), {{.uid = 9, .gid = 0, .pid = 1}, "", std::nullopt}, {false, true});
  EXPECT_EQ(none.denial, DenialReason::kNoToken);
  EXPECT_NE(none.why.find("KVARTAL_TOKEN_FILE"), std::string::npos) << none.why;
  const Evidence by_uid = {{.uid = 1001, .gid = 0, .pid = 1}, "", std::nullopt};
  EXPECT_EQ(Attest(*Policy(), by_uid, {true, true}).tenant, "team/red") << "attestors are alternatives";
}

TEST(PeerIdentityTest, TheKernelTellsWhoConnected) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd ours(pair[0]), theirs(pair[1]);
  const auto peer = ReadPeerCredentials(ours.get());
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->uid, ::getuid());
  EXPECT_EQ(peer->pid, static_cast<uint32_t>(::getpid()));
  EXPECT_FALSE(ReadPeerCredentials(-1).ok());
}

TEST(PeerIdentityTest, APidfdOfALivingPeerIsQuiet) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd ours(pair[0]), theirs(pair[1]);
  const UniqueFd pidfd = OpenPeerPidfd(ours.get());
  if (!pidfd.valid()) GTEST_SKIP() << "this kernel has no SO_PEERPIDFD";
  pollfd watch{pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&watch, 1, 0), 0);
}

}  // namespace
}  // namespace kvartal::attach
