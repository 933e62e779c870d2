// What ServiceAccount tokens of this cluster are signed with, and by whom: asked of the API server now and then.
// Confined to the operator's loop.
// Invariant: told whole, issuer and keys, and only when either has changed.
#pragma once

#include <functional>
#include <string>

#include "operator/kube/api_client.h"

namespace kvartal::process {

class KeyWatch {
 public:
  using OnKeys = std::function<void(const std::string& issuer, const std::string& keys)>;

  KeyWatch(kube::ApiClient* client, EventLoop* loop, OnKeys on_keys)
      : client_(client), loop_(loop), on_keys_(std::move(on_keys)) {}
  ~KeyWatch();
  KeyWatch(const KeyWatch&) = delete;
  KeyWatch& operator=(const KeyWatch&) = delete;

  void Start();

 private:
  void AskKeys(const std::string& issuer);
  void Again(int64_t ms);
  // False, and asked again later, when that was no answer.
  bool IsAnswer(const kube::ApiError& error);

  kube::ApiClient* const client_;
  EventLoop* const loop_;
  const OnKeys on_keys_;
  kube::ApiClient::CallId call_ = 0;
  EventLoop::TimerId timer_ = 0;
  std::string issuer_, keys_;
};

}  // namespace kvartal::process
