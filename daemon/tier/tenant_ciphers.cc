#include "daemon/tier/tenant_ciphers.h"

#include <utility>

#include "daemon/base/log.h"

namespace kvartal::tier {

TenantCiphers::TenantCiphers(std::shared_ptr<const cipher::KeyRing> ring, NvmeCatalog* catalog, uint32_t absent_disks)
    : ring_(std::move(ring)), catalog_(catalog), absent_disks_(absent_disks) {
  for (const OwnerSalt& salt : catalog_->salts()) known_[salt.owner].salt = salt;
}

std::shared_ptr<const cipher::TenantCipher> TenantCiphers::Find(const OwnerUidHash& owner, const std::string& uid) {
  const auto found = known_.find(owner);
  if (found == known_.end()) return nullptr;
  Known& known = found->second;
  if (known.cipher == nullptr) known.cipher = std::make_shared<cipher::TenantCipher>(ring_, known.salt.salt, uid);
  return known.cipher;
}

std::shared_ptr<const cipher::TenantCipher> TenantCiphers::FindOrMake(const OwnerUidHash& owner, const std::string& uid,
                                                                      int64_t wall_ms) {
  if (!known_.contains(owner)) {
    if (absent_disks_ > 0) {
      if (!std::exchange(told_, true))
        Log(LogLevel::kWarning, "nvme", "tenant ", uid,
            " has no salt yet, and none is made while a disk is absent: its blocks, and those of others like it, stay "
            "in memory until the disk is back, or out of the configuration");
      return nullptr;
    }
    const OwnerSalt salt{owner, cipher::NewSalt(), wall_ms};
    known_[owner].salt = salt;
    catalog_->PutSalt(salt);
  }
  return Find(owner, uid);
}

void TenantCiphers::DateNoLaterThan(int64_t wall_ms) {
  for (const OwnerSalt& salt : catalog_->salts()) {
    OwnerSalt& known = known_[salt.owner].salt;
    if (known.made_wall_ms <= wall_ms) continue;
    known.made_wall_ms = wall_ms;
    catalog_->PutSalt(known);
  }
}

void TenantCiphers::Forget(const OwnerUidHash& owner, int64_t before_wall_ms) {
  const auto found = known_.find(owner);
  if (found != known_.end() && found->second.salt.made_wall_ms < before_wall_ms) known_.erase(found);
}

}  // namespace kvartal::tier
