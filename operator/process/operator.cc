#include "operator/process/operator.h"

#include <csignal>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/base/log.h"
#include "operator/kube/metrics_text.h"
#include "operator/process/fleet_metrics.h"

namespace kvartal::process {
namespace {

constexpr int kExitLost = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<Operator>> Operator::Start(const kube::ClusterAccess& access, OperatorOptions options) {
  std::unique_ptr<Operator> one(new Operator(std::move(options)));
  KV_RETURN_IF_ERROR(one->MakeParts(access));
  one->watch_->Start();
  one->elector_->Start();
  one->Tick();
  one->UpdateMetrics();
  return one;
}

Operator::~Operator() = default;

absl::Status Operator::MakeParts(const kube::ClusterAccess& access) {
  host_ = std::string(absl::StripPrefix(absl::StripPrefix(access.server, "https://"), "http://"));
  KV_ASSIGN_OR_RETURN(loop_, EventLoop::Create(&clock_));
  KV_ASSIGN_OR_RETURN(signals_, SignalWatch::Create(loop_.get(), [this](int signal) {
                        if (signal != SIGHUP) Stop();
                      }));
  KV_ASSIGN_OR_RETURN(health_server_,
                      kube::HealthServer::Create(options_.health_address, loop_.get(), &clock_, &health_));
  KV_ASSIGN_OR_RETURN(transport_, kube::CpprestTransport::Create(access, loop_.get()));
  client_ = std::make_unique<kube::ApiClient>(transport_.get(), loop_.get(), &clock_, kube::TokenSource(access.token),
                                              options_.calls_per_second);
  watch_ = std::make_unique<ClusterWatch>(
      client_.get(), loop_.get(), &clock_, options_.seed,
      ClusterWatch::Sink{.on_matter = [this] { decider_->OnMatter(); },
                         .on_policy = [this](const kube::ObjectKey& key) { writer_->Touch(key); },
                         .on_pool = [this](const kube::ObjectKey& key) { pool_writer_->Touch(key.name); }});
  fleet_ = std::make_unique<sync::Fleet>(&clock_, ToNodes());
  decider_ = std::make_unique<Decider>(
      watch_.get(), loop_.get(), &clock_,
      Decider::Sink{.on_nodes = [this](const auto& nodes) { fleet_->SetTargets(nodes); },
                    .on_verdict = [this](const kube::ObjectKey& key) { writer_->Touch(key); },
                    .on_pool = [this](const kube::ObjectKey& key) { pool_writer_->Touch(key.name); }});
  writer_ =
      std::make_unique<StatusWriter>(client_.get(), loop_.get(), &clock_, watch_.get(), decider_.get(), fleet_.get());
  pool_writer_ =
      std::make_unique<PoolWriter>(client_.get(), loop_.get(), &clock_, watch_.get(), decider_.get(), fleet_.get());
  if (options_.attest_nodes) attestor_.emplace(*options_.attest_nodes);
  keys_ = std::make_unique<KeyWatch>(client_.get(), loop_.get(), [this](const auto& issuer, const auto& keys) {
    Log(LogLevel::kInfo, "operator", "tokens are issued by ", issuer);
    if (attestor_) attestor_->SetKeys(issuer, keys);
    fleet_->SetKeys(issuer, keys);
  });
  pods_ = std::make_unique<PodWatch>(
      client_.get(), loop_.get(), &clock_, options_.seed,
      PodWatch::Sink{.on_known = [this](PodWatch::OfNodes pods) { fleet_->SetPods(std::move(pods)); },
                     .on_changed = [this](const PodWatch::OfNodes& changed) { fleet_->ChangePods(changed); }});
  elector_ = std::make_unique<kube::LeaseElector>(
      client_.get(), loop_.get(), &clock_, options_.lease,
      kube::LeaderElection(options_.lease, options_.identity, options_.seed, options_.lease_times),
      kube::LeaseElector::Sink{.on_leading = [this] { OnLeading(); },
                               .on_lost =
                                   [this] {
                                     Log(LogLevel::kError, "operator", "the lease is lost: another may lead");
                                     End(kExitLost);
                                   }});
  // A process that was frozen finds what it had begun to do before it finds that its lease is over.
  client_->SetLeading([this] { return elector_->leading(); });
  return absl::OkStatus();
}

sync::Fleet::Sink Operator::ToNodes() {
  sync::Fleet::Sink to_nodes;
  to_nodes.send = [this](sync::StreamId stream, sync::SharedMessage message) {
    if (server_ && elector_->leading()) server_->Send(stream, std::move(message));
  };
  to_nodes.close = [this](sync::StreamId stream, const std::string& why) {
    if (server_) server_->Close(stream, why);
  };
  to_nodes.on_progress = [this](const std::string& key) {
    absl::string_view name = key;
    if (absl::ConsumePrefix(&name, "TenantKVPolicy/")) return writer_->TouchName(std::string(name));
    if (absl::ConsumePrefix(&name, "KVNodePool//")) pool_writer_->Touch(std::string(name));
  };
  return to_nodes;
}

void Operator::OnLeading() {
  Log(LogLevel::kInfo, "operator", options_.identity, " leads");
  leading_ = true;
  BeginWhenSynced();
}

void Operator::BeginWhenSynced() {
  if (!leading_ || working_ || stopping_ || !watch_->synced()) return;
  working_ = true;
  auto server = sync::SyncServer::Start(
      options_.sync, loop_.get(),
      {.on_message = [this](auto stream, const std::string& token,
                            const sync::v1::NodeMessage& message) { OnNodeMessage(stream, token, message); },
       .on_end = [this](auto stream) { fleet_->OnEnd(stream); }});
  if (!server.ok()) {
    Log(LogLevel::kError, "operator", server.status().message());
    return End(kExitLost);
  }
  server_ = *std::move(server);
  Log(LogLevel::kInfo, "operator", "listens for nodes on port ", server_->port());
  decider_->Start();
  writer_->Start();
  pool_writer_->Start();
  keys_->Start();
  if (options_.watch_pods) pods_->Start();
}

void Operator::OnNodeMessage(sync::StreamId stream, const std::string& token, const sync::v1::NodeMessage& message) {
  std::string attested;
  if (attestor_ && message.has_hello()) {
    const absl::StatusOr<std::string> node = attestor_->NodeOf(token, clock_.WallMs());
    if (!node.ok()) return fleet_->Refuse(stream, std::string(node.status().message()));
    attested = *node;
  }
  fleet_->OnMessage(stream, attested, message);
}

void Operator::Tick() {
  BeginWhenSynced();
  health_.SetWaitingFor(watch_->synced() ? "" : absl::StrCat("caches ", watch_->trouble()));
  if (working_ && !stopping_) fleet_->Tick();
  loop_->RunAfterMs(sync::kTickMs, [this] { Tick(); });
}

void Operator::UpdateMetrics() {
  if (working_ && !stopping_) writer_->RefreshUsage();
  kube::RuntimeStats runtime;
  runtime.controllers = {{"tenantkvpolicy", writer_->work(), kStatusesAtOnce},
                         {"kvnodepool", pool_writer_->work(), kStatusesAtOnce}};
  runtime.host = host_;
  runtime.calls = client_->stats();
  runtime.lease = options_.lease.name;
  runtime.leading = leading_ && elector_->leading();
  sync::FleetStats fleet = fleet_->stats();
  if (server_) fleet.streams_refused += server_->refused();
  std::vector<ClusterWatch::Report> watches = watch_->reports();
  if (options_.watch_pods) watches.push_back(pods_->report());
  health_.SetMetrics(
      kube::MetricsText(runtime) +
      FleetText(fleet, writer_->stats(), pool_writer_->stats(), decider_->runs(), decider_->last_run_us()) +
      WatchText(watches, client_->stats().delayed));
  loop_->RunAfterMs(kMetricsMs, [this] { UpdateMetrics(); });
}

int Operator::Run() {
  loop_->Run();
  return exit_code_;
}

// What is being written ends; nodes are let go, so that they find the next leader; the lease is given up last.
void Operator::Stop() {
  if (stopping_) return End(kExitLost);
  stopping_ = true;
  Log(LogLevel::kInfo, "operator", "stops");
  server_.reset();
  pool_writer_->Stop([this] { GiveLeaseUp(); });
  writer_->Stop([this] { GiveLeaseUp(); });
}

// When both writers have ended: side by side, so that no more than one kStopMs passes.
void Operator::GiveLeaseUp() {
  if (--writers_left_ > 0) return;
  loop_->RunAfterMs(kStopLeaseMs, [this] { End(0); });
  elector_->Release([this] { End(0); });
}

void Operator::End(int code) {
  exit_code_ = code;
  loop_->Stop();
}

}  // namespace kvartal::process
