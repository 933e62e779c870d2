#include "operator/process/pod_watch.h"

#include <utility>

#include "daemon/base/log.h"
#include "operator/kube/json_fields.h"
#include "operator/process/limits.h"

namespace kvartal::process {
namespace {

using kube::TextAt;

// Metadata alone could be asked for (PartialObjectMetadata), and does not say the node.
const nlohmann::json kNameAndNode = {
    {"metadata", {{"namespace", true}, {"name", true}, {"uid", true}, {"resourceVersion", true}}},
    {"spec", {{"nodeName", true}}}};

kube::ReflectorOptions OptionsOf(uint64_t seed) {
  kube::ReflectorOptions options;
  options.type = kPods;
  options.seed = seed;
  options.field_selector = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";
  options.always_from_store = true;
  options.wanted = kNameAndNode;
  return options;
}

}  // namespace

PodWatch::PodWatch(kube::ApiClient* client, EventLoop* loop, const Clock* clock, uint64_t seed, Sink sink)
    : loop_(loop),
      sink_(std::move(sink)),
      reflector_(client, loop, clock, OptionsOf(seed), [this](const kube::ObjectChange& change) { OnChange(change); }) {
}

void PodWatch::Start() {
  reflector_.Start();
  TellLater();  // also that there are none
}

// A pod is bound once and for ever: its node says all that can change of it here, but for its end.
void PodWatch::OnChange(const kube::ObjectChange& change) {
  const std::string node = TextAt(*change.object, {"spec", "nodeName"}),
                    uid = TextAt(*change.object, {"metadata", "uid"});
  if (node.empty() || uid.empty()) return;
  std::set<std::string>& uids = uids_of_[node];
  const bool changes = change.deleted ? uids.erase(uid) > 0 : uids.insert(uid).second;
  if (uids.empty()) uids_of_.erase(node);
  if (!changes) return;
  changed_.insert(node);
  TellLater();
}

void PodWatch::TellLater() {
  if (timer_ == 0) timer_ = loop_->RunAfterMs(kPodsSettleMs, [this] { Tell(); });
}

void PodWatch::NoteForbidden() {
  if (reflector_.last_error().kind != kube::ErrorKind::kForbidden || std::exchange(forbidden_, true)) return;
  Log(LogLevel::kWarning, "operator",
      "pods may not be listed: nodes are not told which are deleted, and take their tokens until they expire. The "
      "ClusterRole of the chart has the permission");
}

void PodWatch::Tell() {
  timer_ = 0;
  if (!reflector_.synced()) {
    NoteForbidden();
    return TellLater();
  }
  OfNodes now;
  const std::set<std::string> changed = std::exchange(changed_, {});
  const auto put = [&](const std::string& node) {
    const auto found = uids_of_.find(node);
    now[node] =
        found == uids_of_.end() ? std::make_shared<crds::PodSet>() : std::make_shared<crds::PodSet>(found->second);
  };
  if (std::exchange(known_, true)) {
    for (const std::string& node : changed) put(node);
    return sink_.on_changed(now);
  }
  for (const auto& [node, uids] : uids_of_) put(node);
  sink_.on_known(std::move(now));
}

ClusterWatch::Report PodWatch::report() const {
  return {kPods.plural, reflector_.stats(), !reflector_.last_error().ok()};
}

}  // namespace kvartal::process
