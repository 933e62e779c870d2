// Packets to messages and back: the only code of the daemon that parses what a client wrote.
// Confined to the engine loop: one codec serves every session, so its messages and buffers are reused and nothing is
// allocated once they have grown.
// Invariants: any bytes are safe to Parse; a frame that passes has exactly one verb, with counts within limits.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/attach/attach.pb.h"
#include "daemon/attach/attach_stats.h"
#include "daemon/block/block_key.h"

namespace kvartal::attach {

using v1::ClientFrame;
using v1::ServerFrame;

enum class Verb : uint8_t {
  kNone = 0,
  kAttach,
  kOpenNamespace,
  kLookup,
  kLoad,
  kRelease,
  kReserve,
  kCommit,
  kAbort,
  kRenew,
  kDetach,
  kGrantAck,
  kPin,
  kCloseNamespace,
  kHint,
};

// What Parse made of a packet.
struct ParsedFrame {
  Verb verb = Verb::kNone;  // kNone when `bad` says why
  BadFrame bad = BadFrame::kNone;
  const char* bad_argument = nullptr;  // understood and wrong: what, and the bound; static text
};

class FrameCodec {
 public:
  FrameCodec();

  // The message is in frame() until the next Parse, also when an argument is bad; not when `bad` is set.
  ParsedFrame Parse(std::span<const std::byte> packet);
  const ClientFrame& frame() const { return frame_; }

  // An empty answer to `request_id`, valid until the next NewReply. Its submessages keep their memory.
  ServerFrame& NewReply(uint64_t request_id);
  // The bytes of a frame, valid until the next Serialise. REQUIRES: at most kFrameBytesMax of them.
  std::span<const std::byte> Serialise(const ServerFrame& frame);

 private:
  ClientFrame frame_;
  ServerFrame reply_;
  std::vector<std::byte> buffer_;
};

// The packed keys of a frame that Parse accepted.
std::span<const BlockKey> KeysOf(const std::string& packed);

}  // namespace kvartal::attach
