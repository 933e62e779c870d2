#include "daemon/cipher/tenant_cipher.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/cipher/secret_memory.h"

namespace kvartal::cipher {
namespace {

constexpr std::array<unsigned char, 12> kNonce{};

template <typename T, void (*free_it)(T*)>
struct Free {
  void operator()(T* what) const { free_it(what); }
};
using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, Free<EVP_CIPHER_CTX, EVP_CIPHER_CTX_free>>;
using KdfContext = std::unique_ptr<EVP_KDF_CTX, Free<EVP_KDF_CTX, EVP_KDF_CTX_free>>;

// Looked up once: that takes longer than deriving a key.
EVP_KDF* Hkdf() {
  static EVP_KDF* const hkdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  KV_CHECK(hkdf != nullptr);
  return hkdf;
}
const EVP_CIPHER* Aes256Gcm() {
  static EVP_CIPHER* const gcm = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  KV_CHECK(gcm != nullptr);
  return gcm;
}

const unsigned char* Bytes(std::span<const std::byte> in) { return reinterpret_cast<const unsigned char*>(in.data()); }
unsigned char* Bytes(std::span<std::byte> in) { return reinterpret_cast<unsigned char*>(in.data()); }
int Length(std::span<const std::byte> in) {
  KV_CHECK(in.size() <= INT32_MAX);
  return static_cast<int>(in.size());
}
OSSL_PARAM Octets(const char* name, std::span<const std::byte> value) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<std::byte*>(value.data()), value.size());
}

}  // namespace

Salt NewSalt() {
  Salt salt;
  FillRandom(salt);
  return salt;
}

TenantCipher::TenantCipher(std::shared_ptr<const KeyRing> ring, const Salt& salt, std::string uid)
    : ring_(std::move(ring)), salt_(salt), uid_(std::move(uid)) {}

TenantCipher::~TenantCipher() { OPENSSL_cleanse(salt_.data(), salt_.size()); }

BlockSeal TenantCipher::NewSeal() const {
  BlockSeal seal;
  seal.key_id = newest_key();
  FillRandom(seal.random);
  return seal;
}

bool TenantCipher::DeriveKey(const BlockSeal& seal, BlockKey* key) const {
  const std::shared_ptr<const NodeKeys> keys = ring_->keys();
  const std::span<const std::byte> node_key = keys->Find(seal.key_id);
  if (node_key.empty()) return false;
  std::string info(kBlockKeyLabel);
  info.append(reinterpret_cast<const char*>(seal.random.data()), seal.random.size());
  info += uid_;
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      Octets(OSSL_KDF_PARAM_KEY, node_key),
      Octets(OSSL_KDF_PARAM_SALT, salt_),
      Octets(OSSL_KDF_PARAM_INFO, std::as_bytes(std::span(info))),
      OSSL_PARAM_construct_end(),
  };
  const KdfContext context(EVP_KDF_CTX_new(Hkdf()));
  KV_CHECK(context != nullptr);
  KV_CHECK(EVP_KDF_derive(context.get(), key->data(), key->size(), parameters) == 1);
  return true;
}

bool TenantCipher::Encrypt(std::span<const std::byte> associated, std::span<const std::byte> plain,
                           std::span<std::byte> out, BlockSeal* seal) const {
  KV_CHECK(plain.size() == out.size());
  BlockKey key;
  if (!DeriveKey(*seal, &key)) return false;
  const CipherContext context(EVP_CIPHER_CTX_new());
  EVP_CIPHER_CTX* const gcm = context.get();
  int done = 0;
  const bool started = EVP_EncryptInit_ex2(gcm, Aes256Gcm(), key.data(), kNonce.data(), nullptr) == 1;
  OPENSSL_cleanse(key.data(), key.size());
  // None of these fails for want of anything but memory.
  KV_CHECK(started && EVP_EncryptUpdate(gcm, nullptr, &done, Bytes(associated), Length(associated)) == 1);
  KV_CHECK(EVP_EncryptUpdate(gcm, Bytes(out), &done, Bytes(plain), Length(plain)) == 1 && done == Length(plain));
  KV_CHECK(EVP_EncryptFinal_ex(gcm, Bytes(out) + done, &done) == 1);
  KV_CHECK(EVP_CIPHER_CTX_ctrl(gcm, EVP_CTRL_AEAD_GET_TAG, static_cast<int>(kTagBytes), seal->tag.data()) == 1);
  return true;
}

bool TenantCipher::Decrypt(std::span<const std::byte> associated, const BlockSeal& seal,
                           std::span<std::byte> bytes) const {
  BlockKey key;
  bool right = DeriveKey(seal, &key);
  if (right) {
    const CipherContext context(EVP_CIPHER_CTX_new());
    EVP_CIPHER_CTX* const gcm = context.get();
    std::array<std::byte, kTagBytes> tag = seal.tag;
    int done = 0;
    const bool started = EVP_DecryptInit_ex2(gcm, Aes256Gcm(), key.data(), kNonce.data(), nullptr) == 1;
    KV_CHECK(started && EVP_DecryptUpdate(gcm, nullptr, &done, Bytes(associated), Length(associated)) == 1);
    KV_CHECK(EVP_DecryptUpdate(gcm, Bytes(bytes), &done, Bytes(bytes), Length(bytes)) == 1 && done == Length(bytes));
    KV_CHECK(EVP_CIPHER_CTX_ctrl(gcm, EVP_CTRL_AEAD_SET_TAG, static_cast<int>(kTagBytes), tag.data()) == 1);
    right = EVP_DecryptFinal_ex(gcm, Bytes(bytes) + done, &done) == 1;
  }
  OPENSSL_cleanse(key.data(), key.size());
  // What nothing vouches for is not left where a client could look at it.
  if (!right) std::fill(bytes.begin(), bytes.end(), std::byte{0});
  return right;
}

}  // namespace kvartal::cipher
