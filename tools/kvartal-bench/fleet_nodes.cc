#include "tools/kvartal-bench/fleet_nodes.h"

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/control/stream_limits.h"

namespace kvartal::bench {
namespace {

constexpr size_t kSetsKept = 256;

}  // namespace

FleetNodes::FleetNodes(EventLoop* loop, const Clock* clock, std::string address, size_t count)
    : loop_(loop), clock_(clock), address_(std::move(address)), nodes_(count), chance_(1) {
  for (Node& node : nodes_) node.redial_ms = control::kRedialMinMs;
}

void FleetNodes::Start() {
  for (size_t node = 0; node < nodes_.size(); ++node) Dial(node);
}

size_t FleetNodes::Holding(const std::string& version) const {
  return static_cast<size_t>(
      std::count_if(nodes_.begin(), nodes_.end(), [&](const Node& node) { return node.version == version; }));
}

size_t FleetNodes::TakeStreamsPeak() {
  size_t most = 0;
  for (const auto& [second, count] : std::exchange(begun_, {})) most = std::max(most, count);
  return most;
}

void FleetNodes::Dial(size_t index) {
  Node& node = nodes_[index];
  sync::v1::NodeMessage message;
  sync::v1::Hello* hello = message.mutable_hello();
  hello->set_node(NameOf(index));
  hello->set_program("simulated");
  hello->set_version(node.version);
  if (node.set) {
    for (const auto& [key, object] : node.set->objects()) {
      sync::v1::Held* held = hello->add_held();
      held->set_key(key);
      held->set_hash(object.hash);
    }
  }
  auto stream = control::SyncStream::Dial(
      {.address = address_, .ca_file = "", .token_file = ""}, /*patient=*/true, loop_, std::move(message),
      {.on_message = [this, index](const sync::v1::OperatorMessage& said) { OnMessage(index, said); },
       .on_end = [this, index](const absl::Status&) { OnEnd(index); }},
      &nodes_[index].channel);
  KV_CHECK(stream.ok());
  node.stream = *std::move(stream);
}

void FleetNodes::OnMessage(size_t index, const sync::v1::OperatorMessage& message) {
  Node& node = nodes_[index];
  if (message.has_welcome()) {
    node.welcome = true;
    node.redial_ms = control::kRedialMinMs;
    ++connected_;
    ++begun_[clock_->MonotonicNs() / kNsPerSecond];
  }
  if (!message.has_update()) return;
  std::shared_ptr<const crds::PolicySet>& set = sets_[message.update().version()];
  if (set == nullptr) {
    absl::StatusOr<crds::PolicySet> made = (node.set ? *node.set : crds::PolicySet()).With(message.update());
    KV_CHECK(made.ok());
    set = std::make_shared<const crds::PolicySet>(*std::move(made));
  }
  if (node.set == nullptr) ++with_any_set_;
  node.set = set;
  node.version = message.update().version();
  if (sets_.size() > kSetsKept) std::erase_if(sets_, [](const auto& one) { return one.second.use_count() == 1; });
  sync::v1::NodeMessage answer;
  answer.mutable_answer()->set_version(node.version);
  KV_CHECK(node.stream->Send(std::move(answer)));
  answers_ns_.push_back(clock_->MonotonicNs());
}

void FleetNodes::OnEnd(size_t index) {
  Node& node = nodes_[index];
  if (std::exchange(node.welcome, false)) --connected_;
  node.stream.reset();
  const int64_t wait_ms = node.redial_ms / 2 + std::uniform_int_distribution<int64_t>(0, node.redial_ms)(chance_);
  node.redial_ms = std::min(node.redial_ms * 2, control::kRedialMaxMs);
  loop_->RunAfterMs(wait_ms, [this, index] { Dial(index); });
}

}  // namespace kvartal::bench
