#include "tools/kvartal-bench/restart_load.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/verified_load.h"

namespace kvartal::bench {
namespace {

constexpr uint32_t kReadsPerTen = 3;

}  // namespace

std::vector<BlockKey> RestartChain(uint64_t number) {
  std::vector<BlockKey> keys;
  keys.reserve(kRestartChainBlocks);
  for (uint32_t i = 0; i < kRestartChainBlocks; ++i)
    keys.push_back(MakeKey(kRestartDigest, number * kRestartChainBlocks + i));
  return keys;
}

RestartLoad::RestartLoad(std::string socket, kv_layout layout, uint64_t first_chain, uint64_t chains_max, uint64_t seed)
    : socket_(std::move(socket)), layout_(layout), first_chain_(first_chain), chains_max_(chains_max), random_(seed) {}

absl::Status RestartLoad::Run(const std::atomic<bool>& stop) {
  const absl::Status status = RunUntilEnd(stop);
  client_.reset();
  return absl::IsUnavailable(status) ? absl::OkStatus() : status;
}

absl::Status RestartLoad::RunUntilEnd(const std::atomic<bool>& stop) {
  KV_ASSIGN_OR_RETURN(client_, BenchClient::Attach(socket_, kRestartDigest, layout_));
  client_->client().OnDurable(&RestartLoad::OnDurable, this);
  while (!stop.load(std::memory_order_relaxed)) {
    const bool may_store = chains_used_ < chains_max_;
    const bool read = chains_used_ != 0 && (!may_store || random_() % 10 < kReadsPerTen);
    KV_RETURN_IF_ERROR(read ? ReadOne() : StoreOne());
    KV_RETURN_IF_ERROR(client_->Poll(0).status());
  }
  return absl::OkStatus();
}

absl::Status RestartLoad::StoreOne() {
  const uint64_t number = first_chain_ + chains_used_++;
  const std::vector<BlockKey> chain = RestartChain(number);
  KV_ASSIGN_OR_RETURN(const Stored stored, client_->Store(chain, 0, chain.size(), 0, [&](const Granted& slot) {
    FillBlock(chain[slot.index], slot.bytes);
    promised_[slot.reservation] = {number, static_cast<uint32_t>(slot.index)};
  }));
  stored_ += stored.stored;
  return absl::OkStatus();
}

absl::Status RestartLoad::ReadOne() {
  const std::vector<BlockKey> chain = RestartChain(first_chain_ + random_() % chains_used_);
  KV_ASSIGN_OR_RETURN(Found found, client_->Lookup(chain));
  KV_ASSIGN_OR_RETURN(const Compared compared, LoadAndCompare(client_.get(), chain, std::move(found)));
  read_bytes_ += compared.bytes;
  wrong_bytes_ += compared.wrong_bytes;
  return absl::OkStatus();
}

void RestartLoad::OnDurable(void* self, uint64_t reservation) {
  RestartLoad& load = *static_cast<RestartLoad*>(self);
  const auto it = load.promised_.find(reservation);
  if (it == load.promised_.end()) return;
  load.durable_.push_back(it->second);
  load.promised_.erase(it);
}

}  // namespace kvartal::bench
