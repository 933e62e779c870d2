#include "tools/kvartal-bench/trace.h"

#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "tools/kvartal-bench/block_bytes.h"

namespace kvartal::bench {
namespace {

constexpr size_t kLineBytesMax = 1 << 20;  // a chain of 100,000 blocks; longer is not a trace

// The text after `"name":`, nullptr when the field is absent.
const char* FieldText(const std::string& line, const char* name) {
  const std::string quoted = absl::StrCat("\"", name, "\"");
  const size_t at = line.find(quoted);
  if (at == std::string::npos) return nullptr;
  const size_t colon = line.find(':', at + quoted.size());
  return colon == std::string::npos ? nullptr : line.c_str() + colon + 1;
}

struct GzClose {
  void operator()(gzFile_s* file) const { gzclose(file); }
};

}  // namespace

absl::StatusOr<TraceRequest> ParseTraceLine(const std::string& line) {
  TraceRequest request;
  const char* const arrival = FieldText(line, "timestamp");
  const char* const input = FieldText(line, "input_length");
  const char* ids = FieldText(line, "hash_ids");
  if (input == nullptr) return absl::InvalidArgumentError("no field \"input_length\"");
  if (ids == nullptr) return absl::InvalidArgumentError("no field \"hash_ids\"");
  if (arrival != nullptr) request.arrival_s = std::strtod(arrival, nullptr) / 1000;
  request.input_tokens = std::strtoull(input, nullptr, 10);
  while (*ids == ' ') ++ids;
  if (*ids != '[') return absl::InvalidArgumentError("\"hash_ids\" is not a list");
  ++ids;
  for (;;) {
    while (*ids == ' ' || *ids == ',') ++ids;
    if (*ids == ']') return request;
    char* end = nullptr;
    const uint64_t id = std::strtoull(ids, &end, 10);
    if (end == ids) return absl::InvalidArgumentError("\"hash_ids\" holds something that is not a number");
    request.blocks.push_back(id);
    ids = end;
  }
}

absl::StatusOr<Trace> LoadTrace(const std::string& name_or_path, uint64_t requests_max) {
  std::string path = name_or_path;
  if (path == "conversation" || path == "synthetic") {
    KV_ASSIGN_OR_RETURN(path,
                        FindShipped(absl::StrCat("tests/data/traces/mooncake_", name_or_path, "_trace.jsonl.gz")));
  }
  const std::unique_ptr<gzFile_s, GzClose> file(gzopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat("cannot open the trace ", path,
                                            ": give `conversation`, `synthetic` or the path of a JSON-lines file"));
  }
  Trace trace{std::filesystem::path(path).filename().string(), {}};
  std::vector<char> buffer(kLineBytesMax);
  uint64_t line_number = 0;
  while (gzgets(file.get(), buffer.data(), static_cast<int>(buffer.size())) != nullptr) {
    ++line_number;
    const std::string line(buffer.data());
    if (line.find_first_not_of(" \r\n") == std::string::npos) continue;
    absl::StatusOr<TraceRequest> request = ParseTraceLine(line);
    if (!request.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", line_number, ": ", request.status().message()));
    }
    trace.requests.push_back(*std::move(request));
    if (trace.requests.size() == requests_max) break;
  }
  int error = Z_OK;
  const char* const text = gzerror(file.get(), &error);
  if (error != Z_OK && error != Z_STREAM_END) {
    return absl::DataLossError(absl::StrCat(path, ": damaged after line ", line_number, ": ", text));
  }
  if (trace.requests.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no request"));
  return trace;
}

uint64_t Trace::BlockAccesses() const {
  uint64_t count = 0;
  for (const TraceRequest& request : requests) count += request.blocks.size();
  return count;
}

uint64_t Trace::UniqueBlocks() const {
  absl::flat_hash_set<uint64_t> seen;
  for (const TraceRequest& request : requests) seen.insert(request.blocks.begin(), request.blocks.end());
  return seen.size();
}

std::vector<BlockKey> Trace::Chain(const TraceRequest& request) const {
  std::vector<BlockKey> keys;
  keys.reserve(request.blocks.size());
  for (const uint64_t id : request.blocks) keys.push_back(MakeKey(name, id));
  return keys;
}

std::string OwnFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

absl::StatusOr<std::string> FindShipped(const std::string& relative) {
  // build/bin/ lies two levels below the source tree; a build folder elsewhere names it in its cache file.
  const std::filesystem::path own = OwnFolder();
  for (const std::filesystem::path& root : {own / "../..", own / "..", std::filesystem::path(".")}) {
    std::error_code error;
    const std::filesystem::path path = std::filesystem::weakly_canonical(root / relative, error);
    if (!error && std::filesystem::exists(path, error)) return path.string();
  }
  return absl::NotFoundError(
      absl::StrCat("cannot find ", relative, " from ", own.string(),
                   ": run the binary from build/bin/ of the checkout, or from the checkout's root"));
}

}  // namespace kvartal::bench
