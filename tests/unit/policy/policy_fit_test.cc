// Tenant by tenant: one policy that cannot be kept costs nobody else anything.
#include "daemon/policy/policy_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"

namespace kvartal::policy {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr NodeCapacity kNode = {{0, 100, 0}};

TenantRules Rules(const std::string& name, uint64_t guarantee, const std::vector<std::string>& accounts = {}) {
  TenantRules rules;
  rules.name = name;
  rules.uid = "uid-" + name;
  rules.tier(TierKind::kDram) = {guarantee, 100};
  rules.service_accounts = accounts;
  return rules;
}

uint64_t Guaranteed(const TenantFit& fit) { return fit.rules ? fit.rules->tier(TierKind::kDram).guarantee_bytes : 0; }

TEST(PolicyFitTest, WhatHoldsTogetherIsTakenAlsoWhereTenantsExchange) {
  const auto fits = FitTenants({{Rules("a", 40, {"x"}), Rules("a", 60, {"y"})},
                                {Rules("b", 60, {"y"}), Rules("b", 40, {"x"})},
                                {Rules("c", 0), std::nullopt}},
                               kNode);
  for (const TenantFit& fit : fits) EXPECT_EQ(fit.refusal, "");
  EXPECT_EQ(Guaranteed(fits[0]), 40u);
  EXPECT_EQ(Guaranteed(fits[1]), 60u);
  EXPECT_TRUE(fits[2].rules.has_value());
}

TEST(PolicyFitTest, WhatCannotBeKeptByItselfStaysAsItWasOrIsLeftOutAndOthersChange) {
  const auto fits =
      FitTenants({{std::nullopt, Rules("a", 50)}, {std::nullopt, std::nullopt}, {Rules("c", 50), {}}}, kNode);
  EXPECT_EQ(Guaranteed(fits[0]), 50u);
  EXPECT_FALSE(fits[1].rules.has_value());
  EXPECT_EQ(Guaranteed(fits[2]), 50u);
}

TEST(PolicyFitTest, NobodysGuaranteeIsTakenByTheChangeOfAnother) {
  const auto fits = FitTenants({{Rules("a", 50), Rules("a", 10)},  // asks for 40 more
                                {Rules("b", 60), Rules("b", 60)},
                                {Rules("new", 20), std::nullopt}},
                               kNode);
  EXPECT_EQ(Guaranteed(fits[0]), 10u);
  EXPECT_THAT(fits[0].refusal, HasSubstr("dram guarantee 50 bytes does not fit beside"));
  EXPECT_THAT(fits[0].refusal, Not(HasSubstr("uid-b")));
  EXPECT_EQ(Guaranteed(fits[1]), 60u);
  EXPECT_EQ(Guaranteed(fits[2]), 20u) << "fits, when the larger wish is refused";
}

TEST(PolicyFitTest, ASubjectIsItsPresentOwnersUntilThatOneGivesItUp) {
  auto fits = FitTenants(
      {{Rules("a", 0, {"x", "y"}), Rules("a", 0, {"y"})}, {Rules("b", 0, {"x"}), Rules("b", 0, {"x"})}}, kNode);
  EXPECT_THAT(fits[0].refusal, HasSubstr("service account 'x' has another owner on this node"));
  EXPECT_EQ(fits[0].rules->service_accounts, std::vector<std::string>{"y"});
  // Who is refused for one thing holds up nobody with the other.
  fits = FitTenants({{Rules("a", 0, {"free", "x"}), std::nullopt},
                     {Rules("b", 0, {"x"}), Rules("b", 0, {"x"})},
                     {Rules("c", 0, {"free"}), std::nullopt}},
                    kNode);
  EXPECT_NE(fits[0].refusal, "");
  EXPECT_EQ(fits[2].refusal, "");
}

TEST(PolicyFitTest, WhoMayNotGiveUpWhatAnotherTakesKeepsIt) {
  // a exchanges x for more than there is: it keeps x, so b cannot have it.
  const auto fits = FitTenants({{Rules("a", 101), Rules("a", 10, {"x"})}, {Rules("b", 0, {"x"}), std::nullopt}}, kNode);
  EXPECT_EQ(fits[0].rules->service_accounts, std::vector<std::string>{"x"});
  EXPECT_FALSE(fits[1].rules.has_value());
}

TEST(PolicyFitTest, ASubjectNamedTwiceIsItsTenantsFaultAlone) {
  const auto fits =
      FitTenants({{Rules("a", 0, {"x", "x"}), Rules("a", 0, {"x"})}, {Rules("b", 0, {"y", "y"}), {}}}, kNode);
  for (const TenantFit& fit : fits) EXPECT_THAT(fit.refusal, HasSubstr("is named twice"));
  EXPECT_TRUE(fits[0].rules.has_value());
  EXPECT_FALSE(fits[1].rules.has_value());
}

TEST(PolicyFitTest, BeyondTheMostTenantsWhoIsNewIsLeftOut) {
  std::vector<TenantChange> changes;
  changes.push_back({Rules("new", 0), std::nullopt});
  for (size_t i = 0; i < kTenantsMax; ++i) {
    const TenantRules rules = Rules(absl::StrCat("t", i), 0);
    changes.push_back({rules, rules});
  }
  const auto fits = FitTenants(changes, kNode);
  EXPECT_THAT(fits[0].refusal, HasSubstr("at most"));
  for (size_t i = 1; i < fits.size(); ++i) ASSERT_TRUE(fits[i].rules.has_value());
}

// Whatever is asked: it holds together, nobody who asks for no more loses anything, and who was refused is told.
TEST(PolicyFitTest, WhateverIsWantedItHoldsTogetherAndTakesFromNobody) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    std::vector<TenantChange> changes(8);
    uint64_t left = 100;
    std::vector<std::string> free = {"s0", "s1", "s2", "s3", "s4", "s5"};
    for (size_t i = 0; i < changes.size(); ++i) {
      const std::string name = absl::StrCat("t", i);
      if (random() % 3 != 0) {
        const uint64_t guarantee = random() % (left / 2 + 1);
        left -= guarantee;
        std::vector<std::string> accounts;
        if (!free.empty() && random() % 2 == 0) {
          accounts.push_back(free.back());
          free.pop_back();
        }
        changes[i].in_force = Rules(name, guarantee, accounts);
      }
      if (random() % 4 == 0) continue;
      changes[i].wanted = random() % 3 == 0 && changes[i].in_force
                              ? *changes[i].in_force
                              : Rules(name, random() % 60, {absl::StrCat("s", random() % 6)});
    }
    const auto fits = FitTenants(changes, kNode);
    uint64_t sum = 0;
    std::set<std::string> owned;
    for (size_t i = 0; i < fits.size(); ++i) {
      const uint64_t now = Guaranteed(fits[i]),
                     before = changes[i].in_force ? Guaranteed({changes[i].in_force, ""}) : 0;
      sum += now;
      if (fits[i].rules) {
        for (const std::string& account : fits[i].rules->service_accounts)
          EXPECT_TRUE(owned.insert(account).second) << "seed " << seed;
      }
      const bool as_wanted = changes[i].wanted && fits[i].refusal.empty();
      if (!as_wanted) {
        EXPECT_EQ(now, before) << "seed " << seed;
        EXPECT_EQ(fits[i].rules.has_value(), changes[i].in_force.has_value()) << "seed " << seed;
      } else {
        EXPECT_EQ(now, Guaranteed({changes[i].wanted, ""})) << "seed " << seed;
      }
      const bool same = changes[i].wanted && changes[i].in_force &&
                        changes[i].wanted->service_accounts == changes[i].in_force->service_accounts &&
                        Guaranteed({changes[i].wanted, ""}) <= before;
      if (same) {
        EXPECT_EQ(fits[i].refusal, "") << "seed " << seed;
      }
    }
    EXPECT_LE(sum, 100u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvartal::policy
