#include "client/libkvartal/client_core.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/libkvartal/token_file.h"

namespace kvartal::client {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr uint32_t kProtocolVersion = 1;
constexpr size_t kEpochBytesMax = 64;

}  // namespace

ClientCore::ClientCore(std::string socket_path, std::string token_path, std::string client_name, std::string join_group,
                       std::shared_ptr<Bell> bell)
    : socket_path_(std::move(socket_path)),
      token_path_(std::move(token_path)),
      client_name_(std::move(client_name)),
      join_group_(std::move(join_group)),
      keeper_(std::make_unique<SessionKeeper>(std::move(bell))),
      jitter_(static_cast<uint32_t>(Deadline::NowNs() ^ reinterpret_cast<uintptr_t>(this))) {}

ClientCore::~ClientCore() {
  if (connected()) {
    session_->NewRequest()->mutable_detach();
    session_->Tell();
  }
  keeper_.reset();
  if (session_ != nullptr) session_->End();
}

kv_status ClientCore::Fail(kv_status status, std::string message) {
  last_error_ = std::move(message);
  return status;
}

void ClientCore::BeginCall() {
  last_error_.clear();
  last_refusal_.clear();
}

// --- session

kv_status ClientCore::Attach(const Deadline& deadline) {
  const kv_status status = TryAttach(deadline);
  if (status != KV_OK) ScheduleRetry(status);
  return status;
}

kv_status ClientCore::Connect(const Deadline& deadline) {
  if (connected()) return KV_OK;
  if (session_ != nullptr) LeaveSession();
  const int64_t now_ns = Deadline::NowNs();
  if (now_ns < next_attempt_ns_) {
    return Fail(attempt_status_, attempt_error_ + "; next attempt in " +
                                     std::to_string((next_attempt_ns_ - now_ns) / kNsPerMs + 1) + " ms");
  }
  if (deadline.passed()) return Fail(KV_UNAVAILABLE, "not connected, and the deadline leaves no time to try");
  const kv_status status = TryAttach(deadline);
  if (status != KV_OK) ScheduleRetry(status);
  return status;
}

kv_status ClientCore::TryAttach(const Deadline& deadline) {
  std::string error, token;
  if (!token_path_.empty() && !ReadTokenFile(token_path_, &token, &error)) return Fail(KV_UNAVAILABLE, error);
  std::unique_ptr<Connection> connection = Connection::Open(socket_path_, deadline, &error);
  if (connection == nullptr) return Fail(KV_UNAVAILABLE, error);
  auto session = std::make_shared<Session>(std::move(connection), keeper_->bell(), keeper_->arenas());
  wire::Attach* attach = session->NewRequest()->mutable_attach();
  attach->set_version(kProtocolVersion);
  attach->set_group(group_.empty() ? join_group_ : group_);
  attach->set_returning(!group_.empty());
  attach->set_client(client_name_);
  attach->set_token(token);
  if (session->Call(deadline) != IoResult::kOk) {
    return Fail(KV_UNAVAILABLE, "attach to " + socket_path_ + ": " + session->failure());
  }
  if (!session->answer().has_error()) return Welcome(std::move(session));
  const kv_status status = FromError(session->answer().error());
  // Draining, or no memory for an arena: another attempt may well go better.
  return status == KV_REFUSED ? KV_UNAVAILABLE : status;
}

kv_status ClientCore::Welcome(std::shared_ptr<Session> session) {
  const wire::ServerFrame& answer = session->answer();
  const wire::Attached& attached = answer.attached();
  if (!answer.has_attached() || attached.version() < kProtocolVersion || attached.group().size() != KV_GROUP_BYTES ||
      attached.daemon_epoch().size() > kEpochBytesMax) {
    return Fail(KV_UNAVAILABLE,
                "attach to " + socket_path_ + ": the answer makes no sense (another version of kvartald?)");
  }
  group_ = attached.group();
  tenant_ = attached.tenant();
  const uint32_t lease_ms = attached.lease_ms() == 0 ? kLeaseMsDefault : attached.lease_ms();
  session->SetLeaseMs(std::min(lease_ms, kLeaseMsMax));
  if (!token_path_.empty()) session->KeepIdentity(token_path_, attached.identity_ms());
  SetSession(std::move(session));
  ++session_serial_;
  session_proved_ = false;
  next_attempt_ns_ = 0;
  keeper_->Watch(session_);
  return KV_OK;
}

void ClientCore::LeaveSession() {
  attempt_error_ = "the session with the daemon ended";
  if (const std::string reason = session_->EndReason(); !reason.empty()) attempt_error_ += ": " + reason;
  session_->End();
  DeliverDurable();
  keeper_->Watch(nullptr);
  SetSession(nullptr);
  if (session_proved_) {
    backoff_ms_ = 0;
    next_attempt_ns_ = 0;
  } else {
    last_error_ = attempt_error_;
    ScheduleRetry(KV_UNAVAILABLE);
  }
}

void ClientCore::SetSession(std::shared_ptr<Session> session) {
  const std::lock_guard lock(session_mutex_);
  session_.swap(session);
}

bool ClientCore::AskConnected() const {
  const std::lock_guard lock(session_mutex_);
  return connected();
}

void ClientCore::ScheduleRetry(kv_status status) {
  attempt_status_ = status;
  attempt_error_ = last_error_;
  backoff_ms_ = backoff_ms_ == 0 ? kBackoffMsMin : std::min(backoff_ms_ * 2, kBackoffMsMax);
  // Half to all of it, so that the pods of a node do not come back in step.
  const uint32_t wait_ms = backoff_ms_ / 2 + static_cast<uint32_t>(jitter_()) % (backoff_ms_ / 2 + 1);
  next_attempt_ns_ = Deadline::NowNs() + int64_t{wait_ms} * kNsPerMs;
}

kv_status ClientCore::Exchange(const Deadline& deadline) {
  const IoResult result = session_->Call(deadline);
  if (result != IoResult::kOk) return Fail(KV_UNAVAILABLE, session_->failure());
  session_proved_ = true;
  if (session_->durable_news()) DeliverDurable();
  if (session_->answer().has_error()) return FromError(session_->answer().error());
  return KV_OK;
}

kv_status ClientCore::FromError(const wire::Error& error) {
  switch (error.code()) {
    case wire::Error::BAD_ARGUMENT:
      return Fail(KV_INVALID_ARGUMENT, error.message());
    case wire::Error::DENIED:
      return Fail(KV_DENIED, error.message());
    case wire::Error::NOT_YOURS:
    case wire::Error::NOT_FOUND:
      return Fail(KV_NOT_FOUND, error.message());
    case wire::Error::REFUSED:
      last_refusal_ = error.refusal();
      return Fail(KV_REFUSED, error.message());
    case wire::Error::UNSUPPORTED:
      return Fail(KV_UNSUPPORTED, error.message());
    default:
      // BAD_FRAME, NOT_ATTACHED, TOO_SLOW: the daemon and this session no longer understand each other.
      if (session_ != nullptr) session_->End();
      return Fail(KV_UNAVAILABLE, error.message());
  }
}

kv_status ClientCore::Violation(const std::string& what) {
  // The end of the session takes its arena away also while an answer is being looked at: that is nobody's fault.
  if (!connected()) return Fail(KV_UNAVAILABLE, "the session with the daemon ended");
  session_->Violation(what);
  // A daemon that attaches well and answers badly is not asked again at once.
  session_proved_ = false;
  return Fail(KV_UNAVAILABLE, session_->failure());
}

void ClientCore::DeliverDurable() {
  durable_total_ += session_->TakeDurable(&durable_);
  if (durable_callback_ != nullptr) {
    for (const uint64_t reservation : durable_) durable_callback_(durable_context_, reservation);
  }
  durable_.clear();
}

kv_status ClientCore::Poll(const Deadline& deadline, uint64_t* durable) {
  kv_status status = Connect(deadline);
  if (status == KV_OK) {
    const IoResult result = session_->Listen(deadline);
    if (result == IoResult::kClosed || result == IoResult::kBadFrame)
      status = Fail(KV_UNAVAILABLE, session_->failure());
    DeliverDurable();
  }
  if (durable != nullptr) *durable = durable_total_;
  return status;
}

void ClientCore::OnDurable(void (*callback)(void*, uint64_t), void* context) {
  durable_callback_ = callback;
  durable_context_ = context;
}

// --- namespaces

kv_status ClientCore::OpenNamespace(const uint8_t* digest, const kv_layout& layout, kv_namespace* ns,
                                    const Deadline& deadline) {
  for (size_t i = 0; i < namespaces_.size(); ++i) {
    if (!namespaces_[i].open) continue;
    if (std::memcmp(namespaces_[i].digest.data(), digest, KV_DIGEST_BYTES) != 0) continue;
    if (std::memcmp(&namespaces_[i].layout, &layout, sizeof(layout)) != 0) {
      return Fail(KV_INVALID_ARGUMENT,
                  "this digest is open with another layout: what changes the layout belongs into the digest");
    }
    *ns = static_cast<kv_namespace>(i + 1);
    Namespace* ignored;
    return Ready(*ns, deadline, &ignored);
  }
  const auto unused =
      std::find_if(namespaces_.begin(), namespaces_.end(), [](const Namespace& each) { return !each.open; });
  if (unused - namespaces_.begin() >= ptrdiff_t{kNamespacesPerTenantMax}) {
    return Fail(KV_REFUSED, "a client may have " + std::to_string(kNamespacesPerTenantMax) + " namespaces open");
  }
  const auto number = static_cast<kv_namespace>(unused - namespaces_.begin() + 1);
  if (unused == namespaces_.end()) namespaces_.emplace_back();
  Namespace& added = namespaces_[number - 1];
  added.open = true;
  std::memcpy(added.digest.data(), digest, KV_DIGEST_BYTES);
  added.layout = layout;
  Namespace* ignored;
  const kv_status status = Ready(number, deadline, &ignored);
  // Without a daemon the number is good all the same: it is opened when one appears.
  if (status == KV_OK || status == KV_UNAVAILABLE) {
    *ns = number;
  } else {
    added = Namespace();
  }
  return status;
}

kv_status ClientCore::CloseNamespace(kv_namespace ns) {
  if (!IsOpen(ns)) return FailUnopened(ns);
  Namespace& closed = At(ns);
  if (connected() && closed.session_serial == session_serial_) {
    session_->NewRequest()->mutable_close_namespace()->set_ns(closed.remote);
    session_->TellSurely();
  }
  closed = Namespace();
  return KV_OK;
}

kv_status ClientCore::FailUnopened(kv_namespace ns) {
  return Fail(KV_INVALID_ARGUMENT,
              ns == KV_NAMESPACE_NONE
                  ? "no namespace was given (KV_NAMESPACE_NONE): did kv_open_namespace fail?"
                  : "no namespace " + std::to_string(ns) + " of this client: kv_open_namespace gives them");
}

kv_status ClientCore::Ready(kv_namespace ns, const Deadline& deadline, Namespace** found) {
  if (!IsOpen(ns)) return FailUnopened(ns);
  if (const kv_status status = Connect(deadline); status != KV_OK) return status;
  *found = &At(ns);
  return (*found)->session_serial == session_serial_ ? KV_OK : OpenRemote(*found, deadline);
}

kv_status ClientCore::OpenRemote(Namespace* ns, const Deadline& deadline) {
  wire::OpenNamespace* open = session_->NewRequest()->mutable_open_namespace();
  open->set_digest(ns->digest.data(), ns->digest.size());
  open->set_tokens_per_block(ns->layout.tokens_per_block);
  open->set_shard_count(ns->layout.shard_count);
  open->set_shard_bytes(ns->layout.shard_bytes);
  if (const kv_status status = Exchange(deadline); status != KV_OK) return status;
  const wire::ServerFrame& answer = session_->answer();
  const wire::NamespaceOpened& opened = answer.namespace_opened();
  if (!answer.has_namespace_opened() || opened.shard_stride_bytes() < ns->layout.shard_bytes ||
      opened.shard_stride_bytes() > kBlockBytesMax || opened.slot_bytes() > kBlockBytesMax ||
      uint64_t{opened.shard_stride_bytes()} * ns->layout.shard_count > opened.slot_bytes()) {
    return Violation("the layout in its answer to OpenNamespace cannot hold the blocks");
  }
  ns->remote = opened.ns();
  ns->slot_bytes = opened.slot_bytes();
  ns->shard_stride_bytes = opened.shard_stride_bytes();
  ns->session_serial = session_serial_;
  return KV_OK;
}

}  // namespace kvartal::client
