#include "tests/kube/kube_session.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "operator/kube/json_fields.h"
#include "tests/support/daemon_process.h"

namespace kvartal::testing {
namespace {

constexpr int64_t kWaitNsMax = 120'000'000'000;

bool IsEstablished(const nlohmann::json& crd) {
  const nlohmann::json* conditions = kube::FieldAt(crd, {"status", "conditions"});
  if (conditions == nullptr) return false;
  for (const nlohmann::json& condition : *conditions) {
    if (kube::TextAt(condition, {"type"}) == "Established") return kube::TextAt(condition, {"status"}) == "True";
  }
  return false;
}

}  // namespace

KubeSession::KubeSession(const kube::ClusterAccess& access) {
  auto loop = EventLoop::Create(&clock_);
  KV_CHECK(loop.ok());
  loop_ = *std::move(loop);
  auto transport = kube::CpprestTransport::Create(access, loop_.get());
  KV_CHECK(transport.ok());
  transport_ = *std::move(transport);
  client_ = std::make_unique<kube::ApiClient>(transport_.get(), loop_.get(), &clock_, kube::TokenSource(access.token));
}

KubeSession::~KubeSession() = default;

bool KubeSession::Wait(const std::function<bool()>& reached) {
  const int64_t until_ns = clock_.MonotonicNs() + kWaitNsMax;
  while (!reached()) {
    if (clock_.MonotonicNs() > until_ns) return false;
    loop_->RunOnce(100);
  }
  return true;
}

KubeAnswer KubeSession::Call(const std::string& method, const std::string& target, const std::string& body,
                             const std::string& content_type) {
  kube::ApiRequest request;
  request.method = method;
  request.target = target;
  request.body = body;
  request.content_type = content_type;
  KubeAnswer got;
  bool ended = false;
  client_->Call(std::move(request), [&](kube::ApiError error, nlohmann::json answer) {
    got = {std::move(error), std::move(answer)};
    ended = true;
  });
  KV_CHECK(Wait([&] { return ended; }));
  return got;
}

absl::Status InstallCrds(KubeSession* session) {
  const std::string all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
  for (const auto& [file, name] : {std::pair("tenantkvpolicy", "tenantkvpolicies.kvartal.dev"),
                                   std::pair("kvnodepool", "kvnodepools.kvartal.dev")}) {
    const std::string text = ReadFile(absl::StrCat(KVARTAL_SOURCE_DIR, "/crds/", file, ".yaml"));
    const KubeAnswer made = session->Call("POST", all + "?fieldValidation=Strict", text, kYaml);
    if (!made.error.ok()) return absl::InternalError(absl::StrCat(file, ": ", made.error.ToString()));
    bool established = false;
    for (int tries = 0; tries < 200 && !established; ++tries)
      established = IsEstablished(session->Call("GET", absl::StrCat(all, "/", name)).body);
    if (!established) return absl::InternalError(absl::StrCat(file, " is not established"));
  }
  return absl::OkStatus();
}

}  // namespace kvartal::testing
