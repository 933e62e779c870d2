// Keeps an ObjectStore equal to the API server's objects of one type, for ever: runs what ListWatch decides.
// Confined to its loop.
// Invariants: one request at a time is under way, or a timer for the next; after destruction nothing is called.
#pragma once

#include <string>

#include "operator/kube/api_client.h"
#include "operator/kube/list_watch.h"
#include "operator/kube/object_store.h"

namespace kvartal::kube {

struct ReflectorOptions {
  ResourceType type;
  std::string ns;  // "": of every namespace
  uint64_t seed = 1;
  WatchSeconds watch_seconds;
  int64_t watch_margin_ms = kWatchMarginMs;
  std::string field_selector = {};  // "": all. What does not match it any more is told as deleted
  bool always_from_store = false;   // lists are the newest there is, in pages, and not what the server's cache has
  // What is wanted of an object (ParseSparse), at least what names it, its uid and its resourceVersion; null: nearly
  // all. Nothing else of it is ever in memory but as the text that came.
  nlohmann::json wanted = nullptr;
};

class Reflector {
 public:
  // Hears of every change, in order, when the store has it already.
  using OnChange = absl::AnyInvocable<void(const ObjectChange&)>;

  Reflector(ApiClient* client, EventLoop* loop, const Clock* clock, ReflectorOptions options, OnChange on_change);
  ~Reflector();
  Reflector(const Reflector&) = delete;
  Reflector& operator=(const Reflector&) = delete;

  void Start();
  // A first list is in.
  bool synced() const { return store_.synced(); }
  const ObjectStore& store() const { return store_; }
  const ListWatchStats& stats() const { return machine_.stats(); }
  const std::string& resource_version() const { return machine_.resource_version(); }
  // What the last request failed by; ok since anything was heard: of a watch that is well, a bookmark every minute.
  const ApiError& last_error() const { return last_error_; }

 private:
  void Run(ListWatchStep step);
  void Schedule(NextRequest next);
  void Send(const NextRequest& next);
  void SendList(const NextRequest& next);
  void SendWatch(const NextRequest& next);
  std::string Selector() const;
  void NoteError(const char* what, const ApiError& error);
  int64_t NowMs() const { return clock_->MonotonicNs() / kNsPerMs; }

  ApiClient* const client_;
  EventLoop* const loop_;
  const Clock* const clock_;
  const ReflectorOptions options_;
  OnChange on_change_;
  ListWatch machine_;
  ObjectStore store_;
  ApiError last_error_;
  ApiClient::CallId call_ = 0;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace kvartal::kube
