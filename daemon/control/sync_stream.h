// One stream to the operator, from its dialling to its end.
// Made, used and destroyed on the loop; gRPC's threads only hand things over.
// Invariants: the loop hears of messages in order and then of the end, once; after destruction it hears nothing, and
// gRPC has nothing of this stream any more.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "crds/policy_sync.pb.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"

namespace grpc {
class Channel;
}

namespace kvartal::control {

struct StreamOptions {
  std::string address;     // "host:port", or whatever names several for gRPC: the first that answers is taken
  std::string ca_file;     // "": no TLS
  std::string token_file;  // shown to the operator; "": nothing is
};

// The connection below the streams, kept from one to the next: it connects by itself, again and again, each time later
// and by chance, and a stream waits for it.
// A plain value, confined to the loop.
struct SyncChannel {
  std::shared_ptr<grpc::Channel> channel;
  std::string authorities;  // by which it was made; others need another
};

class SyncStream {
 public:
  struct Sink {
    std::function<void(sync::v1::OperatorMessage)> on_message;
    std::function<void(absl::Status)> on_end;
  };

  // Reads its files now: what was exchanged is used by the next stream.
  static absl::StatusOr<std::unique_ptr<SyncStream>> Dial(const StreamOptions& options, Executor* loop,
                                                          sync::v1::NodeMessage hello, Sink sink, SyncChannel* channel);
  ~SyncStream();
  SyncStream(const SyncStream&) = delete;
  SyncStream& operator=(const SyncStream&) = delete;

  // False: too much waits to be taken already.
  bool Send(sync::v1::NodeMessage message);

 private:
  class Call;
  explicit SyncStream(std::shared_ptr<Call> call) : call_(std::move(call)) {}

  const std::shared_ptr<Call> call_;
};

}  // namespace kvartal::control
