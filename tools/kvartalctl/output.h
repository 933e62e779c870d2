// How kvartalctl shows things: tables with human sizes for people, JSON and YAML with exact numbers for programs.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace kvartal::ctl {

enum class OutputFormat { kTable, kJson, kYaml, kCsv };  // kCsv: of a simulation alone

// What every command is told.
struct Context {
  std::string socket;
  bool socket_given = false;  // by flag or environment, not by default
  OutputFormat output = OutputFormat::kTable;
};

// Every field under its proto name, zero ones too; 64-bit numbers as numbers; maps as objects.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);
// In the format asked for, which must be kJson or kYaml.
void PrintData(OutputFormat format, const nlohmann::ordered_json& data);
std::string ToYaml(const nlohmann::ordered_json& data);

// Aligned columns. A column whose cells are all numbers or sizes is set right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string Render() const;

 private:
  bool RightAligned(size_t column) const;
  std::vector<std::vector<std::string>> rows_;
};

std::string HumanBytes(uint64_t bytes);                 // 1.5 GiB
std::string HumanCount(uint64_t count);                 // 1,234,567
std::string Counted(uint64_t count, const char* what);  // 1 tenant, 1,234 tenants
std::string HumanDuration(uint64_t ms);                 // 3m 12s
std::string HumanShare(uint64_t part, uint64_t whole);  // 36.6%, "-" of nothing

// "kvartalctl: ..." on stderr; returns `exit_code`.
int Complain(const std::string& what, int exit_code = 1);

}  // namespace kvartal::ctl
