#include "tools/kvartalctl/simulation_arguments.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crds/quantity.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"

namespace kvartal::ctl {
namespace {

struct TierRange {
  TierKind tier;
  uint64_t min_bytes, max_bytes;
};
constexpr TierRange kTiers[] = {{TierKind::kDram, kDramBytesMin, kDramBytesMax},
                                {TierKind::kNvme, kNvmeBytesMin, kNvmeBytesMax}};

std::vector<std::string> Parts(const std::string& text) { return absl::StrSplit(text, ','); }

absl::StatusOr<TierRange> ParseTier(const std::string& name) {
  for (const TierRange& range : kTiers) {
    if (name == TierName(range.tier)) return range;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown tier '", name, "': dram or nvme"));
}

absl::StatusOr<uint64_t> ParseSize(const TierRange& range, const std::string& text) {
  const absl::StatusOr<crds::Quantity> size = crds::ParseQuantity(text);
  if (!size.ok()) return size.status();
  if (size->is_percent) return absl::InvalidArgumentError(absl::StrCat("'", text, "' is a share, not a size"));
  if (size->bytes < range.min_bytes || size->bytes > range.max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(TierName(range.tier), " of ", text, ": from ", range.min_bytes,
                                                   " to ", range.max_bytes, " bytes"));
  }
  // Both tiers count in these.
  return RoundDown(size->bytes, kExtentAlignBytes);
}

}  // namespace

absl::StatusOr<policy::NodeCapacity> ParseCapacity(const std::string& text) {
  policy::NodeCapacity capacity;
  for (const std::string& part : Parts(text)) {
    const std::vector<std::string> words = absl::StrSplit(part, '=');
    if (words.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("--capacity '", text, "': '", part, "' is not TIER=SIZE, as in dram=64Gi,nvme=1Ti"));
    }
    const absl::StatusOr<TierRange> range = ParseTier(words[0]);
    const absl::StatusOr<uint64_t> bytes = range.ok() ? ParseSize(*range, words[1]) : range.status();
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--capacity '", text, "': ", bytes.status().message()));
    }
    uint64_t& of_tier = capacity.bytes[TierIndex(range->tier)];
    if (of_tier != 0) return absl::InvalidArgumentError(absl::StrCat("--capacity '", text, "': ", words[0], " twice"));
    of_tier = *bytes;
  }
  return capacity;
}

absl::StatusOr<Sweep> ParseSweep(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, '=');
  if (words.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sweep '", text, "' is not TIER=SIZE,SIZE,..., as in dram=1Gi,2Gi,4Gi"));
  }
  const absl::StatusOr<TierRange> range = ParseTier(words[0]);
  if (!range.ok()) return absl::InvalidArgumentError(absl::StrCat("--sweep '", text, "': ", range.status().message()));
  Sweep sweep;
  sweep.tier = range->tier;
  for (const std::string& size : Parts(words[1])) {
    const absl::StatusOr<uint64_t> bytes = ParseSize(*range, size);
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--sweep '", text, "': ", bytes.status().message()));
    }
    sweep.bytes.push_back(*bytes);
  }
  std::sort(sweep.bytes.begin(), sweep.bytes.end());
  sweep.bytes.erase(std::unique(sweep.bytes.begin(), sweep.bytes.end()), sweep.bytes.end());
  return sweep;
}

absl::StatusOr<Capacities> CapacitiesOf(const std::string& capacity, const std::string& sweep) {
  if (capacity.empty() && sweep.empty()) {
    return absl::InvalidArgumentError("of which size? Give --capacity dram=64Gi,nvme=1Ti, or --sweep dram=1Gi,2Gi,4Gi");
  }
  Capacities asked;
  policy::NodeCapacity node;
  if (!capacity.empty()) {
    KV_ASSIGN_OR_RETURN(node, ParseCapacity(capacity));
  }
  asked.runs = {node};
  if (!sweep.empty()) {
    KV_ASSIGN_OR_RETURN(const Sweep sizes, ParseSweep(sweep));
    if (node.bytes[TierIndex(sizes.tier)] != 0) {
      return absl::InvalidArgumentError(absl::StrCat("--capacity '", capacity, "' and --sweep '", sweep, "' both name ",
                                                     TierName(sizes.tier), ": leave it out of --capacity"));
    }
    asked.swept = sizes.tier;
    asked.runs.assign(sizes.bytes.size(), node);
    for (size_t i = 0; i < sizes.bytes.size(); ++i) asked.runs[i].bytes[TierIndex(sizes.tier)] = sizes.bytes[i];
  }
  if (asked.runs[0].bytes[TierIndex(TierKind::kDram)] == 0) {
    return absl::InvalidArgumentError(
        "nothing says how much dram there is, where every block is stored first: add dram=64Gi to --capacity, or "
        "whatever the node has");
  }
  return asked;
}

absl::Status CheckPoolHas(const control::LoadedPolicy& policy, const policy::NodeCapacity& asked) {
  for (const TierRange& range : kTiers) {
    const uint64_t bytes = asked.bytes[TierIndex(range.tier)];
    const uint64_t stated = policy.table->capacity().bytes[TierIndex(range.tier)];
    if (stated >= bytes) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        policy.pool, ": states ", crds::ShownBytes(stated), " of ", TierName(range.tier), ", which is less than ",
        crds::ShownBytes(bytes), ": ask for no more, or simulate a copy of the folder without that spec.capacity"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> SharesOf(const policy::PolicyTable& policy, const std::string& text) {
  std::vector<double> shares;
  if (text.empty()) {
    for (const policy::TenantRules& rules : policy.tenants()) shares.push_back(rules.weight);
    return shares;
  }
  for (const std::string& part : Parts(text)) {
    double share = 0;
    if (!absl::SimpleAtod(part, &share) || !std::isfinite(share) || share < 0) {
      return absl::InvalidArgumentError(absl::StrCat("--split '", text, "': '", part, "' is not a number from 0"));
    }
    shares.push_back(share);
  }
  if (shares.size() != policy.tenants().size()) {
    const auto name = [](std::string* out, const policy::TenantRules& rules) { out->append(rules.name); };
    return absl::InvalidArgumentError(absl::StrCat("--split '", text, "' has ", shares.size(), " shares for ",
                                                   policy.tenants().size(), " tenants: give one each, in the order ",
                                                   absl::StrJoin(policy.tenants(), ", ", name)));
  }
  if (std::accumulate(shares.begin(), shares.end(), 0.0) <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("--split '", text, "': somebody must get a part of the trace"));
  }
  return shares;
}

}  // namespace kvartal::ctl
