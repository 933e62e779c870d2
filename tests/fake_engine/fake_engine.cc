#include "tests/fake_engine/fake_engine.h"

#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace kvartal::fake_engine {
namespace {

constexpr uint32_t kDeadlineMs = 2000;
constexpr size_t kActiveMax = 6;
constexpr size_t kStoresMax = 24;

// The order of the pages is not part of it: slots have one order.
client::Digest DigestOf(const EngineOptions& options, const LayerGroup& group) {
  const std::string named = absl::StrCat("fake engine ", group.name, " ", group.layers, " ", group.heads, " ",
                                         group.tokens, " ", group.content_bytes, " ", options.ranks, options.latent);
  client::Digest digest{};
  ::SHA256(reinterpret_cast<const uint8_t*>(named.data()), named.size(), digest.data());
  return digest;
}

}  // namespace

FakeEngine::FakeEngine(EngineOptions options) : options_(std::move(options)), random_(options_.seed) {
  for (const LayerGroup& group : options_.groups) chunk_tokens_ = std::max(chunk_tokens_, group.tokens);
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    std::vector<RankMemory>& memory = memory_.emplace_back();
    for (uint32_t number = 0; number < options_.groups.size(); ++number) {
      const LayerGroup& group = options_.groups[number];
      const uint32_t heads = options_.latent ? group.heads : group.heads / options_.ranks;
      const auto pages = static_cast<uint32_t>(options_.chunks * PerChunk(number));
      memory.emplace_back(group, number, options_.latent ? 0 : rank * heads, heads, options_.order, pages);
    }
  }
  for (size_t group = 0; group < options_.groups.size(); ++group) {
    const auto pages = static_cast<uint32_t>(options_.chunks * PerChunk(group));
    pages_.push_back(std::make_unique<PageTable>(pages, [this, group](uint32_t page) {
      for (std::vector<RankMemory>& rank : memory_) rank[group].Poison(page);
    }));
  }
}

FakeEngine::~FakeEngine() {
  // Leases end before the client they came from.
  active_.clear();
  waiting_.clear();
}

absl::StatusOr<std::unique_ptr<FakeEngine>> FakeEngine::Start(EngineOptions options) {
  std::unique_ptr<FakeEngine> engine(new FakeEngine(std::move(options)));
  KV_RETURN_IF_ERROR(engine->Open(&engine->scheduler_, nullptr));
  client::Group group{};
  if (engine->scheduler_.client.GetGroup(&group) != KV_OK) return absl::UnavailableError("no engine group");
  engine->workers_.resize(engine->options_.ranks);
  for (Session& worker : engine->workers_) KV_RETURN_IF_ERROR(engine->Open(&worker, &group));
  return engine;
}

absl::Status FakeEngine::Open(Session* session, const client::Group* join) {
  if (session->client.Attach(options_.socket, "fake engine", join, kDeadlineMs) != KV_OK) {
    return absl::UnavailableError(absl::StrCat("attach: ", session->client.error()));
  }
  for (size_t group = 0; group < options_.groups.size(); ++group) {
    const LayerGroup& layers = options_.groups[group];
    const kv_layout layout{layers.tokens, options_.latent ? 1 : options_.ranks,
                           static_cast<uint32_t>(memory_[0][group].shape().BlockBytes())};
    const auto opened = session->client.OpenNamespace(DigestOf(options_, layers), layout, kDeadlineMs);
    if (opened.status != KV_OK) {
      return absl::UnavailableError(absl::StrCat("namespace ", layers.name, ": ", session->client.error()));
    }
    session->namespaces.push_back(opened.ns);
  }
  return absl::OkStatus();
}

void FakeEngine::Submit(std::vector<uint32_t> tokens) {
  Request request;
  request.chunks = tokens.size() / chunk_tokens_;
  KV_CHECK(request.chunks > 0 && request.chunks * chunk_tokens_ == tokens.size() && request.chunks <= options_.chunks);
  for (const LayerGroup& group : options_.groups) request.chains.push_back(ChainOf(tokens, group.tokens));
  request.tokens = std::move(tokens);
  waiting_.push_back(std::move(request));
}

void FakeEngine::Step() {
  if (!waiting_.empty() && active_.size() < kActiveMax && Admit(&waiting_.front())) {
    active_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  } else if (!waiting_.empty() && active_.empty() && !stores_.empty()) {
    // Its pages are held by what is to be stored.
    RunStore(stores_.front());
    stores_.pop_front();
  }
  Advance();
  if (Chance(6)) EndOne();
  while (!stores_.empty() && (stores_.size() > kStoresMax || Chance(50))) {
    RunStore(stores_.front());
    stores_.pop_front();
  }
}

bool FakeEngine::Admit(Request* request) {
  request->pages.assign(options_.groups.size(), {});
  request->done = TakeShared(request);
  const size_t missing = request->chunks - request->done;
  for (size_t group = 0; group < pages_.size(); ++group) {
    if (pages_[group]->Available() < missing * PerChunk(group)) {
      Clear(request);
      return false;
    }
  }
  stats_.shared += request->done;
  request->load_until = request->done;
  if (missing > 0) LookUp(request);
  for (size_t group = 0; group < pages_.size(); ++group) {
    while (request->pages[group].size() < request->chunks * PerChunk(group)) {
      request->pages[group].push_back(pages_[group]->Take());
    }
  }
  return true;
}

// Leading chunks whose blocks all lie in pages already.
size_t FakeEngine::TakeShared(Request* request) {
  for (size_t chunk = 0; chunk < request->chunks; ++chunk) {
    for (size_t group = 0; group < pages_.size(); ++group) {
      for (size_t i = 0; i < PerChunk(group); ++i) {
        const auto page = pages_[group]->Find(request->chains[group][chunk * PerChunk(group) + i]);
        if (page.has_value()) {
          request->pages[group].push_back(*page);
          continue;
        }
        // Not the whole chunk: what was taken of it goes back.
        for (size_t back = 0; back < pages_.size(); ++back) {
          while (request->pages[back].size() > chunk * PerChunk(back)) {
            pages_[back]->Drop(request->pages[back].back());
            request->pages[back].pop_back();
          }
        }
        return chunk;
      }
    }
  }
  return request->chunks;
}

// Every group has to have a chunk for it to be of use.
void FakeEngine::LookUp(Request* request) {
  size_t chunks = request->chunks;
  for (size_t group = 0; group < pages_.size(); ++group) {
    auto found = scheduler_.client.Lookup(scheduler_.namespaces[group], request->chains[group], 0, kDeadlineMs);
    chunks = std::min(chunks, found.matched / PerChunk(group));
    request->leases.push_back(std::move(found.lease));
  }
  if (chunks <= request->done) request->leases.clear();
  request->load_until = std::max(chunks, request->done);
}

void FakeEngine::Advance() {
  for (auto request = active_.begin(); request != active_.end();) {
    if (Chance(30)) {
      ++request;
      continue;
    }
    if (request->done < request->load_until) {
      if (!LoadChunk(&*request)) {
        ++stats_.failed_loads;
        request->load_until = request->done;
      }
      if (request->done == request->load_until) request->leases.clear();
    } else if (request->done < request->chunks) {
      ComputeChunk(&*request);
    }
    if (request->done < request->chunks) {
      ++request;
      continue;
    }
    Finish(&*request);
    request = active_.erase(request);
  }
}

bool FakeEngine::LoadChunk(Request* request) {
  for (size_t group = 0; group < pages_.size(); ++group) {
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      if (!LoadBlocks(rank, group, *request, request->done * PerChunk(group))) return false;
    }
  }
  for (size_t group = 0; group < pages_.size(); ++group) {
    for (size_t i = request->done * PerChunk(group); i < (request->done + 1) * PerChunk(group); ++i) {
      pages_[group]->Name(request->pages[group][i], request->chains[group][i]);
    }
  }
  ++request->done;
  ++stats_.loaded;
  return true;
}

// One rank's part of the blocks of a chunk, from `first` on.
bool FakeEngine::LoadBlocks(size_t rank, size_t group, const Request& request, size_t first) {
  Session& worker = workers_[rank];
  const auto from = static_cast<uint32_t>(first), count = static_cast<uint32_t>(PerChunk(group));
  kv_lease* raw = nullptr;
  const uint64_t id = kv_lease_id(request.leases[group].get());
  if (kv_borrow(worker.client.get(), worker.namespaces[group], id, from, count, &raw, kDeadlineMs) != KV_OK) {
    return false;
  }
  client::Lease borrowed(worker.client.get(), raw);
  if (borrowed.Load(from, count, kDeadlineMs).count < count) return false;
  for (uint32_t i = from; i < from + count; ++i) {
    const size_t of_rank = options_.mixes_up_ranks ? (rank + 1) % workers_.size() : rank;
    const void* const shard = borrowed.Shard(i, ShardOf(of_rank));
    if (shard == nullptr) return false;
    const uint32_t page = request.pages[group][i];
    memory_[rank][group].Scatter(shard, page);
    if (!borrowed.Valid(i)) return false;
    if (!memory_[rank][group].Holds(page, request.chains[group][i])) ++stats_.wrong;
  }
  return true;
}

void FakeEngine::ComputeChunk(Request* request) {
  for (size_t group = 0; group < pages_.size(); ++group) {
    for (size_t i = request->done * PerChunk(group); i < (request->done + 1) * PerChunk(group); ++i) {
      const uint32_t page = request->pages[group][i];
      for (std::vector<RankMemory>& rank : memory_) rank[group].Compute(page, request->chains[group][i]);
      pages_[group]->Name(page, request->chains[group][i]);
    }
  }
  QueueStores(*request, request->done);
  ++request->done;
  ++stats_.computed;
}

void FakeEngine::QueueStores(const Request& request, size_t chunk) {
  for (size_t group = 0; group < pages_.size(); ++group) {
    const size_t first = chunk * PerChunk(group);
    Store store;
    store.group = static_cast<uint32_t>(group);
    store.depth = static_cast<uint32_t>(first);
    store.has_parent = first > 0;
    if (first > 0) store.parent = request.chains[group][first - 1];
    for (size_t i = first; i < first + PerChunk(group); ++i) {
      store.keys.push_back(request.chains[group][i]);
      store.pages.push_back(request.pages[group][i]);
      pages_[group]->Hold(request.pages[group][i]);
    }
    stores_.push_back(std::move(store));
  }
}

void FakeEngine::RunStore(const Store& store) {
  const size_t ranks = options_.latent ? 1 : workers_.size();
  for (size_t rank = 0; rank < ranks; ++rank) StoreOn(rank, store);
  for (const uint32_t page : store.pages) pages_[store.group]->Drop(page);
}

void FakeEngine::StoreOn(size_t rank, const Store& store) {
  Session& worker = workers_[rank];
  std::vector<kv_slot> slots(store.keys.size());
  const kv_status reserved = worker.client.Reserve({.ns = worker.namespaces[store.group],
                                                    .shard = ShardOf(rank),
                                                    .keys = store.keys,
                                                    .parent = store.has_parent ? &store.parent : nullptr,
                                                    .first_depth = store.depth},
                                                   slots, kDeadlineMs);
  if (reserved != KV_OK) {
    ++stats_.refused;
    return;
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].outcome == KV_SLOT_REFUSED) ++stats_.refused;
    if (slots[i].outcome != KV_GRANTED) continue;
    KV_CHECK(memory_[rank][store.group].Holds(store.pages[i], store.keys[i]));
    memory_[rank][store.group].Gather(store.pages[i], slots[i].data);
  }
  if (Chance(5)) {
    worker.client.Abort(slots, kDeadlineMs);
    ++stats_.given_back;
    return;
  }
  stats_.stored += worker.client.Commit(slots, ShardOf(rank), kDeadlineMs).count;
}

// Preempts or aborts a request, wherever it stands.
void FakeEngine::EndOne() {
  if (active_.empty()) return;
  auto ended = std::next(active_.begin(), static_cast<std::ptrdiff_t>(random_() % active_.size()));
  if (ended->done < ended->load_until) ++stats_.gave_up_loading;
  Clear(&*ended);
  if (Chance(70)) {
    ++stats_.preempted;
    waiting_.push_back(std::move(*ended));
  } else {
    ++stats_.aborted;
  }
  active_.erase(ended);
}

void FakeEngine::Finish(Request* request) {
  for (size_t group = 0; group < pages_.size(); ++group) {
    for (size_t i = 0; i < request->pages[group].size(); ++i) {
      for (const std::vector<RankMemory>& rank : memory_) {
        if (!rank[group].Holds(request->pages[group][i], request->chains[group][i])) ++stats_.wrong;
      }
    }
  }
  Clear(request);
  ++stats_.finished;
}

void FakeEngine::Clear(Request* request) {
  request->leases.clear();
  for (size_t group = 0; group < pages_.size(); ++group) {
    for (const uint32_t page : request->pages[group]) pages_[group]->Drop(page);
  }
  request->pages.assign(options_.groups.size(), {});
  request->done = request->load_until = 0;
}

}  // namespace kvartal::fake_engine
