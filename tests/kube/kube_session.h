// The operator's own client against a real server, with calls a test can wait for.
// Confined to the thread of the test.
// Invariant: Wait and Call return in any case: the client's own deadlines end what nobody answers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "operator/kube/api_client.h"
#include "operator/kube/cpprest_transport.h"

namespace kvartal::testing {

inline constexpr const char* kYaml = "application/yaml";

struct KubeAnswer {
  kube::ApiError error;
  nlohmann::json body;
};

class KubeSession {
 public:
  explicit KubeSession(const kube::ClusterAccess& access);
  ~KubeSession();

  KubeAnswer Call(const std::string& method, const std::string& target, const std::string& body = "",
                  const std::string& content_type = kube::kJson);
  // Runs the loop until `reached`; false when that takes longer than any test should.
  bool Wait(const std::function<bool()>& reached);

  kube::ApiClient* client() { return client_.get(); }
  EventLoop* loop() { return loop_.get(); }
  const Clock* clock() const { return &clock_; }

 private:
  const SystemClock clock_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<kube::CpprestTransport> transport_;
  std::unique_ptr<kube::ApiClient> client_;
};

// Both definitions of crds/, served by the server behind `session`.
absl::Status InstallCrds(KubeSession* session);

}  // namespace kvartal::testing
