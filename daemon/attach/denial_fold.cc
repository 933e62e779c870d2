#include "daemon/attach/denial_fold.h"

#include <utility>

#include "daemon/base/limits.h"

namespace kvartal::attach {
namespace {
constexpr int64_t kPeriodNs = kAuditDenialPeriodMs * 1'000'000;
}  // namespace

void DenialFold::Note(const DoorEvent& denial, int64_t now_ns, Tell tell) {
  Tick(now_ns, tell);
  if (kinds_.empty()) period_start_ns_ = now_ns;
  Kind kind{denial.denial, std::string(denial.tenant), std::string(denial.attestor), denial.uid, false};
  auto it = kinds_.find(kind);
  if (it == kinds_.end() && kinds_.size() < kAuditDenialsMax) {
    kinds_.emplace(std::move(kind), Repeated());
    return tell(denial);
  }
  if (it == kinds_.end()) it = kinds_.try_emplace(Kind{denial.denial, "", "", 0, true}).first;
  ++it->second.count;
  it->second.pid = denial.pid;
  it->second.why = std::string(denial.why);
}

void DenialFold::Tick(int64_t now_ns, Tell tell) {
  if (!kinds_.empty() && now_ns - period_start_ns_ >= kPeriodNs) End(tell);
}

void DenialFold::End(Tell tell) {
  for (const auto& [kind, repeated] : std::exchange(kinds_, {})) {
    if (repeated.count == 0) continue;
    DoorEvent event;
    event.denial = kind.denial;
    event.repeated = repeated.count;
    event.various = kind.various;
    if (!kind.various) {
      event.tenant = kind.tenant;
      event.attestor = kind.attestor;
      event.uid = kind.uid;
      event.pid = repeated.pid;
      event.why = repeated.why;
    }
    tell(event);
  }
}

}  // namespace kvartal::attach
