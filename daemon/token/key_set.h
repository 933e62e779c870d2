// The public keys that vouch for ServiceAccount tokens: a JWKS (RFC 7517) as OpenSSL keys.
// Immutable: any thread may verify with it.
// Invariants: every key has a kid of its own, and one algorithm that it alone decides, whatever a token claims.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "daemon/base/status.h"

struct evp_pkey_st;

namespace kvartal::token {

enum class Algorithm : uint8_t { kRs256, kEs256 };

// "RS256" | "ES256".
const char* AlgorithmName(Algorithm algorithm);

// One public key.
// Immutable.
class PublicKey {
 public:
  // Big-endian numbers, as a JWK has them. InvalidArgument: not a key that may vouch for anybody.
  static absl::StatusOr<PublicKey> Rsa(std::string_view modulus, std::string_view exponent);
  static absl::StatusOr<PublicKey> P256(std::string_view x, std::string_view y);

  Algorithm algorithm() const { return algorithm_; }
  // `signature` in the form a JWT has.
  bool Verifies(std::string_view text, std::string_view signature) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;
  };
  PublicKey(Algorithm algorithm, evp_pkey_st* key) : algorithm_(algorithm), key_(key) {}

  Algorithm algorithm_;
  std::unique_ptr<evp_pkey_st, Free> key_;
};

class KeySet {
 public:
  // A set without any key vouches for nobody.
  KeySet() = default;
  // InvalidArgument: not a JWKS, a key that is broken or too weak, two of one kid, or none that can be used. Keys for
  // something else (encryption, another curve) are passed over.
  static absl::StatusOr<KeySet> Parse(std::string_view jwks);

  // nullptr when there is none.
  const PublicKey* Find(std::string_view kid) const;
  size_t size() const { return keys_.size(); }

 private:
  std::map<std::string, PublicKey, std::less<>> keys_;
};

// Strict base64url without padding, as RFC 7515 has it; false for anything else.
bool DecodeBase64Url(std::string_view text, std::string* out);

}  // namespace kvartal::token
