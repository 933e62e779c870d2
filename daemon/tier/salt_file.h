// The salts of tenants whose blocks are encrypted, in a small file of their own: a record is overwritten where it lies,
// so that a salt that is forgotten is in no log and no older table. docs/ON_DISK_FORMAT.md has the format.
// Confined to one thread at a time: the caller of Open, then the catalog's thread. Blocking calls.
// Invariants: an owner has one salt at most; what a call failed to write is written by the next one that can.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"
#include "daemon/tier/nvme_catalog.h"

namespace kvartal::tier {

class SaltFile {
 public:
  // It is made with the first salt. A damaged record is nobody's, with a log line: blocks under it are misses.
  static absl::StatusOr<SaltFile> Open(const std::string& path);

  std::vector<OwnerSalt> salts() const;
  // Synced. In place of the owner's old one.
  absl::Status Put(const OwnerSalt& salt);
  // Overwritten with zeros and synced: the owner's salt, when it was made before that. OK where there is no file, and
  // none can be made.
  absl::Status Forget(const OwnerUidHash& owner, int64_t before_wall_ms);
  // What has not reached the disk.
  absl::Status Save();
  bool saved() const { return unsaved_.empty(); }

 private:
  explicit SaltFile(std::string path) : path_(std::move(path)) {}
  absl::Status Read();
  absl::Status Make();
  size_t PlaceOf(const OwnerUidHash& owner) const;
  void Set(size_t place, const OwnerSalt& salt);

  std::string path_;
  UniqueFd fd_;                    // invalid: there is no file yet
  std::vector<OwnerSalt> places_;  // as they are, or have to be, in the file; free ones are all zeros
  std::set<size_t> unsaved_;
};

}  // namespace kvartal::tier
