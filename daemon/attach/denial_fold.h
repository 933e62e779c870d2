// Denials, told so that a flood of them is neither hidden nor a flood of its own: the first of a kind in a period is
// told at once, the others of the period together, by their number.
// Confined to the engine loop.
// Invariants: every denial is told, alone or in a number; at most kAuditDenialsMax kinds a period are told apart, those
// beyond by their reason alone.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "daemon/attach/attach_stats.h"

namespace kvartal::attach {

class DenialFold {
 public:
  using Tell = absl::FunctionRef<void(const DoorEvent&)>;

  void Note(const DoorEvent& denial, int64_t now_ns, Tell tell);
  // To be called now and then: tells of what a period that is over has left.
  void Tick(int64_t now_ns, Tell tell);
  // There will be no other call.
  void End(Tell tell);

 private:
  struct Kind {
    DenialReason denial = DenialReason::kNone;
    std::string tenant, attestor;
    uint32_t uid = 0;
    bool various = false;
    friend auto operator<=>(const Kind&, const Kind&) = default;
  };
  struct Repeated {
    uint64_t count = 0;  // not told
    uint32_t pid = 0;    // the last one's
    std::string why;
  };

  std::map<Kind, Repeated> kinds_;  // of this period
  int64_t period_start_ns_ = 0;
};

}  // namespace kvartal::attach
