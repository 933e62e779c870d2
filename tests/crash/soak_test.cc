// A quarter of a minute of `kvartal-bench soak`: a real daemon on a disk that fails, tenants of every kind. Whether
// anything grows is for the long form to say (`make soak`).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/daemon_process.h"

namespace kvartal::testing {
namespace {

TEST(SoakTest, AShortOneFindsNothingWrong) {
  const CommandResult result = RunCommand({"kvartal-bench", "soak", "--minutes", "0.2", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string last = result.out.substr(result.out.rfind("{\"bench\""));
  const nlohmann::json report = nlohmann::json::parse(last);
  EXPECT_EQ(report["wrong_bytes"], 0) << last;
  EXPECT_EQ(report["ledger_equal"], true) << last;
  EXPECT_EQ(report["bugs"], 0) << last;
  EXPECT_GT(report["disk_faults"], 0) << last;
  EXPECT_GT(report["compared_bytes"], 0) << last;
  EXPECT_GT(report["blocks_from_nvme"], 0) << last;
}

}  // namespace
}  // namespace kvartal::testing
