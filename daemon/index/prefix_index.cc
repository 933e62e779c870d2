#include "daemon/index/prefix_index.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/index/huge_buffer.h"
#include "daemon/index/key_table.h"

namespace kvartal::index {
namespace {

// Keys of a chain whose cache misses overlap: more than a core keeps in flight, few enough that the first line fetched
// is still there when it is read.
constexpr size_t kPipelineKeys = 32;
constexpr size_t kCacheLineBytes = 64;

uint64_t MultiplyFold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Clients choose keys freely, so all 32 bytes go in and the seed is secret: nobody can aim at one cluster of the table,
// which tenants share.
class KeyHasher {
 public:
  KeyHasher() { KV_CHECK(::getrandom(seed_.data(), sizeof(seed_), 0) == static_cast<ssize_t>(sizeof(seed_))); }

  uint32_t Hash(NamespaceId ns, const BlockKey& key) const {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), key.bytes.data(), sizeof(words));
    const uint64_t low = MultiplyFold(words[0] ^ seed_[0], words[1] ^ seed_[1]);
    const uint64_t high = MultiplyFold(words[2] ^ seed_[2], words[3] ^ seed_[3]);
    const uint64_t all = MultiplyFold(low ^ high ^ seed_[4], (low + ns.value()) ^ seed_[5]);
    return static_cast<uint32_t>(all >> 32);
  }

 private:
  std::array<uint64_t, 6> seed_;
};

void PrefetchEntry(const Entry* entry) {
  const auto* bytes = reinterpret_cast<const std::byte*>(entry);
  __builtin_prefetch(bytes);
  __builtin_prefetch(bytes + sizeof(Entry) - 1);
  static_assert(sizeof(Entry) <= 2 * kCacheLineBytes);
}

}  // namespace

// Entries never move; a free one has no namespace and names the next free one as its parent.
struct PrefixIndex::Table {
  static constexpr size_t kChunkBytes = Entries::kPerChunk * sizeof(Entry);  // 6 MiB: whole huge pages
  KeyHasher hasher;
  KeyTable keys;
  Entries* const entries;
  std::vector<HugeBuffer> memory;  // of the chunks
  EntryId first_free;

  explicit Table(Entries* entries_in) : entries(entries_in) {}
  Entry* Get(uint32_t number) const { return entries->Get(number); }
  bool Is(uint32_t number, NamespaceId ns, const BlockKey& key) const {
    const Entry* entry = Get(number);
    return entry->ns == ns && entry->key == key;
  }
  EntryId Find(uint32_t hash, NamespaceId ns, const BlockKey& key) const {
    return EntryId(keys.Find(hash, [&](uint32_t number) { return Is(number, ns, key); }));
  }
  EntryId TakeFree() {
    if (first_free.valid()) {
      const EntryId id = first_free;
      first_free = Get(id.value())->parent;
      return id;
    }
    KV_CHECK(entries->end < kIndexEntriesMax);
    if (entries->end >> Entries::kChunkBits == entries->chunks.size()) {
      memory.emplace_back(kChunkBytes);
      entries->chunks.push_back(reinterpret_cast<Entry*>(memory.back().data()));
    }
    return EntryId(entries->end++);
  }
};

static_assert(KeyTable::kNone == EntryId::None().value());

PrefixIndex::PrefixIndex() : table_(std::make_unique<Table>(&entries_)) {}
PrefixIndex::~PrefixIndex() = default;

EntryId PrefixIndex::Find(NamespaceId ns, const BlockKey& key) const {
  return table_->Find(table_->hasher.Hash(ns, key), ns, key);
}

void PrefixIndex::FindChain(NamespaceId ns, std::span<const BlockKey> keys, std::span<EntryId> out) const {
  KV_CHECK(keys.size() == out.size());
  const Table& table = *table_;
  std::array<uint32_t, kPipelineKeys> hashes;
  for (size_t first = 0; first < keys.size(); first += kPipelineKeys) {
    const size_t count = std::min(kPipelineKeys, keys.size() - first);
    for (size_t i = 0; i < count; ++i) {
      hashes[i] = table.hasher.Hash(ns, keys[first + i]);
      table.keys.Prefetch(hashes[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      out[first + i] = EntryId(table.keys.FirstCandidate(hashes[i]));
      if (out[first + i].valid()) PrefetchEntry(table.Get(out[first + i].value()));
    }
    for (size_t i = 0; i < count; ++i) {
      EntryId& found = out[first + i];
      if (!found.valid() || table.Is(found.value(), ns, keys[first + i])) continue;
      found = table.Find(hashes[i], ns, keys[first + i]);
    }
  }
}

EntryId PrefixIndex::Insert(NamespaceId ns, const BlockKey& key, EntryId parent, uint32_t depth) {
  KV_CHECK(ns.valid());
  KV_CHECK(!parent.valid() || IsLive(parent));
  const uint32_t hash = table_->hasher.Hash(ns, key);
  KV_CHECK(!table_->Find(hash, ns, key).valid());
  const EntryId id = table_->TakeFree();
  Entry* entry = new (table_->Get(id.value())) Entry();
  entry->key = key;
  entry->ns = ns;
  entry->parent = parent;
  entry->depth = depth;
  if (parent.valid()) ++at(parent).children;
  table_->keys.Insert(hash, id.value());
  ++live_;
  return id;
}

void PrefixIndex::Erase(EntryId id) {
  Entry& entry = at(id);
  for (TierKind tier : kAllTiers) KV_CHECK(!entry.resident(tier));
  KV_CHECK(entry.children == 0);
  KV_CHECK(!entry.in_use());
  KV_CHECK(!entry.writing && !entry.reading);
  if (entry.parent.valid()) {
    Entry& parent = at(entry.parent);
    KV_CHECK(parent.children > 0);
    --parent.children;
  }
  table_->keys.Erase(table_->hasher.Hash(entry.ns, entry.key), id.value());
  entry = Entry();
  entry.parent = table_->first_free;
  table_->first_free = id;
  --live_;
}

void PrefixIndex::SetParent(EntryId id, EntryId parent) {
  Entry& child = at(id);
  KV_CHECK(!child.parent.valid());
  KV_CHECK(parent != id);
  Entry& above = at(parent);
  child.parent = parent;
  ++above.children;
  for (TierKind tier : kAllTiers) {
    if (child.resident(tier)) ++above.copy(tier).children;
  }
}

void PrefixIndex::SetCopy(EntryId id, TierKind tier, SlotId slot) {
  KV_CHECK(slot.valid());
  Entry& entry = at(id);
  const bool was_resident = entry.resident(tier);
  entry.copy(tier).slot = slot;
  if (!was_resident && entry.parent.valid()) ++at(entry.parent).copy(tier).children;
}

void PrefixIndex::ClearCopy(EntryId id, TierKind tier) {
  Entry& entry = at(id);
  if (!entry.resident(tier)) return;
  entry.copy(tier).slot = SlotId::None();
  if (!entry.parent.valid()) return;
  TierCopy& parent = at(entry.parent).copy(tier);
  KV_CHECK(parent.children > 0);
  --parent.children;
}

size_t PrefixIndex::MemoryBytes() const {
  return table_->memory.size() * Table::kChunkBytes + table_->keys.MemoryBytes() + sizeof(Table);
}

}  // namespace kvartal::index
