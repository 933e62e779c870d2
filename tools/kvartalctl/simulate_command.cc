#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "daemon/base/units.h"
#include "daemon/control/policy_source.h"
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

// What the simulation runs over: the question, understood.
struct Question {
  bench::Trace trace;
  std::vector<policy::NodeCapacity> capacities;
  std::optional<TierKind> swept;
};

absl::StatusOr<Question> Understand(const SimulateArguments& arguments) {
  Question question;
  KV_ASSIGN_OR_RETURN(const policy::NodeCapacity capacity, ParseCapacity(arguments.capacity));
  question.capacities = {capacity};
  if (!arguments.sweep.empty()) {
    KV_ASSIGN_OR_RETURN(const Sweep sweep, ParseSweep(arguments.sweep));
    question.swept = sweep.tier;
    question.capacities.assign(sweep.bytes.size(), capacity);
    for (size_t i = 0; i < sweep.bytes.size(); ++i) {
      question.capacities[i].bytes[TierIndex(sweep.tier)] = sweep.bytes[i];
    }
  }
  if (!arguments.plot.empty() && question.capacities.size() < 2) {
    return absl::InvalidArgumentError("--plot shows hit rate against capacity: give at least two with --sweep");
  }
  KV_ASSIGN_OR_RETURN(question.trace, bench::LoadTrace(arguments.trace, arguments.requests));
  return question;
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

absl::StatusOr<SimulatedPoint> RunPoint(const SimulateArguments& arguments, const Question& question,
                                        const policy::NodeCapacity& capacity, Bar* bar,
                                        std::vector<std::string>* warnings) {
  KV_ASSIGN_OR_RETURN(control::LoadedPolicy loaded, control::LoadPolicyFolder(arguments.policy, capacity));
  if (loaded.table->tenants().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(arguments.policy, ": has no TenantKVPolicy: nobody to simulate"));
  }
  *warnings = std::move(loaded.warnings);
  KV_ASSIGN_OR_RETURN(const std::vector<double> shares, SharesOf(*loaded.table, arguments.split));
  trace_engine::SimulationInput input;
  input.policy = loaded.table;
  input.eviction = arguments.eviction;
  input.block_kib = arguments.block_kib;
  input.trace = &question.trace;
  input.owners = trace_engine::SplitTrace(question.trace, shares);
  input.after_request = [bar](const trace_engine::VirtualNode&, uint64_t) { bar->Step(); };
  SimulatedPoint point;
  point.capacity = loaded.table->capacity();
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
  Bar bar(run.requests * question.capacities.size());
  std::vector<std::string> warnings;
  for (const policy::NodeCapacity& capacity : question.capacities) {
    KV_ASSIGN_OR_RETURN(SimulatedPoint point, RunPoint(arguments, question, capacity, &bar, &warnings));
    run.points.push_back(std::move(point));
  }
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

int Print(const Context& context, const std::string& output, const SimulatedRun& run) {
  if (output == "csv") {
    std::fputs(SimulationCsv(run).c_str(), stdout);
  } else if (output == "json" || (output.empty() && context.output == OutputFormat::kJson)) {
    PrintData(OutputFormat::kJson, SimulationJson(run));
  } else if (output.empty() && context.output == OutputFormat::kYaml) {
    PrintData(OutputFormat::kYaml, SimulationJson(run));
  } else {
    std::fputs(SimulationTable(run).c_str(), stdout);
  }
  return 0;
}

}  // namespace

int RunSimulate(const Context& context, const SimulateArguments& arguments) {
  const absl::StatusOr<Question> question = Understand(arguments);
  if (!question.ok()) return Complain(std::string(question.status().message()), kExitUsage);
  const absl::StatusOr<SimulatedRun> run = RunAll(arguments, *question);
  if (!run.ok()) return Complain(std::string(run.status().message()));
  if (!arguments.plot.empty() && !WriteText(arguments.plot, RenderSvg(PlotOf(*run, *question->swept)))) {
    return Complain(absl::StrCat("cannot write ", arguments.plot));
  }
  return Print(context, arguments.output, *run);
}

}  // namespace kvartal::ctl
