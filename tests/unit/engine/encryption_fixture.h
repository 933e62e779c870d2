// A node with a key, and a tenant whose blocks are encrypted on NVMe.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/cipher/tenant_cipher.h"
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {

inline constexpr char kRed[] = "red/t";

class EncryptionTest : public EngineTest {
 protected:
  EncryptionTest() {
    ring_ = std::make_shared<cipher::KeyRing>();
    SetKeys(KeyLine(1, 'a'));
  }

  static std::string KeyLine(uint32_t id, char digit) { return absl::StrCat(id, " ", std::string(64, digit), "\n"); }
  void SetKeys(const std::string& text) {
    const auto keys = cipher::NodeKeys::Parse(std::as_bytes(std::span(text)));
    ASSERT_TRUE(keys.ok()) << keys.status();
    ring_->Set(*keys);
  }
  static policy::TenantRules Encrypted(const std::string& name, uint64_t nvme_limit = 64 * kMiB) {
    policy::TenantRules rules = Rules(name, 32 * kMiB, nvme_limit);
    rules.encrypt_nvme = true;
    return rules;
  }
  // Stored, durable, and in memory no more.
  void StoreOnDisk(const std::vector<BlockKey>& keys) {
    ASSERT_EQ(Store(kRed, OpenNs(), keys), keys.size());
    Pump();
    Restart();
  }
  void BeginToEncrypt() {
    rules_ = {Encrypted(kRed)};
    engine_->ApplyPolicy(Table());
  }
  NamespaceId OpenNs() { return Open(kRed, 1, 1, kTestBlockBytes); }
  tier::OwnerSalt SaltOnDisk() const {
    EXPECT_EQ(catalog_disk_->salts.size(), 1u);
    return catalog_disk_->salts.empty() ? tier::OwnerSalt() : catalog_disk_->salts.begin()->second;
  }
};

}  // namespace kvartal::engine
