// The key set of tokens as a file: read at the start, and again when its content has changed.
// Confined to the engine loop; the file is read on a thread of its own.
// Invariant: what was told last was good as a whole; a file that is bad or gone takes nothing away.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"
#include "daemon/base/worker_pool.h"
#include "daemon/token/key_set.h"

namespace kvartal::process {

class TokenKeyFile {
 public:
  using OnKeys = std::function<void(token::KeySet)>;

  // Reads the file before it returns, so that the first client finds keys. `loop` outlives this object's thread.
  TokenKeyFile(std::string path, EventLoop* loop, OnKeys on_keys);

  // Why the file's content is not what vouches; "" when it is.
  const std::string& last_error() const { return last_error_; }
  bool reading() const { return reader_->Pending() > 0; }

 private:
  void Poll();
  void Take(const absl::StatusOr<std::string>& text);

  const std::string path_;
  EventLoop* const loop_;
  const OnKeys on_keys_;
  std::string seen_;  // content or failure, of the last look
  std::string last_error_;
  std::unique_ptr<WorkerPool> reader_;  // last: its thread uses what is above
};

}  // namespace kvartal::process
