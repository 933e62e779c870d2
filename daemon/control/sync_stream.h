// One stream to the operator, from its dialling to its end.
// Made, used and destroyed on the loop; gRPC's threads only hand things over.
// Invariants: the loop hears of messages in order and then of the end, once; after destruction, which waits for nobody,
// it hears nothing.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "crds/policy_sync.pb.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/mutex.h"
#include "daemon/base/status.h"
#include "daemon/control/stream_limits.h"

namespace grpc {
class Channel;
}

namespace kvartal::control {

struct StreamOptions {
  std::string address;     // "host:port", or whatever names several for gRPC: the first that answers is taken
  std::string ca_file;     // "": no TLS
  std::string token_file;  // shown to the operator; "": nothing is
  // Tests shorten them.
  int keepalive_ms = kStreamKeepaliveMs;
  int keepalive_timeout_ms = kStreamKeepaliveTimeoutMs;
};

// Streams that were let go and that gRPC is not done with: they still hand things to the loop, for nobody.
// Thread-safe.
class EndingStreams {
 public:
  void Add();
  void Remove();
  size_t count() const;
  void WaitForNone();

 private:
  mutable Mutex mutex_;
  Condition changed_;
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The connection below the streams, kept from one to the next: it connects by itself, again and again, each time later
// and by chance, and a stream waits for it.
// Confined to the loop, which outlives it.
// Invariant: once it is gone, which is after its streams, gRPC hands the loop nothing of them.
struct SyncChannel {
  SyncChannel() = default;
  ~SyncChannel() { ending->WaitForNone(); }
  SyncChannel(const SyncChannel&) = delete;
  SyncChannel& operator=(const SyncChannel&) = delete;

  bool connected() const;

  std::shared_ptr<grpc::Channel> channel;
  std::string authorities;  // by which it was made; others need another
  const std::shared_ptr<EndingStreams> ending = std::make_shared<EndingStreams>();
};

class SyncStream {
 public:
  struct Sink {
    std::function<void(const sync::v1::OperatorMessage&)> on_message;
    std::function<void(absl::Status)> on_end;
  };

  // Reads its files now: what was exchanged is used by the next stream. `channel` outlives this one. Patient: it waits
  // for a connection for as long as that takes. Else it ends when there is none to be had now, and says why.
  static absl::StatusOr<std::unique_ptr<SyncStream>> Dial(const StreamOptions& options, bool patient, Executor* loop,
                                                          sync::v1::NodeMessage hello, Sink sink, SyncChannel* channel);
  ~SyncStream();
  SyncStream(const SyncStream&) = delete;
  SyncStream& operator=(const SyncStream&) = delete;

  // False: too much waits to be taken already.
  bool Send(sync::v1::NodeMessage message);

 private:
  class Call;
  SyncStream(std::shared_ptr<Call> call, std::shared_ptr<EndingStreams> ending)
      : call_(std::move(call)), ending_(std::move(ending)) {}

  const std::shared_ptr<Call> call_;
  const std::shared_ptr<EndingStreams> ending_;
};

}  // namespace kvartal::control
