// A client over a transport by script, on a loop whose clock stands still until the test moves it.
// Confined to the thread of the test.
// Invariant: whatever is due at the present time has run when Advance or RunDue returns.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "operator/kube/api_client.h"
#include "tests/unit/kube/fake_transport.h"

namespace kvartal::testing {

class KubeLoop : public ::testing::Test {
 protected:
  KubeLoop() {
    auto loop = EventLoop::Create(&clock_);
    EXPECT_TRUE(loop.ok());
    loop_ = *std::move(loop);
    UseToken({});
  }
  void UseToken(kube::Credential token) {
    client_ = std::make_unique<kube::ApiClient>(&transport_, loop_.get(), &clock_, kube::TokenSource(std::move(token)));
  }
  void RunDue() {
    // What a timer starts may be due at once, a few steps deep.
    for (int i = 0; i < 8; ++i) loop_->RunOnce(0);
  }
  // In steps, so that what is due meanwhile sees its own time.
  void Advance(int64_t ms) {
    constexpr int64_t kStepMs = 100;
    RunDue();
    for (int64_t step; ms > 0; ms -= step) {
      step = std::min(ms, kStepMs);
      clock_.AdvanceMs(step);
      loop_->RunOnce(0);
    }
    RunDue();
  }
  // As from a server that gives no permission to write.
  void RefuseWritesFor(int64_t ms) {
    for (; ms > 0; ms -= 100) {
      Advance(100);
      for (size_t id = 1; id <= transport_.requests.size(); ++id) {
        if (!transport_.IsOpen(id) || transport_.requests[id - 1].method != "PATCH") continue;
        transport_.Head(id, 403);
        transport_.Bytes(id, R"({"kind":"Status","code":403,"reason":"Forbidden"})");
        transport_.End(id, absl::OkStatus());
      }
    }
  }
  int64_t NowMs() const { return clock_.MonotonicNs() / kNsPerMs; }
  kube::ApiClient& client() { return *client_; }

  ManualClock clock_;
  FakeTransport transport_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<kube::ApiClient> client_;
};

}  // namespace kvartal::testing
