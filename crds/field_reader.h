// Typed reading of YAML mappings: types, ranges, enums and list maxima are checked where a field is read, and a key
// nobody asked for is refused. Every finding names file, line, column, field path and what is allowed. Confined to one
// parse. Invariant: a Findings without any finding means that every value read was given and valid, or absent.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "crds/quantity.h"
#include "crds/yaml_reader.h"
#include "daemon/base/status.h"

namespace kvartal::crds {

// What is wrong with one file.
class Findings {
 public:
  explicit Findings(std::string file_name) : file_name_(std::move(file_name)) {}

  void Add(YamlPosition position, const std::string& field, const std::string& reason);
  // OK, or InvalidArgument with a line a finding, in file order: the first kYamlFindingsMax, and how many more.
  absl::Status status() const;
  std::string PlaceOf(YamlPosition position) const;  // "file:line"
  const std::string& file_name() const { return file_name_; }

 private:
  struct Finding {
    YamlPosition position;
    std::string text;
  };
  const std::string file_name_;
  std::vector<Finding> findings_;
  size_t left_out_ = 0;
};

// Of findings, a line each, the first kYamlFindingsMax: for a log, or wherever else not all are wanted. How many there
// are beyond is said.
std::string FirstFindings(std::string_view findings);

// What a text field accepts.
struct TextRule {
  size_t bytes_max;
  bool (*accepts)(std::string_view);
  const char* allowed;
};
extern const TextRule kDnsLabel;  // a name of one part
extern const TextRule kDnsLabelOrEmpty;
extern const TextRule kDnsSubdomain;  // a name with dots
extern const TextRule kShortText;     // anything that is not empty
extern const TextRule kPathText;

enum class Percent : bool { kRefused, kAllowed };

class FieldReader {
 public:
  // Anything but a mapping is one finding; every field then reads as absent.
  FieldReader(const YamlNode& node, std::string path, Findings* findings);
  // Whatever was not asked for by now is an unknown key.
  ~FieldReader();
  FieldReader(const FieldReader&) = delete;
  FieldReader& operator=(const FieldReader&) = delete;

  bool Has(std::string_view key) const;
  bool IsEmptyText(std::string_view key);  // "", where that means "none"
  void Require(std::string_view key, std::string_view why = "");
  // Allowed and not read.
  void Ignore(std::initializer_list<std::string_view> keys);
  // A finding at `key`, at the mapping itself where it is absent.
  void Fail(std::string_view key, const std::string& reason);

  // nullopt: absent, or invalid and told.
  std::optional<std::string> Text(std::string_view key, const TextRule& rule);
  std::optional<int64_t> Integer(std::string_view key, int64_t min, int64_t max);
  std::optional<bool> Bool(std::string_view key);
  std::optional<std::string> OneOf(std::string_view key, std::span<const std::string_view> allowed);
  std::optional<Quantity> Size(std::string_view key, Percent percent);
  std::optional<uint32_t> FileMode(std::string_view key);  // octal digits, quoted or not: "0660"
  std::vector<std::string> Texts(std::string_view key, size_t items_max, const TextRule& rule);
  std::map<std::string, std::string> TextMap(std::string_view key, size_t items_max);
  // `read` gets the mapping under `key`, if there is one; each mapping of the list under `key`.
  void Object(std::string_view key, absl::FunctionRef<void(FieldReader&)> read);
  void Objects(std::string_view key, size_t items_max, absl::FunctionRef<void(FieldReader&)> read);

  YamlPosition position() const { return node_.position; }
  const std::string& path() const { return path_; }
  Findings* findings() { return findings_; }

 private:
  // nullptr when absent. An empty value is a finding: it is a slip more often than a wish.
  const YamlNode* Take(std::string_view key);
  const YamlNode* TakeScalar(std::string_view key, const char* wanted);
  const YamlNode* TakeList(std::string_view key, size_t items_max);
  std::optional<std::string> TextOf(const YamlNode& node, const std::string& path, const TextRule& rule);
  std::string PathOf(std::string_view key) const;

  const YamlNode& node_;
  const std::string path_;
  Findings* const findings_;
  std::vector<std::string_view> allowed_;  // asked for; literals of the caller
  std::vector<std::string_view> ignored_;
};

}  // namespace kvartal::crds
