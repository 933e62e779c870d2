// An empty folder of a test, removed with all it holds at the end.
// Confined to the thread of the test.
// Invariant: every ScratchDir has a folder of its own.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "daemon/base/check.h"

namespace kvartal::testing {

class ScratchDir {
 public:
  ScratchDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvartal-test-XXXXXX").string();
    KV_CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace kvartal::testing
