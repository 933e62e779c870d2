#include "operator/kube/object_store.h"

#include <utility>

#include "operator/kube/json_fields.h"

namespace kvartal::kube {
namespace {

std::string UidOf(const nlohmann::json& object) { return TextAt(object, {"metadata", "uid"}); }

// Half of what a server sends, and nothing we read: who set which field.
ObjectStore::Object Kept(nlohmann::json object) {
  if (object.is_object() && object.contains("metadata") && object["metadata"].is_object())
    object["metadata"].erase("managedFields");
  return std::make_shared<const nlohmann::json>(std::move(object));
}

}  // namespace

ObjectKey KeyOf(const nlohmann::json& object) {
  return {TextAt(object, {"metadata", "namespace"}), TextAt(object, {"metadata", "name"})};
}

ObjectStore::Object ObjectStore::Find(const ObjectKey& key) const {
  const auto found = objects_.find(key);
  return found == objects_.end() ? nullptr : found->second;
}

void ObjectStore::Upsert(const ObjectKey& key, Object object, std::vector<ObjectChange>* changes) {
  Object& known = objects_[key];
  if (known != nullptr && UidOf(*known) != UidOf(*object)) changes->push_back({key, true, known});
  known = object;
  changes->push_back({key, false, std::move(object)});
}

std::vector<ObjectChange> ObjectStore::Replace() {
  std::vector<ObjectChange> changes;
  for (auto known = objects_.begin(); known != objects_.end();) {
    if (listing_.contains(known->first)) {
      ++known;
      continue;
    }
    changes.push_back({known->first, true, known->second});
    known = objects_.erase(known);
  }
  for (auto& [key, object] : listing_) {
    const Object known = Find(key);
    const bool same =
        known != nullptr && UidOf(*known) == UidOf(*object) &&
        TextAt(*known, {"metadata", "resourceVersion"}) == TextAt(*object, {"metadata", "resourceVersion"});
    if (!same) Upsert(key, std::move(object), &changes);
  }
  listing_.clear();
  synced_ = true;
  return changes;
}

std::vector<ObjectChange> ObjectStore::Apply(WatchEvent event) {
  std::vector<ObjectChange> changes;
  if (event.kind == WatchEvent::Kind::kInit) {
    listing_.clear();
    return changes;
  }
  if (event.kind == WatchEvent::Kind::kInitDone) return Replace();
  const ObjectKey key = KeyOf(event.object);
  if (key.name.empty()) return changes;
  switch (event.kind) {
    case WatchEvent::Kind::kInitApply:
      listing_[key] = Kept(std::move(event.object));
      break;
    case WatchEvent::Kind::kApply:
      Upsert(key, Kept(std::move(event.object)), &changes);
      break;
    default:
      if (objects_.erase(key) > 0) changes.push_back({key, true, Kept(std::move(event.object))});
      break;
  }
  return changes;
}

}  // namespace kvartal::kube
