#include "tools/kvartalctl/output.h"

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <nlohmann/json.hpp>

#include "daemon/base/units.h"
#include "daemon/control/admin.pb.h"

namespace kvartal::ctl {
namespace {

TEST(Table, AlignsTextLeftAndNumbersRight) {
  Table table({"NAME", "BYTES"});
  table.Add({"a", "1.0 KiB"});
  table.Add({"long-name", "12 B"});
  EXPECT_EQ(table.Render(),
            "NAME         BYTES\n"
            "a          1.0 KiB\n"
            "long-name     12 B\n");
}

TEST(Table, ANameThatBeginsWithADigitTurnsOnlyItsOwnColumn) {
  Table table({"NAME", "STATE"});
  table.Add({"1a", "up"});
  table.Add({"bc", ""});
  EXPECT_EQ(table.Render(), "NAME  STATE\n1a    up\nbc\n");
}

TEST(HumanBytes, OneDecimalOfTheLargestUnit) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(3 * kGiB / 2), "1.5 GiB");
  EXPECT_EQ(HumanBytes(2 * kTiB), "2.0 TiB");
}

TEST(Counted, OneHasNoPlural) {
  EXPECT_EQ(Counted(0, "tenant"), "0 tenants");
  EXPECT_EQ(Counted(1, "tenant"), "1 tenant");
  EXPECT_EQ(Counted(1234, "tenant"), "1,234 tenants");
}

TEST(HumanCount, GroupsOfThree) {
  EXPECT_EQ(HumanCount(0), "0");
  EXPECT_EQ(HumanCount(999), "999");
  EXPECT_EQ(HumanCount(1000), "1,000");
  EXPECT_EQ(HumanCount(1234567), "1,234,567");
}

TEST(HumanDuration, TwoUnits) {
  EXPECT_EQ(HumanDuration(1500), "1.5s");
  EXPECT_EQ(HumanDuration(192'000), "3m 12s");
  EXPECT_EQ(HumanDuration(26ull * 3600 * 1000), "1d 2h");
}

TEST(HumanShare, NothingOfNothingIsNoNumber) {
  EXPECT_EQ(HumanShare(0, 0), "-");
  EXPECT_EQ(HumanShare(1, 3), "33.3%");
}

TEST(ToJson, KeepsLargeNumbersExactAndZeroFields) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "protobuf's headers give maps more members under this sanitizer than the packaged library knows of";
#endif
  admin::v1::StatusReply reply;
  reply.set_index_bytes(UINT64_MAX);
  reply.add_recent_reclaim_us(7);
  (*reply.mutable_attach_denials())["unknown_uid"] = 3;
  reply.add_tiers()->set_name("dram");
  const nlohmann::ordered_json json = ToJson(reply);
  EXPECT_EQ(json["index_bytes"].get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(json["entries"], 0);
  EXPECT_EQ(json["draining"], false);
  EXPECT_EQ(json["recent_reclaim_us"], nlohmann::ordered_json({7}));
  EXPECT_EQ(json["attach_denials"]["unknown_uid"], 3);
  EXPECT_EQ(json["tiers"][0]["name"], "dram");
}

TEST(ToYaml, ReadsBackAsTheSame) {
  const nlohmann::ordered_json data = {{"text", "no: \"1e3\"\n#"},
                                       {"number", 18446744073709551615ull},
                                       {"flag", true},
                                       {"empty", nlohmann::ordered_json::array()},
                                       {"map", nlohmann::ordered_json::object()},
                                       {"none", nullptr},
                                       {"list", {1, 2}}};
  const YAML::Node read = YAML::Load(ToYaml(data));
  EXPECT_EQ(read["text"].as<std::string>(), "no: \"1e3\"\n#");
  EXPECT_EQ(read["number"].as<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(read["flag"].as<bool>(), true);
  EXPECT_EQ(read["empty"].size(), 0u);
  EXPECT_TRUE(read["map"].IsMap());
  EXPECT_TRUE(read["none"].IsNull());
  EXPECT_EQ(read["list"][1].as<int>(), 2);
}

}  // namespace
}  // namespace kvartal::ctl
