// One node: every part of the daemon, made in order, wired together and taken down in the reverse order. No logic of
// its own beyond start, signals and stop. Confined to the thread that calls Start and Run: it becomes the engine loop.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/attach/attach_server.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"
#include "daemon/config/node_config.h"
#include "daemon/control/admin_backend.h"
#include "daemon/control/admin_server.h"
#include "daemon/device/host_memory.h"
#include "daemon/engine/cache_engine.h"
#include "daemon/process/exit_deadline.h"
#include "daemon/process/node_audit.h"
#include "daemon/process/node_policy.h"
#include "daemon/process/node_report.h"
#include "daemon/process/nvme_key_file.h"
#include "daemon/process/nvme_stack.h"
#include "daemon/process/signal_watch.h"
#include "daemon/process/token_key_file.h"
#include "daemon/telemetry/metrics_exporter.h"
#include "daemon/tier/dram_tier.h"

namespace kvartal::process {

class Node : private control::AdminBackend {
 public:
  // REQUIRES: BlockSignals was called before any thread was made. Serves nobody before Run.
  static absl::StatusOr<std::unique_ptr<Node>> Start(config::NodeConfig config);
  ~Node() override;

  // Where it listens and what it holds, in one line.
  std::string ReadyLine() const;
  // Serves until a signal has drained the node. A second signal ends the process at once; kExitDeadlineMs after the
  // first one it ends in any case, also while the node is destroyed.
  void Run();

 private:
  explicit Node(config::NodeConfig config) : config_(std::move(config)) {}
  absl::Status CheckDoorsFree() const;
  absl::Status MakeParts();
  void WatchTokens();
  absl::Status OpenDoors();
  void StartMetrics();
  void OnPolicyRead(const absl::Status& status);
  void AuditPolicy();

  void Tick();
  void CatchUpLater();
  void UpdateMetrics();
  void TellUse();
  void OnSignal(int signal);
  void BeginShutdown();
  void WhenDrained(absl::AnyInvocable<void(const absl::Status& synced)> then);
  std::string UnderWay() const;
  void FinishWhenQuiet();

  control::NodeView View() override;
  void Drop(const std::string& tenant, Done<uint64_t> done) override;
  void Drain(Done<bool> done) override;
  void ReloadPolicy(Done<control::PolicyReload> done) override;
  void CheckInvariants(Done<uint64_t> done) override;

  const SystemClock clock_;
  const config::NodeConfig config_;
  NodeParts parts_;
  bool stopping_ = false;
  bool catching_up_ = false;
  int64_t stop_by_ns_ = 0;
  std::vector<absl::AnyInvocable<void(const absl::Status& synced)>> waiting_for_drain_;

  ExitDeadline exit_deadline_;
  // Each may use those before it.
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<NodeAudit> audit_;
  std::unique_ptr<NodePolicy> policy_;
  std::unique_ptr<device::HostMemory> memory_;
  std::unique_ptr<tier::DramTier> dram_;
  std::unique_ptr<NvmeKeyFile> nvme_keys_;
  NvmeStack nvme_;
  std::unique_ptr<engine::CacheEngine> engine_;
  std::unique_ptr<attach::AttachServer> attach_;
  std::unique_ptr<TokenKeyFile> token_keys_;
  std::unique_ptr<control::AdminServer> admin_;
  std::unique_ptr<telemetry::MetricsExporter> metrics_;
  std::unique_ptr<SignalWatch> signals_;
};

}  // namespace kvartal::process
