#include "daemon/cipher/tenant_cipher.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace kvartal::cipher {
namespace {

using Bytes = std::vector<std::byte>;

Bytes BytesOf(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

void SetKeys(KeyRing* ring, const std::string& text) {
  const auto keys = NodeKeys::Parse(std::as_bytes(std::span(text)));
  ASSERT_TRUE(keys.ok()) << keys.status();
  ring->Set(*keys);
}

std::string KeyLine(uint32_t id, char digit) { return absl::StrCat(id, " ", std::string(64, digit), "\n"); }

// RFC 5869 by hand, of one block of output.
std::string HkdfSha256(const std::string& key, const std::string& salt, const std::string& info) {
  const auto hmac = [](const std::string& with, const std::string& of) {
    unsigned char out[32];
    unsigned length = 0;
    HMAC(EVP_sha256(), with.data(), static_cast<int>(with.size()), reinterpret_cast<const unsigned char*>(of.data()),
         of.size(), out, &length);
    return std::string(reinterpret_cast<char*>(out), length);
  };
  return hmac(hmac(salt, key), info + '\1');
}

class TenantCipherTest : public ::testing::Test {
 protected:
  TenantCipherTest() {
    SetKeys(ring_.get(), KeyLine(1, 'a'));
    salt_.fill(std::byte{0x5a});
  }

  TenantCipher Cipher(const std::string& uid = "uid-of-red") const { return {ring_, salt_, uid}; }
  // With the seal that it was encrypted under.
  std::pair<Bytes, BlockSeal> Encrypted(const TenantCipher& cipher, const std::string& plain) const {
    BlockSeal seal = cipher.NewSeal();
    Bytes out(plain.size());
    EXPECT_TRUE(cipher.Encrypt(associated_, BytesOf(plain), out, &seal));
    return {out, seal};
  }

  const std::shared_ptr<KeyRing> ring_ = std::make_shared<KeyRing>();
  Salt salt_{};
  const Bytes associated_ = BytesOf("slot 7 of red");
  const std::string plain_ = std::string(8192, 'p') + "end";
};

TEST_F(TenantCipherTest, WhatIsEncryptedIsDecryptedAndIsNotThePlainBytes) {
  const TenantCipher cipher = Cipher();
  auto [bytes, seal] = Encrypted(cipher, plain_);
  EXPECT_EQ(seal.key_id, 1u);
  EXPECT_NE(bytes, BytesOf(plain_));
  ASSERT_TRUE(cipher.Decrypt(associated_, seal, bytes));
  EXPECT_EQ(bytes, BytesOf(plain_));
}

// Anybody with the keys and docs/ON_DISK_FORMAT.md can do it.
TEST_F(TenantCipherTest, IsAes256GcmUnderAKeyByHkdfAsTheFormatSays) {
  const auto [bytes, seal] = Encrypted(Cipher(), plain_);
  const std::string random(reinterpret_cast<const char*>(seal.random.data()), seal.random.size());
  const std::string key =
      HkdfSha256(std::string(32, '\xaa'), std::string(32, '\x5a'), "kvartal nvme block 1" + random + "uid-of-red");
  EVP_CIPHER_CTX* const context = EVP_CIPHER_CTX_new();
  const unsigned char nonce[12] = {};
  int length = 0;
  Bytes plain(bytes.size());
  auto* const out = reinterpret_cast<unsigned char*>(plain.data());
  auto tag = seal.tag;
  ASSERT_EQ(EVP_DecryptInit_ex(context, EVP_aes_256_gcm(), nullptr, reinterpret_cast<const unsigned char*>(key.data()),
                               nonce),
            1);
  EVP_DecryptUpdate(context, nullptr, &length, reinterpret_cast<const unsigned char*>(associated_.data()),
                    static_cast<int>(associated_.size()));
  EVP_DecryptUpdate(context, out, &length, reinterpret_cast<const unsigned char*>(bytes.data()),
                    static_cast<int>(bytes.size()));
  EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_SET_TAG, static_cast<int>(tag.size()), tag.data());
  EXPECT_EQ(EVP_DecryptFinal_ex(context, out + length, &length), 1);
  EVP_CIPHER_CTX_free(context);
  EXPECT_EQ(plain, BytesOf(plain_));
}

// Test case 1 of RFC 5869, cut to one block: the test's own HKDF is the real one.
TEST_F(TenantCipherTest, TheReferenceDerivesWhatRfc5869Says) {
  const std::string okm = HkdfSha256(std::string(22, '\x0b'), absl::HexStringToBytes("000102030405060708090a0b0c"),
                                     absl::HexStringToBytes("f0f1f2f3f4f5f6f7f8f9"));
  EXPECT_EQ(absl::BytesToHexString(okm), "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
}

TEST_F(TenantCipherTest, NotABitMayDifferAndNothingIsLeftOfWhatDoes) {
  const TenantCipher cipher = Cipher();
  const auto [bytes, seal] = Encrypted(cipher, plain_);
  const auto refused = [&](Bytes what, BlockSeal with, const Bytes& associated) {
    const bool right = cipher.Decrypt(associated, with, what);
    return !right && std::all_of(what.begin(), what.end(), [](std::byte byte) { return byte == std::byte{0}; });
  };
  for (const size_t at : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
    Bytes flipped = bytes;
    flipped[at] ^= std::byte{0x10};
    EXPECT_TRUE(refused(flipped, seal, associated_)) << at;
  }
  BlockSeal other = seal;
  other.tag[15] ^= std::byte{1};
  EXPECT_TRUE(refused(bytes, other, associated_));
  other = seal;
  other.random[0] ^= std::byte{1};
  EXPECT_TRUE(refused(bytes, other, associated_));
  Bytes elsewhere = associated_;
  elsewhere[5] = std::byte{'8'};
  EXPECT_TRUE(refused(bytes, seal, elsewhere));
  Bytes shorter(bytes.begin(), bytes.end() - 1);
  EXPECT_TRUE(refused(shorter, seal, associated_));
  EXPECT_FALSE(refused(bytes, seal, associated_)) << "the control";
}

TEST_F(TenantCipherTest, AnotherTenantAnotherSaltOrAnotherKeyOfTheSameNumberDecryptsNothing) {
  const auto [bytes, seal] = Encrypted(Cipher(), plain_);
  Bytes copy = bytes;
  EXPECT_FALSE(Cipher("uid-of-blue").Decrypt(associated_, seal, copy));
  copy = bytes;
  Salt another = salt_;
  another[31] = std::byte{0};
  EXPECT_FALSE(TenantCipher(ring_, another, "uid-of-red").Decrypt(associated_, seal, copy));
  SetKeys(ring_.get(), KeyLine(1, 'b'));
  copy = bytes;
  EXPECT_FALSE(Cipher().Decrypt(associated_, seal, copy));
}

TEST_F(TenantCipherTest, TheNewestKeyEncryptsAndEveryKeyThatIsThereDecrypts) {
  const TenantCipher cipher = Cipher();
  auto [old_bytes, old_seal] = Encrypted(cipher, plain_);
  SetKeys(ring_.get(), KeyLine(1, 'a') + KeyLine(2, 'b'));
  auto [new_bytes, new_seal] = Encrypted(cipher, plain_);
  EXPECT_EQ(new_seal.key_id, 2u);
  Bytes copy = old_bytes;
  EXPECT_TRUE(cipher.Decrypt(associated_, old_seal, copy));
  SetKeys(ring_.get(), KeyLine(2, 'b'));
  EXPECT_FALSE(cipher.Has(1));
  EXPECT_FALSE(cipher.Decrypt(associated_, old_seal, old_bytes));
  EXPECT_TRUE(cipher.Decrypt(associated_, new_seal, new_bytes));
}

TEST_F(TenantCipherTest, WithoutAKeyNothingIsEncrypted) {
  const TenantCipher cipher = Cipher();
  BlockSeal seal = cipher.NewSeal();
  SetKeys(ring_.get(), "");
  EXPECT_EQ(cipher.newest_key(), 0u);
  EXPECT_EQ(cipher.NewSeal().key_id, 0u);
  Bytes out(plain_.size(), std::byte{9});
  EXPECT_FALSE(cipher.Encrypt(associated_, BytesOf(plain_), out, &seal)) << "it went between seal and block";
}

// A nonce is used once under a key because no two blocks have one key.
TEST_F(TenantCipherTest, EveryBlockHasRandomBytesOfItsOwn) {
  const TenantCipher cipher = Cipher();
  std::set<std::array<std::byte, kBlockRandomBytes>> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(cipher.NewSeal().random);
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_NE(Encrypted(cipher, plain_).first, Encrypted(cipher, plain_).first) << "equal blocks do not look equal";
}

}  // namespace
}  // namespace kvartal::cipher
