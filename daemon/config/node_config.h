// The daemon's configuration: YAML -> a validated struct. An unknown or invalid key is refused with file, line, column
// and what is allowed; nothing is half applied. Immutable once parsed.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"

namespace kvartal::config {

// What `nvme[].io` may name. auto: io_uring, or a pool of threads where that cannot be.
inline constexpr std::array<std::string_view, 3> kIoNames = {"auto", "uring", "pool"};

struct SocketDoor {
  std::string name;  // the identity behind this door: a `socket` subject of some policy
  std::string path;  // the Unix socket to listen on; default <run_dir>/<name>.sock
  uint32_t mode = 0660;
};

struct NvmeConfig {
  std::string path;  // the preallocated data file; its catalog lies beside it in "<path>.catalog/"
  uint64_t size_bytes = 0;
  std::string io = "auto";
  // Of its size that may be written to the disk a day, for as long as it is to last; 0: any amount.
  uint32_t writes_per_day_percent = 0;
  int io_threads = 8;  // transfers the disk works on at once; with "pool" each has a thread
};

// What may be written to it a second. Pure.
uint64_t WriteBytesPerSecond(const NvmeConfig& disk);

// The k8s-token attestor: pods attach by the token of their ServiceAccount.
struct KubernetesConfig {
  std::string node_name;  // as the API server knows this node; default $KVARTAL_NODE
  std::string audience = "kvartal";
  std::string issuer;      // "": told by whoever brings policy, with its keys
  std::string jwks_file;   // its keys, read again when it changes
  bool host_pids = false;  // the daemon sees the host's pids: the kernel has to confirm the pod of every token
};

// Policy by the operator's stream.
struct PolicyStreamConfig {
  std::string address;     // of the operator, "host:port"
  std::string keep_in;     // folder for the last good set, read at a start without an operator
  std::string ca_file;     // PEM of who signs the operator's certificate; "" = no TLS
  std::string token_file;  // the token that says which node this is; "" = none
};

struct NodeConfig {
  std::string run_dir;        // sockets: <run_dir>/kvartal.sock (attach, uid attestor), <run_dir>/admin.sock (0600)
  std::string attach_socket;  // default <run_dir>/kvartal.sock; "" with `doors` only: no shared door
  uint32_t attach_socket_mode = 0666;  // who may connect; who may attach is decided by identity
  std::string admin_socket;            // default <run_dir>/admin.sock
  std::vector<SocketDoor> doors;       // the `socket` attestor: one door a tenant
  bool attest_uid = true;
  std::optional<KubernetesConfig> kubernetes;  // none: tokens are not looked at
  uint64_t dram_bytes = 0;
  std::vector<NvmeConfig> nvme;  // the disks of the tier; at most kDisksMax, kNvmeBytesMax together
  std::string nvme_key_file;     // keys for tenants whose blocks are encrypted on NVMe; "": none may be
  std::string eviction = "lru";  // of policy::kEvictionNames
  std::string policy_dir;        // folder of TenantKVPolicy / KVNodePool manifests, or
  std::optional<PolicyStreamConfig> policy_stream;
  std::string node_name;        // in the cluster; from the command line, not from the file
  std::string metrics_address;  // "127.0.0.1:9400", "" = off
  std::string audit_log;        // file of the audit log, "" = off
  std::string log_level = "info";
  uint32_t lease_ms = 10000;
  int64_t removed_grace_ms = 600'000;  // from the removal of a tenant's policy to the erasure of its bytes
};

// `text` is the YAML, `file_name` only names it in errors. The file system is looked at to tell two disks from one file
// under two names, and for nothing else. Relative paths are taken against `base_dir`.
absl::StatusOr<NodeConfig> ParseNodeConfig(std::string_view text, const std::string& file_name,
                                           const std::string& base_dir);
absl::StatusOr<NodeConfig> LoadNodeConfig(const std::string& path);

}  // namespace kvartal::config
