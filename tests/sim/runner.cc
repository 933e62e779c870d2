#include "tests/sim/runner.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace kvartal::sim {
namespace {

struct Current {
  const Simulation* simulation = nullptr;
  uint64_t seed = 0;
  uint64_t events = 0;
  Planted planted = Planted::kNothing;
};
Current current;

std::string Report(const std::string& finding) {
  // The last event is the end of the run: it comes after those that were asked for.
  const uint64_t events = std::min(current.events, std::max<uint64_t>(current.simulation->event(), 1));
  std::string out = absl::StrCat("seed ", current.seed, ", event ", current.simulation->event(), ": ", finding,
                                 "\nlast events:\n", current.simulation->LastLines(),
                                 "again with: build/tests/sim_test --seed=", current.seed, " --events=", events);
  if (current.planted != Planted::kNothing) absl::StrAppend(&out, " --planted=", PlantedName(current.planted));
  return out + "\n";
}

// The process is about to end in a known place of ours, not in the middle of an allocation.
extern "C" void ReportAbort(int) {
  if (current.simulation != nullptr) std::fprintf(stderr, "%s", Report("a check of the engine failed").c_str());
  std::signal(SIGABRT, SIG_DFL);
  std::raise(SIGABRT);
}

RunResult RunIt(Simulation* simulation, volatile uint64_t* progress) {
  RunResult result;
  result.found = !simulation->Run(current.events, progress);
  result.event = simulation->event();
  result.log_hash = simulation->log_hash();
  result.coverage = simulation->coverage();
  if (result.found) result.report = Report(simulation->finding());
  return result;
}

}  // namespace

RunResult RunSeed(uint64_t seed, uint64_t events, Planted planted, bool print_log) {
  std::signal(SIGABRT, ReportAbort);
  Simulation simulation(MakePlan(seed, planted), print_log);
  current = {&simulation, seed, events, planted};
  RunResult result = RunIt(&simulation, nullptr);
  current = {};
  std::signal(SIGABRT, SIG_DFL);
  return result;
}

SeedsResult RunSeeds(uint64_t first, uint64_t count, uint64_t events, uint64_t jobs) {
  void* const shared =
      ::mmap(nullptr, jobs * sizeof(Coverage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  KV_CHECK(shared != MAP_FAILED);
  auto* const coverages = static_cast<Coverage*>(shared);
  std::vector<pid_t> workers;
  for (uint64_t job = 0; job < jobs; ++job) {
    const pid_t pid = ::fork();
    KV_CHECK(pid >= 0);
    if (pid > 0) {
      workers.push_back(pid);
      continue;
    }
    for (uint64_t i = job; i < count; i += jobs) {
      const RunResult result = RunSeed(first + i, events);
      coverages[job].Add(result.coverage);
      if (!result.found) continue;
      std::fprintf(stderr, "%s", result.report.c_str());
      ::_exit(1);
    }
    ::_exit(0);
  }
  SeedsResult result;
  for (size_t job = 0; job < workers.size(); ++job) {
    int status = 0;
    KV_CHECK(::waitpid(workers[job], &status, 0) == workers[job]);
    result.found |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    result.coverage.Add(coverages[job]);
  }
  ::munmap(shared, jobs * sizeof(Coverage));
  return result;
}

RunResult RunSeedApart(uint64_t seed, uint64_t events, Planted planted) {
  void* const shared = ::mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  KV_CHECK(shared != MAP_FAILED);
  auto* const progress = static_cast<volatile uint64_t*>(shared);
  const pid_t pid = ::fork();
  KV_CHECK(pid >= 0);
  if (pid == 0) {
    const int quiet = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    ::dup2(quiet, STDERR_FILENO);
    Simulation simulation(MakePlan(seed, planted), false);
    current = {&simulation, seed, events, planted};
    ::_exit(RunIt(&simulation, progress).found ? 1 : 0);
  }
  int status = 0;
  KV_CHECK(::waitpid(pid, &status, 0) == pid);
  RunResult result;
  result.found = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  result.event = *progress;
  ::munmap(shared, sizeof(uint64_t));
  return result;
}

}  // namespace kvartal::sim
