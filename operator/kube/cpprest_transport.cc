#include "operator/kube/cpprest_transport.h"

#include <cpprest/http_client.h>
#include <cpprest/producerconsumerstream.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl.hpp>
#include <mutex>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"
#include "daemon/base/mutex.h"
#include "operator/kube/caught.h"
#include "operator/kube/limits.h"
#include "pplx/threadpool.h"

namespace kvartal::kube {
namespace {

using web::http::client::http_client;
using web::http::client::http_client_config;
using Buffer = concurrency::streams::producer_consumer_buffer<uint8_t>;

constexpr size_t kPieceBytes = 64 * 1024;

absl::Status LoadCredentials(const ClusterAccess& access, boost::asio::ssl::context& context) {
  // The library has put the authorities of the system into its store: ours are instead of them.
  ::SSL_CTX_set_cert_store(context.native_handle(), ::X509_STORE_new());
  context.set_options(boost::asio::ssl::context::default_workarounds | boost::asio::ssl::context::no_sslv2 |
                      boost::asio::ssl::context::no_sslv3 | boost::asio::ssl::context::no_tlsv1 |
                      boost::asio::ssl::context::no_tlsv1_1);
  context.set_verify_mode(boost::asio::ssl::verify_peer);
  boost::system::error_code wrong;
  if (!access.authorities.given()) {
    (void)context.set_default_verify_paths(wrong);
  } else {
    KV_ASSIGN_OR_RETURN(const std::string pem, access.authorities.Read());
    (void)context.add_certificate_authority(boost::asio::buffer(pem), wrong);
  }
  if (wrong) return absl::FailedPreconditionError("authorities: " + wrong.message());
  if (!access.certificate.given()) return absl::OkStatus();
  KV_ASSIGN_OR_RETURN(const std::string certificate, access.certificate.Read());
  KV_ASSIGN_OR_RETURN(const std::string key, access.key.Read());
  (void)context.use_certificate_chain(boost::asio::buffer(certificate), wrong);
  if (!wrong) (void)context.use_private_key(boost::asio::buffer(key), boost::asio::ssl::context::pem, wrong);
  if (wrong) return absl::FailedPreconditionError("client certificate: " + wrong.message());
  return absl::OkStatus();
}

// With what could not be loaded missing, the handshake fails, and with it the call: nothing unverified is talked to.
void UseCredentials(const ClusterAccess& access, boost::asio::ssl::context& context) {
  const absl::Status status = LoadCredentials(access, context);
  if (!status.ok()) Log(LogLevel::kWarning, "kube", "connecting to ", access.server, ": ", status.message());
}

http_client_config ConfigOf(const ClusterAccess& access) {
  http_client_config config;
  config.set_timeout(std::chrono::milliseconds(kTransportIdleMs));
  config.set_max_redirects(0);
  config.set_ssl_context_callback([access](boost::asio::ssl::context& context) { UseCredentials(access, context); });
  return config;
}

web::http::http_request RequestOf(const HttpRequest& request, const Buffer& buffer) {
  web::http::http_request built(request.method);
  built.set_request_uri(web::uri(request.target));
  built.headers().add("Accept", "application/json, application/jwk-set+json");
  built.headers().add("User-Agent", "kvartal-operator/0.1");
  if (!request.bearer_token.empty()) built.headers().add("Authorization", "Bearer " + request.bearer_token);
  if (!request.body.empty()) built.set_body(request.body, request.content_type);
  built.set_response_stream(buffer.create_ostream());
  return built;
}

HttpHead HeadOf(const web::http::http_response& response) {
  HttpHead head;
  head.status = response.status_code();
  std::string after;
  int64_t seconds = 0;
  // Its other form, a date, is not one an API server sends.
  if (response.headers().match("Retry-After", after) && absl::SimpleAtoi(after, &seconds) && seconds >= 0)
    head.retry_after_ms = std::min(seconds, kRetryAfterMsMax / 1000) * 1000;
  return head;
}

}  // namespace

// What the library's threads may touch. Thread-safe.
struct CpprestTransport::Shared {
  Shared(ClusterAccess the_access, Executor* the_executor) : access(std::move(the_access)), executor(the_executor) {}

  void Post(absl::AnyInvocable<void()> callback) {
    MutexLock lock(mutex);
    if (executor != nullptr) executor->Post(std::move(callback));
  }

  const ClusterAccess access;
  Mutex mutex;
  Executor* executor ABSL_GUARDED_BY(mutex);  // nullptr: the transport is gone
  std::shared_ptr<http_client> client;        // of the loop alone
};

// One call. The loop owns sink and id; the library's threads own the reading of `buffer`.
struct CpprestTransport::Call : public std::enable_shared_from_this<Call> {
  void Begin(const std::shared_ptr<http_client>& client, const HttpRequest& request);
  void OnResponse(pplx::task<web::http::http_response> finished);
  void ReadPiece();
  void OnPiece(const pplx::task<size_t>& finished);
  // False: too much waits for the loop already.
  bool HandOver(const std::string& bytes);
  void PostEnd(absl::Status status);

  CpprestTransport* transport = nullptr;
  std::shared_ptr<Shared> shared;
  CallId id = 0;
  HttpSink sink;
  bool cancelled = false;  // of the loop
  pplx::cancellation_token_source stop;
  Buffer buffer;
  std::vector<uint8_t> piece;
  Mutex mutex;
  std::string arrived ABSL_GUARDED_BY(mutex);      // and not handed to the loop yet
  absl::Status end_status ABSL_GUARDED_BY(mutex);  // of the body, before `buffer` is closed
};

void CpprestTransport::Call::PostEnd(absl::Status status) {
  shared->Post([call = shared_from_this(), status = std::move(status)] {
    if (!call->cancelled) call->transport->OnEnd(call->id, status);
  });
}

void CpprestTransport::Call::Begin(const std::shared_ptr<http_client>& client, const HttpRequest& request) {
  piece.resize(kPieceBytes);
  const auto self = shared_from_this();
  const absl::Status status = Caught([&] {
    client->request(RequestOf(request, buffer), stop.get_token())
        .then([self, client](pplx::task<web::http::http_response> finished) { self->OnResponse(std::move(finished)); });
  });
  if (!status.ok()) PostEnd(status);
}

void CpprestTransport::Call::OnResponse(pplx::task<web::http::http_response> finished) {
  const auto self = shared_from_this();
  web::http::http_response response;
  const absl::Status status = Caught([&] { response = finished.get(); });
  if (!status.ok()) return PostEnd(status);
  shared->Post([self, head = HeadOf(response)] {
    if (!self->cancelled) self->sink.on_head(head);
  });
  response.content_ready().then([self](pplx::task<web::http::http_response> body) {
    absl::Status ended = Caught([&] { body.get(); });
    {
      MutexLock lock(self->mutex);
      self->end_status = std::move(ended);
    }
    self->buffer.close(std::ios_base::out);
  });
  ReadPiece();
}

void CpprestTransport::Call::ReadPiece() {
  const auto self = shared_from_this();
  const absl::Status status = Caught([&] {
    // One byte is waited for; what came with it is there already.
    buffer.getn(piece.data(), 1).then([self](const pplx::task<size_t>& finished) { self->OnPiece(finished); });
  });
  if (!status.ok()) PostEnd(status);
}

void CpprestTransport::Call::OnPiece(const pplx::task<size_t>& finished) {
  size_t got = 0;
  std::string bytes;
  const absl::Status status = Caught([&] {
    got = finished.get();
    if (got == 0) return;
    bytes.assign(1, static_cast<char>(piece[0]));
    while (const size_t more = std::min(buffer.in_avail(), piece.size())) {
      const size_t taken = buffer.getn(piece.data(), more).get();
      bytes.append(reinterpret_cast<const char*>(piece.data()), taken);
    }
  });
  if (!status.ok()) return PostEnd(status);
  if (got == 0) {
    absl::Status ended;
    {
      MutexLock lock(mutex);
      ended = end_status;
    }
    return PostEnd(ended);
  }
  if (!HandOver(bytes)) {
    stop.cancel();
    return PostEnd(absl::ResourceExhaustedError("more came than could be handled"));
  }
  ReadPiece();
}

bool CpprestTransport::Call::HandOver(const std::string& bytes) {
  bool first = false;
  {
    MutexLock lock(mutex);
    if (arrived.size() + bytes.size() > kBodyBytesMax) return false;
    first = arrived.empty();
    arrived.append(bytes);
  }
  // One callback is in the loop's queue at most, however small the pieces.
  if (!first) return true;
  shared->Post([call = shared_from_this()] {
    std::string all;
    {
      MutexLock lock(call->mutex);
      all.swap(call->arrived);
    }
    if (!call->cancelled) call->sink.on_bytes(all);
  });
  return true;
}

absl::StatusOr<std::unique_ptr<CpprestTransport>> CpprestTransport::Create(const ClusterAccess& access,
                                                                           Executor* executor) {
  static std::once_flag threads;
  // Throws when someone else in this process was first; then that number stands.
  std::call_once(threads,
                 [] { (void)Caught([] { crossplat::threadpool::initialize_with_threads(kTransportThreads); }); });
  auto transport = std::unique_ptr<CpprestTransport>(new CpprestTransport(access, executor));
  const absl::Status status = Caught([&] { transport->DropConnections(); });
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("server ", access.server, ": ", status.message()));
  return transport;
}

CpprestTransport::CpprestTransport(ClusterAccess access, Executor* executor)
    : shared_(std::make_shared<Shared>(std::move(access), executor)) {}

CpprestTransport::~CpprestTransport() {
  while (!calls_.empty()) Cancel(calls_.begin()->first);
  MutexLock lock(shared_->mutex);
  shared_->executor = nullptr;
}

void CpprestTransport::DropConnections() {
  shared_->client = std::make_shared<http_client>(web::uri(shared_->access.server), ConfigOf(shared_->access));
}

HttpTransport::CallId CpprestTransport::Start(HttpRequest request, HttpSink sink) {
  auto call = std::make_shared<Call>();
  call->transport = this;
  call->shared = shared_;
  call->id = next_id_++;
  call->sink = std::move(sink);
  calls_.emplace(call->id, call);
  call->Begin(shared_->client, request);
  return call->id;
}

void CpprestTransport::Cancel(CallId id) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;
  const CallPtr call = found->second;
  calls_.erase(found);
  call->cancelled = true;
  call->stop.cancel();
}

void CpprestTransport::Fail(CallId id) {
  if (!calls_.contains(id)) return;
  Cancel(id);
  DropConnections();
}

void CpprestTransport::OnEnd(CallId id, const absl::Status& status) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;
  const CallPtr call = found->second;
  calls_.erase(found);
  call->cancelled = true;
  // Whatever else is in the pool may be as dead.
  if (!status.ok()) DropConnections();
  call->sink.on_end(status);
}

}  // namespace kvartal::kube
