#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/units.h"
#include "daemon/control/policy_source.h"
#include "daemon/policy/eviction_names.h"
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/trace.h"
#include "tools/kvartalctl/commands.h"
#include "tools/kvartalctl/hit_rate_plot.h"
#include "tools/kvartalctl/simulation_arguments.h"
#include "tools/kvartalctl/simulation_report.h"
#include "tools/trace_engine/trace_split.h"

namespace kvartal::ctl {
namespace {

constexpr int kExitUsage = 2;

// One capacity, and the policy folder on a node that has it.
struct Case {
  policy::NodeCapacity capacity;
  control::LoadedPolicy policy;
  std::vector<double> shares;
};

// What the simulation runs over: the question, understood.
struct Question {
  bench::Trace trace;
  std::vector<Case> cases;
  std::optional<TierKind> swept;
};

absl::Status CheckEviction(const std::string& name) {
  const auto& names = policy::kEvictionNames;
  if (std::find(names.begin(), names.end(), name) != names.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--eviction '", name, "' is not known; there are: ",
                   absl::StrJoin(names, ", ", [](std::string* out, std::string_view one) { out->append(one); })));
}

// By what was asked alone.
absl::StatusOr<Question> Understand(const SimulateArguments& arguments) {
  Question question;
  KV_ASSIGN_OR_RETURN(const Capacities asked, CapacitiesOf(arguments.capacity, arguments.sweep));
  question.swept = asked.swept;
  for (const policy::NodeCapacity& capacity : asked.runs) question.cases.push_back({capacity, {}, {}});
  KV_RETURN_IF_ERROR(CheckEviction(arguments.eviction));
  if (!arguments.plot.empty() && question.cases.size() < 2) {
    return absl::InvalidArgumentError("--plot shows hit rate against capacity: give at least two with --sweep");
  }
  if (!arguments.plot.empty() && !arguments.plot.ends_with(".svg")) {
    return absl::InvalidArgumentError(absl::StrCat("--plot '", arguments.plot, "': draws SVG: name it FILE.svg"));
  }
  KV_ASSIGN_OR_RETURN(question.trace, bench::LoadTrace(arguments.trace, arguments.requests));
  return question;
}

absl::Status LoadPolicies(const std::string& folder, Question* question) {
  for (Case& one : question->cases) {
    KV_ASSIGN_OR_RETURN(one.policy, control::LoadPolicyFolder(folder, one.capacity));
    if (one.policy.table->tenants().empty())
      return absl::InvalidArgumentError(absl::StrCat(folder, ": has no TenantKVPolicy: nobody to simulate"));
  }
  return absl::OkStatus();
}

// What of the question only the policy can tell.
absl::Status Fit(const SimulateArguments& arguments, Question* question) {
  for (Case& one : question->cases) {
    KV_RETURN_IF_ERROR(CheckPoolHas(one.policy, one.capacity));
    KV_ASSIGN_OR_RETURN(one.shares, SharesOf(*one.policy.table, arguments.split));
  }
  return absl::OkStatus();
}

// A progress bar over all points; silent where nobody would see it move.
class Bar {
 public:
  explicit Bar(uint64_t total) {
    if (::isatty(STDERR_FILENO) == 1) progress_.emplace("simulating", total);
  }
  void Step() {
    if (progress_.has_value()) progress_->Update(++done_);
  }

 private:
  std::optional<bench::Progress> progress_;
  uint64_t done_ = 0;
};

absl::StatusOr<SimulatedPoint> RunPoint(const SimulateArguments& arguments, const Question& question, const Case& one,
                                        Bar* bar) {
  trace_engine::SimulationInput input;
  input.policy = one.policy.table;
  input.eviction = arguments.eviction;
  input.block_kib = arguments.block_kib;
  input.trace = &question.trace;
  input.owners = trace_engine::SplitTrace(question.trace, one.shares);
  input.after_request = [bar](const trace_engine::VirtualNode&, uint64_t) { bar->Step(); };
  SimulatedPoint point;
  point.capacity = one.policy.table->capacity();
  KV_ASSIGN_OR_RETURN(point.tenants, trace_engine::Simulate(input));
  return point;
}

absl::StatusOr<SimulatedRun> RunAll(const SimulateArguments& arguments, const Question& question) {
  SimulatedRun run;
  run.trace = question.trace.name;
  run.requests = question.trace.requests.size();
  run.trace_seconds = question.trace.requests.back().arrival_s;
  run.block_bytes = arguments.block_kib * kKiB;
  run.eviction = arguments.eviction;
  Bar bar(run.requests * question.cases.size());
  for (const Case& one : question.cases) {
    KV_ASSIGN_OR_RETURN(SimulatedPoint point, RunPoint(arguments, question, one, &bar));
    run.points.push_back(std::move(point));
  }
  std::vector<std::string> warnings = question.cases.back().policy.warnings;
  if (run.trace_seconds == 0)
    warnings.push_back("the trace has no timestamps: no time passes, so nothing gets too old");
  for (const std::string& warning : warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  return run;
}

HitRatePlot PlotOf(const SimulatedRun& run, TierKind swept) {
  const bool dram = swept == TierKind::kDram;
  const TierKind other = dram ? TierKind::kNvme : TierKind::kDram;
  const uint64_t other_bytes = run.points[0].capacity.bytes[TierIndex(other)];
  HitRatePlot plot;
  plot.title = absl::StrCat("Simulated token hit rate by ", dram ? "DRAM" : "NVMe", " capacity");
  plot.subtitle = absl::StrCat("simulated from ", run.trace, ", ", HumanCount(run.requests), " requests; block ",
                               HumanBytes(run.block_bytes), "; eviction ", run.eviction, "; ", TierName(other), " ",
                               other_bytes == 0 ? "none" : HumanBytes(other_bytes));
  plot.x_label = absl::StrCat(dram ? "DRAM" : "NVMe", " capacity of the node");
  for (size_t i = 0; i < run.points[0].tenants.size(); ++i) {
    plot.lines.push_back({run.points[0].tenants[i].stats.name, {}, false});
  }
  plot.lines.push_back({"all tenants", {}, true});
  for (const SimulatedPoint& point : run.points) {
    plot.capacity_bytes.push_back(point.capacity.bytes[TierIndex(swept)]);
    for (size_t i = 0; i < point.tenants.size(); ++i) {
      const trace_engine::Served& served = point.tenants[i].served;
      plot.lines[i].hit_rate.push_back(HitRate(served.tokens_hit(), served.tokens_asked));
    }
    const trace_engine::Served all = point.All();
    plot.lines.back().hit_rate.push_back(HitRate(all.tokens_hit(), all.tokens_asked));
  }
  return plot;
}

bool WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  return static_cast<bool>(file.flush());
}

int Print(OutputFormat output, const SimulatedRun& run) {
  if (output == OutputFormat::kCsv)
    std::fputs(SimulationCsv(run).c_str(), stdout);
  else if (output == OutputFormat::kTable)
    std::fputs(SimulationTable(run).c_str(), stdout);
  else
    PrintData(output, SimulationJson(run));
  return 0;
}

}  // namespace

int RunSimulate(const Context& context, const SimulateArguments& arguments) {
  absl::StatusOr<Question> question = Understand(arguments);
  if (!question.ok()) return Complain(std::string(question.status().message()), kExitUsage);
  const absl::Status policies = LoadPolicies(arguments.policy, &*question);
  if (!policies.ok()) return Complain(std::string(policies.message()));
  const absl::Status fit = Fit(arguments, &*question);
  if (!fit.ok()) return Complain(std::string(fit.message()), kExitUsage);
  const absl::StatusOr<SimulatedRun> run = RunAll(arguments, *question);
  if (!run.ok()) return Complain(std::string(run.status().message()));
  if (!arguments.plot.empty() && !WriteText(arguments.plot, RenderSvg(PlotOf(*run, *question->swept)))) {
    return Complain(absl::StrCat("cannot write ", arguments.plot));
  }
  return Print(context.output, *run);
}

}  // namespace kvartal::ctl
