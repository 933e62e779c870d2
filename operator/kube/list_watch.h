// List, then watch, for ever: which request comes next, and which events an answer means. It sends nothing itself.
// A plain value, confined to its reflector; time is passed in, chance comes from a seed.
// Invariants: kInit, then every object as kInitApply, then kInitDone; kApply and kDelete only after kInitDone of the
// newest list. A version to resume from comes from objects and bookmarks that were handed out, never from an error. A
// page that is more than we take is asked for again, smaller, for what others put into their objects is theirs to say.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "operator/kube/api_error.h"
#include "operator/kube/backoff.h"
#include "operator/kube/limits.h"

namespace kvartal::kube {

struct WatchEvent {
  enum class Kind { kInit, kInitApply, kInitDone, kApply, kDelete };
  Kind kind;
  nlohmann::json object;  // absent with kInit and kInitDone
};

struct NextRequest {
  enum class Verb { kList, kWatch };
  Verb verb = Verb::kList;
  int64_t after_ms = 0;
  std::string resource_version;
  std::string continue_token;  // of a list in pages
  bool paged = false;          // a list from the store, not from the server's cache
  int64_t page_items = kListPageItems;
  int64_t timeout_seconds = 0;  // of a watch
};

struct ListWatchStep {
  std::vector<WatchEvent> events;
  std::optional<NextRequest> next;  // absent: read on
};

// How long a watch asks to live. Tests shorten it.
struct WatchSeconds {
  int64_t min = kWatchSecondsMin;
  int64_t max = kWatchSecondsMax;
};

struct ListWatchStats {
  uint64_t lists = 0, watches = 0, bookmarks = 0;
  uint64_t expired = 0;  // 410 in either form
  uint64_t ended = 0;    // watches that ended as they should
  uint64_t broken = 0;   // any other end
  uint64_t events = 0;
};

class ListWatch {
 public:
  // `always_from_store`: for objects that are many, or that must not be older than what was told of them before.
  // `wanted`: of each object (ParseSparse), at least what names it, its uid and its resourceVersion; null: all.
  explicit ListWatch(uint64_t seed, WatchSeconds seconds = {}, bool always_from_store = false,
                     const nlohmann::json& wanted = nullptr);

  NextRequest Start();
  // What is wanted of a page; null: all.
  const nlohmann::json& wanted_of_page() const { return wanted_of_page_; }
  // One page of a list, or what it failed by.
  ListWatchStep OnPage(nlohmann::json page, int64_t now_ms);
  ListWatchStep OnListError(const ApiError& error, int64_t now_ms);
  // The watch is sent; one of its lines; its end, clean when `error` is ok.
  void OnWatchSent(int64_t now_ms);
  ListWatchStep OnLine(std::string_view line, int64_t now_ms);
  ListWatchStep OnWatchEnd(const ApiError& error, int64_t now_ms);

  // Empty before the first list.
  const std::string& resource_version() const { return resource_version_; }
  const ListWatchStats& stats() const { return stats_; }

 private:
  NextRequest List(int64_t after_ms);
  // The one that follows what was heard of the list.
  NextRequest Page(int64_t after_ms) const;
  NextRequest Watch(int64_t after_ms);
  int64_t Wait(const ApiError& error, int64_t now_ms);
  void Advance(const nlohmann::json& object);

  Backoff backoff_;
  Jitter jitter_;
  WatchSeconds seconds_;
  nlohmann::json wanted_of_page_, wanted_of_event_;
  std::string resource_version_;
  bool always_from_store_;
  bool from_store_;       // the cache does not know the version we have seen: ask for the newest there is
  bool in_list_ = false;  // kInit was told and kInitDone was not
  std::string continue_token_;
  int64_t page_items_ = kListPageItems;
  int64_t sent_ms_ = 0;
  bool heard_ = false;  // anything from this watch
  int bad_ends_ = 0;    // of watches from the version we are at, that another from there may meet again
  ListWatchStats stats_;
};

}  // namespace kvartal::kube
