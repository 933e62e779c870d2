// What is known of the objects of one type: the newest of each, as list and watch told it.
// Confined to the loop of its reflector.
// Invariants: a list replaces everything at once, at its end, and what it does not name any more is told as deleted; an
// object that was deleted and made again under its name is told as both.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "operator/kube/list_watch.h"
#include "operator/kube/resource.h"

namespace kvartal::kube {

struct ObjectChange {
  ObjectKey key;
  bool deleted = false;
  std::shared_ptr<const nlohmann::json> object;  // of a deleted one: the last that was known
};

class ObjectStore {
 public:
  using Object = std::shared_ptr<const nlohmann::json>;

  // What changed, in order.
  std::vector<ObjectChange> Apply(WatchEvent event);
  // nullptr: there is none.
  Object Find(const ObjectKey& key) const;
  const std::map<ObjectKey, Object>& objects() const { return objects_; }
  // A first list is in.
  bool synced() const { return synced_; }

 private:
  void Upsert(const ObjectKey& key, Object object, std::vector<ObjectChange>* changes);
  std::vector<ObjectChange> Replace();

  std::map<ObjectKey, Object> objects_;
  std::map<ObjectKey, Object> listing_;
  bool synced_ = false;
};

// Empty name: not an object.
ObjectKey KeyOf(const nlohmann::json& object);

}  // namespace kvartal::kube
