// Where the API server is and how we show who we are: from a kubeconfig file, or from what a pod is given.
// A plain value. Invariant: what may be exchanged while we run (token, authorities, certificates) is a path whenever it
// was given as one, and is read when it is used.
#pragma once

#include <string>

#include "daemon/base/status.h"

namespace kvartal::kube {

// A credential: in a file, or given in place.
struct Credential {
  std::string path;
  std::string text;

  bool given() const { return !path.empty() || !text.empty(); }
  // What it is now. The error names the path, never the content.
  absl::StatusOr<std::string> Read() const;
};

struct ClusterAccess {
  std::string server;      // https://host:port
  std::string ns;          // ours
  Credential authorities;  // PEM; none: those of the system
  Credential certificate, key;
  Credential token;
};

// The current context of a kubeconfig. InvalidArgument names what is wrong, or what is not supported as credential
// plugins are not.
absl::StatusOr<ClusterAccess> ReadKubeconfig(const std::string& path);

inline constexpr const char* kServiceAccountFolder = "/var/run/secrets/kubernetes.io/serviceaccount";
// `host` and `port`: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT. FailedPrecondition: this is not a pod.
absl::StatusOr<ClusterAccess> InClusterAccess(const std::string& host, const std::string& port,
                                              const std::string& folder = kServiceAccountFolder);

}  // namespace kvartal::kube
