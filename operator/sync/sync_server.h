// The gRPC end of the streams to the nodes: hands messages to the operator's loop and takes those that go out.
// Made, used and destroyed on that loop; gRPC's threads only hand things over.
// Invariants: of a stream the loop hears of messages in order, then of its end, once; what is sent to a stream that has
// ended is dropped; whoever it is, a peer makes nothing wait for the loop but one message a stream.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"
#include "operator/sync/fleet.h"

namespace grpc {
class Server;
}

namespace kvartal::sync {

struct SyncServerOptions {
  std::string address;              // "0.0.0.0:9443"
  std::string cert_file, key_file;  // PEM, read again when they change; "": no TLS
  int stream_age_ms = kStreamAgeMs;
  int keepalive_ms = kKeepaliveMs;
};

class SyncServer {
 public:
  struct Sink {
    // `token`: what the node showed, "" when nothing.
    std::function<void(StreamId, const std::string& token, const v1::NodeMessage&)> on_message;
    std::function<void(StreamId)> on_end;
  };

  static absl::StatusOr<std::unique_ptr<SyncServer>> Start(const SyncServerOptions& options, EventLoop* loop,
                                                           Sink sink);
  // Ends every stream.
  ~SyncServer();
  SyncServer(const SyncServer&) = delete;
  SyncServer& operator=(const SyncServer&) = delete;

  void Send(StreamId stream, SharedMessage message);
  void Close(StreamId stream, const std::string& why);
  // Streams that were told to come again before they could say who they are.
  uint64_t refused() const;
  // Where it listens: the port the kernel chose where 0 was asked for.
  int port() const { return port_; }

 private:
  struct Service;
  SyncServer();

  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace kvartal::sync
