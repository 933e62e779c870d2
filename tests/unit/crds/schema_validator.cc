#include "tests/unit/crds/schema_validator.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <regex>
#include <set>

#include "absl/strings/str_cat.h"

namespace kvartal::crds {
namespace {

// What Kubernetes' YAML reader makes of a scalar.
std::string TypeOf(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "null";
    case YamlNode::Kind::kList:
      return "array";
    case YamlNode::Kind::kMap:
      return "object";
    case YamlNode::Kind::kScalar:
      break;
  }
  if (node.quoted) return "string";
  static const std::regex kBool("true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF|y|Y|n|N");
  static const std::regex kInteger("[-+]?([0-9]+|0x[0-9a-fA-F]+|0o[0-7]+|0b[01]+)");
  static const std::regex kNumber("[-+]?(\\.[0-9]+|[0-9]+(\\.[0-9]*)?)([eE][-+]?[0-9]+)?");
  if (std::regex_match(node.text, kBool)) return "boolean";
  if (std::regex_match(node.text, kInteger)) return "integer";
  return std::regex_match(node.text, kNumber) ? "number" : "string";
}

// "0600" is octal to that reader, and so is no longer what it looks like.
int64_t IntegerOf(const YamlNode& node) { return std::strtoll(node.text.c_str(), nullptr, 0); }

std::string TextAt(const YamlNode& node, const char* key) {
  const YamlNode* value = node.Find(key);
  return value == nullptr ? "" : value->text;
}

// Bytes of a Quantity, percent of a percentage.
long double SizeOf(const YamlNode& node) {
  static const std::map<std::string, long double> kFactors = {
      {"", 1.L},  {"k", 1e3L},     {"M", 1e6L},     {"G", 1e9L},     {"T", 1e12L},    {"P", 1e15L},    {"E", 1e18L},
      {"%", 1.L}, {"Ki", 0x1p10L}, {"Mi", 0x1p20L}, {"Gi", 0x1p30L}, {"Ti", 0x1p40L}, {"Pi", 0x1p50L}, {"Ei", 0x1p60L}};
  char* end = nullptr;
  const long double number = std::strtold(node.text.c_str(), &end);
  const auto factor = kFactors.find(end);
  return factor == kFactors.end() ? -1 : number * factor->second;
}
bool IsPercent(const YamlNode& node) { return !node.text.empty() && node.text.back() == '%'; }

// The rules in CEL are known by their messages: what each asks for is written here a second time.
using Rule = std::function<bool(const YamlNode&)>;
const std::map<std::string, Rule>& KnownRules() {
  static const auto* const kRules = new std::map<std::string, Rule>{
      {"metadata.name must be a DNS label: up to 63 of a-z, 0-9 and '-'",
       [](const YamlNode& object) {
         const YamlNode* metadata = object.Find("metadata");
         const std::string name = metadata == nullptr ? "" : TextAt(*metadata, "name");
         return name.size() <= 63 && std::regex_match(name, std::regex("[a-z0-9]([-a-z0-9]*[a-z0-9])?"));
       }},
      {"slaTier Basic may not have an hbm guarantee; remove hbm.guarantee or choose Standard or Premium",
       [](const YamlNode& spec) {
         const YamlNode* pools = spec.Find("pools");
         if (TextAt(spec, "slaTier") != "Basic" || pools == nullptr) return true;
         return std::none_of(pools->items.begin(), pools->items.end(), [](const YamlNode& pool) {
           const YamlNode* per_gpu = pool.Find("perGpu");
           const YamlNode* hbm = per_gpu == nullptr ? nullptr : per_gpu->Find("hbm");
           return hbm != nullptr && hbm->Find("guarantee") != nullptr;
         });
       }},
      {"a subject must have exactly one of serviceAccountName, uid, socket (uid and socket: file source only)",
       [](const YamlNode& subject) {
         return (subject.Find("serviceAccountName") != nullptr) + (subject.Find("uid") != nullptr) +
                    (subject.Find("socket") != nullptr) ==
                1;
       }},
      {"guarantee is above limit; a guarantee must be at most the limit",
       [](const YamlNode& claim) {
         const YamlNode *guarantee = claim.Find("guarantee"), *limit = claim.Find("limit");
         if (guarantee == nullptr || limit == nullptr || IsPercent(*guarantee) != IsPercent(*limit)) return true;
         return SizeOf(*guarantee) <= SizeOf(*limit);
       }},
      {"a size must be at least 0 and less than 8Ei",
       [](const YamlNode& size) { return IsPercent(size) || (SizeOf(size) >= 0 && SizeOf(size) < 0x1p63L); }},
  };
  return *kRules;
}

class Judge {
 public:
  void Check(const YamlNode& schema, const YamlNode& value, const std::string& path);
  void CheckRules(const YamlNode& schema, const YamlNode& value, const std::string& path);
  std::vector<std::string> TakeComplaints() { return std::move(complaints_); }

 private:
  void Complain(const std::string& path, const std::string& what) {
    complaints_.push_back(absl::StrCat(path, ": ", what));
  }
  bool CheckType(const YamlNode& schema, const YamlNode& value, const std::string& path);
  void CheckScalar(const YamlNode& schema, const YamlNode& value, const std::string& path);
  void CheckObject(const YamlNode& schema, const YamlNode& value, const std::string& path);
  void CheckList(const YamlNode& schema, const YamlNode& value, const std::string& path);

  std::vector<std::string> complaints_;
};

bool Judge::CheckType(const YamlNode& schema, const YamlNode& value, const std::string& path) {
  const std::string type = TypeOf(value);
  const bool either = schema.Find("x-kubernetes-int-or-string") != nullptr;
  const std::string wanted = either ? "integer or string" : TextAt(schema, "type");
  if (either ? type == "integer" || type == "string" : type == wanted) return true;
  Complain(path, absl::StrCat("is of type ", type, ", not ", wanted));
  return false;
}

void Judge::CheckScalar(const YamlNode& schema, const YamlNode& value, const std::string& path) {
  const auto bound = [&](const char* key) { return schema.Find(key); };
  if (const YamlNode* allowed = bound("enum")) {
    const bool found = std::any_of(allowed->items.begin(), allowed->items.end(),
                                   [&](const YamlNode& word) { return word.text == value.text; });
    if (!found) Complain(path, "is not one of the enum");
  }
  if (TextAt(schema, "type") == "integer") {
    if (bound("minimum") && IntegerOf(value) < IntegerOf(*bound("minimum"))) Complain(path, "is below minimum");
    if (bound("maximum") && IntegerOf(value) > IntegerOf(*bound("maximum"))) Complain(path, "is above maximum");
    return;
  }
  const int64_t length = static_cast<int64_t>(value.text.size());
  if (bound("minLength") && length < IntegerOf(*bound("minLength"))) Complain(path, "is too short");
  if (bound("maxLength") && length > IntegerOf(*bound("maxLength"))) Complain(path, "is too long");
  const YamlNode* pattern = bound("pattern");
  if (pattern != nullptr && !std::regex_search(value.text, std::regex(pattern->text))) Complain(path, "has a bad form");
}

void Judge::CheckObject(const YamlNode& schema, const YamlNode& value, const std::string& path) {
  if (const YamlNode* required = schema.Find("required")) {
    for (const YamlNode& key : required->items) {
      if (value.Find(key.text) == nullptr) Complain(path, absl::StrCat("lacks ", key.text));
    }
  }
  const int64_t count = static_cast<int64_t>(value.entries.size());
  if (schema.Find("minProperties") && count < IntegerOf(*schema.Find("minProperties"))) Complain(path, "is too empty");
  if (schema.Find("maxProperties") && count > IntegerOf(*schema.Find("maxProperties"))) Complain(path, "is too full");
  const YamlNode* properties = schema.Find("properties");
  const YamlNode* others = schema.Find("additionalProperties");
  for (const YamlNode::Entry& entry : value.entries) {
    const YamlNode* known = properties == nullptr ? nullptr : properties->Find(entry.key);
    const std::string field = absl::StrCat(path, ".", entry.key);
    if (known == nullptr) known = others;
    if (known != nullptr)
      Check(*known, entry.value, field);
    else
      Complain(field, "is unknown");
  }
}

void Judge::CheckList(const YamlNode& schema, const YamlNode& value, const std::string& path) {
  if (static_cast<int64_t>(value.items.size()) > IntegerOf(*schema.Find("maxItems")))
    Complain(path, "has too many items");
  std::set<std::string> seen;
  const YamlNode* map_keys = schema.Find("x-kubernetes-list-map-keys");
  const bool is_set = TextAt(schema, "x-kubernetes-list-type") == "set";
  for (size_t i = 0; i < value.items.size(); ++i) {
    const std::string field = absl::StrCat(path, "[", i, "]");
    Check(*schema.Find("items"), value.items[i], field);
    if (map_keys == nullptr && !is_set) continue;
    const std::string key = is_set ? value.items[i].text : TextAt(value.items[i], map_keys->items[0].text.c_str());
    if (!seen.insert(key).second) Complain(field, absl::StrCat("repeats ", key));
  }
}

void Judge::CheckRules(const YamlNode& schema, const YamlNode& value, const std::string& path) {
  const YamlNode* rules = schema.Find("x-kubernetes-validations");
  if (rules == nullptr) return;
  for (const YamlNode& rule : rules->items) {
    const auto known = KnownRules().find(TextAt(rule, "message"));
    if (known == KnownRules().end())
      Complain(path, absl::StrCat("has a rule this judge does not know: ", TextAt(rule, "message")));
    else if (!known->second(value))
      Complain(path, known->first);
  }
}

void Judge::Check(const YamlNode& schema, const YamlNode& value, const std::string& path) {
  if (!CheckType(schema, value, path)) return;
  switch (value.kind) {
    case YamlNode::Kind::kMap:
      CheckObject(schema, value, path);
      break;
    case YamlNode::Kind::kList:
      CheckList(schema, value, path);
      break;
    default:
      CheckScalar(schema, value, path);
      break;
  }
  CheckRules(schema, value, path);
}

}  // namespace

std::vector<std::string> JudgeBySchema(const YamlNode& crd, const YamlNode& object) {
  const YamlNode& spec = *crd.Find("spec");
  const YamlNode& version = spec.Find("versions")->items[0];
  if (TypeOf(object) != "object") return {"not an object"};
  const std::string api_version = absl::StrCat(TextAt(spec, "group"), "/", TextAt(version, "name"));
  if (TextAt(object, "apiVersion") != api_version) return {"apiVersion: not served"};
  if (TextAt(object, "kind") != TextAt(*spec.Find("names"), "kind")) return {"kind: not served"};
  // The server itself looks after metadata, whatever the schema says.
  const YamlNode* metadata = object.Find("metadata");
  if (metadata == nullptr || metadata->Find("name") == nullptr) return {"metadata.name: missing"};
  if (TypeOf(*metadata->Find("name")) != "string") return {"metadata.name: not a string"};
  const bool namespaced = TextAt(spec, "scope") == "Namespaced";
  if (namespaced != (metadata->Find("namespace") != nullptr)) return {"metadata.namespace: against the scope"};
  if (object.Find("spec") == nullptr) return {"spec: missing"};
  const YamlNode& schema = *version.Find("schema")->Find("openAPIV3Schema");
  Judge judge;
  for (const YamlNode::Entry& entry : object.entries) {
    const YamlNode* known = schema.Find("properties")->Find(entry.key);
    if (known == nullptr) return {absl::StrCat(entry.key, ": is unknown")};
    if (entry.key != "metadata") judge.Check(*known, entry.value, entry.key);
  }
  judge.CheckRules(schema, object, "object");
  return judge.TakeComplaints();
}

}  // namespace kvartal::crds
