// What the demo showed: a row a tenant, and sentences computed from the numbers.
// Confined to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "daemon/control/admin.pb.h"
#include "tools/kvartal-bench/demo_tenants.h"
#include "tools/kvartal-bench/report.h"

namespace kvartal::bench {

// What a client process measured, by name: see RunDemoClient.
using ClientFigures = std::map<std::string, double>;

class DemoStory {
 public:
  void Add(const admin::v1::Tenant& tenant, const IdealHits& ideal, const ClientFigures& figures);

  std::string Text(const std::string& trace, uint64_t requests) const;
  void AddTo(Report* report) const;

 private:
  std::string rows_;
  std::map<std::string, uint64_t> refusals_;  // by tier and reason
  uint64_t tokens_asked_ = 0, tokens_hit_ = 0, ideal_hit_ = 0;
  double moved_bytes_ = 0, compared_bytes_ = 0, wrong_bytes_ = 0;
  double blocks_loaded_ = 0, blocks_from_nvme_ = 0;
  double seconds_ = 0;
  uint64_t limits_ = 0, limits_reached_ = 0, limits_exceeded_ = 0;
};

}  // namespace kvartal::bench
