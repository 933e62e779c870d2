// The bearer token of the next request. A file is read again before its period is over, since the kubelet exchanges it
// long before the token in it expires.
// Confined to the loop of its ApiClient; time is passed in.
// Invariant: a token that was read once is kept until a newer one can be read.
#pragma once

#include <cstdint>
#include <string>

#include "operator/kube/cluster_access.h"

namespace kvartal::kube {

class TokenSource {
 public:
  explicit TokenSource(Credential token) : credential_(std::move(token)) {}

  // "": none is needed, or none could be read yet.
  const std::string& Token(int64_t now_ms);
  // The server refused it: read anew at once. False when that brought nothing new.
  bool Refresh(int64_t now_ms);

 private:
  Credential credential_;
  std::string token_;
  int64_t read_ms_ = 0;
  bool read_once_ = false;
};

}  // namespace kvartal::kube
