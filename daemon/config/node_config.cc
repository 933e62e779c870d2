#include "daemon/config/node_config.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "crds/field_reader.h"
#include "crds/yaml_reader.h"
#include "daemon/base/limits.h"
#include "daemon/policy/eviction_names.h"

namespace kvartal::config {
namespace {

using crds::FieldReader;
using crds::Percent;

constexpr std::array<std::string_view, 4> kLogLevels = {"debug", "info", "warning", "error"};

std::string Against(const std::string& base_dir, const std::string& path) {
  return (std::filesystem::path(base_dir) / path).lexically_normal().string();
}

// Also by another name, or before there is anything.
bool SameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error)) return true;
  return std::filesystem::weakly_canonical(a, error) == std::filesystem::weakly_canonical(b, error);
}

// Reads one configuration file.
// Confined to one ParseNodeConfig.
// Invariant: every path in `config_` is final: taken against the file's folder and normal.
class ConfigReader {
 public:
  ConfigReader(FieldReader& root, const std::string& base_dir) : root_(root), base_dir_(base_dir) {}

  NodeConfig Read();

 private:
  std::string PathAt(FieldReader& reader, const char* key);
  std::string SocketAt(FieldReader& reader, const char* key, const std::string& otherwise);
  void ClaimSocket(FieldReader& reader, const char* key, const std::string& path);
  uint64_t SizeAt(FieldReader& reader, const char* key, uint64_t min, uint64_t max);
  void ReadSockets();
  void ReadKubernetes();
  void ReadDoor(FieldReader& door);
  void ReadDisk(FieldReader& disk);
  void CheckAgainstOthers(FieldReader& disk, const NvmeConfig& read);
  void ReadPolicySource();
  void ReadRest();
  void ReadMetricsAddress();

  FieldReader& root_;
  const std::string& base_dir_;
  std::map<std::string, std::string> sockets_;  // path -> field that has it
  NodeConfig config_;
};

NodeConfig ConfigReader::Read() {
  root_.Require("runDir", "the folder of the daemon's sockets");
  config_.run_dir = PathAt(root_, "runDir");
  ReadSockets();
  root_.Require("dram", "{size: ...}: the host memory of the cache");
  root_.Object("dram", [&](FieldReader& dram) {
    dram.Require("size");
    config_.dram_bytes = SizeAt(dram, "size", kDramBytesMin, kDramBytesMax);
  });
  root_.Objects("nvme", kDisksMax, [&](FieldReader& disk) { ReadDisk(disk); });
  config_.nvme_key_file = PathAt(root_, "nvmeKeyFile");
  ReadPolicySource();
  ReadRest();
  return std::move(config_);
}

std::string ConfigReader::PathAt(FieldReader& reader, const char* key) {
  const auto path = reader.Text(key, crds::kPathText);
  return path ? Against(base_dir_, *path) : "";
}

std::string ConfigReader::SocketAt(FieldReader& reader, const char* key, const std::string& otherwise) {
  const auto given = reader.Text(key, crds::kPathText);
  const std::string path = given ? Against(base_dir_, *given) : otherwise;
  ClaimSocket(reader, key, path);
  return path;
}

void ConfigReader::ClaimSocket(FieldReader& reader, const char* key, const std::string& path) {
  if (path.size() > kSocketPathMax) {
    reader.Fail(key, absl::StrCat("the socket path ", crds::Shown(path), " has ", path.size(),
                                  " bytes; allowed: at most ", kSocketPathMax, "; choose a shorter runDir"));
  }
  const std::string field = absl::StrCat(reader.path(), reader.path().empty() ? "" : ".", key);
  const auto [owner, fresh] = sockets_.try_emplace(path, field);
  if (!fresh) reader.Fail(key, absl::StrCat(crds::Shown(path), " is already the socket of ", owner->second));
}

uint64_t ConfigReader::SizeAt(FieldReader& reader, const char* key, uint64_t min, uint64_t max) {
  const auto size = reader.Size(key, Percent::kRefused);
  if (size && (size->bytes < min || size->bytes > max)) {
    reader.Fail(key, absl::StrCat(size->bytes, " bytes is out of range; allowed: ", min, " to ", max,
                                  " bytes (at least ", min / kMiB, "Mi)"));
  }
  return size ? size->bytes : 0;
}

void ConfigReader::ReadSockets() {
  const bool no_shared_door = root_.IsEmptyText("attachSocket");
  if (!no_shared_door)
    config_.attach_socket = SocketAt(root_, "attachSocket", Against(config_.run_dir, "kvartal.sock"));
  config_.attach_socket_mode = root_.FileMode("attachSocketMode").value_or(config_.attach_socket_mode);
  config_.admin_socket = SocketAt(root_, "adminSocket", Against(config_.run_dir, "admin.sock"));
  root_.Objects("doors", kDoorsMax, [&](FieldReader& door) { ReadDoor(door); });
  config_.attest_uid = root_.Bool("attestUid").value_or(config_.attest_uid);
  ReadKubernetes();
  if (!config_.doors.empty()) return;
  if (no_shared_door)
    root_.Fail("attachSocket", "is \"\" and there are no doors: nobody could connect; add doors or remove it");
  if (!config_.attest_uid && !config_.kubernetes)
    root_.Fail("attestUid", "is false and there are no doors: nobody could be identified; add doors");
}

void ConfigReader::ReadKubernetes() {
  root_.Object("kubernetes", [&](FieldReader& kubernetes) {
    KubernetesConfig read;
    read.node_name = kubernetes.Text("nodeName", crds::kDnsSubdomain).value_or("");
    // Where policy does not come from a folder, whoever brings it says whose tokens count.
    if (root_.Has("policyDir") || kubernetes.Has("issuer") || kubernetes.Has("jwksFile")) {
      kubernetes.Require("issuer", "what the API server signs its tokens as (--service-account-issuer)");
      kubernetes.Require("jwksFile", "the issuer's keys: kubectl get --raw /openid/v1/jwks");
    }
    read.issuer = kubernetes.Text("issuer", crds::kShortText).value_or("");
    read.audience = kubernetes.Text("audience", crds::kShortText).value_or(read.audience);
    read.jwks_file = PathAt(kubernetes, "jwksFile");
    read.host_pids = kubernetes.Bool("hostPids").value_or(read.host_pids);
    config_.kubernetes = std::move(read);
  });
}

void ConfigReader::ReadDoor(FieldReader& door) {
  SocketDoor read;
  door.Require("name", "the name a `socket` subject has in its policy");
  read.name = door.Text("name", crds::kDnsLabel).value_or("");
  for (const SocketDoor& other : config_.doors) {
    if (!read.name.empty() && other.name == read.name) {
      door.Fail("name", absl::StrCat("door '", read.name, "' is listed twice; a door is one identity"));
    }
  }
  // A door without a valid name is refused anyway; its default path would only be a second complaint.
  if (read.name.empty()) {
    door.Ignore({"path"});
  } else {
    read.path = SocketAt(door, "path", Against(config_.run_dir, read.name + ".sock"));
  }
  read.mode = door.FileMode("mode").value_or(read.mode);
  config_.doors.push_back(std::move(read));
}

void ConfigReader::ReadDisk(FieldReader& disk) {
  NvmeConfig read;
  disk.Require("path", "the data file, made and preallocated by the daemon");
  read.path = PathAt(disk, "path");
  disk.Require("size");
  read.size_bytes = SizeAt(disk, "size", kNvmeBytesMin, kNvmeBytesMax);
  read.io = disk.OneOf("io", kIoNames).value_or(read.io);
  read.io_threads = static_cast<int>(disk.Integer("ioThreads", 1, kDiskThreadsMax).value_or(read.io_threads));
  read.writes_per_day_percent =
      static_cast<uint32_t>(disk.Integer("writesPerDayPercent", 0, kWritesPerDayPercentMax).value_or(0));
  CheckAgainstOthers(disk, read);
  config_.nvme.push_back(std::move(read));
}

void ConfigReader::CheckAgainstOthers(FieldReader& disk, const NvmeConfig& read) {
  uint64_t bytes = read.size_bytes;
  for (size_t i = 0; i < config_.nvme.size(); ++i) {
    const NvmeConfig& other = config_.nvme[i];
    bytes += other.size_bytes;
    if (!read.path.empty() && !other.path.empty() && SameFile(read.path, other.path)) {
      disk.Fail("path", absl::StrCat(crds::Shown(read.path), " is the file of nvme[", i, "], ", crds::Shown(other.path),
                                     "; each disk needs a file of its own"));
    }
    if (i > 0) continue;
    if (read.writes_per_day_percent != other.writes_per_day_percent) {
      disk.Fail("writesPerDayPercent",
                absl::StrCat("is ", read.writes_per_day_percent, " and that of nvme[0] ", other.writes_per_day_percent,
                             "; the disks share one budget: give all of them the same, that of the weakest"));
    }
  }
  if (bytes > kNvmeBytesMax && read.size_bytes <= kNvmeBytesMax) {
    disk.Fail("size", absl::StrCat("the disks up to this one are ", bytes, " bytes together; allowed: at most ",
                                   kNvmeBytesMax, ", all disks of a node"));
  }
}

void ConfigReader::ReadPolicySource() {
  if (!root_.Has("policyStream")) {
    root_.Require("policyDir", "a folder of TenantKVPolicy and KVNodePool manifests; or policyStream, in a cluster");
  } else if (root_.Has("policyDir")) {
    root_.Fail("policyDir", "is given beside policyStream; policy has one source: remove one of them");
  }
  config_.policy_dir = PathAt(root_, "policyDir");
  root_.Object("policyStream", [&](FieldReader& stream) {
    PolicyStreamConfig read;
    stream.Require("operator", "host:port of the operator's service");
    read.address = stream.Text("operator", crds::kShortText).value_or("");
    stream.Require("keepIn", "the folder that keeps the last good policy over restarts");
    read.keep_in = PathAt(stream, "keepIn");
    read.ca_file = PathAt(stream, "caFile");
    read.token_file = PathAt(stream, "tokenFile");
    if (!read.token_file.empty() && read.ca_file.empty())
      stream.Fail("tokenFile", "would be sent to whoever answers; give caFile, too");
    config_.policy_stream = std::move(read);
  });
}

void ConfigReader::ReadRest() {
  config_.eviction = root_.OneOf("eviction", policy::kEvictionNames).value_or(config_.eviction);
  ReadMetricsAddress();
  if (!root_.IsEmptyText("auditLog")) config_.audit_log = PathAt(root_, "auditLog");
  config_.log_level = root_.OneOf("logLevel", kLogLevels).value_or(config_.log_level);
  config_.lease_ms =
      static_cast<uint32_t>(root_.Integer("leaseMs", kLeaseMsMin, kLeaseMsMax).value_or(config_.lease_ms));
  constexpr int64_t kMsPerSecond = 1000;
  config_.removed_grace_ms = root_.Integer("removedGraceSeconds", 0, kRemovedGraceSecondsMax)
                                 .value_or(config_.removed_grace_ms / kMsPerSecond) *
                             kMsPerSecond;
}

void ConfigReader::ReadMetricsAddress() {
  if (root_.IsEmptyText("metricsAddress")) return;
  const auto address = root_.Text("metricsAddress", crds::kShortText);
  if (!address) return;
  config_.metrics_address = *address;
  const size_t colon = address->rfind(':');
  const std::string host = address->substr(0, colon == std::string::npos ? 0 : colon);
  const std::string port = colon == std::string::npos ? "" : address->substr(colon + 1);
  const bool digits = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const bool host_ok = !host.empty() && (bracketed || host.find_first_of(":[] /") == std::string::npos);
  if (!host_ok || !digits || std::stoi(port) > 65535) {
    root_.Fail("metricsAddress", absl::StrCat(crds::Shown(*address),
                                              " is not an address; allowed: \"host:port\", \"[ipv6]:port\""
                                              ", port 0 for any free one, or \"\" for no metrics"));
  }
}

}  // namespace

uint64_t WriteBytesPerSecond(const NvmeConfig& disk) {
  constexpr uint64_t kSecondsADay = 86'400;
  return disk.size_bytes / 100 * disk.writes_per_day_percent / kSecondsADay;
}

absl::StatusOr<NodeConfig> ParseNodeConfig(std::string_view text, const std::string& file_name,
                                           const std::string& base_dir) {
  KV_ASSIGN_OR_RETURN(const std::vector<crds::YamlNode> documents, crds::ReadYaml(text, file_name));
  if (documents.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": has ", documents.size(), " YAML documents; a configuration is exactly one"));
  }
  crds::Findings findings(file_name);
  NodeConfig config;
  {
    FieldReader root(documents[0], "", &findings);
    config = ConfigReader(root, base_dir).Read();
  }
  KV_RETURN_IF_ERROR(findings.status());
  return config;
}

absl::StatusOr<NodeConfig> LoadNodeConfig(const std::string& path) {
  KV_ASSIGN_OR_RETURN(const std::string text, crds::ReadYamlFile(path));
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": the working folder is not known: ", error.message()));
  }
  KV_ASSIGN_OR_RETURN(NodeConfig config, ParseNodeConfig(text, path, absolute.parent_path().string()));
  // One file serves every node of a DaemonSet.
  if (config.kubernetes && config.kubernetes->node_name.empty()) {
    const char* name = std::getenv("KVARTAL_NODE");
    if (name == nullptr || *name == '\0') {
      return absl::InvalidArgumentError(absl::StrCat(
          path,
          ": kubernetes.nodeName is not given and $KVARTAL_NODE is not set: tokens of other nodes' pods could not "
          "be told apart; give either"));
    }
    config.kubernetes->node_name = name;
  }
  return config;
}

}  // namespace kvartal::config
