// Events for people, told of an object. Best effort: what cannot be told is dropped and never waited for.
// Confined to its loop.
// Invariants: the same reason and message of one object are one Event that counts; an object that is told of too often
// is not told of until it has calmed down.
#pragma once

#include <map>
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
  const EventStats& stats() const { return stats_; }

 private:
  struct Told {
    std::string first;  // when
    int64_t count = 0;
  };
  struct Subject {
    TokenBucket turns;
    std::map<std::string, Told> told;  // by what is said
  };

  ApiClient* const client_;
  const Clock* const clock_;
  const std::string component_;
  std::map<std::string, Subject> subjects_;  // by uid
  EventStats stats_;
};

}  // namespace kvartal::kube
