#include "tools/kvartal-bench/fleet_tenant.h"

#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace kvartal::bench {
namespace {

using nlohmann::json;

constexpr uint32_t kDeadlineMs = 20'000;
constexpr uint32_t kBlockBytes = 64 << 10;
constexpr size_t kBlocksAtOnce = 16;
constexpr int kTries = 600;
constexpr auto kPause = std::chrono::milliseconds(100);

}  // namespace

absl::Status FleetTenant::Make() {
  const auto make = [&](const std::string& target, const std::string& body) {
    return cluster_->Call("POST", target, body, "application/json").status();
  };
  KV_RETURN_IF_ERROR(make("/api/v1/namespaces", R"({"metadata":{"name":"real"}})"));
  KV_RETURN_IF_ERROR(make("/api/v1/namespaces/real/serviceaccounts", R"({"metadata":{"name":"vllm"}})"));
  KV_RETURN_IF_ERROR(make("/api/v1/nodes", R"({"metadata":{"name":"real","labels":{"pool":"real"}}})"));
  KV_RETURN_IF_ERROR(make("/apis/kvartal.dev/v1alpha1/kvnodepools",
                          R"({"apiVersion":"kvartal.dev/v1alpha1","kind":"KVNodePool","metadata":{"name":"real"},)"
                          R"("spec":{"nodeSelector":{"pool":"real"},"capacity":{"dram":"64Mi"}}})"));
  KV_RETURN_IF_ERROR(
      make("/apis/kvartal.dev/v1alpha1/namespaces/real/tenantkvpolicies",
           absl::StrFormat(R"({"apiVersion":"kvartal.dev/v1alpha1","kind":"TenantKVPolicy",)"
                           R"("metadata":{"name":"t"},"spec":{"subjects":[{"serviceAccountName":"vllm"}],)"
                           R"("pools":[{"poolRef":"real","perNode":{"dram":{"limit":"%d"}}}]}})",
                           kLimitBytes)));
  return make("/api/v1/namespaces/real/pods",
              R"({"metadata":{"name":"chat-0"},"spec":{"serviceAccountName":"vllm","nodeName":"real",)"
              R"("containers":[{"name":"c","image":"none"}]}})");
}

absl::Status FleetTenant::TakeToken() {
  KV_ASSIGN_OR_RETURN(const std::string pod,
                      cluster_->Call("GET", "/api/v1/namespaces/real/pods/chat-0", "", "application/json"));
  const std::string uid = json::parse(pod)["metadata"]["uid"];
  KV_ASSIGN_OR_RETURN(
      const std::string token,
      cluster_->Call("POST", "/api/v1/namespaces/real/serviceaccounts/vllm/token",
                     absl::StrCat(R"({"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":)",
                                  R"({"audiences":["kvartal"],"expirationSeconds":3600,"boundObjectRef":)",
                                  R"({"kind":"Pod","apiVersion":"v1","name":"chat-0","uid":")", uid, R"("}}})"),
                     "application/json"));
  testing::WriteFile(cluster_->dir().File("real.token"), json::parse(token)["status"]["token"]);
  return absl::OkStatus();
}

absl::Status FleetTenant::Start(const std::string& address) {
  KV_RETURN_IF_ERROR(TakeToken());
  testing::DaemonOptions options;
  options.node = "real";
  options.dram_size = "64Mi";
  options.policy_stream = "ipv4:" + address;
  options.more_config = "attestUid: false\nkubernetes: {nodeName: real}\n";
  daemon_ = std::make_unique<testing::DaemonProcess>(options);
  KV_RETURN_IF_ERROR(daemon_->Start());
  kv_status attached = KV_DENIED;
  for (int tries = 0; tries < kTries && attached != KV_OK; ++tries) {
    attached =
        client_.Attach(daemon_->attach_socket(), "fleet", nullptr, kDeadlineMs, cluster_->dir().File("real.token"));
    if (attached != KV_OK) std::this_thread::sleep_for(kPause);
  }
  if (attached != KV_OK) return absl::DeadlineExceededError("the real tenant may not attach: " + client_.error());
  const client::Client::Opened opened = client_.OpenNamespace(client::Digest{7}, {16, 1, kBlockBytes}, kDeadlineMs);
  if (opened.status != KV_OK) return absl::InternalError("the real tenant: " + client_.error());
  ns_ = opened.ns;
  return absl::OkStatus();
}

absl::Status FleetTenant::Use() {
  std::vector<client::Key> keys(kBlocksAtOnce);
  for (client::Key& key : keys) {
    std::memcpy(key.data(), &next_key_, sizeof(next_key_));
    ++next_key_;
  }
  std::vector<kv_slot> slots(keys.size());
  if (client_.Reserve({.ns = ns_, .keys = keys}, slots, kDeadlineMs) != KV_OK)
    return absl::InternalError("the real tenant may not store: " + client_.error());
  const client::Client::Committed committed = client_.Commit(slots, 0, kDeadlineMs);
  stored_ += committed.count;
  const uint32_t found = client_.Lookup(ns_, keys, 0, kDeadlineMs).matched;
  if (committed.count != keys.size() || found != keys.size()) {
    return absl::InternalError(absl::StrCat("of ", keys.size(), " blocks of the real tenant ", committed.count,
                                            " were stored and ", found, " found"));
  }
  return Look();
}

absl::Status FleetTenant::Look() {
  const testing::CommandResult told = daemon_->Ctl({"tenants", "--output", "json"});
  const json all = json::parse(told.out, nullptr, false);
  if (all.is_discarded()) return absl::InternalError("kvartalctl tenants: " + told.err);
  for (const json& tenant : all["tenants"]) {
    if (tenant["name"] != "real/t" || tenant["removed"] == true) continue;
    for (const json& tier : tenant["tiers"]) {
      if (tier["name"] != "dram") continue;
      const auto charged = tier["charged_bytes"].get<uint64_t>(), limit = tier["limit_bytes"].get<uint64_t>();
      ++looks_;
      most_bytes_ = std::max(most_bytes_, charged);
      if (limit == kLimitBytes && charged <= limit) return absl::OkStatus();
      return absl::FailedPreconditionError(absl::StrCat("the real tenant holds ", charged, " bytes, its limit is ",
                                                        limit, " and has to be ", kLimitBytes));
    }
  }
  return absl::FailedPreconditionError("the real daemon has no tenant any more");
}

}  // namespace kvartal::bench
