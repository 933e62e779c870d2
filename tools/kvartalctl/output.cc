#include "tools/kvartalctl/output.h"

#include <google/protobuf/descriptor.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/units.h"

namespace kvartal::ctl {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

// `index` is -1 for a field that is not repeated.
ordered_json ValueOf(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection* reflect = message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? reflect->GetBool(message, field) : reflect->GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? reflect->GetUInt32(message, field) : reflect->GetRepeatedUInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? reflect->GetUInt64(message, field) : reflect->GetRepeatedUInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? reflect->GetString(message, field) : reflect->GetRepeatedString(message, field, index);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(one ? reflect->GetMessage(message, field) : reflect->GetRepeatedMessage(message, field, index));
    default:
      // No other type is in admin.proto; a new one must not vanish silently.
      return absl::StrCat("unshown type ", field->cpp_type_name());
  }
}

ordered_json MapOf(const Message& message, const FieldDescriptor* field) {
  std::vector<std::pair<std::string, ordered_json>> entries;
  const Reflection* reflect = message.GetReflection();
  for (int i = 0; i < reflect->FieldSize(message, field); ++i) {
    const Message& entry = reflect->GetRepeatedMessage(message, field, i);
    const ordered_json key = ValueOf(entry, field->message_type()->map_key(), -1);
    entries.emplace_back(key.is_string() ? key.get<std::string>() : key.dump(),
                         ValueOf(entry, field->message_type()->map_value(), -1));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  ordered_json object = ordered_json::object();
  for (auto& [key, value] : entries) object[key] = std::move(value);
  return object;
}

void EmitYaml(const ordered_json& data, YAML::Emitter* out) {
  if (data.is_object()) {
    if (data.empty()) *out << YAML::Flow;
    *out << YAML::BeginMap;
    for (const auto& [key, value] : data.items()) {
      *out << YAML::Key << key << YAML::Value;
      EmitYaml(value, out);
    }
    *out << YAML::EndMap;
  } else if (data.is_array()) {
    if (data.empty()) *out << YAML::Flow;
    *out << YAML::BeginSeq;
    for (const ordered_json& value : data) EmitYaml(value, out);
    *out << YAML::EndSeq;
  } else if (data.is_string()) {
    *out << YAML::DoubleQuoted << data.get<std::string>();  // quoted: "1e3" and "no" stay text
  } else if (data.is_null()) {
    *out << YAML::Null;
  } else {
    *out << data.dump();
  }
}

bool LooksNumeric(const std::string& cell) { return cell.empty() || cell == "-" || (cell[0] >= '0' && cell[0] <= '9'); }

}  // namespace

ordered_json ToJson(const Message& message) {
  ordered_json object = ordered_json::object();
  const google::protobuf::Descriptor* type = message.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->is_map()) {
      object[field->name()] = MapOf(message, field);
    } else if (field->is_repeated()) {
      ordered_json list = ordered_json::array();
      const int size = message.GetReflection()->FieldSize(message, field);
      for (int j = 0; j < size; ++j) list.push_back(ValueOf(message, field, j));
      object[field->name()] = std::move(list);
    } else {
      object[field->name()] = ValueOf(message, field, -1);
    }
  }
  return object;
}

std::string ToYaml(const ordered_json& data) {
  YAML::Emitter out;
  EmitYaml(data, &out);
  return out.c_str();
}

void PrintData(OutputFormat format, const ordered_json& data) {
  const std::string text = format == OutputFormat::kYaml ? ToYaml(data) : data.dump(2);
  std::printf("%s\n", text.c_str());
}

bool Table::RightAligned(size_t column) const {
  return std::all_of(rows_.begin() + 1, rows_.end(), [&](const auto& row) { return LooksNumeric(row[column]); });
}

std::string Table::Render() const {
  std::string text;
  const size_t columns = rows_[0].size();
  std::vector<size_t> widths(columns, 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < columns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < columns; ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&line, i == 0 ? "" : "  ", RightAligned(i) ? padding + row[i] : row[i] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string HumanBytes(uint64_t bytes) {
  static constexpr std::pair<uint64_t, const char*> kUnits[] = {
      {kTiB, "TiB"}, {kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}};
  for (const auto& [unit, name] : kUnits) {
    if (bytes >= unit) return absl::StrFormat("%.1f %s", static_cast<double>(bytes) / static_cast<double>(unit), name);
  }
  return absl::StrCat(bytes, " B");
}

std::string HumanCount(uint64_t count) {
  const std::string digits = absl::StrCat(count);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped.push_back(',');
    grouped.push_back(digits[i]);
  }
  return grouped;
}

std::string Counted(uint64_t count, const char* what) {
  return absl::StrCat(HumanCount(count), " ", what, count == 1 ? "" : "s");
}

std::string HumanDuration(uint64_t ms) {
  const uint64_t seconds = ms / 1000, minutes = seconds / 60, hours = minutes / 60, days = hours / 24;
  if (days > 0) return absl::StrCat(days, "d ", hours % 24, "h");
  if (hours > 0) return absl::StrCat(hours, "h ", minutes % 60, "m");
  if (minutes > 0) return absl::StrCat(minutes, "m ", seconds % 60, "s");
  return absl::StrFormat("%.1fs", static_cast<double>(ms) / 1000.0);
}

std::string HumanShare(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return absl::StrFormat("%.1f%%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

int Complain(const std::string& what, int exit_code) {
  std::fprintf(stderr, "kvartalctl: %s\n", what.c_str());
  return exit_code;
}

}  // namespace kvartal::ctl
