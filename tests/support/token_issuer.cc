#include "tests/support/token_issuer.h"

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>

#include <functional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/check.h"

namespace kvartal::testing {
namespace {

constexpr unsigned kHalf = 32;  // of an ES256 signature, and a coordinate of P-256

const unsigned char* Bytes(const std::string& text) { return reinterpret_cast<const unsigned char*>(text.data()); }
unsigned char* Bytes(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

std::string NumberOf(const EVP_PKEY* key, const char* name, size_t width) {
  BIGNUM* number = nullptr;
  KV_CHECK(EVP_PKEY_get_bn_param(key, name, &number) == 1);
  std::string bytes(width == 0 ? static_cast<size_t>(BN_num_bytes(number)) : width, '\0');
  KV_CHECK(BN_bn2binpad(number, Bytes(bytes), static_cast<int>(bytes.size())) >= 0);
  BN_free(number);
  return bytes;
}

std::string RawOfDer(const std::string& der) {
  const unsigned char* at = Bytes(der);
  ECDSA_SIG* parts = d2i_ECDSA_SIG(nullptr, &at, static_cast<long>(der.size()));
  KV_CHECK(parts != nullptr);
  std::string raw(2 * kHalf, '\0');
  KV_CHECK(BN_bn2binpad(ECDSA_SIG_get0_r(parts), Bytes(raw), kHalf) > 0);
  KV_CHECK(BN_bn2binpad(ECDSA_SIG_get0_s(parts), Bytes(raw) + kHalf, kHalf) > 0);
  ECDSA_SIG_free(parts);
  return raw;
}

}  // namespace

TokenIssuer::TokenIssuer() { AddKey("key-1", "RS256"); }
TokenIssuer::~TokenIssuer() = default;

void TokenIssuer::AddKey(const std::string& kid, const std::string& algorithm) {
  EVP_PKEY* key = algorithm == "RS256" ? EVP_RSA_gen(2048) : EVP_EC_gen("P-256");
  KV_CHECK(key != nullptr);
  keys_[kid] = Key{algorithm, {key, [](EVP_PKEY* what) { EVP_PKEY_free(what); }}};
}

std::string TokenIssuer::Jwks() const {
  nlohmann::json set = {{"keys", nlohmann::json::array()}};
  for (const auto& [kid, each] : keys_) {
    nlohmann::json jwk = {{"use", "sig"}, {"kid", kid}, {"alg", each.algorithm}};
    if (each.algorithm == "RS256") {
      jwk["kty"] = "RSA";
      jwk["n"] = Base64Url(NumberOf(each.key.get(), OSSL_PKEY_PARAM_RSA_N, 0));
      jwk["e"] = Base64Url(NumberOf(each.key.get(), OSSL_PKEY_PARAM_RSA_E, 0));
    } else {
      jwk["kty"] = "EC";
      jwk["crv"] = "P-256";
      jwk["x"] = Base64Url(NumberOf(each.key.get(), OSSL_PKEY_PARAM_EC_PUB_X, kHalf));
      jwk["y"] = Base64Url(NumberOf(each.key.get(), OSSL_PKEY_PARAM_EC_PUB_Y, kHalf));
    }
    set["keys"].push_back(jwk);
  }
  return set.dump();
}

std::string TokenIssuer::PublicPem(const std::string& kid) const {
  BIO* out = BIO_new(BIO_s_mem());
  KV_CHECK(PEM_write_bio_PUBKEY(out, keys_.at(kid).key.get()) == 1);
  char* text = nullptr;
  const long length = BIO_get_mem_data(out, &text);
  std::string pem(text, static_cast<size_t>(length));
  BIO_free(out);
  return pem;
}

std::string TokenIssuer::PodUid(const std::string& pod) {
  return absl::StrFormat("00000000-0000-4000-8000-%012x", std::hash<std::string>()(pod) & 0xffff'ffff'ffffu);
}

nlohmann::json TokenIssuer::Claims(const std::string& ns, const std::string& account, const std::string& pod,
                                   int64_t expires_wall_ms) const {
  const int64_t expires = expires_wall_ms / 1000;
  return {{"iss", kTestIssuer},
          {"aud", {"kvartal"}},
          {"exp", expires},
          {"iat", expires - 3600},
          {"nbf", expires - 3600},
          {"jti", "00000000-0000-4000-8000-000000000001"},
          {"sub", absl::StrCat("system:serviceaccount:", ns, ":", account)},
          {"kubernetes.io",
           {{"namespace", ns},
            {"node", {{"name", "node-1"}, {"uid", PodUid("node-1")}}},
            {"pod", {{"name", pod}, {"uid", PodUid(pod)}}},
            {"serviceaccount", {{"name", account}, {"uid", PodUid(account)}}}}}};
}

std::string TokenIssuer::Sign(const nlohmann::json& claims, const std::string& kid) const {
  return Sign(claims, kid, {{"alg", keys_.at(kid).algorithm}, {"kid", kid}});
}

std::string TokenIssuer::Sign(const nlohmann::json& claims, const std::string& kid,
                              const nlohmann::json& header) const {
  return SignPayload(claims.dump(), kid, header);
}

std::string TokenIssuer::SignPayload(const std::string& payload, const std::string& kid,
                                     const nlohmann::json& header) const {
  const std::string text = absl::StrCat(Base64Url(header.dump()), ".", Base64Url(payload));
  return absl::StrCat(text, ".", Base64Url(SignText(text, keys_.at(kid))));
}

std::string TokenIssuer::Token(const std::string& ns, const std::string& account, const std::string& pod,
                               int64_t expires_wall_ms) const {
  return Sign(Claims(ns, account, pod, expires_wall_ms), keys_.begin()->first);
}

std::string TokenIssuer::SignText(const std::string& text, const Key& key) const {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  size_t bytes = 0;
  KV_CHECK(EVP_DigestSignInit(context, nullptr, EVP_sha256(), nullptr, key.key.get()) == 1);
  KV_CHECK(EVP_DigestSign(context, nullptr, &bytes, Bytes(text), text.size()) == 1);
  std::string signature(bytes, '\0');
  KV_CHECK(EVP_DigestSign(context, Bytes(signature), &bytes, Bytes(text), text.size()) == 1);
  signature.resize(bytes);
  EVP_MD_CTX_free(context);
  return key.algorithm == "RS256" ? signature : RawOfDer(signature);
}

std::string TokenIssuer::Base64Url(const std::string& bytes) {
  std::string out;
  absl::WebSafeBase64Escape(bytes, &out);
  while (!out.empty() && out.back() == '=') out.pop_back();
  return out;
}

std::string TokenIssuer::Hs256(const std::string& text, const std::string& secret) {
  std::string mac(EVP_MAX_MD_SIZE, '\0');
  unsigned bytes = 0;
  KV_CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), Bytes(text), text.size(), Bytes(mac),
                &bytes) != nullptr);
  mac.resize(bytes);
  return mac;
}

}  // namespace kvartal::testing
