// Objects of an API server as one state, and what of them is read again.
#include "operator/reconcile/cluster_reader.h"

#include <gtest/gtest.h>

namespace kvartal::reconcile {
namespace {

using nlohmann::json;

class ClusterReaderTest : public ::testing::Test {
 protected:
  // The only policy of the cluster, as it is now.
  void Show(const std::string& uid, int generation, int weight, bool paused = false) {
    json object = {{"apiVersion", "kvartal.dev/v1alpha1"},
                   {"kind", "TenantKVPolicy"},
                   {"metadata", {{"name", "a"}, {"namespace", "red"}, {"uid", uid}, {"generation", generation}}},
                   {"spec", {{"subjects", json::array()}, {"weight", weight}}}};
    if (paused) object["metadata"]["annotations"][kPausedAnnotation] = "true";
    policies_.Apply({kube::WatchEvent::Kind::kApply, std::move(object)});
  }
  PolicyObject Read() {
    std::vector<std::string> unreadable;
    return reader_.Read({&policies_, &none_, &none_, &none_}, accepted_, &unreadable).policies.at(0);
  }
  static constexpr const char* kUid = "0b5e2a7e-1c1d-4d0e-9f39-7d2b7c1e6f10";
  static constexpr const char* kOtherUid = "0b5e2a7e-1c1d-4d0e-9f39-7d2b7c1e6f11";

  kube::ObjectStore policies_, none_;
  std::map<kube::ObjectKey, SharedPolicy> accepted_;
  ClusterReader reader_;
};

TEST_F(ClusterReaderTest, EachGenerationOfEachObjectIsReadOnce) {
  Show(kUid, 1, 100);
  EXPECT_EQ(Read().wanted->weight, 100);
  Show(kUid, 1, 200);  // no server does that: it shows that nothing was read
  EXPECT_EQ(Read().wanted->weight, 100);
  Show(kUid, 2, 200);
  EXPECT_EQ(Read().wanted->weight, 200);
  Show(kOtherUid, 2, 300);
  EXPECT_EQ(Read().wanted->weight, 300);
  EXPECT_EQ(Read().uid, kOtherUid);
}

TEST_F(ClusterReaderTest, PausingIsSeenWithoutANewGeneration) {
  Show(kUid, 1, 100);
  accepted_[{"red", "a"}] = *Read().wanted;
  Show(kUid, 2, 200, true);
  EXPECT_EQ(Read().wanted->weight, 100);
  Show(kUid, 2, 200);
  EXPECT_EQ(Read().wanted->weight, 200);
}

// A policy that is deleted and made again, paused from the start, is nobody's heir either.
TEST_F(ClusterReaderTest, OfAPausedPolicyOnlyWhatWasAcceptedOfThisVeryObjectCounts) {
  Show(kUid, 1, 100);
  accepted_[{"red", "a"}] = *Read().wanted;
  Show(kOtherUid, 1, 100, true);
  EXPECT_FALSE(Read().wanted.has_value());
  EXPECT_FALSE(Read().accepted.has_value());
}

}  // namespace
}  // namespace kvartal::reconcile
