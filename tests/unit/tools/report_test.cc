#include "tools/kvartal-bench/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvartal::bench {
namespace {

Report Sample() {
  Report report("replay");
  report.Add("requests", uint64_t{12031});
  report.Add("token_hit", 0.37361234567);
  report.Add("kill", true);
  report.Add("trace", "conversation \"quoted\"");
  report.Note("for people");
  return report;
}

TEST(Report, JsonIsOneLineWithTypedValues) {
  const std::string text = Sample().Json();
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const nlohmann::json parsed = nlohmann::json::parse(text);
  EXPECT_EQ(parsed["bench"], "replay");
  EXPECT_EQ(parsed["requests"], 12031);
  EXPECT_DOUBLE_EQ(parsed["token_hit"].get<double>(), 0.373612);
  EXPECT_EQ(parsed["kill"], true);
  EXPECT_EQ(parsed["trace"], "conversation \"quoted\"");
  EXPECT_FALSE(parsed.contains("note"));
}

TEST(Report, WhatIsNotAsItMustBeIsNamed) {
  Report report = Sample();
  report.Require(true, "token_hit");
  EXPECT_TRUE(report.unmet().empty());
  EXPECT_FALSE(nlohmann::json::parse(report.Json()).contains("unmet"));
  report.Require(false, "wrong_bytes");
  EXPECT_EQ(report.unmet(), std::vector<std::string>{"wrong_bytes"});
  EXPECT_EQ(nlohmann::json::parse(report.Json())["unmet"], nlohmann::json::array({"wrong_bytes"}));
}

TEST(Report, TheTableHasEveryValueAndNote) {
  const std::string table = Sample().Table();
  for (const char* const part : {"requests", "12031", "0.3736", "true", "for people"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << " in\n" << table;
  }
}

}  // namespace
}  // namespace kvartal::bench
