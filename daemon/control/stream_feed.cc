#include "daemon/control/stream_feed.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crds/manifest.h"
#include "daemon/base/check.h"
#include "daemon/base/log.h"
#include "daemon/control/stream_limits.h"

namespace kvartal::control {
namespace {

using sync::v1::NodeMessage;

absl::StatusOr<crds::PolicySet> ReadSet(const KeptFile& file) {
  KV_ASSIGN_OR_RETURN(const std::string bytes, file.Read());
  sync::v1::Update whole;
  if (!whole.ParseFromString(bytes)) return absl::DataLossError(absl::StrCat(file.path(), " is no set of policies"));
  absl::StatusOr<crds::PolicySet> set = crds::PolicySet().With(whole);
  if (!set.ok()) return absl::DataLossError(absl::StrCat(file.path(), ": ", set.status().message()));
  return set;
}

}  // namespace

StreamFeed::StreamFeed(StreamFeedOptions options, const policy::NodeCapacity& capacity, const Clock* clock)
    : options_(std::move(options)),
      configured_(capacity),
      clock_(clock),
      kept_set_(options_.keep_in, "policy_set"),
      kept_keys_(options_.keep_in, "token_keys", "the token keys"),
      kept_pods_(options_.keep_in, "node_pods", "the pods of this node"),
      begun_(capacity),
      redial_ms_(options_.redial_ms),
      chance_(std::random_device{}()) {}

StreamFeed::~StreamFeed() {
  StopWatching();
  worker_.reset();
}

// What cannot be used leaves the start to those it does not concern: nobody may attach as a tenant who is not in force
// until the operator has spoken, and what is on NVMe waits (removedGraceSeconds).
absl::StatusOr<LoadedPolicy> StreamFeed::Begin() {
  if (const absl::StatusOr<std::string> keys = kept_keys_.file().Read(); keys.ok() && !keys_.ParseFromString(*keys)) {
    Log(LogLevel::kWarning, "policy", kept_keys_.file().path(),
        " is damaged: no token counts until the operator has spoken");
  }
  if (const absl::StatusOr<std::string> pods = kept_pods_.file().Read(); pods.ok() && !pods_.Restore(*pods).ok()) {
    Log(LogLevel::kWarning, "policy", kept_pods_.file().path(),
        " is damaged: tokens of pods that were deleted before this start count until they expire");
  }
  const absl::StatusOr<crds::PolicySet> kept = ReadSet(kept_set_);
  absl::StatusOr<SetFit> fit = kept.ok() ? FitSet({}, *kept, configured_, std::nullopt) : kept.status();
  holds_ = fit.ok();
  if (holds_) {
    Log(LogLevel::kInfo, "policy", "set ", kept->Version(), " of ", kept_set_.path());
  } else {
    Log(LogLevel::kWarning, "policy", fit.status().message(), ": nobody may attach until the operator has spoken");
    if (kept.ok()) rejected_reason_ = CutReason(std::string(fit.status().message()));
    fit = FitSet({}, {}, configured_, std::nullopt);
    KV_RETURN_IF_ERROR(fit.status());
    fit->loaded.refused = rejected_reason_;
  }
  not_in_force_ = fit->loaded.refused;
  if (!not_in_force_.empty()) rejected_version_ = kept->Version();  // tried now: another answer needs another set
  begun_ = fit->loaded.table->capacity();
  held_ = std::move(fit->held);
  refused_ = std::move(fit->refused);
  return std::move(fit->loaded);
}

void StreamFeed::Watch(EventLoop* loop, Offer offer) {
  loop_ = loop;
  offer_ = std::move(offer);
  *watching_ = true;
  away_since_ms_ = NowMs();
  worker_ = std::make_unique<WorkerPool>("kv-policy", 1, kReadsQueued);
  Dial(/*patient=*/true);
}

void StreamFeed::StopWatching() {
  *watching_ = false;
  if (loop_ != nullptr) loop_->CancelTimer(timer_);
  stream_.reset();
}

NodeMessage StreamFeed::Hello() const {
  NodeMessage message;
  sync::v1::Hello* hello = message.mutable_hello();
  hello->set_node(options_.node);
  hello->set_program(options_.program);
  if (holds_) hello->set_version(held_.Version());
  for (const auto& [key, object] : held_.objects()) {
    sync::v1::Held* held = hello->add_held();
    held->set_key(key);
    held->set_hash(object.hash);
  }
  hello->set_rejected_version(rejected_version_);
  hello->set_rejected_reason(rejected_reason_);
  for (const sync::v1::Refused& one : refused_) *hello->add_refused() = one;
  return message;
}

void StreamFeed::Dial(bool patient) {
  stream_.reset();
  // What is being read belongs to the stream before: its answer would be of another update.
  if (reading_) return RedialLater();
  asks_why_ = !patient;
  dialled_ms_ = NowMs();
  told_use_ms_ = 0;
  auto stream = SyncStream::Dial(options_.stream, patient, loop_, Hello(),
                                 {.on_message = [this](const auto& message) { OnMessage(message); },
                                  .on_end = [this](const absl::Status& why) { OnEnd(why); }},
                                 &channel_);
  if (!stream.ok()) return OnEnd(stream.status());
  stream_ = *std::move(stream);
  BePatient();
}

// A stream that waits for a connection goes by the certificates and the token of its beginning, and does not say what
// is in the way. One that is connected waits for its turn.
void StreamFeed::BePatient() {
  loop_->CancelTimer(timer_);
  timer_ = loop_->RunAfterMs(options_.patience_ms, [this] {
    if (away_since_ms_ == 0) return;
    if (!channel_.connected()) return Dial(/*patient=*/false);
    asks_why_ = false;
    BePatient();
  });
}

void StreamFeed::OnMessage(const sync::v1::OperatorMessage& message) {
  if (away_since_ms_ != 0) Log(LogLevel::kInfo, "policy", "the operator at ", options_.stream.address, " speaks");
  away_since_ms_ = 0;
  asks_why_ = false;
  last_error_.clear();
  if (message.has_update()) OnUpdate(message.update());
  if (message.identities().has_jwks()) OnKeysCame(message.identities().jwks());
  if (message.has_pods()) OnPodsCame(message.pods());
}

void StreamFeed::WatchKeys(const OnKeys& on_keys) {
  on_keys_ = on_keys;
  if (!keys_.keys().empty()) on_keys_(keys_.issuer(), keys_.keys());
}

void StreamFeed::OnKeysCame(const sync::v1::Jwks& jwks) {
  // Also when they are the same: others may have been refused meanwhile.
  if (on_keys_ && !on_keys_(jwks.issuer(), jwks.keys())) return;
  if (jwks.issuer() == keys_.issuer() && jwks.keys() == keys_.keys()) return;
  keys_ = jwks;
  kept_keys_.Keep(keys_.SerializeAsString(), worker_.get());
}

void StreamFeed::WatchPods(const OnGonePods& on_gone) {
  on_gone_pods_ = on_gone;
  if (!pods_.gone().empty()) TellGonePods();
}

void StreamFeed::OnPodsCame(const sync::v1::Pods& pods) {
  const std::string bound = pods_.bound().version();
  const std::deque<std::string> gone = pods_.gone();
  if (const absl::Status taken = pods_.Take(pods); !taken.ok()) {
    // No reason to end a stream that policy comes by: the next one begins with all of them.
    Log(LogLevel::kWarning, "policy", "what the operator says of this node's pods is passed over: ", taken.message());
    return;
  }
  if (pods_.bound().version() == bound && pods_.gone() == gone) return;
  kept_pods_.Keep(pods_.Kept(), worker_.get());
  if (pods_.gone() != gone) TellGonePods();
}

void StreamFeed::TellGonePods() {
  if (on_gone_pods_) on_gone_pods_({pods_.gone().begin(), pods_.gone().end()});
}

void StreamFeed::OnUpdate(const sync::v1::Update& update) {
  absl::StatusOr<crds::PolicySet> offered = held_.With(update);
  if (!offered.ok()) return OnEnd(offered.status());  // the next Hello says what is held
  // Answered before the next is sent: a second one meanwhile is not of this protocol.
  if (reading_) return OnEnd(absl::FailedPreconditionError("an update came before the last one was answered"));
  reading_ = true;
  const bool accepted = worker_->TrySubmit([this, held = held_, offered = *std::move(offered)]() mutable {
    absl::StatusOr<SetFit> fit = FitSet(held, offered, configured_, begun_);
    if (fit.ok()) {
      const absl::Status kept = kept_set_.Write(fit->held.DeltaFrom({}).SerializeAsString());
      // In force in any case: a full disk is no reason to enforce what was before, and a capacity that the next start
      // would not know none to end for.
      if (!kept.ok()) {
        fit->loaded.warnings.push_back(absl::StrCat("the set is not kept for a restart: ", kept.message()));
        fit->loaded.capacity_waits = false;
      }
    }
    loop_->Post([this, watching = watching_, version = offered.Version(), fit = std::move(fit)]() mutable {
      if (*watching) OnRead(version, std::move(fit));
    });
  });
  KV_CHECK(accepted);  // one at a time, beside the keys and the pods
}

void StreamFeed::OnRead(const std::string& version, absl::StatusOr<SetFit> read) {
  reading_ = false;
  NodeMessage message;
  sync::v1::Answer* answer = message.mutable_answer();
  answer->set_version(version);
  const std::string refused = read.ok() ? read->loaded.refused : "";
  const absl::Status status = offer_(read.ok() ? absl::StatusOr<LoadedPolicy>(std::move(read->loaded)) : read.status());
  not_in_force_ = status.ok() ? refused : std::string(status.message());
  if (status.ok()) {
    held_ = std::move(read->held);
    holds_ = true;
    refused_ = std::move(read->refused);
    for (const sync::v1::Refused& one : refused_) *answer->add_refused() = one;
  } else {
    answer->set_reason(CutReason(std::string(status.message())));
  }
  rejected_reason_ = answer->reason();
  rejected_version_ = status.ok() && refused_.empty() ? "" : version;
  if (stream_ != nullptr) (void)stream_->Send(std::move(message));
}

void StreamFeed::OnEnd(const absl::Status& why) {
  stream_.reset();
  const int64_t now_ms = NowMs();
  if (away_since_ms_ == 0) away_since_ms_ = now_ms;
  const std::string error = why.ok() ? "" : std::string(why.message());
  if (error != last_error_ && !error.empty()) {
    Log(LogLevel::kWarning, "policy", "the stream of the operator at ", options_.stream.address, " ended: ", error,
        "; what was last accepted holds");
  }
  last_error_ = error;
  // The connection, whose own back-off goes on, is waited for again.
  if (asks_why_ && *watching_) return Dial(/*patient=*/true);
  if (now_ms - dialled_ms_ >= kStreamHealthyMs) redial_ms_ = kRedialMinMs;
  RedialLater();
}

// From a half to one and a half of the step: nodes that lost their operator together do not come back together.
void StreamFeed::RedialLater() {
  if (!*watching_) return;
  const int64_t stretched_ms = redial_ms_ / 2 + std::uniform_int_distribution<int64_t>(0, redial_ms_)(chance_);
  const int64_t wait_ms = std::min(stretched_ms, kRedialLatestMs);
  redial_ms_ = std::min(redial_ms_ * 2, kRedialMaxMs);
  loop_->CancelTimer(timer_);
  timer_ = loop_->RunAfterMs(wait_ms, [this] { Dial(/*patient=*/true); });
}

void StreamFeed::Reload(absl::AnyInvocable<void(absl::Status)> done) {
  if (!not_in_force_.empty()) return done(absl::FailedPreconditionError(not_in_force_));
  if (away_since_ms_ == 0) return done(absl::OkStatus());
  // One that is connected waits for its turn, and would lose its place.
  if (stream_ == nullptr || !channel_.connected()) {
    loop_->CancelTimer(timer_);
    timer_ = loop_->RunAfterMs(0, [this] { Dial(/*patient=*/false); });
  }
  done(absl::AbortedError(note()));
}

void StreamFeed::TellUse(const std::vector<TenantUse>& use) {
  if (stream_ == nullptr || away_since_ms_ != 0) return;
  const auto above = [](const std::vector<TenantUse>& all) {
    std::vector<std::string> names;
    for (const TenantUse& one : all) {
      if (one.above_limit) names.push_back(one.tenant);
    }
    return names;
  };
  const bool due = told_use_ms_ == 0 || (NowMs() - told_use_ms_ >= kUseTellMs && use != told_use_);
  if (!due && above(use) == above(told_use_)) return;
  NodeMessage message;
  for (const TenantUse& one : use) {
    // Whoever is not named holds nothing: of hundreds of tenants few are on this node at a time.
    if (!one.above_limit && one.bytes == TenantUse{}.bytes) continue;
    sync::v1::TenantUsage* tenant = message.mutable_usage()->add_tenants();
    tenant->set_tenant(one.tenant);
    tenant->set_hbm_bytes(one.bytes[TierIndex(TierKind::kHbm)]);
    tenant->set_dram_bytes(one.bytes[TierIndex(TierKind::kDram)]);
    tenant->set_nvme_bytes(one.bytes[TierIndex(TierKind::kNvme)]);
    tenant->set_above_limit(one.above_limit);
  }
  message.mutable_usage();
  if (!stream_->Send(std::move(message))) return;
  told_use_ = use;
  told_use_ms_ = NowMs();
}

std::optional<uint64_t> StreamFeed::away_ms() const {
  return away_since_ms_ == 0 ? 0 : static_cast<uint64_t>(NowMs() - away_since_ms_);
}

std::string StreamFeed::note() const {
  if (away_since_ms_ == 0) return "";
  return absl::StrCat("no word from the operator at ", options_.stream.address, " for ",
                      (NowMs() - away_since_ms_) / 1000, " s", last_error_.empty() ? "" : ": ", last_error_,
                      holds_ ? "; what was last accepted holds" : "; nobody may attach until it speaks");
}

}  // namespace kvartal::control
