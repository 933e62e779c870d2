#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/base/units.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/trace.h"

namespace kvartal::bench {
namespace {

struct PipeClose {
  void operator()(std::FILE* file) const { ::pclose(file); }
};

// What the command prints.
absl::StatusOr<std::string> OutputOf(const std::string& command) {
  const std::unique_ptr<std::FILE, PipeClose> pipe(::popen(command.c_str(), "r"));
  if (pipe == nullptr) return absl::InternalError(absl::StrCat("cannot run ", command, ": ", std::strerror(errno)));
  std::string text;
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) > 0;) text.append(buffer.data(), n);
  return text;
}

}  // namespace

absl::StatusOr<Report> RunConnector(const Common& common, const ConnectorOptions& options) {
  KV_ASSIGN_OR_RETURN(const std::string python, FindShipped("scripts/python_env"));
  KV_ASSIGN_OR_RETURN(const std::string script, FindShipped("tools/kvartal-bench/connector.py"));
  KV_ASSIGN_OR_RETURN(const std::string library, FindShipped("lib/libkvartal.so"));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDaemon> daemon, BenchDaemon::Start(common, OneTenant(256 * kMiB)));
  KV_ASSIGN_OR_RETURN(const std::string text,
                      OutputOf(absl::StrCat("KVARTAL_LIBRARY='", library, "' '", python, "' base '", script, "' '",
                                            daemon->attach_socket(), "' ", options.rounds, " ", options.requests)));
  const nlohmann::ordered_json figures = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!figures.is_object()) return absl::InternalError(absl::StrCat(script, " printed no figures: ", text));
  Report report("connector");
  for (const auto& [key, value] : figures.items()) report.Add(key, value.get<double>());
  report.Note(
      "medians of rounds, of 12 blocks a prompt and 64 the worse; scheduler: begin, lookup, take_plan and finish of a "
      "request that hits nothing; waited_for_a_core: the scheduler's own thread, in those steps; python: the same with "
      "a client that answers at once; hicache: the SGLang backend's lookup of 64 pages, and its load but for the "
      "bytes");
  return report;
}

}  // namespace kvartal::bench
