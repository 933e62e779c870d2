#include "tests/fake_engine/page_table.h"

#include <utility>

#include "daemon/base/check.h"

namespace kvartal::fake_engine {

PageTable::PageTable(uint32_t pages, std::function<void(uint32_t)> given_up)
    : given_up_(std::move(given_up)), pages_(pages) {
  for (uint32_t page = pages; page > 0; --page) free_.push_back(page - 1);
}

uint32_t PageTable::Take() {
  uint32_t taken = 0;
  if (!free_.empty()) {
    taken = free_.back();
    free_.pop_back();
  } else {
    KV_CHECK(!idle_.empty());
    taken = idle_.front();
    idle_.pop_front();
    by_key_.erase(*pages_[taken].key);
    pages_[taken].key.reset();
    given_up_(taken);
  }
  pages_[taken].holders = 1;
  return taken;
}

void PageTable::Hold(uint32_t page) {
  KV_CHECK(pages_[page].holders > 0);
  ++pages_[page].holders;
}

void PageTable::Drop(uint32_t page) {
  Page& dropped = pages_[page];
  KV_CHECK(dropped.holders > 0);
  if (--dropped.holders > 0) return;
  if (dropped.key.has_value()) {
    dropped.idle = idle_.insert(idle_.end(), page);
  } else {
    given_up_(page);
    free_.push_back(page);
  }
}

std::optional<uint32_t> PageTable::Find(const client::Key& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  Page& page = pages_[found->second];
  if (page.holders++ == 0) idle_.erase(page.idle);
  return found->second;
}

void PageTable::Name(uint32_t page, const client::Key& key) {
  KV_CHECK(pages_[page].holders > 0 && !pages_[page].key.has_value());
  // Two requests may have computed the same block: the second page stays nameless.
  if (by_key_.try_emplace(key, page).second) pages_[page].key = key;
}

}  // namespace kvartal::fake_engine
