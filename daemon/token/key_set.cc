#include "daemon/token/key_set.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"

namespace kvartal::token {
namespace {

constexpr size_t kP256Bytes = 32;  // of a coordinate, and of either half of a signature

template <typename T, void (*kFree)(T*)>
struct Freed {
  void operator()(T* what) const { kFree(what); }
};
template <typename T, void (*kFree)(T*)>
using Owned = std::unique_ptr<T, Freed<T, kFree>>;
using Number = Owned<BIGNUM, BN_free>;

const unsigned char* Bytes(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

Number ToNumber(std::string_view bytes) {
  return Number(BN_bin2bn(Bytes(bytes), static_cast<int>(bytes.size()), nullptr));
}

// nullptr when OpenSSL takes the parameters for no key.
EVP_PKEY* MakeKey(const char* type, OSSL_PARAM_BLD* build) {
  const Owned<OSSL_PARAM, OSSL_PARAM_free> parameters(OSSL_PARAM_BLD_to_param(build));
  const Owned<EVP_PKEY_CTX, EVP_PKEY_CTX_free> maker(EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr));
  EVP_PKEY* key = nullptr;
  if (parameters == nullptr || maker == nullptr || EVP_PKEY_fromdata_init(maker.get()) != 1) return nullptr;
  if (EVP_PKEY_fromdata(maker.get(), &key, EVP_PKEY_PUBLIC_KEY, parameters.get()) != 1) return nullptr;
  const Owned<EVP_PKEY_CTX, EVP_PKEY_CTX_free> checker(EVP_PKEY_CTX_new_from_pkey(nullptr, key, nullptr));
  if (checker != nullptr && EVP_PKEY_public_check(checker.get()) == 1) return key;
  EVP_PKEY_free(key);
  return nullptr;
}

// OpenSSL's form of a signature of ECDSA; empty when it is none.
std::string ToDer(std::string_view signature) {
  if (signature.size() != 2 * kP256Bytes) return "";
  const Owned<ECDSA_SIG, ECDSA_SIG_free> parts(ECDSA_SIG_new());
  Number r = ToNumber(signature.substr(0, kP256Bytes)), s = ToNumber(signature.substr(kP256Bytes));
  if (parts == nullptr || r == nullptr || s == nullptr) return "";
  if (ECDSA_SIG_set0(parts.get(), r.get(), s.get()) != 1) return "";
  // They are the signature's from here on.
  (void)r.release();  // NOLINT(bugprone-unused-return-value)
  (void)s.release();  // NOLINT(bugprone-unused-return-value)
  std::string der(static_cast<size_t>(std::max(0, i2d_ECDSA_SIG(parts.get(), nullptr))), '\0');
  auto* out = reinterpret_cast<unsigned char*>(der.data());
  return i2d_ECDSA_SIG(parts.get(), &out) > 0 ? der : "";
}

std::string TextAt(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Whether it is a key for signatures of an algorithm we have; another may stand in the same set.
bool IsOurs(const nlohmann::json& jwk) {
  const std::string use = TextAt(jwk, "use"), algorithm = TextAt(jwk, "alg"), type = TextAt(jwk, "kty");
  if (!use.empty() && use != "sig") return false;
  if (type == "RSA") return algorithm.empty() || algorithm == "RS256";
  return type == "EC" && TextAt(jwk, "crv") == "P-256" && (algorithm.empty() || algorithm == "ES256");
}

absl::StatusOr<PublicKey> ReadKey(const nlohmann::json& jwk) {
  const bool rsa = TextAt(jwk, "kty") == "RSA";
  std::string first, second;
  if (!DecodeBase64Url(TextAt(jwk, rsa ? "n" : "x"), &first) || !DecodeBase64Url(TextAt(jwk, rsa ? "e" : "y"), &second))
    return absl::InvalidArgumentError("its numbers are not base64url");
  return rsa ? PublicKey::Rsa(first, second) : PublicKey::P256(first, second);
}

}  // namespace

const char* AlgorithmName(Algorithm algorithm) { return algorithm == Algorithm::kRs256 ? "RS256" : "ES256"; }

void PublicKey::Free::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }

absl::StatusOr<PublicKey> PublicKey::Rsa(std::string_view modulus, std::string_view exponent) {
  if (modulus.size() > kTokenRsaBitsMax / 8 || exponent.size() > sizeof(uint64_t))
    return absl::InvalidArgumentError("an RSA key of more bits than a token is signed with");
  const Number n = ToNumber(modulus), e = ToNumber(exponent);
  if (n == nullptr || e == nullptr) return absl::ResourceExhaustedError("no memory for a key");
  if (BN_num_bits(n.get()) < kTokenRsaBitsMin)
    return absl::InvalidArgumentError(
        absl::StrCat("an RSA key of ", BN_num_bits(n.get()), " bits; at least ", kTokenRsaBitsMin, " are needed"));
  if (BN_is_one(e.get()) || !BN_is_odd(e.get())) return absl::InvalidArgumentError("an RSA exponent that is none");
  const Owned<OSSL_PARAM_BLD, OSSL_PARAM_BLD_free> build(OSSL_PARAM_BLD_new());
  if (build == nullptr || OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_RSA_N, n.get()) != 1 ||
      OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_RSA_E, e.get()) != 1)
    return absl::ResourceExhaustedError("no memory for a key");
  EVP_PKEY* key = MakeKey("RSA", build.get());
  if (key == nullptr) return absl::InvalidArgumentError("not an RSA key");
  return PublicKey(Algorithm::kRs256, key);
}

absl::StatusOr<PublicKey> PublicKey::P256(std::string_view x, std::string_view y) {
  if (x.size() != kP256Bytes || y.size() != kP256Bytes)
    return absl::InvalidArgumentError("coordinates of P-256 have 32 bytes");
  const std::string point =
      absl::StrCat("\x04", absl::string_view(x.data(), x.size()), absl::string_view(y.data(), y.size()));
  const Owned<OSSL_PARAM_BLD, OSSL_PARAM_BLD_free> build(OSSL_PARAM_BLD_new());
  if (build == nullptr ||
      OSSL_PARAM_BLD_push_utf8_string(build.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) != 1 ||
      OSSL_PARAM_BLD_push_octet_string(build.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(), point.size()) != 1)
    return absl::ResourceExhaustedError("no memory for a key");
  EVP_PKEY* key = MakeKey("EC", build.get());
  if (key == nullptr) return absl::InvalidArgumentError("not a point of P-256");
  return PublicKey(Algorithm::kEs256, key);
}

bool PublicKey::Verifies(std::string_view text, std::string_view signature) const {
  const std::string der = algorithm_ == Algorithm::kEs256 ? ToDer(signature) : "";
  if (algorithm_ == Algorithm::kEs256) {
    if (der.empty()) return false;
    signature = der;
  }
  const Owned<EVP_MD_CTX, EVP_MD_CTX_free> context(EVP_MD_CTX_new());
  return context != nullptr && EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, key_.get()) == 1 &&
         EVP_DigestVerify(context.get(), Bytes(signature), signature.size(), Bytes(text), text.size()) == 1;
}

absl::StatusOr<KeySet> KeySet::Parse(std::string_view jwks) {
  if (jwks.size() > kTokenKeysBytesMax)
    return absl::InvalidArgumentError(absl::StrCat("a key set of more than ", kTokenKeysBytesMax, " bytes"));
  const nlohmann::json document = nlohmann::json::parse(jwks.begin(), jwks.end(), nullptr, false);
  const auto keys = document.is_object() ? document.find("keys") : document.end();
  if (!document.is_object() || keys == document.end() || !keys->is_array())
    return absl::InvalidArgumentError("not a JWKS: it is to be a JSON object with a list \"keys\"");
  if (keys->size() > kTokenKeysMax)
    return absl::InvalidArgumentError(absl::StrCat("a key set of ", keys->size(), " keys; allowed: ", kTokenKeysMax));
  KeySet set;
  for (const nlohmann::json& jwk : *keys) {
    if (!jwk.is_object()) return absl::InvalidArgumentError("an element of \"keys\" is no object");
    if (!IsOurs(jwk)) continue;
    const std::string kid = TextAt(jwk, "kid");
    if (kid.empty()) return absl::InvalidArgumentError("a key has no \"kid\": no token could name it");
    absl::StatusOr<PublicKey> key = ReadKey(jwk);
    if (!key.ok()) {
      return absl::Status(key.status().code(), absl::StrCat("key ", absl::CEscape(kid), ": ", key.status().message()));
    }
    if (!set.keys_.emplace(kid, *std::move(key)).second)
      return absl::InvalidArgumentError(absl::StrCat("two keys have the kid ", absl::CEscape(kid)));
  }
  if (set.keys_.empty()) return absl::InvalidArgumentError("no key of it is for RS256 or ES256");
  return set;
}

const PublicKey* KeySet::Find(std::string_view kid) const {
  const auto found = keys_.find(kid);
  return found == keys_.end() ? nullptr : &found->second;
}

bool DecodeBase64Url(std::string_view text, std::string* out) {
  const auto is_digit = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  // The library's decoder takes padding and blanks as well, so that one token would have many spellings.
  if (text.empty() || text.size() % 4 == 1 || !std::all_of(text.begin(), text.end(), is_digit)) return false;
  return absl::WebSafeBase64Unescape(absl::string_view(text.data(), text.size()), out);
}

}  // namespace kvartal::token
