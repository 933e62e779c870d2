#include "daemon/attach/engine_group.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::attach {
namespace {

void FillRandom(std::span<std::byte> bytes) {
  ssize_t got;
  do {
    got = ::getrandom(bytes.data(), bytes.size(), 0);
  } while (got < 0 && errno == EINTR);
  // Reads of up to 256 bytes are whole once the pool is ready.
  KV_CHECK(got == static_cast<ssize_t>(bytes.size()));
}

}  // namespace

EngineGroup::EngineGroup(GroupId id_in, std::string name_in, TenantId tenant_in, std::string attestor_in,
                         uint64_t* lease_serial, int64_t lease_ns, std::shared_ptr<uint64_t> tenant_positions)
    : id(id_in),
      name(std::move(name_in)),
      tenant(tenant_in),
      attestor(std::move(attestor_in)),
      leases(lease_serial, lease_ns, std::move(tenant_positions)) {}

bool EngineGroup::MayFill(size_t blocks) const {
  return filling.size() + reserving_blocks + blocks <= kFillingBlocksPerGroupMax;
}

uint64_t EngineGroup::ShardsOf(SessionId session, uint64_t reservation) const {
  uint64_t shards = 0;
  const auto it = filling.find(reservation);
  if (it == filling.end()) return shards;
  for (const Writer& writer : it->second) shards |= writer.session == session ? uint64_t{1} << writer.shard : 0;
  return shards;
}

std::vector<EngineGroup::Fill> EngineGroup::FillsOf(SessionId session) const {
  std::vector<Fill> fills;
  for (const auto& [reservation, writers] : filling) {
    if (const uint64_t shards = ShardsOf(session, reservation); shards != 0)
      fills.push_back({ReservationId(reservation), shards});
  }
  std::sort(fills.begin(), fills.end(), [](const Fill& a, const Fill& b) { return a.reservation < b.reservation; });
  return fills;
}

EngineGroup* GroupTable::Create(std::string name, TenantId tenant, const std::string& attestor) {
  KV_CHECK(name.size() == kGroupNameBytes && !by_name_.contains(name));
  const GroupId id(++last_id_);
  std::shared_ptr<uint64_t>& positions = positions_[tenant];
  if (positions == nullptr) positions = std::make_shared<uint64_t>(0);
  auto group =
      std::make_unique<EngineGroup>(id, std::move(name), tenant, attestor, &last_lease_serial_, lease_ns_, positions);
  EngineGroup* out = group.get();
  by_name_.emplace(out->name, id);
  by_id_.emplace(id, std::move(group));
  return out;
}

EngineGroup* GroupTable::Find(GroupId id) const {
  auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second.get();
}

EngineGroup* GroupTable::FindByName(std::string_view name) const {
  auto it = by_name_.find(absl::string_view(name.data(), name.size()));
  return it == by_name_.end() ? nullptr : Find(it->second);
}

std::unique_ptr<EngineGroup> GroupTable::Remove(GroupId id) {
  auto it = by_id_.find(id);
  KV_CHECK(it != by_id_.end());
  std::unique_ptr<EngineGroup> group = std::move(it->second);
  by_id_.erase(it);
  by_name_.erase(group->name);
  return group;
}

std::string RandomName() {
  // A guessable name would let a stranger of the tenant join.
  std::string name(kGroupNameBytes, '\0');
  FillRandom(std::as_writable_bytes(std::span(name)));
  return name;
}

uint64_t RandomLeaseSerial() {
  // One bit less than an id has for it: no life is long enough to use that up.
  uint64_t serial;
  FillRandom(std::as_writable_bytes(std::span(&serial, 1)));
  return serial >> (LeaseTable::kSlotBits + 1);
}

std::string NameToHex(std::string_view name, size_t bytes) {
  const std::string_view shown = name.substr(0, bytes);
  return absl::BytesToHexString(absl::string_view(shown.data(), shown.size()));
}

}  // namespace kvartal::attach
