// All sessions (scheduler, workers) of one engine instance of one tenant on this node. What is leased and reserved is
// the group's: one session may reserve and another commit. What a session opened is its own.
// Confined to the engine loop.
// Invariants: every session of a group is of one tenant, attested the same way; a group without sessions does not
// exist.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "daemon/attach/lease_table.h"
#include "daemon/base/ids.h"

namespace kvartal::attach {

class Session;

inline constexpr size_t kGroupNameBytes = 16;

struct EngineGroup {
  EngineGroup(GroupId id_in, std::string name_in, TenantId tenant_in, std::string attestor_in, uint64_t* lease_serial,
              int64_t lease_ns, std::shared_ptr<uint64_t> tenant_positions);

  bool MayFill(size_t blocks) const;
  // Those of `reservation` that `session` has reserved and not committed: bit i for shard i.
  uint64_t ShardsOf(SessionId session, uint64_t reservation) const;

  // A block of which a session has reserved shards and not committed them: bit i for shard i.
  struct Fill {
    ReservationId reservation;
    uint64_t shards = 0;
  };
  // All of the session's, by reservation.
  std::vector<Fill> FillsOf(SessionId session) const;

  const GroupId id;
  const std::string name;  // 16 random bytes: who knows them and is of the tenant may join
  const TenantId tenant;
  const std::string attestor;
  LeaseTable leases;
  // A shard that is reserved and not committed, and whose session may still write it.
  struct Writer {
    SessionId session;
    uint32_t shard = 0;
  };
  using Writers = absl::InlinedVector<Writer, 1>;
  absl::flat_hash_map<uint64_t, Writers> filling;  // by reservation: those that are neither visible nor aborted
  size_t reserving_blocks = 0;                     // asked of the engine and not yet answered
  std::vector<Session*> sessions;
};

// Every group of the node. Owns them.
class GroupTable {
 public:
  // Leases are numbered from `lease_serial` on.
  GroupTable(int64_t lease_ns, uint64_t lease_serial) : lease_ns_(lease_ns), last_lease_serial_(lease_serial) {}

  // REQUIRES: `name` has kGroupNameBytes, and no group has it.
  EngineGroup* Create(std::string name, TenantId tenant, const std::string& attestor);
  // nullptr when there is none (any more).
  EngineGroup* Find(GroupId id) const;
  EngineGroup* FindByName(std::string_view name) const;
  // Takes it out; what it holds in the engine is the caller's to give back.
  std::unique_ptr<EngineGroup> Remove(GroupId id);

  size_t size() const { return by_id_.size(); }
  const absl::flat_hash_map<GroupId, std::unique_ptr<EngineGroup>>& all() const { return by_id_; }

 private:
  const int64_t lease_ns_;
  uint64_t last_id_ = 0;
  uint64_t last_lease_serial_;
  absl::flat_hash_map<GroupId, std::unique_ptr<EngineGroup>> by_id_;
  absl::flat_hash_map<std::string, GroupId> by_name_;
  // What the groups of each tenant lease together; those that ended and have not given all back count.
  absl::flat_hash_map<TenantId, std::shared_ptr<uint64_t>> positions_;
};

// 16 bytes of the kernel's randomness.
std::string RandomName();
// Where a daemon begins to number leases: at random, so that what a client still has of the daemon before names none of
// this one. The groups come back under their old names.
uint64_t RandomLeaseSerial();
// Lower-case hex of the first `bytes`, for people.
std::string NameToHex(std::string_view name, size_t bytes);

}  // namespace kvartal::attach
