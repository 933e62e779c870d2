// Who a Kubernetes ServiceAccount token says its bearer is, and whether that may be believed here: pod-bound,
// audience-bound tokens, verified offline. Values and one pure function; nothing here keeps or prints a token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/token/key_set.h"

namespace kvartal::token {

// What is believed of a token that was verified.
struct PodClaims {
  std::string ns, service_account;
  std::string pod_name, pod_uid;
  std::string node;
  std::string kid;              // of the key that vouches
  int64_t expires_wall_ms = 0;  // from then on it says nothing
};

// Why a token is not believed.
enum class TokenFault : uint8_t {
  kNone = 0,
  kMalformed,    // not a JWT of the form a ServiceAccount token has
  kAlgorithm,    // not the algorithm of the key it names: none, HS256, ...
  kUnknownKey,   // signed by a key that is not in the set (any more, or not yet)
  kSignature,    // changed, or signed by somebody else
  kIssuer,       // of another cluster
  kAudience,     // meant for somebody else
  kExpired,      // its time is over
  kNotYetValid,  // its time has not begun
  kNotPodBound,  // of a ServiceAccount, and of no pod
  kForeignNode,  // of a pod on another node
};
inline constexpr size_t kTokenFaultCount = 11;

struct TokenExpectations {
  std::string issuer;
  std::string audience;
  std::string node;  // "": of any node
};

struct TokenVerdict {
  TokenFault fault = TokenFault::kNone;
  std::string why;   // for a fault: what was wrong and what to do; without a word of the token that was not verified
  PodClaims claims;  // meaningful without a fault only
};

TokenVerdict VerifyToken(std::string_view token, const KeySet& keys, const TokenExpectations& expected,
                         int64_t now_wall_ms);

}  // namespace kvartal::token
