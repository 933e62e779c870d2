#include "operator/process/cluster_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "operator/kube/json_fields.h"

namespace kvartal::process {
namespace {

using kube::FieldAt;
using kube::TextAt;

const kube::ResourceType* const kTypes[] = {&kPolicies, &kPools, &kNodes, &kNamespaces};

// A node is decided about by its labels, a namespace by its labels and its uid. The rest of a node, its images and what
// its kubelet says of it every few minutes, is ten times that. PartialObjectMetadata would leave the annotations.
const nlohmann::json kNameAndLabels = {
    {"metadata", {{"name", true}, {"uid", true}, {"resourceVersion", true}, {"labels", {{"*", true}}}}}};

// A spec changes with its generation. Nodes and namespaces matter by their labels.
std::string MatterOf(const nlohmann::json& object) {
  const nlohmann::json* labels = FieldAt(object, {"metadata", "labels"});
  return absl::StrCat(TextAt(object, {"metadata", "uid"}), "/",
                      kube::NumberAt(object, {"metadata", "generation"}).value_or(0), "/",
                      reconcile::IsBeingDeleted(object), "/", reconcile::IsPaused(object), "/",
                      labels == nullptr ? "" : labels->dump());
}

}  // namespace

ClusterWatch::ClusterWatch(kube::ApiClient* client, EventLoop* loop, const Clock* clock, uint64_t seed, Sink sink)
    : sink_(std::move(sink)) {
  for (size_t kind = 0; kind < reflectors_.size(); ++kind) {
    kube::ReflectorOptions options;
    options.type = *kTypes[kind];
    options.seed = seed + kind;
    if (kTypes[kind] == &kNodes || kTypes[kind] == &kNamespaces) options.wanted = kNameAndLabels;
    reflectors_[kind] = std::make_unique<kube::Reflector>(
        client, loop, clock, options, [this, kind](const kube::ObjectChange& change) { OnChange(kind, change); });
  }
}

void ClusterWatch::Start() {
  for (const auto& reflector : reflectors_) reflector->Start();
}

bool ClusterWatch::synced() const {
  return std::all_of(reflectors_.begin(), reflectors_.end(), [](const auto& one) { return one->synced(); });
}

reconcile::ClusterStores ClusterWatch::stores() const {
  return {&reflectors_[0]->store(), &reflectors_[1]->store(), &reflectors_[2]->store(), &reflectors_[3]->store()};
}

std::string ClusterWatch::trouble() const {
  for (size_t kind = 0; kind < reflectors_.size(); ++kind) {
    const kube::ApiError& error = reflectors_[kind]->last_error();
    if (!error.ok()) return absl::StrCat(kTypes[kind]->plural, ": ", error.ToString());
  }
  return "";
}

std::vector<ClusterWatch::Report> ClusterWatch::reports() const {
  std::vector<Report> reports;
  reports.reserve(reflectors_.size());
  for (size_t kind = 0; kind < reflectors_.size(); ++kind)
    reports.push_back({kTypes[kind]->plural, reflectors_[kind]->stats(), !reflectors_[kind]->last_error().ok()});
  return reports;
}

void ClusterWatch::OnChange(size_t kind, const kube::ObjectChange& change) {
  bool matters = change.deleted;
  if (change.deleted) {
    matter_[kind].erase(change.key);
  } else {
    std::string matter = MatterOf(*change.object);
    std::string& known = matter_[kind][change.key];
    matters = matter != known;
    known = std::move(matter);
  }
  if (matters) sink_.on_matter();
  if (kind == 0) sink_.on_policy(change.key);
  if (kind == 1) sink_.on_pool(change.key);
}

}  // namespace kvartal::process
