// Events for people, told of an object. Best effort: what cannot be told is dropped and never waited for.
// Confined to its loop.
// Invariants: the same reason and message of one object are one Event that counts; so are many messages of one reason
// that come together; an object that is told of too often is not told of until it has calmed down; who is forgotten for
// another is whoever nothing was told of for longest.
#pragma once

#include <map>
#include <set>
#include <string>

#include "operator/kube/api_client.h"
#include "operator/kube/token_bucket.h"

namespace kvartal::kube {

struct EventStats {
  uint64_t told = 0, dropped = 0;
};

class EventRecorder {
 public:
  EventRecorder(ApiClient* client, const Clock* clock, std::string component)
      : client_(client), clock_(clock), component_(std::move(component)) {}

  // `type`: "Normal" or "Warning". `object` has apiVersion, kind and metadata.
  void Tell(const nlohmann::json& object, const std::string& type, const std::string& reason,
            const std::string& message);
  // `idle` is called once nothing is on its way to the server any more: maybe now.
  void WhenIdle(absl::AnyInvocable<void()> idle);
  const EventStats& stats() const { return stats_; }

 private:
  struct Told {
    std::string first;  // when
    std::string note;
    int64_t count = 0;
  };
  // Of one type and reason.
  struct Similar {
    std::set<std::string> notes;
    int64_t last_ms = 0;
  };
  struct Subject {
    TokenBucket turns;
    int64_t used = 0;                  // when, in Tells
    std::map<std::string, Told> told;  // by what is said
    std::map<std::string, Similar> similar;
  };

  Subject& SubjectOf(const std::string& uid);
  // What to say of it: the note itself, or that there are many like it.
  static Told& ToldOf(Subject* subject, const std::string& kind, const std::string& note, int64_t now_ms);
  void Send(const nlohmann::json& object, const std::string& type, const std::string& reason, const Told& told,
            const std::string& now);

  ApiClient* const client_;
  const Clock* const clock_;
  const std::string component_;
  std::map<std::string, Subject> subjects_;  // by uid
  int64_t tells_ = 0;
  size_t on_their_way_ = 0;
  absl::AnyInvocable<void()> idle_;
  EventStats stats_;
};

}  // namespace kvartal::kube
