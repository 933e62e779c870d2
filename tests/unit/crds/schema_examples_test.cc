// The same good and bad manifests before the reader of the file source and before the schema of the API server: what
// one takes the other takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "crds/manifest.h"
#include "crds/yaml_reader.h"
#include "tests/unit/crds/edge_values.h"
#include "tests/unit/crds/schema_validator.h"

namespace kvartal::crds {
namespace {

using ::testing::IsEmpty;

const std::string kCrds = std::string(KVARTAL_SOURCE_DIR) + "/crds/";

class SchemaExamplesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"tenantkvpolicy", "kvnodepool"}) {
      const auto text = ReadYamlFile(kCrds + name + ".yaml");
      ASSERT_TRUE(text.ok()) << text.status();
      auto documents = ReadYaml(*text, name);
      ASSERT_TRUE(documents.ok()) << documents.status();
      definitions_.push_back(std::move(documents->front()));
    }
  }
  // Complaints of whichever definition has the object's kind; of a kind that none has, too.
  std::vector<std::string> Judge(const YamlNode& object) const {
    for (const YamlNode& definition : definitions_) {
      const YamlNode* kind = object.Find("kind");
      if (kind != nullptr && kind->text == definition.Find("spec")->Find("names")->Find("kind")->text)
        return JudgeBySchema(definition, object);
    }
    return {"kind: not served"};
  }
  // Of every object in a file; of one that is no YAML at all, too: what cannot be read cannot be sent.
  std::vector<std::string> JudgeFile(const std::string& path) const {
    const auto text = ReadYamlFile(path);
    EXPECT_TRUE(text.ok()) << text.status();
    const auto documents = ReadYaml(*text, path);
    if (!documents.ok()) return {std::string(documents.status().message())};
    std::vector<std::string> all;
    for (const YamlNode& object : *documents) {
      const std::vector<std::string> one = Judge(object);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  std::vector<YamlNode> definitions_;
};

TEST_F(SchemaExamplesTest, TheSchemaTakesEveryGoodOneAndTheDemo) {
  size_t files = 0;
  for (const char* folder : {"examples/good", "examples/demo", "examples/worked"}) {
    for (const auto& entry : std::filesystem::directory_iterator(kCrds + folder)) {
      ++files;
      EXPECT_THAT(JudgeFile(entry.path().string()), IsEmpty()) << entry.path();
    }
  }
  EXPECT_GE(files, 8u);
}

TEST_F(SchemaExamplesTest, TheSchemaRefusesEveryBadOne) {
  // Mistakes of writing that are gone once a YAML reader has made a value of the text.
  const std::set<std::string> only_in_text = {"weight-octal.yaml", "bool-as-word.yaml"};
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kCrds + "examples/bad")) {
    ++files;
    const std::vector<std::string> complaints = JudgeFile(entry.path().string());
    EXPECT_EQ(complaints.empty(), only_in_text.contains(entry.path().filename().string())) << entry.path();
    for (const std::string& complaint : complaints) EXPECT_EQ(complaint.find("does not know"), std::string::npos);
  }
  EXPECT_GE(files, 50u);
}

// A change of one field of a good object is judged alike by both.
TEST_F(SchemaExamplesTest, ReaderAndSchemaAgreeOnValuesAtTheEdges) {
  size_t taken = 0, refused = 0;
  for (const auto& [field, values] : EdgeValues()) {
    for (const std::string& value : values) {
      const std::string text = EdgePolicy(field, value);
      const auto documents = ReadYaml(text, "edge.yaml");
      ASSERT_TRUE(documents.ok()) << text;
      const bool reader_takes = ParseManifests(text, "edge.yaml").ok();
      const std::vector<std::string> complaints = Judge(documents->front());
      EXPECT_EQ(reader_takes, complaints.empty())
          << field << ": " << value << ": " << (complaints.empty() ? "the schema takes it" : complaints[0]);
      ++(reader_takes ? taken : refused);
    }
  }
  EXPECT_GT(taken, 15u);
  EXPECT_GT(refused, 25u);
}

}  // namespace
}  // namespace kvartal::crds
