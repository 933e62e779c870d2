#include "operator/kube/sparse_json.h"

#include <string>
#include <utility>
#include <vector>

namespace kvartal::kube {
namespace {

using nlohmann::json;

// Builds what is wanted, and counts its way through the rest.
// A plain value. Invariant: open_ are the arrays and objects around the present place that are kept, the outermost
// first; within one that is not kept, passed_over_ is how deep.
class SparseBuilder final : public nlohmann::json_sax<json> {
 public:
  explicit SparseBuilder(const json* wanted) : next_(wanted) {}
  json Take() { return std::move(root_); }

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t&) override { return Put(value); }
  bool string(string_t& value) override { return Put(value); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return Open(json::value_t::object); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(json::value_t::array); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (passed_over_ > 0) return true;
    const json& wanted = *open_.back().wanted;
    auto found = wanted.find(name);
    if (found == wanted.end()) found = wanted.find("*");
    next_ = found == wanted.end() ? nullptr : &*found;
    if (next_ != nullptr) name_ = name;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  struct Place {
    json* value;
    const json* wanted;  // of its fields, or of its elements
  };

  // What is wanted of the value that comes; nullptr: nothing.
  const json* Wanted() const {
    if (passed_over_ > 0) return nullptr;
    return !open_.empty() && open_.back().value->is_array() ? open_.back().wanted : next_;
  }
  json* Add(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& around = *open_.back().value;
    if (around.is_array()) {
      around.push_back(std::move(value));
      return &around.back();
    }
    return &(around[name_] = std::move(value));
  }
  template <typename Value>
  bool Put(const Value& value) {
    if (const json* wanted = Wanted(); wanted != nullptr && !wanted->is_object()) Add(value);
    return true;
  }
  bool Open(json::value_t kind) {
    const json* wanted = Wanted();
    if (wanted == nullptr || !wanted->is_object()) {
      ++passed_over_;
    } else {
      open_.push_back({Add(kind), wanted});
    }
    return true;
  }
  bool Close() {
    if (passed_over_ > 0) {
      --passed_over_;
    } else {
      open_.pop_back();
    }
    return true;
  }

  json root_;
  std::vector<Place> open_;
  size_t passed_over_ = 0;
  const json* next_;  // of the root, and then of the field whose name was read
  std::string name_;
};

}  // namespace

json ParseSparse(std::string_view text, const json& wanted) {
  if (wanted.is_null()) return json::parse(text, nullptr, false);
  SparseBuilder builder(&wanted);
  if (!json::sax_parse(text, &builder)) return json::value_t::discarded;
  return builder.Take();
}

}  // namespace kvartal::kube
