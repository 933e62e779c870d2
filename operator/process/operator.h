// The operator: every part made in order and wired together. No logic of its own beyond who leads, start and stop.
// Confined to the thread that calls Start and Run: it becomes the operator's loop.
// Invariants: who does not lead decides nothing, writes nothing and does not listen for nodes, so a node that dials
// finds the leader; who led and does not any more writes and sends nothing from that moment, and ends its process.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "daemon/process/signal_watch.h"
#include "operator/kube/cpprest_transport.h"
#include "operator/kube/health_server.h"
#include "operator/kube/lease_elector.h"
#include "operator/process/key_watch.h"
#include "operator/process/node_attestor.h"
#include "operator/process/pod_watch.h"
#include "operator/process/pool_writer.h"
#include "operator/process/status_writer.h"
#include "operator/sync/sync_server.h"

namespace kvartal::process {

struct OperatorOptions {
  kube::ObjectKey lease;
  std::string identity;  // unique to this process
  uint64_t seed = 1;
  std::string health_address;
  sync::SyncServerOptions sync;
  std::optional<NodeAttestorOptions> attest_nodes;  // without, a stream is the node that it says
  bool watch_pods = true;                           // and tell nodes which are gone
  kube::LeaseTimes lease_times;
  double calls_per_second = kube::kCallsPerSecond;  // that we ask of the API server at most
};

class Operator {
 public:
  static absl::StatusOr<std::unique_ptr<Operator>> Start(const kube::ClusterAccess& access, OperatorOptions options);
  ~Operator();

  // Until a signal has stopped it: 0; or it does not lead any more, or cannot: 1.
  int Run();

 private:
  explicit Operator(OperatorOptions options) : options_(std::move(options)) {}

  absl::Status MakeParts(const kube::ClusterAccess& access);
  sync::Fleet::Sink ToNodes();
  void OnLeading();
  void BeginWhenSynced();
  void OnNodeMessage(sync::StreamId stream, const std::string& token, const sync::v1::NodeMessage& message);
  void Tick();
  void UpdateMetrics();
  void Stop();
  void GiveLeaseUp();
  void End(int code);

  const OperatorOptions options_;
  const SystemClock clock_;
  std::string host_;
  int exit_code_ = 0;
  bool leading_ = false, working_ = false, stopping_ = false;
  int writers_left_ = 2;  // that have not ended

  // Each may use those before it.
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<SignalWatch> signals_;
  kube::Health health_;
  std::unique_ptr<kube::HealthServer> health_server_;
  std::unique_ptr<kube::CpprestTransport> transport_;
  std::unique_ptr<kube::ApiClient> client_;
  std::unique_ptr<ClusterWatch> watch_;
  std::unique_ptr<sync::Fleet> fleet_;
  std::unique_ptr<Decider> decider_;
  std::unique_ptr<StatusWriter> writer_;
  std::unique_ptr<PoolWriter> pool_writer_;
  std::optional<NodeAttestor> attestor_;
  std::unique_ptr<KeyWatch> keys_;
  std::unique_ptr<PodWatch> pods_;
  std::unique_ptr<sync::SyncServer> server_;
  std::unique_ptr<kube::LeaseElector> elector_;
};

}  // namespace kvartal::process
