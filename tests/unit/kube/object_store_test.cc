#include "operator/kube/object_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvartal::kube {
namespace {

using Kind = WatchEvent::Kind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

nlohmann::json Object(const std::string& name, const std::string& version, const std::string& uid = "") {
  return {{"metadata",
           {{"namespace", "n"}, {"name", name}, {"resourceVersion", version}, {"uid", uid.empty() ? name : uid}}}};
}

class ObjectStoreTest : public ::testing::Test {
 protected:
  // "+n/a@1" or "-n/a@1".
  std::vector<std::string> Apply(Kind kind, nlohmann::json object = nullptr) {
    std::vector<std::string> words;
    for (const ObjectChange& change : store_.Apply({kind, std::move(object)})) {
      words.push_back((change.deleted ? "-" : "+") + change.key.ToString() + "@" +
                      (*change.object)["metadata"]["resourceVersion"].get<std::string>());
    }
    return words;
  }
  std::vector<std::string> List(std::vector<nlohmann::json> objects) {
    EXPECT_THAT(Apply(Kind::kInit), IsEmpty());
    for (nlohmann::json& object : objects) EXPECT_THAT(Apply(Kind::kInitApply, std::move(object)), IsEmpty());
    return Apply(Kind::kInitDone);
  }

  ObjectStore store_;
};

TEST_F(ObjectStoreTest, AListIsToldWhenItIsComplete) {
  EXPECT_FALSE(store_.synced());
  EXPECT_THAT(List({Object("b", "2"), Object("a", "1")}), ElementsAre("+n/a@1", "+n/b@2"));
  EXPECT_TRUE(store_.synced());
}

// What was deleted while no watch ran is never told by the server.
TEST_F(ObjectStoreTest, WhatANewListDoesNotNameWasDeleted) {
  List({Object("a", "1"), Object("b", "2"), Object("c", "3")});
  EXPECT_THAT(List({Object("b", "2"), Object("c", "9"), Object("d", "5")}), ElementsAre("-n/a@1", "+n/c@9", "+n/d@5"));
  EXPECT_EQ(store_.Find({"n", "a"}), nullptr);
  EXPECT_NE(store_.Find({"n", "b"}), nullptr);
}

TEST_F(ObjectStoreTest, UntilAListIsCompleteTheOldStateStands) {
  List({Object("a", "1")});
  Apply(Kind::kInit);
  Apply(Kind::kInitApply, Object("b", "2"));
  EXPECT_NE(store_.Find({"n", "a"}), nullptr);
  EXPECT_EQ(store_.Find({"n", "b"}), nullptr);
  // A list that was begun anew counts from its beginning.
  EXPECT_THAT(List({Object("c", "3")}), ElementsAre("-n/a@1", "+n/c@3"));
}

TEST_F(ObjectStoreTest, AnObjectMadeAgainUnderItsNameIsAnotherOne) {
  List({Object("a", "1", "u1")});
  EXPECT_THAT(Apply(Kind::kApply, Object("a", "5", "u2")), ElementsAre("-n/a@1", "+n/a@5"));
  EXPECT_THAT(List({Object("a", "9", "u3")}), ElementsAre("-n/a@5", "+n/a@9"));
}

TEST_F(ObjectStoreTest, DeletesAreToldOnceWithTheLastState) {
  List({Object("a", "1")});
  EXPECT_THAT(Apply(Kind::kDelete, Object("a", "4")), ElementsAre("-n/a@4"));
  EXPECT_THAT(Apply(Kind::kDelete, Object("a", "4")), IsEmpty());
}

TEST_F(ObjectStoreTest, WhoSetWhichFieldIsNotKept) {
  nlohmann::json object = Object("a", "1");
  object["metadata"]["managedFields"] = {1, 2, 3};
  List({object});
  EXPECT_FALSE((*store_.Find({"n", "a"}))["metadata"].contains("managedFields"));
}

TEST_F(ObjectStoreTest, WhatHasNoNameIsNoObject) {
  for (const char* text : {"null", "7", "{}", "{\"metadata\":[]}", "{\"metadata\":{\"name\":5}}"})
    EXPECT_THAT(Apply(Kind::kApply, nlohmann::json::parse(text)), IsEmpty()) << text;
}

}  // namespace
}  // namespace kvartal::kube
