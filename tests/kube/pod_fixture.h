// Real operators and daemons, and pods that attach to a daemon by tokens of a real API server. No pod runs; this
// process is the client of each.
// Confined to the thread of the test.
#pragma once

#include <string>

#include "client/libkvartal/kvartal.hpp"
#include "tests/kube/operator_fixture.h"

namespace kvartal::testing {

class PodFixture : public OperatorFixture {
 protected:
  static constexpr uint32_t kPatient = 20'000;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(OperatorFixture::SetUp());
    Write("POST", "/api/v1/namespaces/red/serviceaccounts",
          "{apiVersion: v1, kind: ServiceAccount, metadata: {name: vllm}}");
    Apply("a", "limit: 32Mi", "vllm");
    ASSERT_TRUE(Becomes("a", "Ready", "True/Ready")) << Get("a").dump(1);
  }
  std::string DaemonConfig(const std::string& node) const override {
    return absl::StrCat("attestUid: false\nauditLog: audit.jsonl\nkubernetes: {nodeName: ", node, "}\n");
  }
  // Its token, of n0.
  std::string MakePod(const std::string& name) {
    return TokenOfNewPod("red", name, "vllm", ", nodeName: n0", "audiences: [kvartal], expirationSeconds: 600, ");
  }
  kv_status AttachBy(const std::string& token, client::Client* client) {
    const std::string path = server_.dir().File(absl::StrCat("token-", ++tokens_));
    WriteFile(path, token);
    return client->Attach(daemons_[0]->attach_socket(), "test", nullptr, kPatient, path);
  }
  kv_status AttachBy(const std::string& token) {
    client::Client client;
    return AttachBy(token, &client);
  }

  int tokens_ = 0;
};

}  // namespace kvartal::testing
