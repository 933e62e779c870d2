// Keys that have to be looked at: each at most once at a time, again when it changed meanwhile, later when it failed.
// Confined to the loop of its controller; time is passed in.
// Invariants: a key is never handed out while it is being worked on; a key that was added is handed out at least once
// after that; however often it was added before, once is enough.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "operator/kube/histogram.h"
#include "operator/kube/limits.h"
#include "operator/kube/token_bucket.h"

namespace kvartal::kube {

struct WorkQueueStats {
  uint64_t adds = 0, retries = 0;
  size_t depth = 0;    // ready and not handed out
  size_t waiting = 0;  // for their time
  size_t working = 0;
  Histogram queued, worked;   // from ready to handed out, and from there to done
  int64_t unfinished_ms = 0;  // of all that are being worked on, so far,
  int64_t longest_ms = 0;     // and of the longest of them
};

class WorkQueue {
 public:
  void Add(const std::string& key, int64_t now_ms);
  void AddAfter(const std::string& key, int64_t delay_ms, int64_t now_ms);
  // After a failure: 5 ms, doubled by each failure of the key in a row, and within the rate of all keys together.
  void Retry(const std::string& key, int64_t now_ms);
  // It succeeded: the next failure counts as its first.
  void Forget(const std::string& key) { failures_.erase(key); }

  // The next key to work on, if one is due. Every key that was handed out comes back by Done.
  std::optional<std::string> Take(int64_t now_ms);
  void Done(const std::string& key, int64_t now_ms);
  // When a key that waits is due. nullopt: none waits.
  std::optional<int64_t> NextDueMs() const;

  // Ready, and not handed out.
  size_t depth() const { return ready_.size(); }
  WorkQueueStats stats(int64_t now_ms) const;

 private:
  void AddReady(const std::string& key, int64_t now_ms);

  std::deque<std::string> ready_;
  std::map<std::string, int64_t> dirty_;    // to be worked on, since when: in ready_, or once its present work is done
  std::map<std::string, int64_t> working_;  // since when
  std::set<std::pair<int64_t, std::string>> waiting_;
  std::map<std::string, int64_t> due_;  // of those in waiting_
  std::map<std::string, int> failures_;
  TokenBucket rate_{kRetriesPerSecond, kRetriesBurst};
  uint64_t adds_ = 0, retries_ = 0;
  Histogram queued_, worked_;
};

}  // namespace kvartal::kube
