// Any bytes as one packet of a client: a verb with bounded arguments, or a named reason, never a crash.
// One codec takes every input, as it does in the daemon: what one packet leaves behind meets the next.
#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/attach/frame_codec.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace {

using kvartal::attach::BadFrame;
using kvartal::attach::FrameCodec;
using kvartal::attach::KeysOf;
using kvartal::attach::ParsedFrame;
using kvartal::attach::Verb;

// What the request path relies on without looking again.
void CheckPromises(const FrameCodec& codec, const ParsedFrame& parsed) {
  const auto& frame = codec.frame();
  switch (parsed.verb) {
    case Verb::kLookup:
      KV_CHECK(frame.has_lookup());
      KV_CHECK(!KeysOf(frame.lookup().keys()).empty() &&
               KeysOf(frame.lookup().keys()).size() <= kvartal::kKeysPerFrameMax);
      break;
    case Verb::kReserve: {
      const auto keys = KeysOf(frame.reserve().keys());
      KV_CHECK(!keys.empty() && keys.size() <= kvartal::kReservePerFrameMax);
      KV_CHECK(frame.reserve().parent().empty() || KeysOf(frame.reserve().parent()).size() == 1);
      KV_CHECK(frame.reserve().first_depth() + keys.size() <= UINT32_MAX);
      break;
    }
    case Verb::kOpenNamespace:
      KV_CHECK(frame.open_namespace().digest().size() == 32);
      break;
    case Verb::kLoad:
      KV_CHECK(frame.load().count() >= 1 && frame.load().count() <= kvartal::kKeysPerFrameMax);
      break;
    case Verb::kCommit:
      KV_CHECK(!frame.commit().reservations().empty());
      KV_CHECK(static_cast<size_t>(frame.commit().reservations_size()) <= kvartal::kReservePerFrameMax);
      break;
    case Verb::kAttach:
      KV_CHECK(frame.attach().group().empty() || frame.attach().group().size() == 16);
      KV_CHECK(frame.attach().client().size() <= 128);
      break;
    default:
      break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static FrameCodec codec;
  const ParsedFrame parsed = codec.Parse(std::as_bytes(std::span(data, size)));
  KV_CHECK((parsed.verb == Verb::kNone) == (parsed.bad != BadFrame::kNone));
  KV_CHECK(size <= kvartal::kFrameBytesMax || parsed.bad == BadFrame::kOversized);
  if (parsed.bad == BadFrame::kNone && parsed.bad_argument == nullptr) CheckPromises(codec, parsed);
  return 0;
}
