#include "crds/object_meta.h"

namespace kvartal::crds {

ObjectMeta ReadObjectMeta(FieldReader& object, Scope scope) {
  ObjectMeta meta;
  object.Text("apiVersion", kShortText);
  object.Text("kind", kShortText);
  object.Ignore({"status"});
  object.Require("metadata");
  object.Object("metadata", [&](FieldReader& metadata) {
    metadata.Require("name");
    meta.name = metadata.Text("name", kDnsLabel).value_or("");
    if (scope == Scope::kNamespaced) {
      metadata.Require("namespace", "it is the first half of the tenant's name");
      meta.ns = metadata.Text("namespace", kDnsLabel).value_or("");
    } else if (metadata.Has("namespace")) {
      metadata.Ignore({"namespace"});
      metadata.Fail("namespace", "must not be given: the object belongs to the whole cluster");
    }
    meta.uid = metadata.Text("uid", kDnsLabel).value_or("");
    metadata.Ignore({"labels", "annotations", "creationTimestamp", "generation", "generateName", "resourceVersion",
                     "selfLink", "managedFields", "finalizers", "ownerReferences", "deletionTimestamp",
                     "deletionGracePeriodSeconds"});
  });
  return meta;
}

}  // namespace kvartal::crds
