// One function a subcommand; each returns the exit code: 0 done, 1 refused or failed, 2 asked wrongly.
#pragma once

#include <cstdint>
#include <string>

#include "tools/kvartalctl/output.h"

namespace kvartal::ctl {

// node_commands.cc
int RunStatus(const Context& context);
int RunDrain(const Context& context);
int RunReload(const Context& context);

// tenant_commands.cc
int RunTenants(const Context& context);
int RunSessions(const Context& context);
// What it holds, may hold, and why it was refused or evicted.
int RunExplain(const Context& context, const std::string& tenant);
// Asks on a terminal unless `yes`.
int RunDrop(const Context& context, const std::string& tenant, bool yes);

// policy_commands.cc
// `config` may be "": then percentages and guarantees are taken against the pool in the manifests, or nothing.
int RunPolicyValidate(const Context& context, const std::string& path, const std::string& config);

// doctor_command.cc
int RunDoctor(const Context& context, const std::string& config);

// simulate_command.cc
struct SimulateArguments {
  std::string trace = "conversation";
  std::string policy, capacity, split, sweep, plot;
  std::string eviction = "lru";
  uint64_t block_kib = 4096;
  uint64_t requests = 0;  // 0: all
};
int RunSimulate(const Context& context, const SimulateArguments& arguments);

}  // namespace kvartal::ctl
