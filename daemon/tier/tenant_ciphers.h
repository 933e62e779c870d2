// Whose blocks on NVMe are encrypted, and by what: the node's keys joined with a salt of each owner, which the catalog
// keeps and a drop makes it forget.
// Confined to the engine loop; the ciphers it hands out may be used on any thread.
// Invariants: an owner's cipher is for its present salt; blocks under an earlier one are beyond everybody's reach. No
// salt is made while a disk is absent: the owner's own may lie there, and blocks under it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "daemon/cipher/key_ring.h"
#include "daemon/cipher/tenant_cipher.h"
#include "daemon/tier/nvme_catalog.h"

namespace kvartal::tier {

class TenantCiphers {
 public:
  // `catalog` outlives it.
  TenantCiphers(std::shared_ptr<const cipher::KeyRing> ring, NvmeCatalog* catalog, uint32_t absent_disks = 0);

  // nullptr: nothing of that owner was ever encrypted. `uid` is what `owner` is the hash of.
  std::shared_ptr<const cipher::TenantCipher> Find(const OwnerUidHash& owner, const std::string& uid);
  // The same, with a new salt of that date where there is none. The catalog has it before any record that is put later.
  // nullptr: it may not be made now.
  std::shared_ptr<const cipher::TenantCipher> FindOrMake(const OwnerUidHash& owner, const std::string& uid,
                                                         int64_t wall_ms);
  // Salts of a later date, which a lost catalog may have left, are of that one: a drop must not miss them.
  void DateNoLaterThan(int64_t wall_ms);
  // Grows with each change of the node's keys.
  uint64_t key_changes() const { return ring_->changes(); }
  // In memory; in the catalog the owner's tombstone does it.
  void Forget(const OwnerUidHash& owner, int64_t before_wall_ms);

 private:
  struct Known {
    OwnerSalt salt;
    std::shared_ptr<const cipher::TenantCipher> cipher;  // once it was asked for
  };
  const std::shared_ptr<const cipher::KeyRing> ring_;
  NvmeCatalog* const catalog_;
  const uint32_t absent_disks_;
  bool told_ = false;  // that it matters
  absl::flat_hash_map<OwnerUidHash, Known> known_;
};

}  // namespace kvartal::tier
