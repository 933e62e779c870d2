#include "operator/sync/node_session.h"

#include "operator/sync/limits.h"

namespace kvartal::sync {

bool NodeSession::Begin(const v1::Hello& hello) {
  crds::PolicySet::Hashes held;
  for (const v1::Held& one : hello.held()) held[one.key()] = one.hash();
  const bool consistent = hello.version().empty() ? held.empty() : crds::VersionOf(held) == hello.version();
  if (!consistent) return false;
  version_ = hello.version();
  held_ = std::move(held);
  rejected_version_ = hello.rejected_version();
  rejected_reason_ = hello.rejected_reason();
  sent_.clear();
  return true;
}

void NodeSession::End() {
  sent_.clear();
  makes_.clear();
}

void NodeSession::OnSent(const v1::Update& update, crds::PolicySet::Hashes makes, int64_t now_ms) {
  sent_ = update.version();
  makes_ = std::move(makes);
  changes_.assign(update.removed().begin(), update.removed().end());
  for (const v1::PolicyObject& object : update.changed()) changes_.push_back(object.key());
  sent_ms_ = now_ms;
}

std::optional<std::vector<std::string>> NodeSession::OnAnswer(const v1::Answer& answer) {
  if (sent_.empty() || answer.version() != sent_) return std::nullopt;
  if (answer.reason().empty()) {
    version_ = sent_;
    held_ = std::move(makes_);
    rejected_version_.clear();
    rejected_reason_.clear();
  } else {
    rejected_version_ = sent_;
    rejected_reason_ = answer.reason();
  }
  sent_.clear();
  makes_.clear();
  return std::move(changes_);
}

bool NodeSession::Overdue(int64_t now_ms) const { return !sent_.empty() && now_ms - sent_ms_ > kAnswerMs; }

const std::string* NodeSession::HashOf(const std::string& key) const {
  const auto found = held_.find(key);
  return found == held_.end() ? nullptr : &found->second;
}

}  // namespace kvartal::sync
