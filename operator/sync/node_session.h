// One node: what it holds, what it was sent, and what to send it next. It sends nothing itself.
// A plain value, confined to its fleet; time is passed in.
// Invariants: one update at a time is under way; a version the node refused is not sent to it again; what it held when
// its stream ended is what it holds until it says otherwise.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "crds/policy_set.h"

namespace kvartal::sync {

class NodeSession {
 public:
  // A stream begins. False: what it says of itself is not consistent.
  [[nodiscard]] bool Begin(const v1::Hello& hello);
  void End();

  // Whether it is to be sent the set of this version now.
  bool Wants(const std::string& version) const {
    return sent_.empty() && version != version_ && version != rejected_version_;
  }
  v1::Update DeltaTo(const crds::PolicySet& target) const { return target.DeltaFrom(held_); }
  void OnSent(const v1::Update& update, crds::PolicySet::Hashes makes, int64_t now_ms);
  // The keys whose state changed by it; nullopt: an answer to nothing that was sent.
  std::optional<std::vector<std::string>> OnAnswer(const v1::Answer& answer);

  bool Overdue(int64_t now_ms) const;
  // "" before its first stream, and while it holds no set at all.
  const std::string& version() const { return version_; }
  // Of the object with this key; nullptr: it has none.
  const std::string* HashOf(const std::string& key) const;
  // Also what it was sent and has not answered: it may be in force there at any moment.
  bool MayHold(const std::string& key) const { return held_.contains(key) || makes_.contains(key); }
  const std::string& rejected_version() const { return rejected_version_; }
  const std::string& rejected_reason() const { return rejected_reason_; }

 private:
  std::string version_;
  crds::PolicySet::Hashes held_;
  std::string rejected_version_, rejected_reason_;
  std::string sent_;  // the version under way; "": none is
  crds::PolicySet::Hashes makes_;
  std::vector<std::string> changes_;
  int64_t sent_ms_ = 0;
};

}  // namespace kvartal::sync
