#include "crds/field_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <tuple>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/limits.h"

namespace kvartal::crds {
namespace {

enum class Resolved { kText, kInteger, kFloat, kBool };

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool IsFloat(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text == ".inf" || text == ".Inf" || text == ".INF" || text == ".nan" || text == ".NaN" || text == ".NAN")
    return true;
  if (text.empty() || (text[0] != '.' && (text[0] < '0' || text[0] > '9'))) return false;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return end == text.data() + text.size() && error != std::errc::invalid_argument;
}

// What a plain word is to the YAML readers of Kubernetes. Telling it from text here keeps the two sources of policy
// alike.
Resolved Resolve(const YamlNode& node) {
  static constexpr std::array<std::string_view, 22> kBools = {
      "true", "True", "TRUE", "false", "False", "FALSE", "yes", "Yes", "YES", "no", "No",
      "NO",   "on",   "On",   "ON",    "off",   "Off",   "OFF", "y",   "Y",   "n",  "N"};
  if (node.quoted) return Resolved::kText;
  std::string_view text = node.text;
  if (std::find(kBools.begin(), kBools.end(), text) != kBools.end()) return Resolved::kBool;
  std::string_view digits = text;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.remove_prefix(1);
  if (IsDigits(digits)) return Resolved::kInteger;
  const bool prefixed =
      digits.size() > 2 && digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'o' || digits[1] == 'b');
  if (prefixed && digits.find_first_not_of("0123456789abcdefABCDEF", 2) == std::string_view::npos)
    return Resolved::kInteger;
  return IsFloat(text) ? Resolved::kFloat : Resolved::kText;
}

bool IsLowerAlnum(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

bool IsDnsLabel(std::string_view text) {
  if (text.empty() || text.size() > 63 || !IsLowerAlnum(text.front()) || !IsLowerAlnum(text.back())) return false;
  return std::all_of(text.begin(), text.end(), [](char c) { return IsLowerAlnum(c) || c == '-'; });
}

bool IsDnsLabelOrEmpty(std::string_view text) { return text.empty() || IsDnsLabel(text); }

bool IsDnsSubdomain(std::string_view text) {
  while (true) {
    const size_t dot = text.find('.');
    if (!IsDnsLabel(text.substr(0, dot))) return false;
    if (dot == std::string_view::npos) return true;
    text.remove_prefix(dot + 1);
  }
}

bool IsNotEmpty(std::string_view text) { return !text.empty(); }

}  // namespace

const TextRule kDnsLabel = {63, IsDnsLabel,
                            "a DNS label: up to 63 of a-z, 0-9 and '-', starting and ending with a letter or digit"};
const TextRule kDnsLabelOrEmpty = {63, IsDnsLabelOrEmpty,
                                   "a DNS label (up to 63 of a-z, 0-9 and '-'), or \"\" for none"};
const TextRule kDnsSubdomain = {253, IsDnsSubdomain, "DNS labels (a-z, 0-9, '-') joined by dots, up to 253 characters"};
const TextRule kShortText = {253, IsNotEmpty, "1 to 253 bytes of text"};
const TextRule kPathText = {4095, IsNotEmpty, "a path of 1 to 4095 bytes"};

void Findings::Add(YamlPosition position, const std::string& field, const std::string& reason) {
  if (findings_.size() >= kYamlFindingsMax) {
    ++left_out_;
    return;
  }
  findings_.push_back({position, absl::StrCat(file_name_, ":", position.line, ":", position.column, ": ", field,
                                              field.empty() ? "" : ": ", reason)});
}

absl::Status Findings::status() const {
  if (findings_.empty()) return absl::OkStatus();
  std::vector<Finding> sorted = findings_;
  std::sort(sorted.begin(), sorted.end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.position.line, a.position.column, a.text) < std::tie(b.position.line, b.position.column, b.text);
  });
  std::string text = absl::StrJoin(sorted, "\n", [](std::string* out, const Finding& f) { out->append(f.text); });
  if (left_out_ > 0) absl::StrAppend(&text, "\n", file_name_, ": and ", left_out_, " more");
  return absl::InvalidArgumentError(text);
}

std::string FirstFindings(std::string_view findings) {
  size_t end = 0;
  for (size_t lines = 0; lines < kYamlFindingsMax && end < findings.size(); ++lines)
    end = std::min(findings.find('\n', end), findings.size() - 1) + 1;
  if (end == findings.size()) return std::string(findings);
  const auto left_out = std::count(findings.begin() + static_cast<ptrdiff_t>(end), findings.end(), '\n') + 1;
  return absl::StrCat(std::string(findings.substr(0, end)), "and ", left_out,
                      " more, which kvartalctl policy validate tells; correct these first");
}

std::string Findings::PlaceOf(YamlPosition position) const { return absl::StrCat(file_name_, ":", position.line); }

FieldReader::FieldReader(const YamlNode& node, std::string path, Findings* findings)
    : node_(node), path_(std::move(path)), findings_(findings) {
  if (node_.kind != YamlNode::Kind::kMap) findings_->Add(node_.position, path_, "must be a mapping (key: value)");
}

FieldReader::~FieldReader() {
  for (const YamlNode::Entry& entry : node_.entries) {
    const auto is_key = [&](std::string_view known) { return known == entry.key; };
    if (std::any_of(allowed_.begin(), allowed_.end(), is_key)) continue;
    if (std::any_of(ignored_.begin(), ignored_.end(), is_key)) continue;
    std::vector<std::string> names(allowed_.begin(), allowed_.end());
    findings_->Add(entry.position, path_,
                   absl::StrCat("unknown key ", Shown(entry.key), "; allowed: ", absl::StrJoin(names, ", ")));
  }
}

std::string FieldReader::PathOf(std::string_view key) const {
  return absl::StrCat(path_, path_.empty() ? "" : ".", std::string(key));
}

bool FieldReader::Has(std::string_view key) const { return node_.Find(key) != nullptr; }

bool FieldReader::IsEmptyText(std::string_view key) {
  if (std::find(allowed_.begin(), allowed_.end(), key) == allowed_.end()) allowed_.push_back(key);
  const YamlNode* value = node_.Find(key);
  return value != nullptr && value->kind == YamlNode::Kind::kScalar && value->quoted && value->text.empty();
}

void FieldReader::Require(std::string_view key, std::string_view why) {
  if (node_.kind != YamlNode::Kind::kMap || Has(key)) return;
  findings_->Add(node_.position, PathOf(key), absl::StrCat("is required", why.empty() ? "" : ": ", std::string(why)));
}

void FieldReader::Ignore(std::initializer_list<std::string_view> keys) {
  ignored_.insert(ignored_.end(), keys.begin(), keys.end());
}

void FieldReader::Fail(std::string_view key, const std::string& reason) {
  const YamlNode* value = node_.Find(key);
  findings_->Add(value == nullptr ? node_.position : value->position, PathOf(key), reason);
}

const YamlNode* FieldReader::Take(std::string_view key) {
  if (std::find(allowed_.begin(), allowed_.end(), key) == allowed_.end()) allowed_.push_back(key);
  const YamlNode* value = node_.Find(key);
  if (value == nullptr) return nullptr;
  if (value->kind == YamlNode::Kind::kNull) {
    Fail(key, "is empty; give it a value or remove the key");
    return nullptr;
  }
  return value;
}

const YamlNode* FieldReader::TakeScalar(std::string_view key, const char* wanted) {
  const YamlNode* value = Take(key);
  if (value == nullptr || value->kind == YamlNode::Kind::kScalar) return value;
  Fail(key, absl::StrCat("must be ", wanted, ", not a ", value->kind == YamlNode::Kind::kMap ? "mapping" : "list"));
  return nullptr;
}

std::optional<std::string> FieldReader::TextOf(const YamlNode& node, const std::string& path, const TextRule& rule) {
  if (node.kind != YamlNode::Kind::kScalar) {
    findings_->Add(node.position, path, absl::StrCat("must be text; allowed: ", rule.allowed));
    return std::nullopt;
  }
  if (Resolve(node) != Resolved::kText) {
    findings_->Add(node.position, path, absl::StrCat(Shown(node.text), " is not text to YAML; put it in quotes"));
    return std::nullopt;
  }
  if (node.text.size() > rule.bytes_max || !rule.accepts(node.text)) {
    findings_->Add(node.position, path, absl::StrCat(Shown(node.text), " is not valid; allowed: ", rule.allowed));
    return std::nullopt;
  }
  return node.text;
}

std::optional<std::string> FieldReader::Text(std::string_view key, const TextRule& rule) {
  const YamlNode* value = Take(key);
  if (value == nullptr) return std::nullopt;
  return TextOf(*value, PathOf(key), rule);
}

std::optional<int64_t> FieldReader::Integer(std::string_view key, int64_t min, int64_t max) {
  const YamlNode* value = TakeScalar(key, "an integer");
  if (value == nullptr) return std::nullopt;
  const std::string allowed = absl::StrCat("; allowed: integers ", min, " to ", max);
  const std::string_view text = value->text;
  const std::string_view digits = text.substr(!text.empty() && text[0] == '-' ? 1 : 0);
  if (value->quoted || !IsDigits(digits) || (digits.size() > 1 && digits[0] == '0')) {
    Fail(key, absl::StrCat(Shown(text), value->quoted ? " is text, not an integer" : " is not an integer", allowed));
    return std::nullopt;
  }
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < min || number > max) {
    Fail(key, absl::StrCat(Shown(text), " is out of range", allowed));
    return std::nullopt;
  }
  return number;
}

std::optional<bool> FieldReader::Bool(std::string_view key) {
  const YamlNode* value = TakeScalar(key, "true or false");
  if (value == nullptr) return std::nullopt;
  if (!value->quoted && value->text == "true") return true;
  if (!value->quoted && value->text == "false") return false;
  Fail(key, absl::StrCat(Shown(value->text), value->quoted ? " is text" : "", " is not allowed; allowed: true, false"));
  return std::nullopt;
}

std::optional<std::string> FieldReader::OneOf(std::string_view key, std::span<const std::string_view> allowed) {
  const YamlNode* value = TakeScalar(key, "one word");
  if (value == nullptr) return std::nullopt;
  if (std::find(allowed.begin(), allowed.end(), value->text) != allowed.end()) return value->text;
  std::vector<std::string> names(allowed.begin(), allowed.end());
  Fail(key, absl::StrCat(Shown(value->text), " is not allowed; allowed: ", absl::StrJoin(names, ", ")));
  return std::nullopt;
}

std::optional<Quantity> FieldReader::Size(std::string_view key, Percent percent) {
  const YamlNode* value = TakeScalar(key, "a size");
  if (value == nullptr) return std::nullopt;
  const absl::StatusOr<Quantity> quantity = ParseQuantity(value->text);
  if (!quantity.ok()) {
    Fail(key, std::string(quantity.status().message()));
    return std::nullopt;
  }
  if (quantity->is_percent && percent == Percent::kRefused) {
    Fail(key, absl::StrCat(Shown(value->text), " is a percentage; here a size is wanted, such as \"10Gi\" or 4096"));
    return std::nullopt;
  }
  return *quantity;
}

std::optional<uint32_t> FieldReader::FileMode(std::string_view key) {
  const YamlNode* value = TakeScalar(key, "octal digits");
  if (value == nullptr) return std::nullopt;
  const std::string_view text = value->text;
  uint32_t mode = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
  if (text.size() != 4 || error != std::errc() || end != text.data() + text.size() || mode > 0777) {
    Fail(key, absl::StrCat(Shown(text), " is not a file mode; allowed: \"0000\" to \"0777\", four octal digits"));
    return std::nullopt;
  }
  return mode;
}

const YamlNode* FieldReader::TakeList(std::string_view key, size_t items_max) {
  const YamlNode* value = Take(key);
  if (value == nullptr) return nullptr;
  if (value->kind != YamlNode::Kind::kList) {
    Fail(key, "must be a list (- item)");
    return nullptr;
  }
  if (value->items.size() > items_max) {
    Fail(key, absl::StrCat("has ", value->items.size(), " items; allowed: at most ", items_max));
    return nullptr;
  }
  return value;
}

std::vector<std::string> FieldReader::Texts(std::string_view key, size_t items_max, const TextRule& rule) {
  std::vector<std::string> texts;
  const YamlNode* list = TakeList(key, items_max);
  if (list == nullptr) return texts;
  for (size_t i = 0; i < list->items.size(); ++i) {
    const std::string path = absl::StrCat(PathOf(key), "[", i, "]");
    std::optional<std::string> text = TextOf(list->items[i], path, rule);
    if (!text) continue;
    if (std::find(texts.begin(), texts.end(), *text) != texts.end()) {
      findings_->Add(list->items[i].position, path, absl::StrCat(Shown(*text), " is listed twice"));
    }
    texts.push_back(*std::move(text));
  }
  return texts;
}

std::map<std::string, std::string> FieldReader::TextMap(std::string_view key, size_t items_max) {
  std::map<std::string, std::string> texts;
  const TextRule any = {253, [](std::string_view) { return true; }, "up to 253 bytes of text"};
  const YamlNode* map = Take(key);
  if (map == nullptr) return texts;
  if (map->kind != YamlNode::Kind::kMap) {
    Fail(key, "must be a mapping (key: value)");
  } else if (map->entries.size() > items_max) {
    Fail(key, absl::StrCat("has ", map->entries.size(), " keys; allowed: at most ", items_max));
  } else {
    for (const YamlNode::Entry& entry : map->entries) {
      const std::string path = absl::StrCat(PathOf(key), ".", absl::Utf8SafeCEscape(entry.key));
      if (std::optional<std::string> text = TextOf(entry.value, path, any)) texts.emplace(entry.key, *std::move(text));
    }
  }
  return texts;
}

void FieldReader::Object(std::string_view key, absl::FunctionRef<void(FieldReader&)> read) {
  const YamlNode* value = Take(key);
  if (value == nullptr) return;
  FieldReader reader(*value, PathOf(key), findings_);
  read(reader);
}

void FieldReader::Objects(std::string_view key, size_t items_max, absl::FunctionRef<void(FieldReader&)> read) {
  const YamlNode* list = TakeList(key, items_max);
  if (list == nullptr) return;
  for (size_t i = 0; i < list->items.size(); ++i) {
    FieldReader reader(list->items[i], absl::StrCat(PathOf(key), "[", i, "]"), findings_);
    read(reader);
  }
}

}  // namespace kvartal::crds
