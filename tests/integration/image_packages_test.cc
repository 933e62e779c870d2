// The images have no container engine to be built by here. What can go wrong in them without one: a library that a
// program links and no package of its image brings. Programs are asked what they link, and the system whose that is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/daemon_process.h"

namespace kvartal::testing {
namespace {

using ::testing::Contains;

// The words of the last install command: what is before it serves the build alone.
std::set<std::string> PackagesOf(const std::string& dockerfile) {
  const std::string text = ReadFile(std::string(KVARTAL_SOURCE_DIR) + "/charts/images/" + dockerfile);
  const size_t from = text.rfind("--no-install-recommends"), to = text.find("&&", from);
  std::set<std::string> packages;
  for (const auto& word : absl::StrSplit(text.substr(from, to - from), absl::ByAnyChar(" \n\\"), absl::SkipEmpty()))
    packages.insert(std::string(word));
  return packages;
}

// soname -> the file the loader takes for it.
std::map<std::string, std::string> FilesOf(const std::string& program) {
  std::map<std::string, std::string> files;
  const CommandResult ldd = RunCommand({"/usr/bin/ldd", program});
  for (const auto& line : absl::StrSplit(ldd.out, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() >= 3 && words[1] == "=>") files[words[0]] = words[2];
  }
  return files;
}

std::vector<std::string> Needed(const std::string& program) {
  std::vector<std::string> needed;
  for (const auto& line : absl::StrSplit(RunCommand({"/usr/bin/readelf", "-d", program}).out, '\n')) {
    if (line.find("(NEEDED)") == absl::string_view::npos) continue;
    const size_t open = line.find('['), close = line.find(']');
    needed.emplace_back(line.substr(open + 1, close - open - 1));
  }
  return needed;
}

// The package that has the file; the system may know it with or without /usr in front.
std::string PackageOf(const std::string& file) {
  const std::string real = std::filesystem::canonical(file).string();
  const std::string bare = real.starts_with("/usr/") ? real.substr(4) : real;
  for (const std::string& path : {file, real, bare, "/usr" + bare}) {
    const CommandResult found = RunCommand({"/usr/bin/dpkg-query", "-S", path});
    if (found.exit_code == 0) return found.out.substr(0, found.out.find(':'));
  }
  return absl::StrCat("no package has ", file);
}

void ExpectImageHas(const std::string& dockerfile, const std::vector<std::string>& programs) {
  const std::set<std::string> packages = PackagesOf(dockerfile);
  ASSERT_GT(packages.size(), 5u);
  for (const std::string& program : programs) {
    const auto files = FilesOf(program);
    size_t looked_up = 0;
    for (const std::string& soname : Needed(program)) {
      // The loader, libc and what is ours are in the image by themselves.
      if (soname.starts_with("ld-linux") || soname.starts_with("libkvartal")) continue;
      const auto file = files.find(soname);
      ASSERT_NE(file, files.end()) << program << " links " << soname << " and the loader does not find it";
      const std::string package = PackageOf(file->second);
      ++looked_up;
      if (package == "libc6") continue;
      EXPECT_THAT(packages, Contains(package)) << program << " links " << soname;
    }
    EXPECT_GE(looked_up, 1u) << program;
  }
}

TEST(ImagePackagesTest, TheDaemonsImageHasWhatItsProgramsLink) {
  const std::string built = KVARTAL_BIN_DIR;
  ExpectImageHas("kvartald.Dockerfile", {built + "/kvartald", built + "/kvartalctl", built + "/../tests/client_example",
                                         built + "/../lib/libkvartal.so.0"});
}

#ifdef KVARTAL_HAS_OPERATOR
TEST(ImagePackagesTest, TheOperatorsImageHasWhatItLinks) {
  ExpectImageHas("kvartal-operator.Dockerfile", {std::string(KVARTAL_BIN_DIR) + "/kvartal-operator"});
}
#endif

}  // namespace
}  // namespace kvartal::testing
