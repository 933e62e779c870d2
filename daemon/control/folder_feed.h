// A policy folder as a feed: looked at every kPolicyPollMs, read when it has changed and come to rest.
// Confined to the engine loop; the folder is read on a thread of its own.
// Invariant: one reading at a time waits for a folder that does not answer, and kReloadsMax that were asked for.
#pragma once

#include <memory>
#include <string>

#include "daemon/base/worker_pool.h"
#include "daemon/control/policy_feed.h"
#include "daemon/control/policy_folder.h"

namespace kvartal::control {

class FolderFeed final : public PolicyFeed {
 public:
  FolderFeed(const std::string& folder, const policy::NodeCapacity& capacity)
      : folder_path_(folder), folder_(folder, capacity) {}

  absl::StatusOr<LoadedPolicy> Begin() override { return folder_.Read(); }
  void Watch(EventLoop* loop, Offer offer) override;
  void Reload(absl::AnyInvocable<void(absl::Status)> done) override;
  void StopWatching() override { watching_ = false; }
  bool busy() const override { return reader_ != nullptr && reader_->Pending() > 0; }

 private:
  void Poll();

  const std::string folder_path_;
  PolicyFolder folder_;  // after Begin: touched by the reader's thread alone
  EventLoop* loop_ = nullptr;
  Offer offer_;
  bool watching_ = false;
  std::unique_ptr<WorkerPool> reader_;  // last: its thread uses what is above
};

}  // namespace kvartal::control
