#include "daemon/process/token_key_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "crds/yaml_reader.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"

namespace kvartal::process {

TokenKeyFile::TokenKeyFile(std::string path, EventLoop* loop, OnKeys on_keys)
    : path_(std::move(path)),
      loop_(loop),
      on_keys_(std::move(on_keys)),
      reader_(std::make_unique<WorkerPool>("kv-keys", 1, 1)) {
  Take(crds::ReadYamlFile(path_));
  loop_->RunAfterMs(kTokenKeysPollMs, [this] { Poll(); });
}

void TokenKeyFile::Poll() {
  // A folder that does not answer holds one reading, not a queue of them.
  if (!reading()) {
    const bool accepted =
        reader_->TrySubmit([this] { loop_->Post([this, text = crds::ReadYamlFile(path_)] { Take(text); }); });
    KV_CHECK(accepted);  // only this thread submits
  }
  loop_->RunAfterMs(kTokenKeysPollMs, [this] { Poll(); });
}

void TokenKeyFile::Take(const absl::StatusOr<std::string>& text) {
  const std::string seen = text.ok() ? *text : std::string(text.status().message());
  if (seen == seen_) return;
  seen_ = seen;
  absl::StatusOr<token::KeySet> keys = text.ok() ? token::KeySet::Parse(*text) : text.status();
  if (!keys.ok()) {
    last_error_ = text.ok() ? absl::StrCat(path_, ": ", keys.status().message()) : seen;
    Log(LogLevel::kError, "tokens", "the key set is refused, what it was before goes on to vouch: ", last_error_);
    return;
  }
  last_error_.clear();
  Log(LogLevel::kInfo, "tokens", keys->size(), " keys vouch for tokens");
  on_keys_(*std::move(keys));
}

}  // namespace kvartal::process
