#include "operator/kube/cluster_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "operator/kube/token_source.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::kube {
namespace {

using ::testing::HasSubstr;

class ClusterAccessTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_.File(name), std::ios::trunc) << text;
    return dir_.File(name);
  }
  static std::string Config(const std::string& cluster, const std::string& user) {
    return "apiVersion: v1\nkind: Config\ncurrent-context: here\n"
           "contexts:\n- name: there\n  context: {cluster: x, user: x}\n"
           "- name: here\n  context: {cluster: c, user: u, namespace: ours}\n"
           "clusters:\n- name: x\n  cluster: {server: https://wrong}\n- name: c\n  cluster: {" +
           cluster + "}\nusers:\n- name: x\n  user: {token: wrong}\n- name: u\n  user: {" + user + "}\n";
  }
  absl::StatusOr<ClusterAccess> Read(const std::string& cluster, const std::string& user) {
    return ReadKubeconfig(Write("config", Config(cluster, user)));
  }
  std::string Refusal(const std::string& cluster, const std::string& user) {
    return std::string(Read(cluster, user).status().message());
  }

  testing::ScratchDir dir_;
};

TEST_F(ClusterAccessTest, TheCurrentContextOfAKubeconfigIsUsed) {
  const auto access = Read("server: \"https://10.0.0.1:6443/\", certificate-authority: pki/ca.crt", "token: secret");
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_EQ(access->server, "https://10.0.0.1:6443");
  EXPECT_EQ(access->ns, "ours");
  EXPECT_EQ(access->authorities.path, dir_.File("pki/ca.crt"));  // beside the file that names it
  EXPECT_EQ(access->token.text, "secret");
  EXPECT_FALSE(access->certificate.given());
}

TEST_F(ClusterAccessTest, DataInPlaceIsPreferredAsKubectlDoes) {
  const auto access = Read("server: https://a, certificate-authority: no, certificate-authority-data: Y2E=",
                           "client-certificate-data: Y2VydA==, client-key-data: a2V5");
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_EQ(access->authorities.Read().value(), "ca");
  EXPECT_EQ(access->certificate.Read().value(), "cert");
  EXPECT_EQ(access->key.Read().value(), "key");
}

TEST_F(ClusterAccessTest, WhatIsNotSupportedIsNamedAndNotIgnored) {
  EXPECT_THAT(Refusal("server: https://a, insecure-skip-tls-verify: true", "token: a"),
              HasSubstr("insecure-skip-tls-verify"));
  EXPECT_THAT(Refusal("server: https://a", "exec: {command: aws}"), HasSubstr("exec"));
  EXPECT_THAT(Refusal("server: http://a", "token: a"), HasSubstr("https://"));
  EXPECT_THAT(Refusal("server: https://a", "client-key-data: a2V5"), HasSubstr("given together"));
  EXPECT_THAT(Refusal("server: https://a, certificate-authority-data: '*'", "token: a"), HasSubstr("not base64"));
}

TEST_F(ClusterAccessTest, WhatDoesNotFitTogetherIsSaid) {
  for (const char* text :
       {"", "{}", "current-context: a", "[]", "current-context: a\ncontexts: [{name: a, context: {}}]"})
    EXPECT_FALSE(ReadKubeconfig(Write("config", text)).ok()) << text;
  EXPECT_EQ(ReadKubeconfig(dir_.File("none")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ClusterAccessTest, APodFindsItsServerItsTokenAndItsNamespace) {
  Write("ca.crt", "ca");
  Write("token", "t\n");
  Write("namespace", "kvartal-system\n");
  const auto access = InClusterAccess("fd00::1", "443", dir_.path());
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_EQ(access->server, "https://[fd00::1]:443");
  EXPECT_EQ(access->ns, "kvartal-system");
  EXPECT_EQ(InClusterAccess("10.0.0.1", "6443", dir_.path())->server, "https://10.0.0.1:6443");
  EXPECT_EQ(InClusterAccess("", "", dir_.path()).status().code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(dir_.File("token"));
  EXPECT_FALSE(InClusterAccess("10.0.0.1", "443", dir_.path()).ok());
}

// A client that reads its token once is locked out after an hour (kubernetes-client/c).
TEST_F(ClusterAccessTest, ATokenFileIsReadAgainBeforeItsPeriodEnds) {
  TokenSource tokens({Write("token", "one\n"), ""});
  EXPECT_EQ(tokens.Token(0), "one");
  Write("token", "two\n");
  EXPECT_EQ(tokens.Token(49'999), "one");
  EXPECT_EQ(tokens.Token(50'000), "two");
}

TEST_F(ClusterAccessTest, ATokenIsKeptWhileItsFileCannotBeRead) {
  TokenSource tokens({Write("token", "one"), ""});
  EXPECT_EQ(tokens.Token(0), "one");
  std::filesystem::remove(dir_.File("token"));
  EXPECT_EQ(tokens.Token(60'000), "one");
  Write("token", "");  // being replaced
  EXPECT_EQ(tokens.Token(120'000), "one");
  EXPECT_FALSE(tokens.Refresh(120'001));
  Write("token", "two");
  EXPECT_TRUE(tokens.Refresh(120'002));
  EXPECT_EQ(tokens.Token(120'003), "two");
  EXPECT_FALSE(tokens.Refresh(120'004));  // nothing newer
}

}  // namespace
}  // namespace kvartal::kube
