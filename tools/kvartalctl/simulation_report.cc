#include "tools/kvartalctl/simulation_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/kvartalctl/output.h"

namespace kvartal::ctl {
namespace {

using engine::TenantTierStats;
using nlohmann::ordered_json;
using policy::DropReason;
using policy::Refusal;
using trace_engine::Served;
using trace_engine::TenantOutcome;

constexpr TierKind kTiers[] = {TierKind::kDram, TierKind::kNvme};

const TenantTierStats& TierOf(const TenantOutcome& tenant, TierKind tier) {
  return tenant.stats.tiers[TierIndex(tier)];
}

// Calls `each(name, count)` for every reason, in their order.
template <typename Each>
void ForDrops(const TenantTierStats& tier, const Each& each) {
  for (size_t i = 0; i < policy::kDropReasonCount; ++i) {
    each(policy::DropReasonName(static_cast<DropReason>(i)), tier.drops[i].count);
  }
}
template <typename Each>
void ForRefusals(const TenantTierStats& tier, const Each& each) {
  for (size_t i = 1; i < policy::kRefusalCount; ++i) {
    each(policy::RefusalName(static_cast<Refusal>(i)), tier.refusals[i].count);
  }
}

uint64_t EvictionsOf(const std::vector<TenantOutcome>& tenants, TierKind tier) {
  uint64_t sum = 0;
  for (const TenantOutcome& tenant : tenants) sum += TierOf(tenant, tier).evictions();
  return sum;
}

std::vector<std::string> Row(const std::string& name, const Served& served, uint64_t dram_evictions,
                             uint64_t nvme_evictions) {
  return {name,
          HumanCount(served.requests),
          HumanShare(served.tokens_hit(), served.tokens_asked),
          HumanShare(served.tokens_from_dram, served.tokens_asked),
          HumanShare(served.tokens_from_nvme, served.tokens_asked),
          HumanShare(served.blocks_hit(), served.blocks_asked),
          HumanCount(served.blocks_stored),
          HumanCount(dram_evictions),
          HumanCount(nvme_evictions),
          HumanCount(served.blocks_refused)};
}

std::string PointTable(const SimulatedPoint& point) {
  Table table({"tenant", "requests", "token hit", "from dram", "from nvme", "block hit", "stored", "dram evictions",
               "nvme evictions", "refused"});
  for (const TenantOutcome& tenant : point.tenants) {
    table.Add(Row(tenant.stats.name, tenant.served, TierOf(tenant, TierKind::kDram).evictions(),
                  TierOf(tenant, TierKind::kNvme).evictions()));
  }
  table.Add(Row("all", point.All(), EvictionsOf(point.tenants, TierKind::kDram),
                EvictionsOf(point.tenants, TierKind::kNvme)));
  return table.Render();
}

// Only what happened: "own_space 120, idle 4".
std::string ReasonsOf(const std::vector<std::pair<std::string, uint64_t>>& counts) {
  std::vector<std::string> words;
  for (const auto& [name, count] : counts) {
    if (count > 0) words.push_back(absl::StrCat(name, " ", HumanCount(count)));
  }
  return words.empty() ? "-" : absl::StrJoin(words, ", ");
}

std::string ReasonTable(const SimulatedPoint& point) {
  Table table({"tenant", "tier", "copies gone, by reason", "refusals, by reason"});
  for (const TenantOutcome& tenant : point.tenants) {
    for (const TierKind tier : kTiers) {
      std::vector<std::pair<std::string, uint64_t>> drops, refusals;
      ForDrops(TierOf(tenant, tier), [&](const char* name, uint64_t count) { drops.emplace_back(name, count); });
      ForRefusals(TierOf(tenant, tier), [&](const char* name, uint64_t count) { refusals.emplace_back(name, count); });
      table.Add({tenant.stats.name, TierName(tier), ReasonsOf(drops), ReasonsOf(refusals)});
    }
  }
  return table.Render();
}

std::string CapacityText(const policy::NodeCapacity& capacity, TierKind tier) {
  const uint64_t bytes = capacity.bytes[TierIndex(tier)];
  return bytes == 0 ? "none" : HumanBytes(bytes);
}

std::string SweepTable(const SimulatedRun& run) {
  std::vector<std::string> header = {"dram", "nvme", "token hit, all"};
  for (const TenantOutcome& tenant : run.points[0].tenants) header.push_back(tenant.stats.name);
  header.insert(header.end(), {"dram evictions", "nvme evictions", "refused"});
  Table table(std::move(header));
  for (const SimulatedPoint& point : run.points) {
    const Served all = point.All();
    std::vector<std::string> row = {CapacityText(point.capacity, TierKind::kDram),
                                    CapacityText(point.capacity, TierKind::kNvme),
                                    HumanShare(all.tokens_hit(), all.tokens_asked)};
    for (const TenantOutcome& tenant : point.tenants) {
      row.push_back(HumanShare(tenant.served.tokens_hit(), tenant.served.tokens_asked));
    }
    row.insert(row.end(), {HumanCount(EvictionsOf(point.tenants, TierKind::kDram)),
                           HumanCount(EvictionsOf(point.tenants, TierKind::kNvme)), HumanCount(all.blocks_refused)});
    table.Add(std::move(row));
  }
  return table.Render();
}

ordered_json ServedJson(const Served& served) {
  return {{"requests", served.requests},
          {"blocks_asked", served.blocks_asked},
          {"blocks_from_dram", served.blocks_from_dram},
          {"blocks_from_nvme", served.blocks_from_nvme},
          {"block_hit", HitRate(served.blocks_hit(), served.blocks_asked)},
          {"tokens_asked", served.tokens_asked},
          {"tokens_from_dram", served.tokens_from_dram},
          {"tokens_from_nvme", served.tokens_from_nvme},
          {"token_hit", HitRate(served.tokens_hit(), served.tokens_asked)},
          {"blocks_stored", served.blocks_stored},
          {"blocks_refused", served.blocks_refused},
          {"blocks_unloaded", served.blocks_unloaded}};
}

ordered_json TenantJson(const TenantOutcome& tenant) {
  ordered_json object = {{"name", tenant.stats.name}};
  object.update(ServedJson(tenant.served));
  for (const TierKind tier : kTiers) {
    const TenantTierStats& stats = TierOf(tenant, tier);
    ordered_json drops, refusals;
    ForDrops(stats, [&](const char* name, uint64_t count) { drops[name] = count; });
    ForRefusals(stats, [&](const char* name, uint64_t count) { refusals[name] = count; });
    object["tiers"][TierName(tier)] = {{"limit_bytes", stats.limit_bytes},
                                       {"guarantee_bytes", stats.guarantee_bytes},
                                       {"charged_bytes", stats.charged_bytes},
                                       {"peak_bytes", stats.peak_bytes},
                                       {"evictions", stats.evictions()},
                                       {"drops", drops},
                                       {"refusals", refusals}};
  }
  return object;
}

// A tenant's flat fields: the columns of CSV.
std::vector<std::pair<std::string, std::string>> CsvFields(const SimulatedPoint& point, const TenantOutcome& tenant) {
  std::vector<std::pair<std::string, std::string>> fields;
  for (const TierKind tier : kTiers) {
    fields.emplace_back(absl::StrCat(TierName(tier), "_capacity_bytes"),
                        absl::StrCat(point.capacity.bytes[TierIndex(tier)]));
  }
  fields.emplace_back("tenant", tenant.stats.name);
  const ordered_json served = ServedJson(tenant.served);
  for (const auto& [name, value] : served.items()) {
    fields.emplace_back(name, value.is_number_float() ? absl::StrFormat("%.6f", value.get<double>()) : value.dump());
  }
  for (const TierKind tier : kTiers) {
    const auto add = [&](const char* what) {
      return [&fields, prefix = absl::StrCat(TierName(tier), "_", what, "_")](const char* name, uint64_t count) {
        fields.emplace_back(prefix + name, absl::StrCat(count));
      };
    };
    ForDrops(TierOf(tenant, tier), add("drops"));
    ForRefusals(TierOf(tenant, tier), add("refusals"));
  }
  return fields;
}

}  // namespace

Served SimulatedPoint::All() const {
  Served all;
  for (const TenantOutcome& tenant : tenants) all.Add(tenant.served);
  return all;
}

double HitRate(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string SimulationTable(const SimulatedRun& run) {
  std::string text = absl::StrCat("simulated: ", HumanCount(run.requests), " requests of ", run.trace, " over ",
                                  HumanDuration(static_cast<uint64_t>(run.trace_seconds * 1000)),
                                  " of its own time; a block is 512 tokens and ", HumanBytes(run.block_bytes),
                                  "; eviction ", run.eviction, "\n");
  if (run.points.size() > 1) return absl::StrCat(text, "\n", SweepTable(run));
  const SimulatedPoint& point = run.points[0];
  absl::StrAppend(&text, "node: dram ", CapacityText(point.capacity, TierKind::kDram), ", nvme ",
                  CapacityText(point.capacity, TierKind::kNvme), "\n\n", PointTable(point), "\n", ReasonTable(point));
  return text;
}

ordered_json SimulationJson(const SimulatedRun& run) {
  ordered_json object = {{"simulated", true},
                         {"trace", run.trace},
                         {"requests", run.requests},
                         {"trace_seconds", run.trace_seconds},
                         {"block_bytes", run.block_bytes},
                         {"eviction", run.eviction}};
  object["points"] = ordered_json::array();
  for (const SimulatedPoint& point : run.points) {
    ordered_json entry;
    for (const TierKind tier : kTiers) entry["capacity_bytes"][TierName(tier)] = point.capacity.bytes[TierIndex(tier)];
    entry["all"] = ServedJson(point.All());
    entry["tenants"] = ordered_json::array();
    for (const TenantOutcome& tenant : point.tenants) entry["tenants"].push_back(TenantJson(tenant));
    object["points"].push_back(std::move(entry));
  }
  return object;
}

std::string SimulationCsv(const SimulatedRun& run) {
  std::string text;
  for (const SimulatedPoint& point : run.points) {
    for (const TenantOutcome& tenant : point.tenants) {
      std::vector<std::string> names, values;
      for (auto& [name, value] : CsvFields(point, tenant)) {
        names.push_back(std::move(name));
        values.push_back(std::move(value));
      }
      if (text.empty()) absl::StrAppend(&text, absl::StrJoin(names, ","), "\n");
      absl::StrAppend(&text, absl::StrJoin(values, ","), "\n");
    }
  }
  return text;
}

}  // namespace kvartal::ctl
