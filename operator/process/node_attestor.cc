#include "operator/process/node_attestor.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"

namespace kvartal::process {

void NodeAttestor::SetKeys(const std::string& issuer, const std::string& jwks) {
  absl::StatusOr<token::KeySet> keys = token::KeySet::Parse(jwks);
  if (!keys.ok()) {
    Log(LogLevel::kError, "operator",
        "the API server's key set is not used, what it was before goes on to vouch: ", keys.status().message());
    return;
  }
  issuer_ = issuer;
  keys_ = *std::move(keys);
}

absl::StatusOr<std::string> NodeAttestor::NodeOf(std::string_view token, int64_t now_wall_ms) const {
  if (keys_.size() == 0) return absl::UnavailableError("the keys of this cluster are not known yet: come again");
  if (token.empty()) {
    return absl::PermissionDeniedError(
        "no token says which node this is: give policyStream.tokenFile a projected ServiceAccount token");
  }
  const token::TokenVerdict verdict = token::VerifyToken(token, keys_, {issuer_, options_.audience, ""}, now_wall_ms);
  if (verdict.fault != token::TokenFault::kNone) return absl::PermissionDeniedError(verdict.why);
  const std::string account = absl::StrCat(verdict.claims.ns, "/", verdict.claims.service_account);
  if (account != options_.account) {
    return absl::PermissionDeniedError(
        absl::StrCat("the token is one of ServiceAccount ", account, ", and daemons run as ", options_.account));
  }
  if (verdict.claims.node.empty()) return absl::PermissionDeniedError("the token names no node");
  return verdict.claims.node;
}

}  // namespace kvartal::process
