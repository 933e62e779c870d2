#include "crds/policy_set.h"

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvartal::crds {
namespace {

std::string HashOf(const std::string& text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

}  // namespace

void PolicySet::Put(const std::string& key, std::string manifest, std::string namespace_uid) {
  std::string hash = HashOf(absl::StrCat(namespace_uid, "\n", manifest));
  objects_[key] = {std::move(manifest), std::move(namespace_uid), std::move(hash)};
}

PolicySet::Hashes PolicySet::hashes() const {
  Hashes hashes;
  for (const auto& [key, object] : objects_) hashes.emplace(key, object.hash);
  return hashes;
}

std::string PolicySet::Version() const { return VersionOf(hashes()); }

sync::v1::Update PolicySet::DeltaFrom(const Hashes& base) const {
  sync::v1::Update update;
  update.set_version(Version());
  if (!base.empty()) update.set_base(VersionOf(base));
  for (const auto& [key, object] : objects_) {
    const auto known = base.find(key);
    if (known != base.end() && known->second == object.hash) continue;
    sync::v1::PolicyObject* changed = update.add_changed();
    changed->set_key(key);
    changed->set_manifest(object.manifest);
    changed->set_namespace_uid(object.namespace_uid);
  }
  for (const auto& [key, hash] : base) {
    if (!objects_.contains(key)) update.add_removed(key);
  }
  return update;
}

absl::StatusOr<PolicySet> PolicySet::With(const sync::v1::Update& update) const {
  PolicySet made;
  if (!update.base().empty()) {
    if (update.base() != Version()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the changes are of version ", update.base(), " and this node has ", Version()));
    }
    made = *this;
  }
  for (const std::string& key : update.removed()) made.objects_.erase(key);
  for (const sync::v1::PolicyObject& object : update.changed())
    made.Put(object.key(), object.manifest(), object.namespace_uid());
  if (const std::string version = made.Version(); version != update.version()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the changes give version ", version, " and are said to give ", update.version()));
  }
  return made;
}

std::string VersionOf(const PolicySet::Hashes& hashes) {
  std::string text;
  for (const auto& [key, hash] : hashes) absl::StrAppend(&text, key, "\n", hash, "\n");
  return HashOf(text);
}

std::string EmptyVersion() { return VersionOf({}); }

std::string SetKey(const std::string& kind, const std::string& ns, const std::string& name) {
  return absl::StrCat(kind, "/", ns, "/", name);
}

}  // namespace kvartal::crds
