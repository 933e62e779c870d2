#include "tests/fake_engine/kv_content.h"

#include <openssl/sha.h>

#include <cstring>

namespace kvartal::fake_engine {
namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

std::vector<client::Key> ChainOf(std::span<const uint32_t> tokens, uint32_t block_tokens) {
  std::vector<client::Key> chain;
  client::Key parent{};
  for (size_t at = 0; at + block_tokens <= tokens.size(); at += block_tokens) {
    std::vector<uint8_t> hashed(parent.begin(), parent.end());
    const auto* const bytes = reinterpret_cast<const uint8_t*>(tokens.data() + at);
    hashed.insert(hashed.end(), bytes, bytes + block_tokens * sizeof(uint32_t));
    ::SHA256(hashed.data(), hashed.size(), parent.data());
    chain.push_back(parent);
  }
  return chain;
}

uint64_t ContentWord(const client::Key& key, const Place& place, uint32_t i) {
  uint64_t word = 0;
  std::memcpy(&word, key.data(), sizeof word);
  const uint64_t where = uint64_t{place.group} << 56 | uint64_t{place.layer} << 40 | uint64_t{place.head} << 24 |
                         uint64_t{place.token} << 8 | i % 256;
  return Mix(word ^ Mix(where + uint64_t{i / 256} * 0x9e3779b97f4a7c15));
}

}  // namespace kvartal::fake_engine
