#include "operator/sync/sync_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "crds/policy_sync.grpc.pb.h"
#include "daemon/base/log.h"
#include "daemon/base/mutex.h"

namespace kvartal::sync {
namespace {

constexpr unsigned kCertificateSeconds = 5;  // how soon an exchanged certificate is used

class Stream;

// Where streams and the loop meet. Outlived by nothing: streams hold it.
// Thread-safe.
// Invariants: after Shut nothing reaches the sink; of a stream one message at a time waits for the loop; at most
// kStrangersMax streams are there whose first message the loop has not heard, each for at most kHelloMs.
class Desk {
 public:
  Desk(EventLoop* loop, SyncServer::Sink sink) : loop_(loop), sink_(std::move(sink)) {}

  // Whether one more stranger may begin. Each that may begins, and ends.
  bool MayBegin();
  void Begin(const std::shared_ptr<Desk>& self, const std::shared_ptr<Stream>& stream);
  void Message(const std::shared_ptr<Desk>& self, const std::shared_ptr<Stream>& stream, v1::NodeMessage message);
  void End(const std::shared_ptr<Desk>& self, StreamId stream);
  uint64_t refused() const { return refused_; }

  // On the loop.
  void Shut();

 private:
  void IsStrangerNoMore(StreamId stream);

  EventLoop* const loop_;
  const SyncServer::Sink sink_;
  std::atomic<size_t> strangers_ = 0;
  std::atomic<uint64_t> refused_ = 0;
  // Of the loop alone.
  bool open_ = true;
  std::map<StreamId, EventLoop::TimerId> hello_timers_;  // of strangers
};

// One stream. Lives until gRPC says that it is done with it and nobody sends to it any more.
// Guarded by mutex_; no call into gRPC is made with it held, since gRPC may answer from within.
// Invariants: one write at a time; one read at a time, the next when the loop has handled the last; Finish once, never
// while a write is under way, and nothing is started after it.
class Stream final : public grpc::ServerBidiReactor<v1::NodeMessage, v1::OperatorMessage> {
 public:
  using OnDoneFn = std::function<void(StreamId)>;

  Stream(StreamId id, std::string token, std::shared_ptr<Desk> desk, OnDoneFn on_done)
      : id_(id), token_(std::move(token)), desk_(std::move(desk)), on_done_(std::move(on_done)) {}

  void Begin(std::shared_ptr<Stream> self) {
    self_ = std::move(self);
    desk_->Begin(desk_, self_);
    StartRead(&incoming_);
  }
  // False: it is closed.
  bool ReadNext() {
    {
      const MutexLock lock(mutex_);
      if (finishing_) return false;
      starting_read_ = true;
    }
    incoming_.Clear();
    StartRead(&incoming_);
    {
      const MutexLock lock(mutex_);
      starting_read_ = false;
    }
    Advance();
    return true;
  }
  void Send(SharedMessage message) {
    {
      const MutexLock lock(mutex_);
      if (finishing_) return;
      if (outbox_.size() >= kOutboxMax) {
        finishing_ = true;
        why_ = "the node does not read";
      } else {
        outbox_.push_back(std::move(message));
      }
    }
    Advance();
  }
  void Close(const std::string& why) {
    {
      const MutexLock lock(mutex_);
      if (finishing_) return;
      finishing_ = true;
      why_ = why;
    }
    Advance();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Close("");
    desk_->Message(desk_, self_, std::move(incoming_));
  }
  void OnWriteDone(bool ok) override {
    {
      const MutexLock lock(mutex_);
      writing_ = false;
      outbox_.pop_front();
      if (!ok) finishing_ = true;
    }
    Advance();
  }
  void OnCancel() override { Close(""); }
  StreamId id() const { return id_; }
  const std::string& token() const { return token_; }
  void OnDone() override {
    desk_->End(desk_, id_);
    on_done_(id_);
    const std::shared_ptr<Stream> self = std::move(self_);
  }

 private:
  void Advance() {
    SharedMessage next;
    bool finish = false;
    std::string why;
    {
      const MutexLock lock(mutex_);
      if (writing_ || starting_read_ || finished_) return;
      if (finishing_) {
        finish = finished_ = true;
        why = why_;
      } else if (!outbox_.empty()) {
        writing_ = true;
        next = outbox_.front();
      }
    }
    if (finish) return Finish(why.empty() ? grpc::Status::OK : grpc::Status(grpc::StatusCode::UNAVAILABLE, why));
    if (next) StartWrite(next.get());
  }

  const StreamId id_;
  const std::string token_;
  const std::shared_ptr<Desk> desk_;
  const OnDoneFn on_done_;
  v1::NodeMessage incoming_;  // of the read under way
  std::shared_ptr<Stream> self_;
  Mutex mutex_;
  std::deque<SharedMessage> outbox_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool starting_read_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::string why_ ABSL_GUARDED_BY(mutex_);
};

bool Desk::MayBegin() {
  if (strangers_.fetch_add(1) < kStrangersMax) return true;
  strangers_.fetch_sub(1);
  ++refused_;
  return false;
}

void Desk::Begin(const std::shared_ptr<Desk>& self, const std::shared_ptr<Stream>& stream) {
  loop_->Post([self, stream] {
    if (!self->open_) return;
    self->hello_timers_[stream->id()] =
        self->loop_->RunAfterMs(kHelloMs, [stream] { stream->Close("no Hello in time"); });
  });
}

void Desk::Message(const std::shared_ptr<Desk>& self, const std::shared_ptr<Stream>& stream, v1::NodeMessage message) {
  loop_->Post([self, stream, message = std::move(message)] {
    if (!self->open_) return;
    self->sink_.on_message(stream->id(), stream->token(), message);
    if (stream->ReadNext()) self->IsStrangerNoMore(stream->id());
  });
}

void Desk::End(const std::shared_ptr<Desk>& self, StreamId stream) {
  loop_->Post([self, stream] {
    self->IsStrangerNoMore(stream);
    if (self->open_) self->sink_.on_end(stream);
  });
}

void Desk::IsStrangerNoMore(StreamId stream) {
  const auto known = hello_timers_.find(stream);
  if (known == hello_timers_.end()) return;
  loop_->CancelTimer(known->second);
  hello_timers_.erase(known);
  strangers_.fetch_sub(1);
}

void Desk::Shut() {
  open_ = false;
  for (const auto& [stream, timer] : hello_timers_) loop_->CancelTimer(timer);
  hello_timers_.clear();
}

// A stream that is told to come again, and of which nothing is kept.
class Refusal final : public grpc::ServerBidiReactor<v1::NodeMessage, v1::OperatorMessage> {
 public:
  static Refusal* Make() {
    const auto refusal = std::make_shared<Refusal>();
    refusal->self_ = refusal;
    refusal->Finish({grpc::StatusCode::UNAVAILABLE, "too many streams that have not said who they are: come again"});
    return refusal.get();
  }
  void OnDone() override { const std::shared_ptr<Refusal> self = std::move(self_); }

 private:
  std::shared_ptr<Refusal> self_;
};

std::string TokenOf(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find("authorization");
  if (found == context.client_metadata().end()) return "";
  const std::string value(found->second.data(), found->second.size());
  return absl::StartsWith(value, "Bearer ") ? value.substr(7) : "";
}

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const SyncServerOptions& options) {
  if (options.cert_file.empty()) return grpc::InsecureServerCredentials();
  namespace tls = grpc::experimental;
  auto provider = std::make_shared<tls::FileWatcherCertificateProvider>(options.key_file, options.cert_file, "",
                                                                        kCertificateSeconds);
  tls::TlsServerCredentialsOptions tls_options(std::move(provider));
  tls_options.watch_identity_key_cert_pairs();
  tls_options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  return tls::TlsServerCredentials(tls_options);
}

}  // namespace

struct SyncServer::Service final : public v1::PolicySync::CallbackService {
  explicit Service(std::shared_ptr<Desk> to) : desk(std::move(to)) {}

  grpc::ServerBidiReactor<v1::NodeMessage, v1::OperatorMessage>* Follow(grpc::CallbackServerContext* context) override {
    if (!desk->MayBegin()) return Refusal::Make();
    StreamId id = 0;
    std::shared_ptr<Stream> stream;
    {
      const MutexLock lock(mutex);
      id = next_id++;
      stream = std::make_shared<Stream>(id, TokenOf(*context), desk, [this](StreamId done) {
        const MutexLock in_done(mutex);
        streams.erase(done);
      });
      streams[id] = stream;
    }
    stream->Begin(stream);
    return stream.get();
  }
  std::shared_ptr<Stream> Find(StreamId id) {
    const MutexLock lock(mutex);
    const auto found = streams.find(id);
    return found == streams.end() ? nullptr : found->second;
  }

  const std::shared_ptr<Desk> desk;
  Mutex mutex;
  StreamId next_id ABSL_GUARDED_BY(mutex) = 1;
  std::map<StreamId, std::shared_ptr<Stream>> streams ABSL_GUARDED_BY(mutex);
};

SyncServer::SyncServer() = default;

absl::StatusOr<std::unique_ptr<SyncServer>> SyncServer::Start(const SyncServerOptions& options, EventLoop* loop,
                                                              Sink sink) {
  std::unique_ptr<SyncServer> server(new SyncServer());
  server->service_ = std::make_unique<Service>(std::make_shared<Desk>(loop, std::move(sink)));
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options.address, CredentialsOf(options), &server->port_);
  builder.RegisterService(server->service_.get());
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, options.stream_age_ms);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kStreamAgeGraceMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, options.keepalive_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // By default gRPC stops asking after two pings without data, and an idle node would never be found dead.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, options.keepalive_ms / 2);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || server->port_ == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen for nodes on ", options.address,
                                               ": the address is taken, not of this machine, or the certificate in '",
                                               options.cert_file, "' cannot be read"));
  }
  return server;
}

SyncServer::~SyncServer() {
  if (service_ == nullptr) return;
  service_->desk->Shut();
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(kStopMs));
  server_->Wait();
}

uint64_t SyncServer::refused() const { return service_->desk->refused(); }

void SyncServer::Send(StreamId stream, SharedMessage message) {
  if (const auto found = service_->Find(stream)) found->Send(std::move(message));
}

void SyncServer::Close(StreamId stream, const std::string& why) {
  if (const auto found = service_->Find(stream)) found->Close(why);
}

}  // namespace kvartal::sync
