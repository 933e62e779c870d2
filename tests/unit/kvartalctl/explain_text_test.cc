#include "tools/kvartalctl/explain_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "daemon/base/units.h"

namespace kvartal::ctl {
namespace {

namespace pb = admin::v1;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

pb::ExplainReply OneTenant() {
  pb::ExplainReply reply;
  reply.set_tenant("red/cache");
  reply.set_sla_tier("Premium");
  reply.set_weight(400);
  reply.set_sessions(2);
  reply.set_max_sessions(64);
  reply.set_max_entries(UINT64_MAX);
  reply.set_demotes_on_expiry(true);
  pb::ExplainTier* dram = reply.add_tiers();
  dram->set_name("dram");
  dram->set_present(true);
  dram->set_capacity_bytes(kGiB);
  dram->set_limit_bytes(512 * kMiB);
  dram->set_guarantee_bytes(128 * kMiB);
  dram->set_ttl_ms(600'000);
  return reply;
}

std::string WithCharge(uint64_t bytes) {
  pb::ExplainReply reply = OneTenant();
  reply.mutable_tiers(0)->set_charged_bytes(bytes);
  return ExplainText(reply);
}

TEST(ExplainText, SaysWhereATierStands) {
  EXPECT_THAT(WithCharge(0), HasSubstr("below its guarantee: 128.0 MiB more are its own"));
  EXPECT_THAT(WithCharge(128 * kMiB), HasSubstr("exactly its guarantee"));
  EXPECT_THAT(WithCharge(192 * kMiB), HasSubstr("64.0 MiB of it above its guarantee"));
  EXPECT_THAT(WithCharge(512 * kMiB), HasSubstr("at its limit"));
  EXPECT_THAT(WithCharge(600 * kMiB), HasSubstr("above its limit, which was lowered"));
}

TEST(ExplainText, SaysHowMuchOfWhatItAskedForWasHere) {
  pb::ExplainReply reply = OneTenant();
  EXPECT_THAT(ExplainText(reply), HasSubstr("it has asked for nothing yet"));
  reply.set_tokens_asked(1000);
  reply.set_tokens_hit(366);
  EXPECT_THAT(ExplainText(reply), HasSubstr("36.6% of the tokens it asked for were here"));
}

TEST(ExplainText, SaysWhoMayAttach) {
  pb::ExplainReply reply = OneTenant();
  EXPECT_THAT(ExplainText(reply), HasSubstr("Nobody may attach: its policy names no subject."));
  reply.add_subjects("uid 1001");
  reply.add_subjects("socket red");
  EXPECT_THAT(ExplainText(reply), HasSubstr("Who may attach: uid 1001, socket red."));
}

TEST(ExplainJson, ACapThatIsNoneIsNull) {
  pb::ExplainReply reply = OneTenant();
  EXPECT_TRUE(ExplainJson(reply)["max_entries"].is_null());
  reply.set_max_entries(12);
  EXPECT_EQ(ExplainJson(reply)["max_entries"], 12);
}

TEST(ExplainText, SaysWhatItMayNot) {
  pb::ExplainReply reply = OneTenant();
  pb::ExplainTier* nvme = reply.add_tiers();
  nvme->set_name("nvme");
  nvme->set_present(true);
  reply.add_tiers()->set_name("hbm");
  EXPECT_THAT(ExplainText(reply), AllOf(HasSubstr("nvme: it may hold nothing here: its policy claims none"),
                                        HasSubstr("hbm: this node has none")));
}

TEST(ExplainText, ADecisionSaysWhyWhoAndWhatHelps) {
  pb::ExplainReply reply = OneTenant();
  EXPECT_THAT(ExplainText(reply), HasSubstr("Nothing of it was refused or dropped"));
  pb::Decision* decision = reply.add_decisions();
  decision->set_kind("dropped");
  decision->set_tier("dram");
  decision->set_reason("taken_by_other");
  decision->set_count(1234);
  decision->set_bytes(2 * kMiB);
  decision->set_last_ms_ago(61'000);
  decision->set_taker("blue/cache");
  decision->set_meaning("it was so");
  decision->set_remedy("do this");
  const std::string text = ExplainText(reply);
  EXPECT_THAT(text, HasSubstr("dropped 1,234 copies from dram (2.0 MiB), last 1m 1s ago [taken_by_other]"));
  EXPECT_THAT(text, AllOf(HasSubstr("why:   it was so"), HasSubstr("taker: blue/cache got the space last"),
                          HasSubstr("helps: do this")));
  decision->set_taker("");
  EXPECT_THAT(ExplainText(reply), Not(HasSubstr("taker:")));
}

pb::ExplainReply OneThatIsRemoved() {
  pb::ExplainReply reply;
  reply.set_tenant("red/cache");
  reply.set_removed(true);
  reply.set_removed_grace_ms(600'000);
  reply.set_entries(12);
  for (const char* name : {"dram", "nvme", "hbm"}) reply.add_tiers()->set_name(name);
  pb::ExplainTier* dram = reply.mutable_tiers(0);
  dram->set_present(true);
  dram->set_charged_bytes(64 * kMiB);
  dram->set_peak_bytes(kGiB);
  dram->set_blocks(12);
  dram->set_tokens_served(5000);
  dram->set_capacity_bytes(kGiB);
  reply.mutable_tiers(1)->set_present(true);
  return reply;
}

TEST(ExplainText, ARemovedTenantHasNoRules) {
  const std::string text = ExplainText(OneThatIsRemoved());
  EXPECT_THAT(text, HasSubstr("no longer in the policy"));
  for (const char* right : {"Premium", "weight", "may hold", "guarantee", "fair share", "limit", "TTL", "could use"}) {
    EXPECT_THAT(text, Not(HasSubstr(right)));
  }
}

TEST(ExplainText, OfARemovedTenantItSaysWhatIsLeftAndWhenThatIsErased) {
  const std::string text = ExplainText(OneThatIsRemoved());
  EXPECT_THAT(text, AllOf(HasSubstr("What it still holds (12 blocks)"),
                          HasSubstr("else 10m 0s (removedGraceSeconds) after its removal")));
  EXPECT_THAT(text, HasSubstr("dram: still holds 64.0 MiB (12 blocks, most ever 1.0 GiB); 5,000 tokens were served"));
  EXPECT_THAT(text, AllOf(HasSubstr("nvme: it holds nothing here"), HasSubstr("hbm: this node has none")));
}

TEST(ExplainText, ARemovedTenantIsNotToldWhatWouldHelp) {
  pb::ExplainReply reply = OneThatIsRemoved();
  pb::Decision* decision = reply.add_decisions();
  decision->set_kind("dropped");
  decision->set_meaning("it was so");
  decision->set_remedy("raise its limit");
  EXPECT_THAT(ExplainText(reply), AllOf(HasSubstr("why:   it was so"), Not(HasSubstr("raise its limit"))));
}

}  // namespace
}  // namespace kvartal::ctl
