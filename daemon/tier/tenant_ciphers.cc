#include "daemon/tier/tenant_ciphers.h"

#include <utility>

namespace kvartal::tier {

TenantCiphers::TenantCiphers(std::shared_ptr<const cipher::KeyRing> ring, NvmeCatalog* catalog)
    : ring_(std::move(ring)), catalog_(catalog) {
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
  const auto [known, fresh] = known_.try_emplace(owner);
  if (fresh) {
    known->second.salt = {owner, cipher::NewSalt(), wall_ms};
    catalog_->PutSalt(known->second.salt);
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
