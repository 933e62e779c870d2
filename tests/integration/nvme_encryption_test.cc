// Encryption at rest by a real kvartald: what lies on the disk, keys that come and go while it serves, what a drop
// takes from whoever has the disk and the keys.
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>

#include <filesystem>
#include <optional>

#include "daemon/tier/nvme_format.h"
#include "daemon/tier/salt_file.h"
#include "tests/integration/nvme_fixture.h"

namespace kvartal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string KeyLine(uint32_t id, char digit) { return absl::StrCat(id, " ", std::string(64, digit), "\n"); }

DaemonOptions EncryptedOptions(const std::string& more = "nvmeKeyFile: nvme.keys\n") {
  DaemonOptions options = NvmeTest::Options();
  options.manifests += "  encryption: {nvme: Required}\n";
  options.more_config = more;
  return options;
}

class NvmeEncryptionDaemonTest : public NvmeTest {
 protected:
  explicit NvmeEncryptionDaemonTest(DaemonOptions options = EncryptedOptions()) : NvmeTest(std::move(options)) {
    SetKeys(KeyLine(1, 'a'));
  }

  std::string key_path() const { return daemon_.folder() + "/nvme.keys"; }
  // As a rotation does it: all at once.
  void SetKeys(const std::string& text, mode_t mode = 0600) {
    const std::string fresh = key_path() + ".new";
    WriteFile(fresh, text);
    KV_CHECK(::chmod(fresh.c_str(), mode) == 0);
    std::filesystem::rename(fresh, key_path());
  }
  // A part of the block's bytes is in the data file.
  bool InTheClear(const BlockKey& key) const {
    std::vector<std::byte> bytes(kNvmeTestBlockBytes);
    bench::FillBlock(key, bytes);
    const std::string disk = ReadFile(daemon_.nvme_path());
    return disk.find(std::string(reinterpret_cast<const char*>(bytes.data()) + 4096, 64)) != std::string::npos;
  }
  uint64_t Refusals() {
    const admin::v1::Tenant tenant = Tenant();
    const auto& refusals = admin::TierOf(tenant, "nvme").refusals();
    const auto found = refusals.find("encryption_key_missing");
    return found == refusals.end() ? 0 : found->second;
  }
};

TEST_F(NvmeEncryptionDaemonTest, NoByteOfABlockIsOnTheDiskAndARestartReadsThemAll) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> keys = Keys("enc", 128);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
  EXPECT_EQ(Ask(client_.get(), keys).right, keys.size());
  EXPECT_TRUE(Tenant().nvme_encrypted());
  EXPECT_EQ(Tenant().nvme_key_id(), 1u);
  EXPECT_THAT(daemon_.Ctl({"doctor", "--config", daemon_.config_path()}).out, HasSubstr("under key 1"));
  EXPECT_THAT(daemon_.log(), Not(HasSubstr(std::string(16, 'a')))) << "keys are in no log";
  ASSERT_NO_FATAL_FAILURE(Stop());
  for (size_t i = 0; i < keys.size(); i += 16) EXPECT_FALSE(InTheClear(keys[i])) << i;
  ASSERT_NO_FATAL_FAILURE(Start());
  const Census after = Ask(client_.get(), keys);
  EXPECT_EQ(after.right, keys.size());
  EXPECT_EQ(after.from_nvme, keys.size());
  ExpectBooksAgree();
}

class NvmeInTheClearTest : public NvmeTest {};

// The control of what is looked for above.
TEST_F(NvmeInTheClearTest, ATenantThatAsksForNothingIsFoundOnTheDisk) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> keys = Keys("clear", 1);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
  ASSERT_NO_FATAL_FAILURE(Stop());
  std::vector<std::byte> bytes(kNvmeTestBlockBytes);
  bench::FillBlock(keys[0], bytes);
  EXPECT_NE(ReadFile(daemon_.nvme_path()).find(std::string(reinterpret_cast<const char*>(bytes.data()) + 4096, 64)),
            std::string::npos);
}

TEST_F(NvmeEncryptionDaemonTest, KeysRotateWhileItServesAndAKeyThatIsWithdrawnTakesItsBlocksAlong) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> first = Keys("first", 96), second = Keys("second", 96);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), first));
  SetKeys(KeyLine(1, 'a') + KeyLine(2, 'b'));
  Until("the new key is in use", [this] { return Status().nvme_key_id() == 2; });
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), second));
  EXPECT_EQ(Ask(client_.get(), first).right, first.size());
  EXPECT_EQ(Ask(client_.get(), second).right, second.size());
  SetKeys(KeyLine(2, 'b'));
  Until("the old key is gone", [this] { return Status().nvme_keys() == 1; });
  ASSERT_NO_FATAL_FAILURE(Stop());
  ASSERT_NO_FATAL_FAILURE(Start());  // so that memory holds none of them
  EXPECT_EQ(Ask(client_.get(), second).right, second.size());
  const Census gone = Ask(client_.get(), first);
  EXPECT_EQ(gone.missed, first.size());
  EXPECT_EQ(gone.wrong_bytes, 0u);
  const admin::v1::Tenant tenant = Tenant();
  EXPECT_EQ(admin::TierOf(tenant, "nvme").blocks(), second.size()) << "their slots are free";
  EXPECT_EQ(admin::TierOf(tenant, "nvme").drops().at("encryption_key_missing"), first.size());
  ExpectBooksAgree();
}

TEST_F(NvmeEncryptionDaemonTest, WithoutAKeyWritesAreRefusedAndCountedAndEverybodyIsTold) {
  SetKeys("# none yet\n");
  ASSERT_NO_FATAL_FAILURE(Start());
  for (const BlockKey& key : Keys("keyless", 4)) {
    ASSERT_TRUE(
        client_->Store({&key, 1}, 0, 1, 0, [&](const bench::Granted& slot) { bench::FillBlock(key, slot.bytes); })
            .ok());
  }
  Until("the refusals are counted", [this] { return Refusals() >= 4; });
  EXPECT_EQ(admin::TierOf(Tenant(), "nvme").charged_bytes(), 0u);
  EXPECT_THAT(daemon_.Ctl({"tenants"}).out, HasSubstr("missing"));
  EXPECT_THAT(daemon_.Ctl({"explain", "--tenant", "test/own"}).out, HasSubstr("encryption_key_missing"));
  SetKeys(KeyLine(1, 'a'));
  Until("the key is in use", [this] { return Status().nvme_key_id() == 1; });
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), Keys("with-key", 4)));
}

TEST_F(NvmeEncryptionDaemonTest, AFileThatOthersMayReadIsRefusedAndTheKeysFromBeforeStayInUse) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> keys = Keys("mode", 32);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
  SetKeys(KeyLine(2, 'b'), 0644);
  Until("the file is refused", [this] { return !Status().nvme_keys_error().empty(); });
  EXPECT_THAT(Status().nvme_keys_error(), HasSubstr("others may read the keys"));
  EXPECT_EQ(Status().nvme_key_id(), 1u);
  Until("the metric says so", [this] { return Metric("kvartal_nvme_keys_refused ") == 1; });
  EXPECT_EQ(Ask(client_.get(), keys).right, keys.size());
  ASSERT_NO_FATAL_FAILURE(Stop());
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(Status().nvme_key_id(), 0u) << "there is no key from before after a restart";
  SetKeys(KeyLine(1, 'a'));
  Until("the file is taken", [this] { return Status().nvme_key_id() == 1; });
  EXPECT_EQ(Ask(client_.get(), keys).right, keys.size()) << "nobody asked for them meanwhile";
}

class NvmeWithoutKeysTest : public NvmeEncryptionDaemonTest {
 protected:
  NvmeWithoutKeysTest() : NvmeEncryptionDaemonTest(EncryptedOptions("")) {}
};

TEST_F(NvmeWithoutKeysTest, APolicyThatWantsEncryptionIsRefusedByANodeThatIsConfiguredWithoutKeys) {
  const ExitState state = daemon_.StartAndWaitForEnd();
  EXPECT_TRUE(state.exited && state.code != 0);
  EXPECT_THAT(daemon_.log(), HasSubstr("encryption.nvme is Required and this node has no keys"));
  const CommandResult here =
      RunCommand({"kvartalctl", "policy", "validate", daemon_.policy_dir(), "--config", daemon_.config_path()});
  EXPECT_EQ(here.exit_code, 1);
  EXPECT_THAT(here.err, HasSubstr("this node has no keys"));
  EXPECT_EQ(RunCommand({"kvartalctl", "policy", "validate", daemon_.policy_dir()}).exit_code, 0)
      << "of a node nobody described";
}

// --- by hand, as docs/ON_DISK_FORMAT.md says it is done

std::string Hmac(const std::string& key, const std::string& text) {
  unsigned char out[32];
  unsigned length = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), out, &length);
  return {reinterpret_cast<const char*>(out), length};
}

// The payload behind a header page; nothing when the tag says no.
std::optional<std::string> DecryptByHand(const std::string& slot, const std::string& node_key, const std::string& salt,
                                         const std::string& uid) {
  constexpr size_t kRandomAt = 192, kTagAt = 224, kTagBytes = 16;
  const std::string info = "kvartal nvme block 1" + slot.substr(kRandomAt, 32) + uid;
  const std::string key = Hmac(Hmac(salt, node_key), info + '\1');
  std::string tag = slot.substr(kTagAt, kTagBytes), plain(slot.size() - kNvmeHeaderBytes, '\0');
  const unsigned char nonce[12] = {};
  const auto* const in = reinterpret_cast<const unsigned char*>(slot.data());
  auto* const out = reinterpret_cast<unsigned char*>(plain.data());
  int length = 0;
  EVP_CIPHER_CTX* const gcm = EVP_CIPHER_CTX_new();
  EVP_DecryptInit_ex(gcm, EVP_aes_256_gcm(), nullptr, reinterpret_cast<const unsigned char*>(key.data()), nonce);
  EVP_DecryptUpdate(gcm, nullptr, &length, in, static_cast<int>(kTagAt));
  EVP_DecryptUpdate(gcm, out, &length, in + kNvmeHeaderBytes, static_cast<int>(plain.size()));
  EVP_CIPHER_CTX_ctrl(gcm, EVP_CTRL_GCM_SET_TAG, static_cast<int>(kTagBytes), tag.data());
  const bool right = EVP_DecryptFinal_ex(gcm, out + length, &length) == 1;
  EVP_CIPHER_CTX_free(gcm);
  if (!right) return std::nullopt;
  return plain;
}

std::vector<std::string> SaltsIn(const std::string& path) {
  std::vector<std::string> salts;
  const auto file = tier::SaltFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  for (const tier::OwnerSalt& salt : file->salts())
    salts.emplace_back(reinterpret_cast<const char*>(salt.salt.data()), salt.salt.size());
  return salts;
}

TEST_F(NvmeEncryptionDaemonTest, AfterADropWhoHasTheDiskAsItWasAndTheNodesKeysDecryptsNothing) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> keys = Keys("dropped", 4);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
  const uint64_t at = HeaderOf(keys[0]);
  ASSERT_NE(at, 0u);
  // As if the drop had zeroed nothing: a copy of what was on the device.
  const std::string slot = ReadFile(daemon_.nvme_path()).substr(at, kNvmeHeaderBytes + kNvmeTestBlockBytes);
  const std::string salt_path = daemon_.nvme_path() + ".catalog.salts";
  const std::string node_key(32, '\xaa');
  const std::vector<std::string> salts = SaltsIn(salt_path);
  ASSERT_EQ(salts.size(), 1u);
  const std::optional<std::string> before = DecryptByHand(slot, node_key, salts[0], "test/own");
  ASSERT_TRUE(before.has_value()) << "the control: with the salt it can be done";
  std::vector<std::byte> expected(kNvmeTestBlockBytes);
  bench::FillBlock(keys[0], expected);
  EXPECT_EQ(std::memcmp(before->data(), expected.data(), expected.size()), 0);

  client_.reset();
  const CommandResult dropped = daemon_.Ctl({"drop", "--tenant", "test/own", "--yes"});
  ASSERT_EQ(dropped.exit_code, 0) << dropped.err;
  daemon_.Kill();
  for (const auto& file : std::filesystem::recursive_directory_iterator(daemon_.folder())) {
    if (!file.is_regular_file() || file.file_size() == 0) continue;
    EXPECT_EQ(ReadFile(file.path().string()).find(salts[0]), std::string::npos) << file.path();
  }
  // Of what the tenant stores from now on, if the kill left it the time.
  for (const std::string& left : SaltsIn(salt_path))
    EXPECT_FALSE(DecryptByHand(slot, node_key, left, "test/own").has_value());
  EXPECT_FALSE(DecryptByHand(slot, node_key, std::string(32, '\0'), "test/own").has_value());
}

}  // namespace
}  // namespace kvartal::testing
