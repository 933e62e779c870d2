#include "tools/kvartalctl/explain_text.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/kvartalctl/output.h"

namespace kvartal::ctl {
namespace {

namespace pb = admin::v1;

std::string Hits(const pb::ExplainReply& reply, const char* of_none) {
  if (reply.tokens_asked() == 0) return of_none;
  return absl::StrCat(HumanShare(reply.tokens_hit(), reply.tokens_asked()), " of the tokens it asked for were here");
}

std::string WhoItWas(const pb::ExplainReply& reply) {
  return absl::StrCat(reply.tenant(), " is no longer in the policy: nobody may attach, and nothing is stored for it; ",
                      Hits(reply, "it had asked for nothing"), ".\nWhat it still holds (", HumanCount(reply.entries()),
                      " blocks) goes before anybody else's where space is wanted, and the rest is erased: at once if "
                      "it was dropped, else ",
                      HumanDuration(reply.removed_grace_ms()),
                      " (removedGraceSeconds) after its removal, or after the daemon's start if that was later.\n");
}

std::string WhoItIs(const pb::ExplainReply& reply) {
  const std::string hits = Hits(reply, "it has asked for nothing yet");
  const bool capped = reply.max_entries() != UINT64_MAX;
  std::string text = absl::StrCat(
      reply.tenant(), ": ", reply.sla_tier(), ", weight ", reply.weight(), ", ", HumanCount(reply.sessions()), " of ",
      HumanCount(reply.max_sessions()), " sessions, ", HumanCount(reply.entries()), " blocks in the index (",
      capped ? absl::StrCat("at most ", HumanCount(reply.max_entries())) : "no cap", "), ", hits, ".\n");
  if (reply.pinned_blocks() > 0) {
    absl::StrAppend(&text, HumanCount(reply.pinned_blocks()), " blocks (", HumanBytes(reply.pinned_bytes()),
                    ") are pinned: so much less of its guarantee is for everything else.\n");
  }
  absl::StrAppend(&text, reply.subjects().empty()
                             ? "Nobody may attach: its policy names no subject.\n"
                             : absl::StrCat("Who may attach: ", absl::StrJoin(reply.subjects(), ", "), ".\n"));
  absl::StrAppend(&text, "A copy that is idle for longer than its tier's TTL ",
                  reply.demotes_on_expiry() ? "moves one tier down, where it may; else it is gone" : "is gone", ". ");
  if (reply.max_age_ms() > 0) {
    absl::StrAppend(&text, "A block older than ", HumanDuration(reply.max_age_ms()),
                    " is deleted everywhere, used or not.\n");
  } else {
    absl::StrAppend(&text, "No block is deleted for its age alone.\n");
  }
  return text;
}

// The sentence that says where this tier stands.
std::string Standing(const pb::ExplainTier& tier) {
  if (tier.charged_bytes() > tier.limit_bytes()) {
    return "above its limit, which was lowered: nothing new is stored until it has drained";
  }
  if (tier.charged_bytes() < tier.guarantee_bytes()) {
    return absl::StrCat("below its guarantee: ", HumanBytes(tier.guarantee_bytes() - tier.charged_bytes()),
                        " more are its own whenever it wants them");
  }
  if (tier.charged_bytes() == tier.limit_bytes()) return "at its limit: new blocks replace its own least valuable ones";
  if (tier.guarantee_bytes() > 0 && tier.charged_bytes() == tier.guarantee_bytes()) {
    return "exactly its guarantee: nobody can take any of it";
  }
  const uint64_t borrowed = tier.charged_bytes() - tier.guarantee_bytes();
  if (borrowed == 0) return "it holds nothing";
  return absl::StrCat(HumanBytes(borrowed),
                      " of it above its guarantee: a tenant entitled to the space may take those");
}

// What of a tier has to be said rarely.
std::string Asides(const pb::ExplainTier& tier) {
  std::string text;
  if (tier.granted_empty_bytes() > 0) {
    absl::StrAppend(&text, "  ", HumanBytes(tier.granted_empty_bytes()),
                    " are charged and hold no block: given back when they stay empty\n");
  }
  if (!tier.note().empty()) absl::StrAppend(&text, "  note: ", tier.note(), "\n");
  return text;
}

std::string NoSuchTier(const pb::ExplainTier& tier) { return absl::StrCat(tier.name(), ": this node has none\n"); }

// Of a tenant that is removed.
std::string LeftoverLines(const pb::ExplainTier& tier) {
  if (tier.charged_bytes() == 0) {
    return tier.present() ? absl::StrCat(tier.name(), ": it holds nothing here\n") : NoSuchTier(tier);
  }
  return absl::StrCat(tier.name(), ": still holds ", HumanBytes(tier.charged_bytes()), " (", HumanCount(tier.blocks()),
                      " blocks, most ever ", HumanBytes(tier.peak_bytes()), "); ", HumanCount(tier.tokens_served()),
                      " tokens were served from here\n", Asides(tier));
}

std::string TierLines(const pb::ExplainTier& tier) {
  if (!tier.present() && tier.charged_bytes() == 0) return NoSuchTier(tier);
  std::string text = absl::StrCat(tier.name(), ": ");
  if (tier.limit_bytes() == 0 && tier.charged_bytes() == 0) {
    absl::StrAppend(&text, "it may hold nothing here: its policy claims none of this tier\n");
    return text;
  }
  absl::StrAppend(&text, "holds ", HumanBytes(tier.charged_bytes()), " (", HumanCount(tier.blocks()),
                  " blocks, most ever ", HumanBytes(tier.peak_bytes()), "), may hold ", HumanBytes(tier.limit_bytes()),
                  ", guaranteed ", HumanBytes(tier.guarantee_bytes()), "; ", Standing(tier), "\n");
  if (tier.fair_share_bytes() > 0 || tier.demand_bytes() > 0) {
    absl::StrAppend(&text, "  fair share now ", HumanBytes(tier.fair_share_bytes()), ", it could use ",
                    HumanBytes(tier.demand_bytes()), "; ", HumanBytes(tier.free_bytes()), " of the node's ",
                    HumanBytes(tier.capacity_bytes()), " are free\n");
  } else {
    absl::StrAppend(&text, "  ", HumanBytes(tier.free_bytes()), " of the node's ", HumanBytes(tier.capacity_bytes()),
                    " are free\n");
  }
  absl::StrAppend(&text, "  TTL ", tier.ttl_ms() == 0 ? "none" : HumanDuration(tier.ttl_ms()), "; ",
                  HumanCount(tier.tokens_served()), " tokens were served from here\n", Asides(tier));
  return text;
}

// What would have helped is of no use to one that is removed.
std::string DecisionLines(const pb::Decision& decision, bool removed) {
  const bool refused = decision.kind() == "refused";
  std::string text = absl::StrCat(refused ? "refused " : "dropped ", HumanCount(decision.count()),
                                  refused ? " times in " : " copies from ", decision.tier());
  if (decision.bytes() > 0) absl::StrAppend(&text, " (", HumanBytes(decision.bytes()), ")");
  absl::StrAppend(&text, ", last ", HumanDuration(decision.last_ms_ago()), " ago [", decision.reason(), "]\n");
  absl::StrAppend(&text, "  why:   ", decision.meaning(), "\n");
  if (!decision.taker().empty()) absl::StrAppend(&text, "  taker: ", decision.taker(), " got the space last\n");
  if (!removed) absl::StrAppend(&text, "  helps: ", decision.remedy(), "\n");
  return text;
}

}  // namespace

std::string ExplainText(const pb::ExplainReply& reply) {
  const bool removed = reply.removed();
  std::string text = absl::StrCat(removed ? WhoItWas(reply) : WhoItIs(reply), "\n");
  for (const pb::ExplainTier& tier : reply.tiers()) {
    absl::StrAppend(&text, removed ? LeftoverLines(tier) : TierLines(tier));
  }
  if (reply.decisions().empty()) {
    absl::StrAppend(&text, "\nNothing of it was refused or dropped since the daemon started.\n");
    return text;
  }
  absl::StrAppend(&text, "\nSince the daemon started, the latest first:\n");
  for (const pb::Decision& decision : reply.decisions()) absl::StrAppend(&text, DecisionLines(decision, removed));
  return text;
}

nlohmann::ordered_json ExplainJson(const pb::ExplainReply& reply) {
  nlohmann::ordered_json data = ToJson(reply);
  if (reply.max_entries() == UINT64_MAX) data["max_entries"] = nullptr;
  return data;
}

}  // namespace kvartal::ctl
