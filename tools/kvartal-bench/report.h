// What a benchmark found: named values in order. One JSON object for programs, a table for people.
// Confined to the thread that fills it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace kvartal::bench {

class Report {
 public:
  using Value = std::variant<uint64_t, double, bool, std::string>;

  explicit Report(std::string name) : name_(std::move(name)) {}

  void Add(std::string key, uint64_t value) { values_.emplace_back(std::move(key), value); }
  void Add(std::string key, uint32_t value) { Add(std::move(key), static_cast<uint64_t>(value)); }
  void Add(std::string key, double value) { values_.emplace_back(std::move(key), value); }
  void Add(std::string key, bool value) { values_.emplace_back(std::move(key), value); }
  void Add(std::string key, std::string value) { values_.emplace_back(std::move(key), std::move(value)); }
  void Add(std::string key, const char* value) { Add(std::move(key), std::string(value)); }
  // Replaces the table for people.
  void SetText(std::string text) { text_ = std::move(text); }
  // How a value was obtained, for people.
  void Note(std::string text) { notes_.push_back(std::move(text)); }
  // What holds on any machine, however slow, or is the planted bug that a run was to find: `key` names the value that
  // says so. The others' bars are told in docs/CLAIMS.md and judged by nobody here.
  void Require(bool met, std::string key) {
    if (!met) unmet_.push_back(std::move(key));
  }
  const std::vector<std::string>& unmet() const { return unmet_; }

  // One line. Its first member is "bench": the name.
  std::string Json() const;
  std::string Table() const;

 private:
  const std::string name_;
  std::vector<std::pair<std::string, Value>> values_;
  std::vector<std::string> notes_, unmet_;
  std::string text_;
};

}  // namespace kvartal::bench
