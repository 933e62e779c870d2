#include "daemon/control/subject_reach.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvartal::control {

std::vector<std::string> SubjectsOfNobody(const policy::PolicyTable& table, const NodeIdentities& known) {
  std::vector<std::string> told;
  for (const policy::TenantRules& rules : table.tenants()) {
    std::vector<std::string> idle;
    size_t idle_count = 0;
    for (const std::string& socket : rules.sockets) {
      if (std::find(known.doors.begin(), known.doors.end(), socket) != known.doors.end()) continue;
      idle.push_back(absl::StrCat("no door of this node has the name '", socket, "'"));
      ++idle_count;
    }
    if (!known.uids && !rules.uids.empty()) {
      idle.push_back("uids are not looked at (attestUid is false)");
      idle_count += rules.uids.size();
    }
    if (!known.tokens && !rules.service_accounts.empty()) {
      idle.push_back("service accounts are not known (the configuration has no `kubernetes`)");
      idle_count += rules.service_accounts.size();
    }
    if (idle.empty()) continue;
    const bool all = idle_count == rules.uids.size() + rules.sockets.size() + rules.service_accounts.size();
    told.push_back(absl::StrCat(rules.name, ": spec.subjects: ", absl::StrJoin(idle, ", "),
                                all ? ": nobody may attach here" : ": its other subjects may attach"));
  }
  return told;
}

}  // namespace kvartal::control
