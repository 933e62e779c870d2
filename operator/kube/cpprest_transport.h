// HttpTransport over cpprestsdk: TLS with the authorities and certificates that are on disk when a connection is made,
// so an exchanged one is used by the next connection. The one place that meets this library and its exceptions.
// Confined to the loop it posts to; the library's threads only hand bytes over.
// Invariants: a call that failed, or was failed, leaves none of the connections of its time behind to be used again;
// what came in and was not handled yet is at most kBodyBytesMax a call.
#pragma once

#include <map>
#include <memory>

#include "daemon/base/event_loop.h"
#include "operator/kube/cluster_access.h"
#include "operator/kube/http_transport.h"

namespace kvartal::kube {

class CpprestTransport : public HttpTransport {
 public:
  static absl::StatusOr<std::unique_ptr<CpprestTransport>> Create(const ClusterAccess& access, Executor* executor);
  ~CpprestTransport() override;

  CallId Start(HttpRequest request, HttpSink sink) override;
  void Cancel(CallId call) override;
  void Fail(CallId call) override;

 private:
  struct Shared;
  struct Call;
  using CallPtr = std::shared_ptr<Call>;

  CpprestTransport(ClusterAccess access, Executor* executor);
  void DropConnections();
  void OnEnd(CallId id, const absl::Status& status);

  const std::shared_ptr<Shared> shared_;
  std::map<CallId, CallPtr> calls_;
  CallId next_id_ = 1;
};

}  // namespace kvartal::kube
