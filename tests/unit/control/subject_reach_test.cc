#include "daemon/control/subject_reach.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvartal::control {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

policy::TenantRules Rules(std::vector<uint32_t> uids, std::vector<std::string> sockets,
                          std::vector<std::string> accounts) {
  policy::TenantRules rules;
  rules.name = rules.uid = "a/b";
  rules.uids = std::move(uids);
  rules.sockets = std::move(sockets);
  rules.service_accounts = std::move(accounts);
  return rules;
}

std::vector<std::string> Told(policy::TenantRules rules, const NodeIdentities& known) {
  return SubjectsOfNobody(*policy::PolicyTable::FromRules({std::move(rules)}, {}), known);
}

TEST(SubjectsOfNobody, IsQuietAboutWhoMayCome) {
  EXPECT_THAT(Told(Rules({1}, {"red"}, {"a/vllm"}), {true, true, {"blue", "red"}}), IsEmpty());
  EXPECT_THAT(Told(Rules({}, {}, {}), {true, false, {}}), IsEmpty()) << "it names nobody, and says so";
}

TEST(SubjectsOfNobody, TellsADoorThatIsNotThereAndAccountsWithoutTokens) {
  EXPECT_THAT(Told(Rules({}, {"red", "blue"}, {"a/vllm"}), {true, false, {"blue"}}),
              ElementsAre(AllOf(HasSubstr("a/b: spec.subjects: no door of this node has the name 'red'"),
                                HasSubstr("no `kubernetes`"), HasSubstr("its other subjects may attach"))));
}

TEST(SubjectsOfNobody, SaysWhenNobodyIsLeft) {
  EXPECT_THAT(Told(Rules({7, 8}, {"red"}, {}), {false, true, {}}),
              ElementsAre(AllOf(HasSubstr("attestUid is false"), HasSubstr("nobody may attach here"))));
}

}  // namespace
}  // namespace kvartal::control
