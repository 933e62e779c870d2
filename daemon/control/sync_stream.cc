#include "daemon/control/sync_stream.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <fstream>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "crds/policy_sync.grpc.pb.h"

namespace kvartal::control {
namespace {

using sync::v1::NodeMessage;
using sync::v1::OperatorMessage;

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::FailedPreconditionError(absl::StrCat(path, " cannot be read"));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.size() > kStreamTokenBytesMax)
    return absl::FailedPreconditionError(absl::StrCat(path, " has more than ", kStreamTokenBytesMax, " bytes"));
  return text;
}

// gRPC 1.51 ends the process ("prior > 0") when a channel goes while it is connecting (decision 0020). So none ever
// goes: there is one for each authority that was used.
void KeepForEver(const std::shared_ptr<grpc::Channel>& channel) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<grpc::Channel>>;
  const std::lock_guard lock(mutex);
  kept->push_back(channel);
}

absl::Status OpenChannel(const StreamOptions& options, SyncChannel* channel) {
  std::string authorities;
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!options.ca_file.empty()) {
    KV_ASSIGN_OR_RETURN(authorities, ReadSmallFile(options.ca_file));
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = authorities;
    credentials = grpc::SslCredentials(tls);
  }
  if (channel->channel != nullptr && channel->authorities == authorities) return absl::OkStatus();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, options.keepalive_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options.keepalive_timeout_ms);
  // By default gRPC stops asking after two pings without data, and an idle stream would never be found dead.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, static_cast<int>(kRedialMinMs));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, static_cast<int>(kRedialMaxMs));
  arguments.SetMaxReceiveMessageSize(kUpdateBytesMax);
  channel->channel = grpc::CreateCustomChannel(options.address, credentials, arguments);
  channel->authorities = std::move(authorities);
  KeepForEver(channel->channel);
  return absl::OkStatus();
}

}  // namespace

bool SyncChannel::connected() const {
  return channel != nullptr && channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
}

void EndingStreams::Add() {
  const MutexLock lock(mutex_);
  ++count_;
}

void EndingStreams::Remove() {
  const MutexLock lock(mutex_);
  --count_;
  changed_.NotifyAll();
}

size_t EndingStreams::count() const {
  const MutexLock lock(mutex_);
  return count_;
}

void EndingStreams::WaitForNone() {
  const MutexLock lock(mutex_);
  while (count_ > 0) changed_.Wait(mutex_);
}

// The call itself. Lives until gRPC is done with it.
// Guarded by mutex_; no call into gRPC is made with it held, since gRPC may answer from within.
// Invariant: the hold that lets this side start writes is given back once, when no write is under way.
class SyncStream::Call final : public grpc::ClientBidiReactor<NodeMessage, OperatorMessage> {
 public:
  Call(Executor* loop, Sink sink) : loop_(loop), ear_(std::make_shared<Ear>(std::move(sink))) {}

  void Begin(std::shared_ptr<Call> self, const std::shared_ptr<grpc::Channel>& channel, const std::string& token,
             bool patient, NodeMessage hello) {
    self_ = std::move(self);
    stub_ = sync::v1::PolicySync::NewStub(channel);
    if (!token.empty()) context_.AddMetadata("authorization", absl::StrCat("Bearer ", token));
    context_.set_wait_for_ready(patient);
    stub_->async()->Follow(&context_, this);
    AddHold();
    StartRead(&incoming_);
    StartCall();
    Send(std::move(hello));
  }
  bool Send(NodeMessage message) {
    {
      const MutexLock lock(mutex_);
      if (ending_) return true;  // the end is on its way to the loop
      if (outbox_.size() >= kSendQueueMax) return false;
      outbox_.push_back(std::move(message));
    }
    Advance();
    return true;
  }
  // Nothing reaches the sink any more. Until gRPC is done it is one of `ending`.
  void LetGo(std::shared_ptr<EndingStreams> ending) {
    ear_->open = false;
    {
      const MutexLock lock(mutex_);
      if (done_) return;
      ending->Add();
      ending_of_ = std::move(ending);
    }
    context_.TryCancel();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        const MutexLock lock(mutex_);
        ending_ = true;
      }
      return Advance();
    }
    loop_->Post([ear = ear_, message = std::move(incoming_)] {
      if (ear->open) ear->sink.on_message(message);
    });
    incoming_.Clear();
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    {
      const MutexLock lock(mutex_);
      writing_ = false;
      outbox_.pop_front();
      if (!ok) ending_ = true;
    }
    Advance();
  }
  void OnDone(const grpc::Status& status) override {
    absl::Status end = status.ok() ? absl::OkStatus() : absl::UnavailableError(status.error_message());
    loop_->Post([ear = ear_, end = std::move(end)] {
      if (ear->open) ear->sink.on_end(end);
    });
    const std::shared_ptr<Call> self = std::move(self_);
    const MutexLock lock(mutex_);
    done_ = true;
    if (ending_of_ != nullptr) ending_of_->Remove();
  }

 private:
  // Of the loop.
  struct Ear {
    explicit Ear(Sink to) : sink(std::move(to)) {}
    const Sink sink;
    bool open = true;
  };

  void Advance() {
    const NodeMessage* next = nullptr;
    bool release = false;
    {
      const MutexLock lock(mutex_);
      if (writing_ || released_) return;
      if (ending_) {
        release = released_ = true;
      } else if (!outbox_.empty()) {
        writing_ = true;
        next = &outbox_.front();
      }
    }
    if (release) return RemoveHold();
    if (next != nullptr) StartWrite(next);
  }

  Executor* const loop_;
  const std::shared_ptr<Ear> ear_;
  std::unique_ptr<sync::v1::PolicySync::Stub> stub_;
  grpc::ClientContext context_;
  OperatorMessage incoming_;  // of the read under way
  std::shared_ptr<Call> self_;
  Mutex mutex_;
  std::shared_ptr<EndingStreams> ending_of_ ABSL_GUARDED_BY(mutex_);
  std::deque<NodeMessage> outbox_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::unique_ptr<SyncStream>> SyncStream::Dial(const StreamOptions& options, bool patient, Executor* loop,
                                                             NodeMessage hello, Sink sink, SyncChannel* channel) {
  std::string token;
  if (!options.token_file.empty()) {
    KV_ASSIGN_OR_RETURN(token, ReadSmallFile(options.token_file));
    token = std::string(absl::StripAsciiWhitespace(token));
  }
  KV_RETURN_IF_ERROR(OpenChannel(options, channel));
  auto call = std::make_shared<Call>(loop, std::move(sink));
  call->Begin(call, channel->channel, token, patient, std::move(hello));
  return std::unique_ptr<SyncStream>(new SyncStream(std::move(call), channel->ending));
}

SyncStream::~SyncStream() { call_->LetGo(ending_); }

bool SyncStream::Send(NodeMessage message) { return call_->Send(std::move(message)); }

}  // namespace kvartal::control
