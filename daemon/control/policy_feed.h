// Where the policy of a running daemon comes from: a folder, or the operator's stream. Reads and waits on threads of
// its own and offers whole sets on the loop.
// Confined to the engine loop.
// Invariants: what Begin gives and what is offered holds together, and says what is not in it of what there was to be;
// an offer is a set or why there is none; after StopWatching nothing is offered.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"
#include "daemon/block/tier_kind.h"
#include "daemon/control/policy_source.h"

namespace kvartal::control {

// What a tenant holds now.
struct TenantUse {
  std::string tenant;
  std::array<uint64_t, kTierCount> bytes{};
  bool above_limit = false;  // in some tier
  friend bool operator==(const TenantUse&, const TenantUse&) = default;
};

class PolicyFeed {
 public:
  // Whether what is offered is in force now, or why what was in force still is.
  using Offer = std::function<absl::Status(absl::StatusOr<LoadedPolicy>)>;

  virtual ~PolicyFeed() = default;

  // What to begin with, before anybody is served. Blocks for as long as a disk takes.
  virtual absl::StatusOr<LoadedPolicy> Begin() = 0;
  // From now on, each set that comes. `loop` outlives this object's threads, which end with it.
  virtual void Watch(EventLoop* loop, Offer offer) = 0;
  // Looks now, changed or not. `done` hears what became of it.
  virtual void Reload(absl::AnyInvocable<void(absl::Status)> done) = 0;
  virtual void StopWatching() = 0;
  // Something is being read that has to come to its end.
  virtual bool busy() const = 0;

  // Whose tokens count, where the other end says so: at once when it is known, and whenever it changes. The keys are a
  // JSON Web Key Set, as an API server serves it.
  // False: they are not to be believed, and what was before goes on to count, after a restart too.
  using OnKeys = std::function<bool(const std::string& issuer, const std::string& keys)>;
  virtual void WatchKeys(const OnKeys& /*on_keys*/) {}
  // Which pods of this node are gone, by their UIDs, where the other end says so: all that are remembered, at once when
  // there are any, and whenever that changes.
  using OnGonePods = std::function<void(const std::vector<std::string>& uids)>;
  virtual void WatchPods(const OnGonePods& /*on_gone*/) {}
  // For whoever is at the other end, if anybody; to be called often.
  virtual void TellUse(const std::vector<TenantUse>&) {}
  // For how long nobody has been at the other end; 0: somebody is. nullopt: there is no other end.
  virtual std::optional<uint64_t> away_ms() const { return std::nullopt; }
  // What is wrong with the way to the other end, and what would help; "" when nothing is.
  virtual std::string note() const { return ""; }
};

}  // namespace kvartal::control
