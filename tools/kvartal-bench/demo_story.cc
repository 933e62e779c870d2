#include "tools/kvartal-bench/demo_story.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/units.h"
#include "tools/admin/admin_client.h"

namespace kvartal::bench {
namespace {

constexpr double kReached = 0.95;  // of a limit: the last extent does not always fit

// Of the refusals that a busy machine brings about. Of all of them `kvartalctl explain` says what would help.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kMeanings = {{
    {"nvme queue_full", "too many copies to disk were under way; a block is tried again while it is in memory"},
    {"dram queue_full", "more stores waited for room than may; those blocks were not stored"},
}};

double Percent(double part, double whole) { return whole == 0 ? 0 : 100 * part / whole; }

double Figure(const ClientFigures& figures, const std::string& name) {
  const auto it = figures.find(name);
  return it == figures.end() ? 0 : it->second;
}

}  // namespace

void DemoStory::Add(const admin::v1::Tenant& tenant, const IdealHits& ideal, const ClientFigures& figures) {
  const admin::v1::TenantTier& dram = admin::TierOf(tenant, "dram");
  const admin::v1::TenantTier& nvme = admin::TierOf(tenant, "nvme");
  const double bytes = Figure(figures, "stored_bytes") + Figure(figures, "loaded_bytes");
  const double seconds = Figure(figures, "seconds");
  absl::StrAppendFormat(&rows_, "%-18s %8.0f %6.1f %% %6.1f %% %9d %9d %10d %9d %6.2f %12s\n", tenant.name(),
                        Figure(figures, "requests"), Percent(tenant.blocks_hit(), tenant.blocks_asked()),
                        Percent(tenant.tokens_hit(), tenant.tokens_asked()), dram.charged_bytes() / kMiB,
                        nvme.charged_bytes() / kMiB, dram.evictions() + nvme.evictions(),
                        admin::RefusalsOf(dram) + admin::RefusalsOf(nvme), seconds == 0 ? 0 : bytes / 1e9 / seconds,
                        absl::StrFormat("%.0f / %.0f", Figure(figures, "p50_us"), Figure(figures, "p99_us")));
  tokens_asked_ += tenant.tokens_asked();
  tokens_hit_ += tenant.tokens_hit();
  ideal_hit_ += ideal.tokens_hit;
  moved_bytes_ += bytes;
  compared_bytes_ += Figure(figures, "loaded_bytes");
  wrong_bytes_ += Figure(figures, "wrong_bytes");
  blocks_loaded_ += Figure(figures, "loaded_blocks");
  blocks_from_nvme_ += Figure(figures, "nvme_blocks");
  seconds_ = std::max(seconds_, seconds);
  for (const admin::v1::TenantTier* const tier : {&dram, &nvme}) {
    for (const auto& [reason, count] : tier->refusals()) refusals_[tier->name() + " " + reason] += count;
    ++limits_;
    limits_exceeded_ += tier->peak_bytes() > tier->limit_bytes();
    limits_reached_ += static_cast<double>(tier->peak_bytes()) >= kReached * static_cast<double>(tier->limit_bytes());
  }
}

std::string DemoStory::Text(const std::string& trace, uint64_t requests) const {
  std::string text =
      absl::StrFormat("\n%-18s %8s %8s %8s %9s %9s %10s %9s %6s %12s\n%-18s %8s %8s %8s %9s %9s %10s %9s %6s %12s\n",
                      "tenant", "requests", "block", "token", "DRAM", "NVMe", "evictions", "refusals", "GB/s",
                      "lookup us", "", "", "hit", "hit", "MiB", "MiB", "", "", "", "p50 / p99");
  absl::StrAppend(&text, rows_, "\n");
  absl::StrAppendFormat(
      &text,
      "%.1f %% of all prompt tokens were in the cache and need no prefill; without any limit it would have been "
      "%.1f %%.\n",
      Percent(tokens_hit_, tokens_asked_), Percent(ideal_hit_, tokens_asked_));
  absl::StrAppendFormat(
      &text,
      "%.1f GB went through mapped memory in %.0f s. %.1f %% of the blocks that were read came back from NVMe. "
      "%.0f of the %.1f GB read were wrong.\n",
      moved_bytes_ / 1e9, seconds_, Percent(blocks_from_nvme_, blocks_loaded_), wrong_bytes_, compared_bytes_ / 1e9);
  absl::StrAppendFormat(&text, "%d of %d limits (DRAM and NVMe of each tenant) were reached, %s.\n", limits_reached_,
                        limits_,
                        limits_exceeded_ == 0 ? "none was exceeded: a tenant's own least valuable blocks made room"
                                              : absl::StrCat("AND ", limits_exceeded_, " WERE EXCEEDED"));
  std::string reasons;
  for (const auto& [reason, count] : refusals_) {
    absl::StrAppend(&reasons, reasons.empty() ? "" : ", ", count, " x ", reason);
    for (const auto& [name, meaning] : kMeanings) {
      if (reason == name) absl::StrAppend(&reasons, " (", std::string(meaning), ")");
    }
  }
  if (!reasons.empty()) absl::StrAppend(&text, "Refusals, by tier and reason: ", reasons, ".\n");
  absl::StrAppendFormat(
      &text,
      "Real: the daemon, the client processes, every byte moved, the %d requests of %s. Simulated: no model runs, a "
      "block's bytes are made from its key, and requests come back to back.\n",
      requests, trace);
  return text;
}

void DemoStory::AddTo(Report* report) const {
  report->Add("token_hit",
              tokens_asked_ == 0 ? 0.0 : static_cast<double>(tokens_hit_) / static_cast<double>(tokens_asked_));
  report->Add("ideal_token_hit",
              tokens_asked_ == 0 ? 0.0 : static_cast<double>(ideal_hit_) / static_cast<double>(tokens_asked_));
  report->Add("moved_bytes", static_cast<uint64_t>(moved_bytes_));
  report->Add("loaded_bytes", static_cast<uint64_t>(compared_bytes_));
  report->Add("wrong_bytes", static_cast<uint64_t>(wrong_bytes_));
  report->Add("nvme_share_of_loads", Percent(blocks_from_nvme_, blocks_loaded_) / 100);
  report->Add("limits_reached", limits_reached_);
  report->Add("limits_exceeded", limits_exceeded_);
  report->Add("seconds", seconds_);
}

}  // namespace kvartal::bench
