// What the KV of made-up prompts is: keys from tokens, bytes from keys.
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/libkvartal/kvartal.hpp"

namespace kvartal::fake_engine {

// Layers that share pages of one shape, as hybrid models have several of.
struct LayerGroup {
  std::string name;
  uint32_t layers = 0, heads = 0, tokens = 0;  // heads: of all ranks; tokens: of a block
  uint32_t content_bytes = 0;                  // a multiple of 8
};

// Of the consecutive blocks of `tokens`, each of `block_tokens`.
std::vector<client::Key> ChainOf(std::span<const uint32_t> tokens, uint32_t block_tokens);

// Where in the model a piece of KV is.
struct Place {
  uint32_t group = 0, layer = 0, head = 0, token = 0;
};
// Word `i` of the content of the block `key` there.
uint64_t ContentWord(const client::Key& key, const Place& place, uint32_t i);

}  // namespace kvartal::fake_engine
