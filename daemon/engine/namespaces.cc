// The namespaces of EngineState: who uses one, how many entries it has, and when its number is another's.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/engine/engine_state.h"

namespace kvartal::engine {
namespace {
void SetRetired(policy::TenantOrders* orders, NamespaceId id, bool retired) {
  for (auto& of_tier : orders->tiers) {
    for (auto& order : of_tier) order->SetRetired(id, retired);
  }
}
}  // namespace

absl::StatusOr<NamespaceId> EngineState::AddNamespace(TenantId tenant_id, const NamespaceDigest& digest,
                                                      const ModelLayout& layout) {
  KV_RETURN_IF_ERROR(ValidateLayout(layout));
  const auto key = std::make_pair(tenant_id.value(), digest);
  if (auto it = namespace_by_digest.find(key); it != namespace_by_digest.end()) {
    const ModelLayout& known = ns(it->second).layout;
    if (known == layout) return it->second;
    return absl::FailedPreconditionError(absl::StrCat(
        "this namespace digest is open with another layout (", known.tokens_per_block, " tokens, ", known.shard_count,
        " x ", known.shard_bytes, " bytes; asked: ", layout.tokens_per_block, " tokens, ", layout.shard_count, " x ",
        layout.shard_bytes, "): put the page layout into the digest"));
  }
  TenantState& owner = tenant(tenant_id);
  NamespaceId id(static_cast<uint32_t>(namespaces.size()));
  if (free_namespaces.empty()) {
    namespaces.emplace_back();
  } else {
    id = free_namespaces.back();
    free_namespaces.pop_back();
  }
  ns(id) = {tenant_id, digest, layout};
  owner.namespaces.insert(id);
  namespace_by_digest[key] = id;
  SetRetired(&owner.orders, id, true);
  return id;
}

absl::StatusOr<NamespaceId> EngineState::OpenNamespace(TenantId tenant_id, const NamespaceDigest& digest,
                                                       const ModelLayout& layout) {
  KV_ASSIGN_OR_RETURN(const NamespaceId id, AddNamespace(tenant_id, digest, layout));
  const TenantState& owner = tenant(tenant_id);
  const bool opens = ns(id).users == 0;
  const bool is_new = opens && ns(id).entries == 0;
  if (opens && owner.open_namespaces >= kNamespacesPerTenantMax) {
    ForgetIfUnused(id);
    return absl::ResourceExhaustedError(absl::StrCat("tenant ", owner.rules.name, " has ", owner.open_namespaces,
                                                     " namespaces open, the maximum: close some"));
  }
  if (is_new && owner.namespaces.size() > kNamespacesKeptMax) {
    ForgetIfUnused(id);
    return absl::ResourceExhaustedError(absl::StrCat("tenant ", owner.rules.name, " has blocks of ", kNamespacesKeptMax,
                                                     " namespaces, the maximum: reuse digests, or give it a TTL"));
  }
  UseNamespace(id);
  return id;
}

void EngineState::UseNamespace(NamespaceId id) {
  if (ns(id).users++ > 0) return;
  TenantState& owner = tenant(ns(id).tenant);
  ++owner.open_namespaces;
  SetRetired(&owner.orders, id, false);
}

void EngineState::LeaveNamespace(NamespaceId id) {
  KV_CHECK(ns(id).users > 0);
  if (--ns(id).users > 0) return;
  TenantState& owner = tenant(ns(id).tenant);
  --owner.open_namespaces;
  SetRetired(&owner.orders, id, true);
  ForgetIfUnused(id);
}

void EngineState::ForgetIfUnused(NamespaceId id) {
  NamespaceState& space = ns(id);
  if (!space.tenant.valid() || space.users > 0 || space.entries > 0) return;
  tenant(space.tenant).namespaces.erase(id);
  namespace_by_digest.erase(std::make_pair(space.tenant.value(), space.digest));
  space = NamespaceState();
  free_namespaces.push_back(id);
}

EntryId EngineState::InsertEntry(NamespaceId id, const BlockKey& key, EntryId parent, uint32_t depth) {
  ++ns(id).entries;
  ++tenant(ns(id).tenant).stats.entries;
  // Whatever a client says: depth grows along every edge, so that none closes a circle.
  const uint32_t least_depth = parent.valid() ? index.at(parent).depth + 1 : 0;
  return index.Insert(id, key, parent, std::max(depth, least_depth));
}

void EngineState::EraseEntry(EntryId id) {
  const NamespaceId space = index.at(id).ns;
  index.Erase(id);
  --ns(space).entries;
  --tenant(ns(space).tenant).stats.entries;
  ForgetIfUnused(space);
}

NamespaceUse::NamespaceUse(EngineState* state, NamespaceId id) : state_(*state), id_(id) { state_.UseNamespace(id_); }
NamespaceUse::~NamespaceUse() { state_.LeaveNamespace(id_); }

}  // namespace kvartal::engine
