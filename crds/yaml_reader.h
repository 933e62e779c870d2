// YAML text -> a small tree of values that know where they stand. The one place that meets the YAML library and its
// exceptions. Pure functions: any thread. Invariants: any input is safe and bounded (kYamlBytesMax, kYamlDepthMax,
// kYamlNodesMax); no aliases, tags or duplicate keys come through, so a tree is never larger than its text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/base/status.h"

namespace kvartal::crds {

// Both count from 1.
struct YamlPosition {
  int line = 1;
  int column = 1;
};

struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kList, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  bool quoted = false;  // a scalar in quotes or a text block is text, whatever it looks like
  YamlPosition position;
  std::string text;  // kScalar
  std::vector<YamlNode> items;
  std::vector<Entry> entries;

  // nullptr unless this is a map that has `key`.
  const YamlNode* Find(std::string_view key) const;
};

struct YamlNode::Entry {
  std::string key;
  YamlPosition position;
  YamlNode value;
};

// One node a document that is not empty. InvalidArgument names file, line, column and what is wrong.
absl::StatusOr<std::vector<YamlNode>> ReadYaml(std::string_view text, const std::string& file_name);

// What a file holds up to kYamlBytesMax. NotFound or FailedPrecondition (not a readable regular file, too large), with
// the path.
absl::StatusOr<std::string> ReadYamlFile(const std::string& path);

// How text of a file is shown in an error: in quotes, escaped, cut when long.
std::string Shown(std::string_view text);

}  // namespace kvartal::crds
