// One node: what it holds, what it was sent, and what to send it next. It sends nothing itself.
// A plain value, confined to its fleet; time is passed in.
// Invariants: what it holds is shared with every node that holds the same; one update at a time is under way; a version
// the node did not take whole is not sent to it again, and any other is; what it held when its stream ended is what it
// holds until it says otherwise.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "crds/policy_set.h"
#include "operator/sync/shared_sets.h"

namespace kvartal::sync {

using SharedMessage = std::shared_ptr<const v1::OperatorMessage>;

class NodeSession {
 public:
  // A stream begins. False: what it says of itself is not consistent.
  [[nodiscard]] bool Begin(const v1::Hello& hello, SharedSets* sets);
  void End();

  // Whether it is to be sent the set of this version now. After a refusal also what it holds: so that it hears that
  // what it refused is taken back, and nothing of it is left there for its next start.
  bool Wants(const std::string& version) const {
    return sent_.empty() && version != (rejected_version_.empty() ? version_ : rejected_version_);
  }
  v1::Update DeltaTo(const crds::PolicySet& target) const { return target.DeltaFrom(*held_); }
  // `message` is an update, and `makes` what it comes to.
  void OnSent(SharedMessage message, SharedHashes makes, int64_t now_ms);
  // The keys whose standing changed by it; nullopt: an answer to nothing that was sent.
  std::optional<std::vector<std::string>> OnAnswer(const v1::Answer& answer, SharedSets* sets);

  bool Overdue(int64_t now_ms) const;
  // "" before its first stream, and while it holds no set at all.
  const std::string& version() const { return version_; }
  // Of the object with this key; nullptr: it has none.
  const std::string* HashOf(const std::string& key) const;
  // Also what it was sent and has not answered: it may be in force there at any moment.
  bool MayHold(const std::string& key) const {
    return held_->contains(key) || (makes_ != nullptr && makes_->contains(key));
  }
  // What is in force there.
  const SharedHashes& held() const { return held_; }
  // Of the set that it did not take, or not all of, last.
  const std::string& rejected_version() const { return rejected_version_; }

  // How far it is with one object of its target.
  enum class State : uint8_t { kApplied, kRefused, kAwaited };
  struct Standing {
    State state = State::kAwaited;
    std::string reason;  // of a refusal
  };
  // REQUIRES: `target` has it.
  Standing StandingOf(const std::string& key, const crds::PolicySet& target, const std::string& target_version) const;

 private:
  // What it comes to where refused_ were refused of it.
  SharedHashes WithoutRefused(crds::PolicySet::Hashes hashes, SharedSets* sets) const;
  // nullptr: the object of the target with this key was not refused.
  const std::string* RefusalOf(const std::string& key, const crds::PolicySet& target) const;

  std::string version_;
  SharedHashes held_ = SharedSets::Nothing();
  std::string rejected_version_;
  std::string rejected_reason_;                 // why it took nothing of that; "": it did, but for
  std::map<std::string, v1::Refused> refused_;  // these, by key
  std::string sent_;                            // the version under way; "": none is
  SharedMessage message_;                       // by which it was sent
  SharedHashes makes_;                          // nullptr: nothing was sent since it answered last
  int64_t sent_ms_ = 0;
};

}  // namespace kvartal::sync
