// Any bytes as the token of a pod, as the payload of one that is signed well, as a key set, and as what the kernel
// prints of cgroups: nothing but a verdict comes of it, and a token that nobody signed is believed in no case.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/attach/pod_cgroup.h"
#include "daemon/base/check.h"
#include "daemon/token/key_set.h"
#include "daemon/token/pod_token.h"
#include "tests/support/token_issuer.h"

namespace {

using namespace kvartal;  // NOLINT

constexpr int64_t kNowMs = 1'700'000'000'000;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const testing::TokenIssuer* const issuer = new testing::TokenIssuer();
  static const token::KeySet* const keys = new token::KeySet(*token::KeySet::Parse(issuer->Jwks()));
  static const token::TokenExpectations expected = {testing::kTestIssuer, "kvartal", "node-1"};
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 5) {
    case 0:
      KV_CHECK(token::VerifyToken(text, *keys, expected, kNowMs).fault != token::TokenFault::kNone);
      break;
    case 1: {
      // A header of any kind over any payload, with a signature that was made for something else.
      const std::string_view header = text.substr(0, text.size() / 2), payload = text.substr(text.size() / 2);
      const std::string token = testing::TokenIssuer::Base64Url(std::string(header)) + "." +
                                testing::TokenIssuer::Base64Url(std::string(payload)) + "." +
                                testing::TokenIssuer::Base64Url(std::string(256, 'x'));
      KV_CHECK(token::VerifyToken(token, *keys, expected, kNowMs).fault != token::TokenFault::kNone);
      break;
    }
    case 2: {
      nlohmann::json claims = nlohmann::json::parse(text, nullptr, false);
      if (claims.is_discarded()) break;
      const auto dumped = claims.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      const token::TokenVerdict verdict =
          token::VerifyToken(issuer->Sign(nlohmann::json::parse(dumped), "key-1"), *keys, expected, kNowMs);
      KV_CHECK(verdict.fault != token::TokenFault::kNone || !verdict.claims.pod_uid.empty());
      break;
    }
    case 3:
      (void)token::KeySet::Parse(text);
      break;
    default: {
      const std::string pod = attach::PodOfCgroup(text).value_or("");
      KV_CHECK(pod.empty() || pod.size() == 36);
    }
  }
  return 0;
}
