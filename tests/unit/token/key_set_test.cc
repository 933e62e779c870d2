#include "daemon/token/key_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "daemon/base/limits.h"
#include "tests/support/token_issuer.h"

namespace kvartal::token {
namespace {

using ::kvartal::testing::TokenIssuer;
using ::testing::HasSubstr;

nlohmann::json Set(const TokenIssuer& issuer) { return nlohmann::json::parse(issuer.Jwks()); }

std::string ErrorOf(const nlohmann::json& set) {
  const auto keys = KeySet::Parse(set.dump());
  return keys.ok() ? "" : std::string(keys.status().message());
}

TEST(KeySetTest, KnowsKeysOfBothKindsByTheirKid) {
  TokenIssuer issuer;
  issuer.AddKey("key-2", "ES256");
  const auto keys = KeySet::Parse(issuer.Jwks());
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->size(), 2u);
  ASSERT_NE(keys->Find("key-1"), nullptr);
  EXPECT_EQ(keys->Find("key-1")->algorithm(), Algorithm::kRs256);
  ASSERT_NE(keys->Find("key-2"), nullptr);
  EXPECT_EQ(keys->Find("key-2")->algorithm(), Algorithm::kEs256);
  EXPECT_EQ(keys->Find("key-3"), nullptr);
  EXPECT_EQ(keys->Find(""), nullptr);
}

TEST(KeySetTest, KeysForSomethingElseArePassedOver) {
  TokenIssuer issuer;
  nlohmann::json set = Set(issuer);
  set["keys"].push_back({{"kty", "EC"}, {"crv", "P-521"}, {"kid", "wide"}, {"x", "AA"}, {"y", "AA"}});
  set["keys"].push_back({{"kty", "oct"}, {"kid", "secret"}, {"k", "AAAA"}});
  set["keys"].push_back({{"kty", "RSA"}, {"use", "enc"}, {"kid", "encryption"}});
  set["keys"].push_back({{"kty", "RSA"}, {"alg", "PS256"}, {"kid", "pss"}});
  const auto keys = KeySet::Parse(set.dump());
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->size(), 1u);
}

TEST(KeySetTest, ASetThatIsBrokenIsRefusedWhole) {
  TokenIssuer issuer;
  EXPECT_THAT(std::string(KeySet::Parse("").status().message()), HasSubstr("not a JWKS"));
  EXPECT_THAT(std::string(KeySet::Parse("[]").status().message()), HasSubstr("not a JWKS"));
  EXPECT_THAT(ErrorOf({{"keys", "none"}}), HasSubstr("not a JWKS"));
  EXPECT_THAT(ErrorOf({{"keys", nlohmann::json::array()}}), HasSubstr("no key of it"));
  nlohmann::json twice = Set(issuer);
  twice["keys"].push_back(twice["keys"][0]);
  EXPECT_THAT(ErrorOf(twice), HasSubstr("two keys have the kid key-1"));
  nlohmann::json nameless = Set(issuer);
  nameless["keys"][0].erase("kid");
  EXPECT_THAT(ErrorOf(nameless), HasSubstr("no \"kid\""));
  nlohmann::json broken = Set(issuer);
  broken["keys"][0]["n"] = "not base64url!";
  EXPECT_THAT(ErrorOf(broken), HasSubstr("key key-1: its numbers are not base64url"));
  nlohmann::json many = Set(issuer);
  for (size_t i = 0; i < kTokenKeysMax; ++i) many["keys"].push_back(many["keys"][0]);
  EXPECT_THAT(ErrorOf(many), HasSubstr("65 keys"));
  EXPECT_FALSE(KeySet::Parse(std::string(kTokenKeysBytesMax + 1, ' ')).ok());
}

TEST(KeySetTest, KeysThatCouldBeForgedAreRefused) {
  // RSA of 512 bits, of an even exponent, of the exponent 1: each would let anybody sign.
  const std::string short_modulus(64, '\xC3'), modulus(256, '\xC3');
  EXPECT_THAT(std::string(PublicKey::Rsa(short_modulus, "\x01\x01").status().message()), HasSubstr("512 bits"));
  EXPECT_FALSE(PublicKey::Rsa(modulus, "\x01").ok());
  EXPECT_FALSE(PublicKey::Rsa(modulus, "\x02").ok());
  EXPECT_FALSE(PublicKey::Rsa(modulus, "").ok());
  EXPECT_FALSE(PublicKey::Rsa(std::string(kTokenRsaBitsMax / 8 + 1, '\xC3'), "\x03").ok());
  EXPECT_FALSE(PublicKey::P256(std::string(32, '\x01'), std::string(32, '\x01')).ok()) << "not on the curve";
  EXPECT_FALSE(PublicKey::P256(std::string(31, '\x01'), std::string(32, '\x01')).ok());
}

TEST(KeySetTest, Base64UrlHasOneSpelling) {
  std::string out;
  EXPECT_TRUE(DecodeBase64Url("aGk", &out));
  EXPECT_EQ(out, "hi");
  for (const char* wrong : {"", "aGk=", "a", "a Gk", "aGk\n", "a+/k", "aGk."}) {
    EXPECT_FALSE(DecodeBase64Url(wrong, &out)) << wrong;
  }
}

}  // namespace
}  // namespace kvartal::token
