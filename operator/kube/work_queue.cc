#include "operator/kube/work_queue.h"

#include <algorithm>

#include "daemon/base/check.h"

namespace kvartal::kube {

void WorkQueue::AddReady(const std::string& key) {
  if (!dirty_.insert(key).second) return;
  ++adds_;
  if (!working_.contains(key)) ready_.push_back(key);
}

void WorkQueue::Add(const std::string& key) { AddReady(key); }

void WorkQueue::AddAfter(const std::string& key, int64_t delay_ms, int64_t now_ms) {
  if (delay_ms <= 0) return AddReady(key);
  const int64_t due_ms = now_ms + delay_ms;
  const auto [known, fresh] = due_.try_emplace(key, due_ms);
  if (!fresh) {
    // The sooner of two wishes holds: it is looked at then in any case.
    if (known->second <= due_ms) return;
    waiting_.erase({known->second, key});
    known->second = due_ms;
  }
  waiting_.emplace(due_ms, key);
}

void WorkQueue::Retry(const std::string& key, int64_t now_ms) {
  ++retries_;
  const int failures = failures_[key]++;
  int64_t delay_ms = kRetryBaseMs;
  for (int i = 0; i < failures && delay_ms < kRetryMaxMs; ++i) delay_ms *= 2;
  AddAfter(key, std::max(std::min(delay_ms, kRetryMaxMs), rate_.TakeMs(now_ms)), now_ms);
}

std::optional<std::string> WorkQueue::Take(int64_t now_ms) {
  while (!waiting_.empty() && waiting_.begin()->first <= now_ms) {
    const std::string key = waiting_.begin()->second;
    waiting_.erase(waiting_.begin());
    due_.erase(key);
    AddReady(key);
  }
  if (ready_.empty()) return std::nullopt;
  std::string key = std::move(ready_.front());
  ready_.pop_front();
  dirty_.erase(key);
  working_.insert(key);
  return key;
}

void WorkQueue::Done(const std::string& key) {
  KV_CHECK(working_.erase(key) == 1);
  if (dirty_.contains(key)) ready_.push_back(key);
}

std::optional<int64_t> WorkQueue::NextDueMs() const {
  if (waiting_.empty()) return std::nullopt;
  return waiting_.begin()->first;
}

WorkQueueStats WorkQueue::stats() const { return {adds_, retries_, ready_.size(), waiting_.size(), working_.size()}; }

}  // namespace kvartal::kube
