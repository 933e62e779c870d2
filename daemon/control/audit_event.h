// One thing the audit log tells: who came, who was turned away, what policy holds, what was deleted. A plain value.
// Invariant: a rendered event is one line of JSON, whatever its values hold.
//
//   attach    tenant attestor uid pid client group        a process is one of the tenant's from here on
//   deny      reason tenant attestor uid pid why          it is not. With `repeated`: so many more like the last one
//                                                         told; without a tenant: of various kinds
//   policy    version tenants                             this version is in force
//   policy_refused  version error                         policy, or a part of it, is refused; this version holds
//   drop      tenant                                      an admin asked for the tenant's data to be deleted
//   drop_failed  tenant error                             not all of it is gone
//   deletion  tenant cause outcome blocks bytes dram_bytes nvme_bytes unerased_blocks oldest_first_commit_ms resumed
//                                                         the receipt: of a drop, a removed tenant, or maxAge.
//                                                         `resumed` 1: a restart came in between. It may come twice
//   open, reopen, close                                   of this log
//   lost      count                                       events before this one that could not be kept
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvartal::control {

class AuditEvent {
 public:
  // Whether it must survive power loss from the moment it is written. What changes or deletes must; a storm of attaches
  // must not wait for a disk.
  enum class Keep : uint8_t { kWritten, kSynced };

  AuditEvent(std::string_view name, Keep keep) : name_(name), keep_(keep) {}
  AuditEvent With(std::string_view key, std::string_view value) &&;
  AuditEvent With(std::string_view key, uint64_t value) &&;

  Keep keep() const { return keep_; }
  // One line with its end. `serial` counts events, so that a reader sees what is missing.
  std::string Line(int64_t wall_ms, uint64_t serial) const;

 private:
  std::string name_;
  Keep keep_;
  std::vector<std::pair<std::string, std::variant<std::string, uint64_t>>> fields_;
};

}  // namespace kvartal::control
