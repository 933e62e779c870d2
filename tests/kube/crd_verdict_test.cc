// Every example before the real API server, with schema, pruning and CEL as it applies them, and before the reader of
// the file source: what one takes the other takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "crds/manifest.h"
#include "crds/yaml_reader.h"
#include "tests/kube/api_server.h"
#include "tests/kube/kube_session.h"
#include "tests/support/daemon_process.h"
#include "tests/unit/crds/edge_values.h"

namespace kvartal::testing {
namespace {

const std::string kExamples = std::string(KVARTAL_SOURCE_DIR) + "/crds/examples/";

// What an object says of itself, as far as it can be read.
struct Addressee {
  std::string api_version = crds::kApiVersion, kind = "TenantKVPolicy", ns;
};

Addressee AddresseeOf(const std::string& document) {
  Addressee to;
  const auto nodes = crds::ReadYaml(document, "example");
  if (!nodes.ok() || nodes->empty()) {
    // Not for our reader. The server's may make something of it, in the namespace it names.
    const size_t at = document.find("namespace: ");
    to.ns =
        at == std::string::npos ? "default" : document.substr(at + 11, document.find_first_of(",}\n", at) - at - 11);
    return to;
  }
  const auto text = [](const crds::YamlNode* node, const char* key) {
    const crds::YamlNode* value = node == nullptr ? nullptr : node->Find(key);
    return value == nullptr ? std::string() : value->text;
  };
  const crds::YamlNode& object = nodes->front();
  to.api_version = text(&object, "apiVersion");
  to.kind = text(&object, "kind");
  to.ns = text(object.Find("metadata"), "namespace");
  return to;
}

std::vector<std::string> DocumentsOf(const std::string& text) {
  std::vector<std::string> documents(1);
  for (const auto& line : absl::StrSplit(text, '\n')) {
    if (line == "---") {
      documents.emplace_back();
    } else {
      absl::StrAppend(&documents.back(), line, "\n");
    }
  }
  std::erase_if(documents, [](const std::string& document) {
    const auto nodes = crds::ReadYaml(document, "example");
    return nodes.ok() && nodes->empty();
  });
  return documents;
}

class CrdVerdictTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<ApiServer>();
    const absl::Status started = server_->Start();
    ASSERT_TRUE(started.ok()) << started;
    session_ = std::make_unique<KubeSession>(server_->admin());
    const absl::Status installed = InstallCrds(session_.get());
    ASSERT_TRUE(installed.ok()) << installed;
  }
  static void TearDownTestSuite() {
    session_.reset();
    server_.reset();
  }
  void SetUp() override { ASSERT_NE(session_, nullptr); }

  // A dry run asks for the same verdict and keeps nothing.
  static kube::ApiError Judge(const std::string& document) {
    const Addressee to = AddresseeOf(document);
    const std::string plural = to.kind == "KVNodePool" ? "kvnodepools" : "tenantkvpolicies";
    if (to.kind != "KVNodePool" && !to.ns.empty() && known_.insert(to.ns).second) {
      session_->Call("POST", "/api/v1/namespaces",
                     absl::StrCat(R"({"apiVersion":"v1","kind":"Namespace","metadata":{"name":")", to.ns, "\"}}"));
    }
    const std::string scope = to.kind == "KVNodePool" || to.ns.empty() ? "" : absl::StrCat("/namespaces/", to.ns);
    return session_
        ->Call("POST", absl::StrCat("/apis/", to.api_version, scope, "/", plural, "?dryRun=All&fieldValidation=Strict"),
               document, kYaml)
        .error;
  }
  // Of a file: the first refusal of its objects.
  static kube::ApiError JudgeFile(const std::string& path) {
    for (const std::string& document : DocumentsOf(ReadFile(path))) {
      kube::ApiError error = Judge(document);
      if (!error.ok()) return error;
    }
    return {};
  }
  static std::vector<std::string> Files(const std::string& folder) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(kExamples + folder))
      files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
    return files;
  }

  static inline std::unique_ptr<ApiServer> server_;
  static inline std::unique_ptr<KubeSession> session_;
  static inline std::set<std::string> known_ = {"default"};
};

TEST_F(CrdVerdictTest, TheServerTakesEveryGoodExample) {
  size_t files = 0;
  for (const char* folder : {"good", "demo", "worked"}) {
    for (const std::string& file : Files(folder)) {
      ++files;
      const kube::ApiError error = JudgeFile(file);
      EXPECT_TRUE(error.ok()) << file << ": " << error.ToString();
      EXPECT_TRUE(crds::ParseManifests(ReadFile(file), file).ok()) << file;
    }
  }
  EXPECT_GE(files, 8u);
}

TEST_F(CrdVerdictTest, TheServerRefusesEveryBadExample) {
  // Slips of writing that an API server never sees or puts right itself. What it stores is free of them, so that in a
  // cluster nobody depends on our reader's stricter view of a file.
  const std::set<std::string> forgiven = {
      "bool-as-word.yaml",        "merge-key.yaml", "size-exponent.yaml", "tag.yaml",
      "weight-octal.yaml",         // a value by then
      "empty-value.yaml",          // null is pruned
      "pool-with-namespace.yaml",  // cleared
  };
  size_t files = 0;
  for (const std::string& file : Files("bad")) {
    ++files;
    const kube::ApiError error = JudgeFile(file);
    const bool taken = forgiven.contains(std::filesystem::path(file).filename().string());
    EXPECT_EQ(error.ok(), taken) << file << ": " << error.ToString();
    EXPECT_FALSE(crds::ParseManifests(ReadFile(file), file).ok()) << file;
    if (taken) continue;
    // Refused for what it says, not for where it was sent or who sent it.
    EXPECT_THAT(error.kind, ::testing::AnyOf(kube::ErrorKind::kInvalid, kube::ErrorKind::kNotFound))
        << file << ": " << error.ToString();
  }
  EXPECT_GE(files, 50u);
}

TEST_F(CrdVerdictTest, SetsThatAreWrongTogetherAreGoodAlone) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kExamples + "bad_sets")) {
    if (!entry.is_regular_file()) continue;
    const std::string file = entry.path().string();
    ++files;
    const kube::ApiError error = JudgeFile(file);
    EXPECT_EQ(error.ok(), crds::ParseManifests(ReadFile(file), file).ok()) << file << ": " << error.ToString();
  }
  EXPECT_GE(files, 6u);
}

TEST_F(CrdVerdictTest, ReaderAndServerAgreeOnValuesAtTheEdges) {
  size_t taken = 0, refused = 0;
  for (const auto& [field, values] : crds::EdgeValues()) {
    for (const std::string& value : values) {
      const std::string text = crds::EdgePolicy(field, value);
      const bool reader_takes = crds::ParseManifests(text, "edge.yaml").ok();
      const kube::ApiError error = Judge(text);
      EXPECT_EQ(reader_takes, error.ok()) << field << ": " << value << ": " << error.ToString();
      ++(reader_takes ? taken : refused);
    }
  }
  EXPECT_GT(taken, 15u);
  EXPECT_GT(refused, 25u);
}

}  // namespace
}  // namespace kvartal::testing
