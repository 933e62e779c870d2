#include "operator/kube/cluster_access.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "crds/yaml_reader.h"
#include "operator/kube/limits.h"

namespace kvartal::kube {
namespace {

using crds::YamlNode;

std::string TextOf(const YamlNode* node) { return node == nullptr ? "" : node->text; }

// The `inside` of the entry of `list` that has this name.
const YamlNode* Named(const YamlNode& config, const char* list, const std::string& name, const char* inside) {
  const YamlNode* entries = config.Find(list);
  if (entries == nullptr) return nullptr;
  for (const YamlNode& entry : entries->items) {
    if (TextOf(entry.Find("name")) == name) return entry.Find(inside);
  }
  return nullptr;
}

// `key` names a file, `key`-data holds the same in base64.
absl::StatusOr<Credential> CredentialAt(const YamlNode& node, const std::string& key, const std::string& folder) {
  Credential credential;
  const std::string data = TextOf(node.Find(key + "-data"));
  if (!data.empty()) {
    if (!absl::Base64Unescape(data, &credential.text))
      return absl::InvalidArgumentError(absl::StrCat(key, "-data is not base64"));
    return credential;
  }
  const std::string path = TextOf(node.Find(key));
  // Relative to the file that names it, as kubectl has it.
  if (!path.empty()) credential.path = (std::filesystem::path(folder) / path).string();
  return credential;
}

absl::Status ReadUser(const YamlNode& user, const std::string& folder, ClusterAccess* access) {
  for (const char* plugin : {"exec", "auth-provider", "username"}) {
    if (user.Find(plugin) != nullptr)
      return absl::InvalidArgumentError(
          absl::StrCat("'", plugin, "' is not supported; use a token, a tokenFile or a client certificate"));
  }
  KV_ASSIGN_OR_RETURN(access->certificate, CredentialAt(user, "client-certificate", folder));
  KV_ASSIGN_OR_RETURN(access->key, CredentialAt(user, "client-key", folder));
  if (access->certificate.given() != access->key.given())
    return absl::InvalidArgumentError("client-certificate and client-key are given together or not at all");
  const std::string file = TextOf(user.Find("tokenFile"));
  if (!file.empty()) access->token.path = (std::filesystem::path(folder) / file).string();
  if (file.empty()) access->token.text = TextOf(user.Find("token"));
  return absl::OkStatus();
}

absl::Status ReadCluster(const YamlNode& cluster, const std::string& folder, ClusterAccess* access) {
  for (const char* key : {"insecure-skip-tls-verify", "proxy-url", "tls-server-name"}) {
    const std::string value = TextOf(cluster.Find(key));
    if (!value.empty() && value != "false")
      return absl::InvalidArgumentError(absl::StrCat("'", key, "' is not supported"));
  }
  access->server = TextOf(cluster.Find("server"));
  if (!access->server.starts_with("https://"))
    return absl::InvalidArgumentError("a server must be given and begin with https://");
  while (access->server.ends_with('/')) access->server.pop_back();
  KV_ASSIGN_OR_RETURN(access->authorities, CredentialAt(cluster, "certificate-authority", folder));
  return absl::OkStatus();
}

absl::StatusOr<ClusterAccess> AccessOf(const YamlNode& config, const std::string& folder) {
  const std::string name = TextOf(config.Find("current-context"));
  const YamlNode* context = Named(config, "contexts", name, "context");
  if (context == nullptr) return absl::InvalidArgumentError(absl::StrCat("there is no context '", name, "'"));
  ClusterAccess access;
  const std::string ns = TextOf(context->Find("namespace"));
  access.ns = ns.empty() ? "default" : ns;
  const std::string cluster_name = TextOf(context->Find("cluster"));
  const YamlNode* cluster = Named(config, "clusters", cluster_name, "cluster");
  if (cluster == nullptr) return absl::InvalidArgumentError(absl::StrCat("there is no cluster '", cluster_name, "'"));
  KV_RETURN_IF_ERROR(ReadCluster(*cluster, folder, &access));
  const std::string user_name = TextOf(context->Find("user"));
  const YamlNode* user = Named(config, "users", user_name, "user");
  if (user == nullptr) return absl::InvalidArgumentError(absl::StrCat("there is no user '", user_name, "'"));
  KV_RETURN_IF_ERROR(ReadUser(*user, folder, &access));
  return access;
}

}  // namespace

absl::StatusOr<std::string> Credential::Read() const {
  if (path.empty()) return text;
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::FailedPreconditionError(absl::StrCat(path, ": cannot be read"));
  std::string content(kCredentialBytesMax + 1, '\0');
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  content.resize(static_cast<size_t>(file.gcount()));
  if (content.size() > kCredentialBytesMax)
    return absl::FailedPreconditionError(absl::StrCat(path, ": is larger than ", kCredentialBytesMax, " bytes"));
  // A file that is just being replaced may be empty for a moment.
  if (content.empty()) return absl::FailedPreconditionError(absl::StrCat(path, ": is empty"));
  return content;
}

absl::StatusOr<ClusterAccess> ReadKubeconfig(const std::string& path) {
  KV_ASSIGN_OR_RETURN(const std::string text, crds::ReadYamlFile(path));
  KV_ASSIGN_OR_RETURN(const std::vector<YamlNode> documents, crds::ReadYaml(text, path));
  if (documents.size() != 1) return absl::InvalidArgumentError(absl::StrCat(path, ": must hold one document"));
  absl::StatusOr<ClusterAccess> access =
      AccessOf(documents.front(), std::filesystem::absolute(path).parent_path().string());
  if (!access.ok()) return absl::Status(access.status().code(), absl::StrCat(path, ": ", access.status().message()));
  return access;
}

absl::StatusOr<ClusterAccess> InClusterAccess(const std::string& host, const std::string& port,
                                              const std::string& folder) {
  if (host.empty() || port.empty())
    return absl::FailedPreconditionError(
        "not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; give a kubeconfig");
  ClusterAccess access;
  const bool ipv6 = host.find(':') != std::string::npos;
  access.server = absl::StrCat("https://", ipv6 ? absl::StrCat("[", host, "]") : host, ":", port);
  access.authorities.path = folder + "/ca.crt";
  access.token.path = folder + "/token";
  const Credential ns_file = {folder + "/namespace", ""};
  KV_ASSIGN_OR_RETURN(const std::string ns, ns_file.Read());
  access.ns = std::string(absl::StripAsciiWhitespace(ns));
  KV_RETURN_IF_ERROR(access.token.Read().status());
  return access;
}

}  // namespace kvartal::kube
