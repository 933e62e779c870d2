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

bool NodeSession::Begin(const v1::Hello& hello, SharedSets* sets) {
  crds::PolicySet::Hashes held;
  for (const v1::Held& one : hello.held()) held[one.key()] = one.hash();
  const bool consistent = hello.version().empty() ? held.empty() : crds::VersionOf(held) == hello.version();
  if (!consistent) return false;
  version_ = hello.version();
  held_ = sets->Share(version_, std::move(held));
  rejected_version_ = hello.rejected_version();
  rejected_reason_ = hello.rejected_reason();
  refused_.clear();
  for (const v1::Refused& one : hello.refused()) refused_[one.key()] = one;
  // What it was sent before this stream is in that, or lost.
  sent_.clear();
  message_.reset();
  makes_.reset();
  return true;
}

// What it was sent last may be in force there: makes_ stays until it says what is.
void NodeSession::End() { sent_.clear(); }

void NodeSession::OnSent(SharedMessage message, SharedHashes makes, int64_t now_ms) {
  sent_ = message->update().version();
  message_ = std::move(message);
  makes_ = std::move(makes);
  sent_ms_ = now_ms;
}

std::optional<std::vector<std::string>> NodeSession::OnAnswer(const v1::Answer& answer, SharedSets* sets) {
  if (sent_.empty() || answer.version() != sent_) return std::nullopt;
  const v1::Update& update = message_->update();
  std::set<std::string> changes(update.removed().begin(), update.removed().end());
  for (const v1::PolicyObject& object : update.changed()) changes.insert(object.key());
  rejected_reason_ = answer.reason();
  rejected_version_ = answer.reason().empty() && answer.refused().empty() ? "" : sent_;
  if (answer.reason().empty()) {
    for (const auto& [key, before] : std::exchange(refused_, {})) changes.insert(key);
    for (const v1::Refused& one : answer.refused()) {
      changes.insert(one.key());
      refused_[one.key()] = one;
    }
    held_ = refused_.empty() ? std::move(makes_) : WithoutRefused(*makes_, sets);
    version_ = refused_.empty() ? sent_ : crds::VersionOf(*held_);
    // What the pool comes to concerns every policy there.
    if (std::any_of(changes.begin(), changes.end(), IsPool))
      for (const auto& [key, hash] : *held_) changes.insert(key);
  }
  sent_.clear();
  message_.reset();
  makes_.reset();
  return std::vector<std::string>(changes.begin(), changes.end());
}

SharedHashes NodeSession::WithoutRefused(crds::PolicySet::Hashes hashes, SharedSets* sets) const {
  for (const auto& [key, one] : refused_) {
    if (one.held().empty()) {
      hashes.erase(key);
    } else {
      hashes[key] = one.held();
    }
  }
  const std::string version = crds::VersionOf(hashes);
  return sets->Share(version, std::move(hashes));
}

const std::string* NodeSession::RefusalOf(const std::string& key, const crds::PolicySet& target) const {
  const auto refused = refused_.find(key);
  const auto wanted = target.objects().find(key);
  if (refused == refused_.end() || wanted == target.objects().end()) return nullptr;
  return refused->second.hash() == wanted->second.hash ? &refused->second.reason() : nullptr;
}

NodeSession::Standing NodeSession::StandingOf(const std::string& key, const crds::PolicySet& target,
                                              const std::string& target_version) const {
  // Most nodes, most of the time: nothing has to be looked for.
  if (refused_.empty() && version_ == target_version) return {State::kApplied, ""};
  if (refused_.empty() && version_.empty() && rejected_reason_.empty()) return {State::kAwaited, ""};
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
  const auto found = held_->find(key);
  return found == held_->end() ? nullptr : &found->second;
}

}  // namespace kvartal::sync
