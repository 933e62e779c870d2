// What is kept of the objects of a cluster, over a transport by script.
#include "operator/process/cluster_watch.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tests/unit/kube/kube_loop.h"

namespace kvartal::process {
namespace {

using nlohmann::json;

class ClusterWatchTest : public testing::KubeLoop {
 protected:
  // Answers the list of this kind.
  void List(const std::string& plural, const json& item) {
    for (size_t i = 0; i < transport_.requests.size(); ++i) {
      if (!absl::StrContains(transport_.requests[i].target, "/" + plural + "?")) continue;
      transport_.Head(i + 1, 200);
      transport_.Bytes(i + 1, json{{"metadata", {{"resourceVersion", "9"}}}, {"items", json::array({item})}}.dump());
      transport_.End(i + 1, absl::OkStatus());
    }
    RunDue();
  }

  ClusterWatch watch_{&client(),
                      loop_.get(),
                      &clock_,
                      1,
                      {.on_matter = [this] { ++matters_; },
                       .on_policy = [](const kube::ObjectKey&) {},
                       .on_pool = [](const kube::ObjectKey&) {}}};
  int matters_ = 0;
};

// A node of a real cluster is fifteen kilobytes, most of it the images it has.
TEST_F(ClusterWatchTest, OfANodeAndOfANamespaceOnlyWhatIsDecidedByIsKept) {
  watch_.Start();
  RunDue();
  const json small = {{"name", "n"}, {"uid", "u"}, {"resourceVersion", "5"}, {"labels", {{"pool", "p"}, {"x/y", ""}}}};
  json large = {{"metadata", small}, {"spec", {{"podCIDR", "10.0.0.0/24"}}}, {"status", {{"images", {1, 2, 3}}}}};
  large["metadata"]["annotations"] = {{"note", "long"}};
  List("nodes", large);
  List("namespaces", large);
  for (const kube::ObjectStore* store : {watch_.stores().nodes, watch_.stores().namespaces}) {
    ASSERT_EQ(store->objects().size(), 1u);
    EXPECT_EQ(*store->objects().begin()->second, (json{{"metadata", small}}));
  }
  EXPECT_EQ(reconcile::ReadNode(*watch_.stores().nodes->objects().begin()->second).labels.at("pool"), "p");
  EXPECT_EQ(matters_, 2);
  // Of a policy everything is.
  List("tenantkvpolicies", large);
  EXPECT_TRUE(watch_.policies().objects().begin()->second->contains("status"));
}

}  // namespace
}  // namespace kvartal::process
