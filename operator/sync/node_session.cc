#include "operator/sync/node_session.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "operator/sync/limits.h"

namespace kvartal::sync {
namespace {

bool IsPool(const std::string& key) { return absl::StartsWith(key, "KVNodePool/"); }

}  // namespace

bool NodeSession::Begin(const v1::Hello& hello) {
  crds::PolicySet::Hashes held;
  for (const v1::Held& one : hello.held()) held[one.key()] = one.hash();
  const bool consistent = hello.version().empty() ? held.empty() : crds::VersionOf(held) == hello.version();
  if (!consistent) return false;
  version_ = hello.version();
  held_ = std::move(held);
  rejected_version_ = hello.rejected_version();
  rejected_reason_ = hello.rejected_reason();
  refused_.clear();
  for (const v1::Refused& one : hello.refused()) refused_[one.key()] = one;
  // What it was sent before this stream is in that, or lost.
  sent_.clear();
  makes_.clear();
  changes_.clear();
  return true;
}

// What it was sent last may be in force there: makes_ stays until it says what is.
void NodeSession::End() { sent_.clear(); }

void NodeSession::OnSent(const v1::Update& update, crds::PolicySet::Hashes makes, int64_t now_ms) {
  sent_ = update.version();
  makes_ = std::move(makes);
  changes_.assign(update.removed().begin(), update.removed().end());
  for (const v1::PolicyObject& object : update.changed()) changes_.push_back(object.key());
  sent_ms_ = now_ms;
}

std::optional<std::vector<std::string>> NodeSession::OnAnswer(const v1::Answer& answer) {
  if (sent_.empty() || answer.version() != sent_) return std::nullopt;
  std::set<std::string> changes(changes_.begin(), changes_.end());
  rejected_reason_ = answer.reason();
  rejected_version_ = answer.reason().empty() && answer.refused().empty() ? "" : sent_;
  if (answer.reason().empty()) {
    held_ = std::move(makes_);
    for (const auto& [key, before] : std::exchange(refused_, {})) changes.insert(key);
    for (const v1::Refused& one : answer.refused()) {
      changes.insert(one.key());
      refused_[one.key()] = one;
      if (one.held().empty()) {
        held_.erase(one.key());
      } else {
        held_[one.key()] = one.held();
      }
    }
    version_ = crds::VersionOf(held_);
    // What the pool comes to concerns every policy there.
    if (std::any_of(changes.begin(), changes.end(), IsPool))
      for (const auto& [key, hash] : held_) changes.insert(key);
  }
  sent_.clear();
  makes_.clear();
  changes_.clear();
  return std::vector<std::string>(changes.begin(), changes.end());
}

const std::string* NodeSession::RefusalOf(const std::string& key, const crds::PolicySet& target) const {
  const auto refused = refused_.find(key);
  const auto wanted = target.objects().find(key);
  if (refused == refused_.end() || wanted == target.objects().end()) return nullptr;
  return refused->second.hash() == wanted->second.hash ? &refused->second.reason() : nullptr;
}

NodeSession::Standing NodeSession::StandingOf(const std::string& key, const crds::PolicySet& target,
                                              const std::string& target_version) const {
  if (const std::string* why = RefusalOf(key, target)) return {State::kRefused, *why};
  if (const std::string* has = HashOf(key); has != nullptr && *has == target.objects().at(key).hash) {
    // In force, and not as the pool is by now.
    const auto pool =
        std::find_if(refused_.begin(), refused_.end(), [](const auto& entry) { return IsPool(entry.first); });
    const std::string* why = pool == refused_.end() ? nullptr : RefusalOf(pool->first, target);
    if (why != nullptr) return {State::kRefused, *why};
    return {State::kApplied, ""};
  }
  if (rejected_version_ == target_version && !rejected_reason_.empty()) return {State::kRefused, rejected_reason_};
  return {State::kAwaited, ""};
}

bool NodeSession::Overdue(int64_t now_ms) const { return !sent_.empty() && now_ms - sent_ms_ > kAnswerMs; }

const std::string* NodeSession::HashOf(const std::string& key) const {
  const auto found = held_.find(key);
  return found == held_.end() ? nullptr : &found->second;
}

}  // namespace kvartal::sync
