// The token of a deleted pod counts no more: a real API server that deletes it, a real operator that is told and tells,
// real daemons. No pod runs; this process is the client of each.
#include <map>

#include "absl/strings/match.h"
#include "tests/kube/pod_fixture.h"

namespace kvartal::testing {
namespace {

using client::Client;
using ::testing::HasSubstr;

class DeletedPodTest : public PodFixture {
 protected:
  size_t Sessions() const {
    const nlohmann::json told =
        nlohmann::json::parse(daemons_[0]->Ctl({"sessions", "--output", "json"}).out, nullptr, false);
    return told.is_object() && told.contains("sessions") ? told["sessions"].size() : 0;
  }
  std::string Record() const { return ReadFile(daemons_[0]->folder() + "/audit.jsonl"); }
  double PodsKnown() const { return operators_[0]->Metric("kvartal_operator_pods"); }
};

TEST_F(DeletedPodTest, ItsSessionEndsItsTokenIsRefusedAndNobodyElsesIs) {
  const std::string goes = MakePod("chat-0"), stays = MakePod("chat-1");
  ASSERT_TRUE(session_->Wait([&] { return AttachBy(goes) == KV_OK; })) << "the keys came";
  Client of_goes, of_stays;
  ASSERT_EQ(AttachBy(goes, &of_goes), KV_OK) << of_goes.error();
  ASSERT_EQ(AttachBy(stays, &of_stays), KV_OK) << of_stays.error();
  // A pod that ends before a node was told of it was never there for it.
  ASSERT_TRUE(session_->Wait([&] { return PodsKnown() == 2; })) << operators_[0]->log();
  Pass(2'000);
  DeletePod("red", "chat-0");
  ASSERT_TRUE(session_->Wait([&] { return AttachBy(goes) == KV_DENIED; })) << daemons_[0]->log();
  EXPECT_EQ(AttachBy(stays), KV_OK);
  EXPECT_TRUE(session_->Wait([&] { return Sessions() == 1; }));
  ASSERT_TRUE(session_->Wait([&] { return absl::StrContains(Record(), "\"end\""); })) << Record();
  EXPECT_THAT(Record(), HasSubstr("pod_gone"));
  EXPECT_THAT(daemons_[0]->log(), HasSubstr("cut off (pod_gone)"));

  // Who is not there to tell keeps nobody out, and what he missed he tells when he is back.
  operators_[0]->Kill();
  const std::string young = MakePod("chat-2");
  DeletePod("red", "chat-1");
  Client of_young;
  EXPECT_EQ(AttachBy(young, &of_young), KV_OK) << of_young.error();
  EXPECT_EQ(AttachBy(stays), KV_OK) << "nobody has told yet";
  // And what was told is still known after a restart, by itself.
  daemons_[0]->Kill();
  ASSERT_TRUE(daemons_[0]->Start().ok()) << daemons_[0]->log();
  EXPECT_EQ(AttachBy(goes), KV_DENIED);
  EXPECT_EQ(AttachBy(young), KV_OK);
  operators_[0]->Start();
  ASSERT_TRUE(operators_[0]->WaitUntilItLeads()) << operators_[0]->log();
  EXPECT_TRUE(session_->Wait([&] { return AttachBy(stays) == KV_DENIED; })) << daemons_[0]->log();
  EXPECT_EQ(AttachBy(young), KV_OK);
}

// The chart of a version before.
TEST_F(DeletedPodTest, AnOperatorThatMayNotListPodsGoesOnWithoutAndSaysSoOnce) {
  operators_[0]->Kill();
  const std::string role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kvartal-operator";
  nlohmann::json rights = session_->Call("GET", role).body;
  const size_t rules = rights["rules"].size();
  for (size_t i = rules; i-- > 0;) {
    if (rights["rules"][i].dump().find("\"pods\"") != std::string::npos) rights["rules"].erase(i);
  }
  ASSERT_EQ(rights["rules"].size(), rules - 1);
  Write("PUT", role, rights.dump(), kube::kJson);
  operators_[0]->Start();
  ASSERT_TRUE(operators_[0]->WaitUntilItLeads()) << operators_[0]->log();
  const std::string token = MakePod("chat-0");
  ASSERT_TRUE(session_->Wait([&] { return AttachBy(token) == KV_OK; })) << daemons_[0]->log();
  Apply("b", "limit: 8Mi", "other");
  EXPECT_TRUE(Becomes("b", "Ready", "True/Ready")) << Get("b").dump(1);
  // dynamo 14732: a finalizer that waited for a cache which was never filled. Ours waits for nodes alone.
  Write("DELETE", kube::PathOf(kPolicyType, kube::ObjectKey{"red", "b"}), "");
  EXPECT_TRUE(IsGone("b")) << Get("b").dump(1);
  DeletePod("red", "chat-0");
  Pass(5'000);
  EXPECT_EQ(AttachBy(token), KV_OK) << "as if nobody had ever told of pods";
  const std::string log = operators_[0]->log(), said = "pods may not be listed";
  EXPECT_NE(log.find(said), std::string::npos) << log;
  EXPECT_EQ(log.find(said), log.rfind(said));
}

}  // namespace
}  // namespace kvartal::testing
