// Which pages of a group of layers are in use, by how many, and which hold a block that another request may share: the
// engine's own prefix cache.
// Confined to the thread of the engine.
// Invariant: a page is free, or held by somebody, or kept for its block and held by nobody.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <vector>

#include "client/libkvartal/kvartal.hpp"

namespace kvartal::fake_engine {

class PageTable {
 public:
  // `given_up` is told of each page whose bytes nobody needs any more.
  PageTable(uint32_t pages, std::function<void(uint32_t)> given_up);

  // Free pages and those that could be.
  uint32_t Available() const { return static_cast<uint32_t>(free_.size() + idle_.size()); }
  uint32_t InUse() const { return static_cast<uint32_t>(pages_.size()) - Available(); }
  // REQUIRES: Available() > 0. Held once.
  uint32_t Take();
  void Hold(uint32_t page);
  void Drop(uint32_t page);

  // The page that has this block, held once more; nullopt for none.
  std::optional<uint32_t> Find(const client::Key& key);
  // The bytes of `page`, which is held, are that block's.
  void Name(uint32_t page, const client::Key& key);

 private:
  struct Page {
    uint32_t holders = 0;
    std::optional<client::Key> key;
    std::list<uint32_t>::iterator idle;  // when nobody holds it and it has a key
  };
  std::function<void(uint32_t)> given_up_;
  std::vector<Page> pages_;
  std::vector<uint32_t> free_;
  std::list<uint32_t> idle_;  // the longest idle first
  std::map<client::Key, uint32_t> by_key_;
};

}  // namespace kvartal::fake_engine
