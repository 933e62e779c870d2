// Encrypts and decrypts the blocks of one tenant with AES-256-GCM (decision 0024). Each block has a key of its own,
//   HKDF-SHA256(node key, salt = the tenant's, info = kBlockKeyLabel + the block's random + the tenant's uid),
// so a nonce of zeros is used once under every key. Immutable: any thread may use it.
// Invariant: without the node's key, or without the tenant's salt, nothing it encrypted can be decrypted by anybody.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "daemon/cipher/key_ring.h"

namespace kvartal::cipher {

inline constexpr size_t kSaltBytes = 32;
inline constexpr size_t kBlockRandomBytes = 32;
inline constexpr size_t kTagBytes = 16;
inline constexpr char kBlockKeyLabel[] = "kvartal nvme block 1";  // without its final zero

using Salt = std::array<std::byte, kSaltBytes>;
Salt NewSalt();

// What of an encrypted block is not in its bytes, and is stored beside them.
struct BlockSeal {
  uint32_t key_id = 0;  // of the node's key; 0: the block is not encrypted
  std::array<std::byte, kBlockRandomBytes> random{};
  std::array<std::byte, kTagBytes> tag{};
};

class TenantCipher {
 public:
  TenantCipher(std::shared_ptr<const KeyRing> ring, const Salt& salt, std::string uid);
  ~TenantCipher();
  TenantCipher(const TenantCipher&) = delete;
  TenantCipher& operator=(const TenantCipher&) = delete;

  // Of the key that the next block is encrypted under; 0: the node has none.
  uint32_t newest_key() const { return ring_->keys()->newest(); }
  bool Has(uint32_t key_id) const { return !ring_->keys()->Find(key_id).empty(); }

  // A seal for one block: the newest key, fresh random bytes, no tag yet. `key_id` 0: the node has no key.
  BlockSeal NewSeal() const;
  // `associated` is what has to be as it is for Decrypt to succeed. `out` is as long as `plain`, and other memory.
  // False: the key is gone.
  [[nodiscard]] bool Encrypt(std::span<const std::byte> associated, std::span<const std::byte> plain,
                             std::span<std::byte> out, BlockSeal* seal) const;
  // In place. False: a bit of key, salt, seal, `associated` or `bytes` is not as it was, or the key is gone; `bytes` is
  // zeros then.
  [[nodiscard]] bool Decrypt(std::span<const std::byte> associated, const BlockSeal& seal,
                             std::span<std::byte> bytes) const;

 private:
  using BlockKey = std::array<unsigned char, kKeyBytes>;
  bool DeriveKey(const BlockSeal& seal, BlockKey* key) const;

  const std::shared_ptr<const KeyRing> ring_;
  Salt salt_;
  const std::string uid_;
};

}  // namespace kvartal::cipher
