#include "operator/kube/work_queue.h"

#include <algorithm>

#include "daemon/base/check.h"

namespace kvartal::kube {

void WorkQueue::AddReady(const std::string& key, int64_t now_ms) {
  if (!dirty_.try_emplace(key, now_ms).second) return;
  ++adds_;
  if (!working_.contains(key)) ready_.push_back(key);
}

void WorkQueue::Add(const std::string& key, int64_t now_ms) { AddReady(key, now_ms); }

void WorkQueue::AddAfter(const std::string& key, int64_t delay_ms, int64_t now_ms) {
  if (delay_ms <= 0) return AddReady(key, now_ms);
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
    AddReady(key, now_ms);
  }
  if (ready_.empty()) return std::nullopt;
  std::string key = std::move(ready_.front());
  ready_.pop_front();
  const auto dirty = dirty_.find(key);
  queued_.Observe(now_ms - dirty->second);
  dirty_.erase(dirty);
  working_[key] = now_ms;
  return key;
}

void WorkQueue::Done(const std::string& key, int64_t now_ms) {
  const auto working = working_.find(key);
  KV_CHECK(working != working_.end());
  worked_.Observe(now_ms - working->second);
  working_.erase(working);
  if (dirty_.contains(key)) ready_.push_back(key);
}

std::optional<int64_t> WorkQueue::NextDueMs() const {
  if (waiting_.empty()) return std::nullopt;
  return waiting_.begin()->first;
}

WorkQueueStats WorkQueue::stats(int64_t now_ms) const {
  WorkQueueStats stats = {adds_, retries_, ready_.size(), waiting_.size(), working_.size(), queued_, worked_, 0, 0};
  for (const auto& [key, since_ms] : working_) {
    stats.unfinished_ms += now_ms - since_ms;
    stats.longest_ms = std::max(stats.longest_ms, now_ms - since_ms);
  }
  return stats;
}

}  // namespace kvartal::kube
