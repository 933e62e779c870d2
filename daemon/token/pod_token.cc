#include "daemon/token/pod_token.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"

namespace kvartal::token {
namespace {

using nlohmann::json;

constexpr int64_t kMsPerSecond = 1000;

TokenVerdict Fault(TokenFault fault, std::string why) {
  TokenVerdict verdict;
  verdict.fault = fault;
  verdict.why = std::move(why);
  return verdict;
}

struct JwtParts {
  std::string_view header, payload, signed_text;
  std::string signature;
};

// Three parts of base64url with dots between; nullopt for anything else.
std::optional<JwtParts> Split(std::string_view token) {
  const size_t first = token.find('.');
  if (first == std::string_view::npos) return std::nullopt;
  const size_t second = token.find('.', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  JwtParts parts;
  parts.header = token.substr(0, first);
  parts.payload = token.substr(first + 1, second - first - 1);
  parts.signed_text = token.substr(0, second);
  // A further dot is no digit of the last part.
  if (!DecodeBase64Url(token.substr(second + 1), &parts.signature)) return std::nullopt;
  return parts;
}

// An object, or null.
json ReadObject(std::string_view encoded) {
  std::string text;
  if (!DecodeBase64Url(encoded, &text)) return nullptr;
  json object = json::parse(text, nullptr, false);
  return object.is_object() ? object : json();
}

// The text at a path of keys, "" where there is none.
template <typename... Keys>
std::string TextAt(const json& object, Keys... keys) {
  const json* at = &object;
  for (const char* key : {keys...}) {
    if (!at->is_object()) return "";
    const auto found = at->find(key);
    if (found == at->end()) return "";
    at = &*found;
  }
  return at->is_string() ? at->get<std::string>() : "";
}

// Milliseconds of a NumericDate; nullopt when there is none or it means nothing.
std::optional<int64_t> TimeAt(const json& payload, const char* key) {
  const auto found = payload.find(key);
  if (found == payload.end() || !found->is_number_unsigned()) return std::nullopt;
  const uint64_t seconds = found->get<uint64_t>();
  if (seconds > static_cast<uint64_t>(kTokenSecondsMax)) return std::nullopt;
  return static_cast<int64_t>(seconds) * kMsPerSecond;
}

bool NamesAudience(const json& payload, const std::string& audience) {
  const auto found = payload.find("aud");
  if (found == payload.end()) return false;
  if (found->is_string()) return *found == audience;
  if (!found->is_array()) return false;
  for (const json& each : *found) {
    if (each.is_string() && each == audience) return true;
  }
  return false;
}

// REQUIRES: the signature is good, so what stands here is the cluster's word.
TokenVerdict Judge(const json& payload, const std::string& kid, const TokenExpectations& expected, int64_t now_ms) {
  if (TextAt(payload, "iss") != expected.issuer)
    return Fault(TokenFault::kIssuer, absl::StrCat("the token is not of the issuer ", expected.issuer));
  if (!NamesAudience(payload, expected.audience)) {
    return Fault(TokenFault::kAudience, absl::StrCat("the token is not for the audience ", expected.audience,
                                                     ": project one with `audience: ", expected.audience, "`"));
  }
  const std::optional<int64_t> expires = TimeAt(payload, "exp"), begins = TimeAt(payload, "nbf");
  if (!expires || (payload.contains("nbf") && !begins))
    return Fault(TokenFault::kMalformed, "the token does not say when it expires");
  if (now_ms >= *expires)
    return Fault(TokenFault::kExpired, "the token has expired: read the file again, which kubelet renews");
  if (begins.value_or(0) > now_ms + kTokenLeewaySeconds * kMsPerSecond)
    return Fault(TokenFault::kNotYetValid, "the token is not valid yet: is the clock of this node behind?");
  TokenVerdict verdict;
  PodClaims& claims = verdict.claims;
  claims.ns = TextAt(payload, "kubernetes.io", "namespace");
  claims.service_account = TextAt(payload, "kubernetes.io", "serviceaccount", "name");
  claims.pod_name = TextAt(payload, "kubernetes.io", "pod", "name");
  claims.pod_uid = TextAt(payload, "kubernetes.io", "pod", "uid");
  claims.node = TextAt(payload, "kubernetes.io", "node", "name");
  claims.kid = kid;
  claims.expires_wall_ms = *expires;
  const std::string subject = absl::StrCat("system:serviceaccount:", claims.ns, ":", claims.service_account);
  if (claims.ns.empty() || claims.service_account.empty() || TextAt(payload, "sub") != subject)
    return Fault(TokenFault::kMalformed, "the token is not of a ServiceAccount");
  if (claims.pod_uid.empty() || claims.pod_name.empty())
    return Fault(TokenFault::kNotPodBound, "the token is bound to no pod: mount a projected one");
  if (!expected.node.empty() && claims.node != expected.node)
    return Fault(TokenFault::kForeignNode, absl::StrCat("the token is of a pod that is not on node ", expected.node));
  return verdict;
}

}  // namespace

TokenVerdict VerifyToken(std::string_view token, const KeySet& keys, const TokenExpectations& expected,
                         int64_t now_wall_ms) {
  const std::optional<JwtParts> parts = token.size() <= kTokenBytesMax ? Split(token) : std::nullopt;
  if (!parts) return Fault(TokenFault::kMalformed, "the token is not a JWT: is the file that of a projected token?");
  const json header = ReadObject(parts->header);
  const std::string kid = TextAt(header, "kid");
  if (header.is_null() || header.contains("crit"))
    return Fault(TokenFault::kMalformed, "the token's header is not one of a ServiceAccount token");
  const PublicKey* key = keys.Find(kid);
  if (key == nullptr) {
    return Fault(TokenFault::kUnknownKey,
                 absl::StrCat("the token is signed by a key that is not among the ", keys.size(),
                              " this node knows of: another cluster's, or rotated just now"));
  }
  // What the header calls itself decides nothing: it has to be what the key is for.
  if (TextAt(header, "alg") != AlgorithmName(key->algorithm())) {
    return Fault(TokenFault::kAlgorithm,
                 absl::StrCat("the token does not have the algorithm of its key, ", AlgorithmName(key->algorithm())));
  }
  if (!key->Verifies(parts->signed_text, parts->signature))
    return Fault(TokenFault::kSignature, "the token's signature is not that of its key");
  const json payload = ReadObject(parts->payload);
  if (payload.is_null()) return Fault(TokenFault::kMalformed, "the token's payload is not a JSON object");
  return Judge(payload, kid, expected, now_wall_ms);
}

}  // namespace kvartal::token
