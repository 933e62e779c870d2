// A cluster's token authority for tests: keys of its own, the key set that vouches for them, and whatever tokens a test
// asks for, good and bad.
// Confined to the test that owns it.
// Invariant: tokens differ from good ones in nothing but what the test says.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

struct evp_pkey_st;

namespace kvartal::testing {

class TokenIssuer {
 public:
  TokenIssuer();
  ~TokenIssuer();
  TokenIssuer(const TokenIssuer&) = delete;
  TokenIssuer& operator=(const TokenIssuer&) = delete;

  // "RS256" or "ES256". A second call with a kid takes its key's place.
  void AddKey(const std::string& kid, const std::string& algorithm);
  void RemoveKey(const std::string& kid) { keys_.erase(kid); }
  std::string Jwks() const;
  // PEM, as whoever reads the key set can make it: the secret of a confused HS256.
  std::string PublicPem(const std::string& kid) const;

  // What the API server puts into a token of pod `pod` (with the UID PodUid gives) and service account `account` of
  // namespace `ns` on node-1, for the audience kvartal.
  nlohmann::json Claims(const std::string& ns, const std::string& account, const std::string& pod,
                        int64_t expires_wall_ms) const;
  // "00000000-0000-4000-8000-..." made of the name.
  static std::string PodUid(const std::string& pod);
  std::string Sign(const nlohmann::json& claims, const std::string& kid) const;
  // The same with a header of the test's own.
  std::string Sign(const nlohmann::json& claims, const std::string& kid, const nlohmann::json& header) const;
  // Of a payload that need not be JSON.
  std::string SignPayload(const std::string& payload, const std::string& kid, const nlohmann::json& header) const;
  // A good one, by the first key there is.
  std::string Token(const std::string& ns, const std::string& account, const std::string& pod,
                    int64_t expires_wall_ms) const;

  static std::string Base64Url(const std::string& bytes);
  static std::string Hs256(const std::string& text, const std::string& secret);

 private:
  struct Key {
    std::string algorithm;
    std::unique_ptr<evp_pkey_st, std::function<void(evp_pkey_st*)>> key;
  };
  std::string SignText(const std::string& text, const Key& key) const;

  std::map<std::string, Key> keys_;
};

inline constexpr const char* kTestIssuer = "https://kubernetes.default.svc.cluster.local";

}  // namespace kvartal::testing
