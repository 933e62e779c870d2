#include "operator/process/key_watch.h"

#include "daemon/base/log.h"
#include "operator/kube/json_fields.h"
#include "operator/process/limits.h"

namespace kvartal::process {

KeyWatch::~KeyWatch() {
  client_->Cancel(call_);
  loop_->CancelTimer(timer_);
}

void KeyWatch::Start() {
  kube::ApiRequest request;
  request.target = "/.well-known/openid-configuration";
  call_ = client_->Call(std::move(request), [this](const kube::ApiError& error, const nlohmann::json& about) {
    if (IsAnswer(error)) AskKeys(kube::TextAt(about, {"issuer"}));
  });
}

void KeyWatch::AskKeys(const std::string& issuer) {
  kube::ApiRequest request;
  request.target = "/openid/v1/jwks";
  call_ = client_->Call(std::move(request), [this, issuer](const kube::ApiError& error, const nlohmann::json& keys) {
    if (!IsAnswer(error)) return;
    const std::string text = keys.dump();
    if (issuer != issuer_ || text != keys_) {
      issuer_ = issuer;
      keys_ = text;
      on_keys_(issuer_, keys_);
    }
    Again(kKeysMs);
  });
}

bool KeyWatch::IsAnswer(const kube::ApiError& error) {
  if (error.ok()) return true;
  Log(LogLevel::kWarning, "operator", "the keys of ServiceAccount tokens: ", error.ToString());
  Again(kKeysRetryMs);
  return false;
}

void KeyWatch::Again(int64_t ms) {
  timer_ = loop_->RunAfterMs(ms, [this] { Start(); });
}

}  // namespace kvartal::process
