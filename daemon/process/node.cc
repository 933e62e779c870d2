#include "daemon/process/node.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"
#include "daemon/control/readiness.h"
#include "daemon/process/self_check.h"

namespace kvartal::process {
namespace {

constexpr int kExitForced = 1;

const char* NotifySocket() { return std::getenv("NOTIFY_SOCKET"); }

attach::AttachOptions AttachOptionsOf(const config::NodeConfig& config) {
  attach::AttachOptions options;
  options.shared_socket = config.attach_socket;
  options.shared_socket_mode = config.attach_socket_mode;
  options.attest_uid = config.attest_uid;
  options.lease_ms = config.lease_ms;
  for (const config::SocketDoor& door : config.doors) options.doors.push_back({door.name, door.path, door.mode});
  if (const auto& kubernetes = config.kubernetes; kubernetes.has_value()) {
    options.tokens = {kubernetes->audience, kubernetes->node_name, kubernetes->host_pids};
  }
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Node>> Node::Start(config::NodeConfig config) {
  std::unique_ptr<Node> node(new Node(std::move(config)));
  KV_ASSIGN_OR_RETURN(node->policy_, NodePolicy::Load(node->config_, &node->clock_));
  KV_RETURN_IF_ERROR(node->CheckDoorsFree());
  KV_ASSIGN_OR_RETURN(node->loop_, EventLoop::Create(&node->clock_));
  KV_ASSIGN_OR_RETURN(node->audit_, NodeAudit::Open(node->config_.audit_log, &node->clock_, node->loop_.get()));
  KV_RETURN_IF_ERROR(node->MakeParts());
  KV_RETURN_IF_ERROR(node->OpenDoors());
  node->StartMetrics();
  node->Tick();
  if (node->config_.policy_stream) node->TellUse();
  return node;
}

// A disk may hang with what nobody waited for: erasures, headers that are read, records. What is destroyed here waits
// for it, up to the deadline.
Node::~Node() {
  token_keys_.reset();
  attach_.reset();
  engine_.reset();
  nvme_.Close([this](const std::string& what) { exit_deadline_.NowAwaits(what); });
  exit_deadline_.NowAwaits("the memory of the DRAM tier");
  dram_.reset();
  memory_.reset();
  exit_deadline_.NowAwaits("the audit log, or a folder of policy or keys");
}

absl::Status Node::CheckDoorsFree() const {
  std::error_code error;
  std::filesystem::create_directories(config_.run_dir, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("runDir ", config_.run_dir, ": ", error.message(), "; choose a folder this user may write"));
  }
  // Asked before the NVMe file is opened: "a daemon answers on this socket" says more than "somebody holds this file".
  KV_RETURN_IF_ERROR(control::CheckSocketFree(config_.admin_socket));
  if (!config_.attach_socket.empty()) KV_RETURN_IF_ERROR(control::CheckSocketFree(config_.attach_socket));
  for (const config::SocketDoor& door : config_.doors) KV_RETURN_IF_ERROR(control::CheckSocketFree(door.path));
  return absl::OkStatus();
}

absl::Status Node::MakeParts() {
  memory_ = device::NewMemfdMemory(loop_.get());
  dram_ = std::make_unique<tier::DramTier>(memory_.get(), config_.dram_bytes);
  if (!config_.nvme.empty()) {
    if (!config_.nvme_key_file.empty()) nvme_keys_ = std::make_unique<NvmeKeyFile>(config_.nvme_key_file, loop_.get());
    const std::shared_ptr<const cipher::KeyRing> ring = nvme_keys_ != nullptr ? nvme_keys_->ring() : nullptr;
    KV_ASSIGN_OR_RETURN(nvme_, OpenNvmeStack(config_.nvme, ring, loop_.get(), &clock_));
  }
  engine::EngineDevices devices;
  devices.clock = &clock_;
  devices.dram = dram_.get();
  devices.nvme = nvme_.tier.get();
  devices.catalog = nvme_.catalog.get();
  devices.ciphers = nvme_.ciphers.get();
  devices.absent_disks = nvme_.absent_disks();
  engine::EngineOptions options;
  options.eviction = config_.eviction;
  options.removed_grace_ms = config_.removed_grace_ms;
  options.nvme_write_bytes_per_second = nvme_.write_bytes_per_second;
  engine_ = std::make_unique<engine::CacheEngine>(options, devices, policy_->table());
  if (nvme_.tier != nullptr) {
    engine_->Recover([](const absl::Status& status) {
      if (status.ok())
        Log(LogLevel::kInfo, "node", "nvme has been read back");
      else
        Log(LogLevel::kError, "node", "nvme could not be read back in full: ", status.ToString());
    });
  }
  attach_ = std::make_unique<attach::AttachServer>(AttachOptionsOf(config_), loop_.get(), &clock_, engine_.get());
  attach_->SetDoorObserver([this](const attach::DoorEvent& event) { audit_->Door(event); });
  attach_->SetDeletionObserver([this](const engine::DeletionReceipt& receipt, absl::AnyInvocable<void(bool)> kept) {
    audit_->Deleted(receipt, std::move(kept));
  });
  if (config_.kubernetes.has_value()) WatchTokens();
  AuditPolicy();
  policy_->Watch(loop_.get(), [this](const absl::Status& status) { OnPolicyRead(status); });
  parts_.config = &config_;
  parts_.clock = &clock_;
  parts_.policy = policy_.get();
  parts_.memory = memory_.get();
  parts_.nvme = &nvme_;
  parts_.nvme_keys = nvme_keys_.get();
  parts_.engine = engine_.get();
  parts_.attach = attach_.get();
  parts_.audit = audit_.get();
  parts_.token_keys = token_keys_.get();
  parts_.started_ns = clock_.MonotonicNs();
  return absl::OkStatus();
}

void Node::WatchTokens() {
  policy_->WatchPods([this](const std::vector<std::string>& gone) { attach_->SetGonePods(gone); });
  if (!config_.kubernetes->jwks_file.empty()) {
    token_keys_ = std::make_unique<TokenKeyFile>(
        config_.kubernetes->jwks_file, loop_.get(),
        [this](token::KeySet keys) { attach_->SetTokenKeys(config_.kubernetes->issuer, std::move(keys)); });
    return;
  }
  policy_->WatchKeys([this](const std::string& issuer, const std::string& jwks) {
    absl::StatusOr<token::KeySet> keys = token::KeySet::Parse(jwks);
    const bool accepted = keys.ok();
    parts_.operator_keys_refused = !accepted;
    if (accepted) {
      attach_->SetTokenKeys(issuer, *std::move(keys));
    } else {
      Log(LogLevel::kError, "tokens",
          "the operator's key set is refused, what it was before goes on to vouch: ", keys.status().message());
    }
    return accepted;
  });
}

absl::Status Node::OpenDoors() {
  KV_RETURN_IF_ERROR(attach_->Start());
  KV_ASSIGN_OR_RETURN(admin_, control::AdminServer::Start(config_.admin_socket, loop_.get(), this));
  KV_ASSIGN_OR_RETURN(signals_, SignalWatch::Create(loop_.get(), [this](int signal) { OnSignal(signal); }));
  return absl::OkStatus();
}

void Node::StartMetrics() {
  if (config_.metrics_address.empty()) return;
  auto exporter = telemetry::MetricsExporter::Start(config_.metrics_address);
  if (!exporter.ok()) {
    parts_.metrics_error = std::string(exporter.status().message());
    Log(LogLevel::kWarning, "node", parts_.metrics_error, ". Serving without metrics");
    return;
  }
  metrics_ = *std::move(exporter);
  parts_.metrics_address = metrics_->address();
  UpdateMetrics();
}

std::string Node::ReadyLine() const {
  const auto& capacity = policy_->table()->capacity();
  std::vector<std::string> words = {absl::StrCat("admin=", config_.admin_socket)};
  if (!config_.attach_socket.empty()) words.push_back(absl::StrCat("attach=", config_.attach_socket));
  for (const config::SocketDoor& door : config_.doors) words.push_back(absl::StrCat("door=", door.path));
  if (metrics_ != nullptr) words.push_back(absl::StrCat("metrics=", metrics_->address()));
  words.push_back(absl::StrCat("tenants=", policy_->table()->tenants().size()));
  words.push_back(absl::StrCat("policy=", policy_->table()->version()));
  words.push_back(absl::StrCat("dram_bytes=", capacity.bytes[TierIndex(TierKind::kDram)]));
  words.push_back(absl::StrCat("nvme_bytes=", nvme_.tier == nullptr ? 0 : capacity.bytes[TierIndex(TierKind::kNvme)]));
  if (nvme_.tier == nullptr && !nvme_.disks.empty()) {
    words.push_back("nvme=offline");
  } else if (nvme_.absent_disks() > 0) {
    words.push_back(absl::StrCat("nvme_disks_absent=", nvme_.absent_disks()));
  }
  return absl::StrCat("ready: ", absl::StrJoin(words, " "));
}

void Node::Run() {
  if (absl::Status status = control::NotifySupervisor(NotifySocket(), "READY=1"); !status.ok()) {
    Log(LogLevel::kWarning, "node", "cannot tell the supervisor: ", status.message());
  }
  loop_->Run();
  signals_.reset();
  exit_deadline_.NowAwaits("the metrics and the admin socket");
  metrics_.reset();
  admin_.reset();
  attach_->Stop();
  // Its end would come to parts that are gone.
  if (const std::string left = UnderWay(); !left.empty()) EndWithout(left);
}

void Node::Tick() {
  engine_->Tick();
  attach_->Tick();
  CatchUpLater();
  loop_->RunAfterMs(kTickMs, [this] { Tick(); });
}

// Rounds of its own, so that a wave of timers is over soon and no tick is long.
void Node::CatchUpLater() {
  if (catching_up_ || !engine_->behind()) return;
  catching_up_ = true;
  loop_->RunAfterMs(kTimerCatchUpMs, [this] {
    catching_up_ = false;
    engine_->CatchUp();
    CatchUpLater();
  });
}

void Node::UpdateMetrics() {
  metrics_->Update(MetricsOf(parts_));
  loop_->RunAfterMs(kMetricsPeriodMs, [this] { UpdateMetrics(); });
}

void Node::TellUse() {
  policy_->TellUse(UseOf(*engine_));
  loop_->RunAfterMs(kMetricsPeriodMs, [this] { TellUse(); });
}

void Node::OnSignal(int signal) {
  if (signal == SIGHUP) {
    audit_->Reopen();
    return ReloadPolicy([](const absl::StatusOr<control::PolicyReload>&) {});  // the log tells
  }
  if (stopping_) {
    Log(LogLevel::kWarning, "node", "a second signal: going down at once");
    std::_Exit(kExitForced);
  }
  BeginShutdown();
}

void Node::BeginShutdown() {
  Log(LogLevel::kInfo, "node", "draining");
  stopping_ = true;
  stop_by_ns_ = clock_.MonotonicNs() + kDrainDeadlineMs * kNsPerMs;
  exit_deadline_.NowAwaits("the loop");
  exit_deadline_.EndWithin(kExitDeadlineMs);
  (void)control::NotifySupervisor(NotifySocket(), "STOPPING=1");
  policy_->StopWatching();
  attach_->Drain();
  WhenDrained([this](const absl::Status& synced) {
    if (synced.ok())
      Log(LogLevel::kInfo, "node", "drained");
    else
      Log(LogLevel::kError, "node", "drained, but the catalog of NVMe could not be synced: ", synced.ToString());
    attach_->Stop();
    FinishWhenQuiet();
  });
  loop_->RunAfterMs(kDrainDeadlineMs, [this] { loop_->Stop(); });
}

// The engine tells only its last caller.
void Node::WhenDrained(absl::AnyInvocable<void(const absl::Status& synced)> then) {
  waiting_for_drain_.push_back(std::move(then));
  if (waiting_for_drain_.size() > 1) return;
  engine_->Drain([this](const absl::Status& synced) {
    auto waiting = std::exchange(waiting_for_drain_, {});
    for (auto& callback : waiting) callback(synced);
  });
}

std::string Node::UnderWay() const {
  std::string what = UnderWayOf(parts_);
  if (what.empty() && !waiting_for_drain_.empty()) what = "a sync of the catalog of NVMe";
  return what;
}

// Ending the sessions gives memory back; callbacks of that must not outlive the engine they lead to.
void Node::FinishWhenQuiet() {
  if (UnderWay().empty() || clock_.MonotonicNs() >= stop_by_ns_) {
    loop_->Stop();
    return;
  }
  loop_->RunAfterMs(kQuietPollMs, [this] { FinishWhenQuiet(); });
}

control::NodeView Node::View() { return ViewOf(parts_); }

void Node::Drop(const std::string& tenant, Done<uint64_t> done) {
  TenantId id = engine_->FindTenant(tenant);
  std::vector<std::string> names;
  for (const engine::TenantStats& known : engine_->stats().tenants) {
    // One that no policy names any more need not wait for its grace.
    if (!id.valid() && known.name == tenant) id = known.id;
    names.push_back(known.name);
  }
  if (!id.valid()) {
    done(absl::NotFoundError(absl::StrCat("no tenant ", tenant, "; there are: ", absl::StrJoin(names, ", "))));
    return;
  }
  if (!attach_->BeginDrop(tenant)) {
    done(absl::FailedPreconditionError(absl::StrCat("tenant ", tenant, " is being erased already: wait for its end")));
    return;
  }
  audit_->DropAsked(tenant);
  engine_->DropTenant(id, [this, tenant, done = std::move(done)](absl::StatusOr<uint64_t> bytes) mutable {
    attach_->EndDrop(tenant);
    if (bytes.ok()) return done(*bytes);
    audit_->DropFailed(tenant, bytes.status());
    done(absl::InternalError(absl::StrCat("tenant ", tenant, " is not erased in full: ", bytes.status().message())));
  });
}

void Node::Drain(Done<bool> done) {
  Log(LogLevel::kInfo, "node", "draining on request: no new stores until a restart");
  WhenDrained([done = std::move(done)](const absl::Status& synced) mutable {
    if (synced.ok()) return done(true);
    done(absl::InternalError(
        absl::StrCat("no new stores are taken, but the catalog of NVMe could not be synced: ", synced.message())));
  });
}

void Node::ReloadPolicy(Done<control::PolicyReload> done) {
  policy_->Reload([this, done = std::move(done)](const absl::Status& status) mutable {
    if (!status.ok()) return done(status);
    done(control::PolicyReload{policy_->table()->version(), policy_->warnings()});
  });
}

void Node::OnPolicyRead(const absl::Status& status) {
  if (!status.ok()) {
    audit_->Policy(*policy_->table(), status);
    if (!policy_->wants_restart() || stopping_) return;
    Log(LogLevel::kInfo, "node", "ends to be started again with the capacity that its KVNodePool states");
    return BeginShutdown();
  }
  engine_->ApplyPolicy(policy_->table());
  AuditPolicy();
  attach_->OnPolicyChanged();
}

void Node::AuditPolicy() {
  const std::string& refused = policy_->last_error();
  audit_->Policy(*policy_->table(), refused.empty() ? absl::OkStatus() : absl::FailedPreconditionError(refused));
}

void Node::CheckInvariants(Done<uint64_t> done) {
  const uint64_t entries = engine_->stats().entries;
  RunSelfCheck(
      loop_.get(), [this] { engine_->CheckInvariants(); },
      [entries, done = std::move(done)](const absl::Status& status) mutable {
        if (status.ok())
          done(entries);
        else
          done(status);
      });
}

}  // namespace kvartal::process
