// What every object of ours has around its spec: apiVersion, kind, metadata. Fields that a cluster adds are allowed and
// not read. A plain value.
#pragma once

#include <string>

#include "crds/field_reader.h"

namespace kvartal::crds {

struct ObjectMeta {
  std::string name;
  std::string ns;
  std::string uid;
};

enum class Scope { kNamespaced, kCluster };

// Reads everything of `object` but its spec.
ObjectMeta ReadObjectMeta(FieldReader& object, Scope scope);

}  // namespace kvartal::crds
