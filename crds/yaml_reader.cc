#include "crds/yaml_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::crds {
namespace {

YamlPosition At(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

// Thrown by TreeBuilder through the library's frames and caught in ReadYaml: the only way to stop its parser.
struct Refused {
  YamlPosition position;
  std::string reason;
};

// Builds the tree from parser events.
// Confined to one ReadYaml call.
// Invariant: `open_` is the path from the document's root to the node being read.
class TreeBuilder : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override { open_.clear(); }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Add(NewNode(YamlNode::Kind::kNull, mark, "", anchor));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refused{At(mark), "aliases (*name) are not allowed; write the value out"};
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode node = NewNode(YamlNode::Kind::kScalar, mark, tag, anchor);
    node.quoted = tag == "!";
    node.text = value;
    Add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(NewNode(YamlNode::Kind::kList, mark, tag, anchor));
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(NewNode(YamlNode::Kind::kMap, mark, tag, anchor));
  }
  void OnMapEnd() override { Close(); }

  std::vector<YamlNode> TakeDocuments() { return std::move(documents_); }

 private:
  struct OpenNode {
    YamlNode node;
    bool has_key = false;
    std::string key;
    YamlPosition key_position;
    absl::flat_hash_map<std::string, YamlPosition> keys_seen;
  };

  YamlNode NewNode(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) throw Refused{At(mark), "anchors (&name) are not allowed; write the value out"};
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw Refused{At(mark), absl::StrCat("the tag ", Shown(tag), " is not allowed; remove it")};
    }
    if (++node_count_ > kYamlNodesMax) {
      throw Refused{At(mark), absl::StrCat("more than ", kYamlNodesMax, " values in one file; split it")};
    }
    YamlNode node;
    node.kind = kind;
    node.position = At(mark);
    return node;
  }

  void Open(YamlNode node) {
    if (open_.size() >= kYamlDepthMax) {
      throw Refused{node.position, absl::StrCat("nested deeper than ", kYamlDepthMax, " levels")};
    }
    if (!open_.empty() && ExpectsKey())
      throw Refused{node.position, "a key must be a single word, not a list or mapping"};
    open_.emplace_back().node = std::move(node);
  }

  void Close() {
    YamlNode node = std::move(open_.back().node);
    open_.pop_back();
    Add(std::move(node));
  }

  bool ExpectsKey() const { return open_.back().node.kind == YamlNode::Kind::kMap && !open_.back().has_key; }

  void Add(YamlNode node) {
    if (open_.empty()) {
      // An empty document says nothing, and its position is that of whatever follows.
      if (node.kind != YamlNode::Kind::kNull) documents_.push_back(std::move(node));
      return;
    }
    OpenNode& parent = open_.back();
    if (parent.node.kind == YamlNode::Kind::kList) {
      parent.node.items.push_back(std::move(node));
      return;
    }
    if (!parent.has_key) {
      TakeKey(parent, std::move(node));
      return;
    }
    parent.node.entries.push_back({std::move(parent.key), parent.key_position, std::move(node)});
    parent.has_key = false;
  }

  static void TakeKey(OpenNode& parent, YamlNode key) {
    if (key.kind != YamlNode::Kind::kScalar) throw Refused{key.position, "a key is missing before ':'"};
    const auto [seen, fresh] = parent.keys_seen.try_emplace(key.text, key.position);
    if (!fresh) {
      throw Refused{key.position, absl::StrCat("duplicate key ", Shown(key.text), "; it stands already at ",
                                               seen->second.line, ":", seen->second.column)};
    }
    parent.has_key = true;
    parent.key = std::move(key.text);
    parent.key_position = key.position;
  }

  std::vector<OpenNode> open_;
  std::vector<YamlNode> documents_;
  size_t node_count_ = 0;
};

// Length of the UTF-8 sequence at the front of `text`, 0 when it is none, or a character a manifest has no use for.
size_t CharacterLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 ? lead != 0x7f : lead == '\n' || lead == '\r' || lead == '\t';
  const size_t length = lead >= 0xc2 && lead <= 0xdf   ? 2
                        : (lead & 0xf0) == 0xe0        ? 3
                        : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                       : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xed && byte(1) >= 0xa0;
  const bool beyond = lead == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || beyond ? 0 : length;
}

absl::Status Refusal(const std::string& file, YamlPosition position, std::string_view reason) {
  return absl::InvalidArgumentError(
      absl::StrCat(file, ":", position.line, ":", position.column, ": ", std::string(reason)));
}

// The library guesses UTF-16 and lets broken UTF-8 through; both end here.
absl::Status CheckText(std::string_view text, const std::string& file) {
  if (text.size() > kYamlBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", text.size(), " bytes; a file may have at most ", kYamlBytesMax, "; split it"));
  }
  YamlPosition position;
  for (size_t i = 0; i < text.size();) {
    const size_t length = CharacterLength(text.substr(i));
    if (length == 0) return Refusal(file, position, "not printable UTF-8 text; save the file as UTF-8");
    ++position.column;
    if (text[i] == '\n') position = {position.line + 1, 1};
    i += length;
  }
  return absl::OkStatus();
}

// A tab among the spaces a line starts with is the usual reason why the parser gives up there.
bool IsIndentedWithTab(std::string_view text, int line) {
  size_t start = 0;
  for (int i = 1; i < line && start != std::string_view::npos; ++i) {
    start = text.find('\n', start);
    if (start != std::string_view::npos) ++start;
  }
  if (start == std::string_view::npos) return false;
  const size_t end = text.find_first_not_of(" \t", start);
  return text.substr(start, end == std::string_view::npos ? end : end - start).find('\t') != std::string_view::npos;
}

// The library takes whatever follows a finished document for the next one, "---" or not. There it is a slip of
// indentation.
absl::Status CheckSeparators(std::string_view text, const std::vector<YamlNode>& documents, const std::string& file) {
  int line = 1;
  size_t document = 1;
  bool separated = false;
  for (size_t start = 0; start < text.size() && document < documents.size(); ++line) {
    const YamlPosition position = documents[document].position;
    if (line > documents[document - 1].position.line && text.substr(start, 3) == "---") separated = true;
    const size_t end = std::min(text.find('\n', start), text.size());
    start = end + 1;
    if (line < position.line) continue;
    if (!separated) {
      return Refusal(file, position,
                     "not valid YAML: does not belong to what stands above; check the indentation, or put --- between "
                     "two objects");
    }
    separated = false;
    ++document;
  }
  return absl::OkStatus();
}

}  // namespace

const YamlNode* YamlNode::Find(std::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

absl::StatusOr<std::vector<YamlNode>> ReadYaml(std::string_view text, const std::string& file_name) {
  KV_RETURN_IF_ERROR(CheckText(text, file_name));
  TreeBuilder builder;
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refused& refused) {
    return Refusal(file_name, refused.position, refused.reason);
  } catch (const YAML::Exception& error) {
    const YamlPosition position = At(error.mark);
    if (IsIndentedWithTab(text, position.line)) {
      return Refusal(file_name, position, "the line is indented with a tab; YAML wants spaces");
    }
    return Refusal(file_name, position, absl::StrCat("not valid YAML: ", error.msg));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": cannot be read as YAML: ", error.what()));
  }
  std::vector<YamlNode> documents = builder.TakeDocuments();
  KV_RETURN_IF_ERROR(CheckSeparators(text, documents, file_name));
  return documents;
}

absl::StatusOr<std::string> ReadYamlFile(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    const int error = errno;
    const std::string message = absl::StrCat(path, ": cannot be opened: ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(message) : absl::FailedPreconditionError(message);
  }
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is not a regular file"));
  }
  std::string text(kYamlBytesMax + 1, '\0');
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::FailedPreconditionError(absl::StrCat(path, ": cannot be read: ", std::strerror(errno)));
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  if (filled > kYamlBytesMax) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": a file may have at most ", kYamlBytesMax, " bytes; split it"));
  }
  text.resize(filled);
  return text;
}

std::string Shown(std::string_view text) {
  constexpr size_t kShownMax = 64;
  if (text.size() <= kShownMax) return absl::StrCat("'", absl::Utf8SafeCEscape(std::string(text)), "'");
  size_t cut = kShownMax;
  while (cut > 0 && (static_cast<uint8_t>(text[cut]) & 0xc0) == 0x80) --cut;
  return absl::StrCat("'", absl::Utf8SafeCEscape(std::string(text.substr(0, cut))), "...'");
}

}  // namespace kvartal::crds
