#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "daemon/base/log.h"
#include "tests/sim/runner.h"

namespace kvartal::sim {
namespace {

constexpr char kUsage[] =
    "usage: sim_test                                                  the tests; --gtest_... as ever\n"
    "       sim_test --seed=N [--events=N] [--planted=NAME] [--log]   one run, as a report says\n"
    "       sim_test --seconds=N [--seed=N] [--events=N] [--log]      seed after seed\n"
    "--log tells every event, and what the daemon logs of devices that fail\n";
constexpr uint64_t kEventsDefault = 12'500;
constexpr uint64_t kSeedsPerLine = 50;

struct Arguments {
  std::optional<uint64_t> seed, seconds;
  uint64_t events = kEventsDefault;
  Planted planted = Planted::kNothing;
  bool log = false;
};

bool Parse(int argc, char** argv, Arguments* out) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    uint64_t number = 0;
    if (argument == "--log") {
      out->log = true;
    } else if (absl::ConsumePrefix(&argument, "--planted=")) {
      out->planted = PlantedByName(std::string(argument));
      if (out->planted == Planted::kNothing) return false;
    } else if (absl::ConsumePrefix(&argument, "--seed=") && absl::SimpleAtoi(argument, &number)) {
      out->seed = number;
    } else if (absl::ConsumePrefix(&argument, "--events=") && absl::SimpleAtoi(argument, &number) && number > 0) {
      out->events = number;
    } else if (absl::ConsumePrefix(&argument, "--seconds=") && absl::SimpleAtoi(argument, &number)) {
      out->seconds = number;
    } else {
      return false;
    }
  }
  return true;
}

int RunOne(const Arguments& arguments) {
  const RunResult result = RunSeed(*arguments.seed, arguments.events, arguments.planted, arguments.log);
  if (result.found) {
    std::fprintf(stderr, "%s", result.report.c_str());
    return 1;
  }
  std::printf("%sseed %llu: %llu events, nothing found, log hash %016llx\n", result.coverage.Table().c_str(),
              static_cast<unsigned long long>(*arguments.seed), static_cast<unsigned long long>(result.event),
              static_cast<unsigned long long>(result.log_hash));
  return 0;
}

int RunFor(const Arguments& arguments) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(*arguments.seconds);
  uint64_t seed = arguments.seed.value_or(1'000);
  uint64_t events = 0;
  Coverage coverage;
  for (uint64_t runs = 1; Clock::now() < end; ++runs, ++seed) {
    const RunResult result = RunSeed(seed, arguments.events, arguments.planted);
    events += result.event;
    coverage.Add(result.coverage);
    if (result.found) {
      std::fprintf(stderr, "%s", result.report.c_str());
      return 1;
    }
    if (runs % kSeedsPerLine != 0) continue;
    std::printf("seed %llu: %llu events so far, nothing found\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(events));
    std::fflush(stdout);
  }
  std::printf("%ssim: seeds up to %llu, %llu events, nothing found\n", coverage.Table().c_str(),
              static_cast<unsigned long long>(seed - 1), static_cast<unsigned long long>(events));
  return 0;
}

}  // namespace
}  // namespace kvartal::sim

int main(int argc, char** argv) {
  const bool asked =
      std::any_of(argv, argv + argc, [](const char* each) { return std::string_view(each) == "--help"; });
  if (asked) std::fputs(kvartal::sim::kUsage, stdout);
  ::testing::InitGoogleTest(&argc, argv);
  if (asked) return 0;
  kvartal::sim::Arguments arguments;
  if (!kvartal::sim::Parse(argc, argv, &arguments)) {
    std::fputs(kvartal::sim::kUsage, stderr);
    return 2;
  }
  // Devices fail all the time here.
  kvartal::SetLogLevel(arguments.log ? "error" : "off");
  if (arguments.seconds.has_value()) return kvartal::sim::RunFor(arguments);
  if (arguments.seed.has_value()) return kvartal::sim::RunOne(arguments);
  return RUN_ALL_TESTS();
}
