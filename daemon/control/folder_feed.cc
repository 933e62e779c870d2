#include "daemon/control/folder_feed.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"

namespace kvartal::control {

void FolderFeed::Watch(EventLoop* loop, Offer offer) {
  loop_ = loop;
  offer_ = std::move(offer);
  watching_ = true;
  reader_ = std::make_unique<WorkerPool>("kv-policy", 1, kReloadsMax);
  loop_->RunAfterMs(kPolicyPollMs, [this] { Poll(); });
}

void FolderFeed::Poll() {
  if (!watching_) return;
  // A folder that does not answer holds one reading, not a queue of them.
  if (!busy()) {
    const bool accepted = reader_->TrySubmit([this] {
      std::optional<absl::StatusOr<LoadedPolicy>> read = folder_.ReadIfChanged();
      if (!read) return;
      loop_->Post([this, read = *std::move(read)]() mutable { (void)offer_(std::move(read)); });
    });
    KV_CHECK(accepted);  // only this thread submits
  }
  loop_->RunAfterMs(kPolicyPollMs, [this] { Poll(); });
}

void FolderFeed::Reload(absl::AnyInvocable<void(absl::Status)> done) {
  if (reader_->Pending() >= kReloadsMax) {
    Log(LogLevel::kWarning, "policy", "a reload was refused: ", kReloadsMax, " wait for the folder already");
    return done(absl::ResourceExhaustedError(
        absl::StrCat(folder_path_, ": ", kReloadsMax, " reloads wait for this folder: see why it takes so long")));
  }
  const bool accepted = reader_->TrySubmit([this, done = std::move(done)]() mutable {
    loop_->Post([this, done = std::move(done), read = folder_.Read()]() mutable { done(offer_(std::move(read))); });
  });
  KV_CHECK(accepted);  // only this thread submits
}

}  // namespace kvartal::control
