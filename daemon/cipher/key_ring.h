// Where the node's keys are found now, by whoever encrypts or decrypts: replaced whole when the file has changed.
// Thread-safe. Invariant: keys() is never null.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/mutex.h"
#include "daemon/cipher/node_keys.h"

namespace kvartal::cipher {

class KeyRing {
 public:
  KeyRing() : keys_(*NodeKeys::Parse({})) {}

  std::shared_ptr<const NodeKeys> keys() const {
    MutexLock lock(mutex_);
    return keys_;
  }
  void Set(std::shared_ptr<const NodeKeys> keys) {
    KV_CHECK(keys != nullptr);
    MutexLock lock(mutex_);
    keys_.swap(keys);
    ++changes_;
  }
  uint64_t changes() const {
    MutexLock lock(mutex_);
    return changes_;
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const NodeKeys> keys_ ABSL_GUARDED_BY(mutex_);
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvartal::cipher
