#include "daemon/attach/frame_codec.h"

#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/block/namespace_digest.h"

namespace kvartal::attach {
namespace {

constexpr size_t kGroupBytes = 16;
constexpr size_t kClientNameBytesMax = 128;

// kNone when there is none; `*count` verbs in all.
Verb VerbOf(const ClientFrame& frame, int* count) {
  Verb verb = Verb::kNone;
  auto see = [&](bool present, Verb which) {
    if (!present) return;
    verb = which;
    ++*count;
  };
  see(frame.has_attach(), Verb::kAttach);
  see(frame.has_open_namespace(), Verb::kOpenNamespace);
  see(frame.has_lookup(), Verb::kLookup);
  see(frame.has_load(), Verb::kLoad);
  see(frame.has_release(), Verb::kRelease);
  see(frame.has_reserve(), Verb::kReserve);
  see(frame.has_commit(), Verb::kCommit);
  see(frame.has_abort(), Verb::kAbort);
  see(frame.has_renew(), Verb::kRenew);
  see(frame.has_detach(), Verb::kDetach);
  see(frame.has_grant_ack(), Verb::kGrantAck);
  see(frame.has_pin(), Verb::kPin);
  see(frame.has_close_namespace(), Verb::kCloseNamespace);
  see(frame.has_hint(), Verb::kHint);
  return verb;
}

static_assert(kTokenBytesMax == 16 * kKiB && kKeysPerFrameMax == 1024 && kReservePerFrameMax == 1024,
              "the texts below name these bounds");

const char* CheckKeys(const std::string& keys, size_t keys_max) {
  if (keys.empty()) return "keys is empty: give 1 to 1024 keys of 32 bytes";
  if (keys.size() % kBlockKeyBytes != 0) return "keys is not a multiple of 32 bytes: pack whole keys one after another";
  if (keys.size() / kBlockKeyBytes > keys_max)
    return "keys has more than 1024 keys: send a longer chain in several frames";
  return nullptr;
}

template <typename Reservations>
const char* CheckReservations(const Reservations& reservations) {
  if (reservations.empty()) return "reservations is empty: name what Reserved gave";
  if (static_cast<size_t>(reservations.size()) > kReservePerFrameMax) {
    return "reservations has more than 1024 elements: send several frames";
  }
  return nullptr;
}

const char* CheckReserve(const v1::Reserve& reserve) {
  if (const char* wrong = CheckKeys(reserve.keys(), kReservePerFrameMax)) return wrong;
  if (!reserve.parent().empty() && reserve.parent().size() != kBlockKeyBytes) {
    return "parent must be 32 bytes, or empty for the head of a chain";
  }
  constexpr uint32_t kDepthMax = 1u << 31;
  if (reserve.first_depth() >= kDepthMax)
    return "first_depth is too large: it is the position of the first key in its chain";
  return nullptr;
}

const char* CheckToken(const std::string& token) {
  return token.size() <= kTokenBytesMax ? nullptr : "token is longer than 16 KiB: it is no ServiceAccount token";
}

// REQUIRES: no verb. Whatever it then has beside what goes with one is of a newer protocol.
bool HasUnknownFields(ClientFrame* frame) {
  const uint64_t request_id = frame->request_id();
  frame->clear_request_id();
  frame->clear_released();
  const bool more = frame->ByteSizeLong() > 0;
  frame->set_request_id(request_id);
  return more;
}

// What is wrong with the verb's own fields, nullptr when nothing is.
const char* CheckArguments(const ClientFrame& frame, Verb verb) {
  if (static_cast<size_t>(frame.released_size()) > kLeasesPerGroupMax)
    return "released has more elements than a group may have leases";
  switch (verb) {
    case Verb::kAttach:
      if (!frame.attach().group().empty() && frame.attach().group().size() != kGroupBytes) {
        return "group must be the 16 bytes of an Attached, or empty for a new group";
      }
      if (frame.attach().client().size() > kClientNameBytesMax)
        return "client is longer than 128 bytes: shorten the name";
      return CheckToken(frame.attach().token());
    case Verb::kOpenNamespace:
      return frame.open_namespace().digest().size() == kNamespaceDigestBytes ? nullptr : "digest must be 32 bytes";
    case Verb::kLookup:
      return CheckKeys(frame.lookup().keys(), kKeysPerFrameMax);
    case Verb::kLoad:
      return frame.load().count() >= 1 && frame.load().count() <= kKeysPerFrameMax
                 ? nullptr
                 : "count must be 1 to 1024 blocks: load a longer chain in several frames";
    case Verb::kReserve:
      return CheckReserve(frame.reserve());
    case Verb::kCommit:
      return CheckReservations(frame.commit().reservations());
    case Verb::kAbort:
      return CheckReservations(frame.abort().reservations());
    case Verb::kRenew:
      if (static_cast<size_t>(frame.renew().leases_size()) > kLeasesPerGroupMax)
        return "leases has more elements than a group may have leases: leave it empty to renew all";
      return CheckToken(frame.renew().token());
    case Verb::kNone:
    case Verb::kRelease:
    case Verb::kDetach:
    case Verb::kGrantAck:
    case Verb::kPin:
    case Verb::kCloseNamespace:
    case Verb::kHint:
      return nullptr;
  }
  return nullptr;
}

}  // namespace

FrameCodec::FrameCodec() : buffer_(kFrameBytesMax) {}

ParsedFrame FrameCodec::Parse(std::span<const std::byte> packet) {
  ParsedFrame out;
  if (packet.size() > kFrameBytesMax) {
    out.bad = BadFrame::kOversized;
    return out;
  }
  if (!frame_.ParseFromArray(packet.data(), static_cast<int>(packet.size()))) {
    out.bad = BadFrame::kGarbage;
    return out;
  }
  int verbs = 0;
  const Verb verb = VerbOf(frame_, &verbs);
  if (verbs > 1) {
    out.bad = BadFrame::kTwoVerbs;
  } else if (verbs == 0) {
    out.bad = HasUnknownFields(&frame_) ? BadFrame::kUnknownVerb : BadFrame::kEmpty;
  } else {
    out.verb = verb;
    out.bad_argument = CheckArguments(frame_, verb);
  }
  return out;
}

ServerFrame& FrameCodec::NewReply(uint64_t request_id) {
  reply_.Clear();
  if (request_id != 0) reply_.set_request_id(request_id);
  return reply_;
}

std::span<const std::byte> FrameCodec::Serialise(const ServerFrame& frame) {
  const size_t bytes = frame.ByteSizeLong();
  KV_CHECK(bytes <= buffer_.size());
  frame.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(buffer_.data()));
  return {buffer_.data(), bytes};
}

std::span<const BlockKey> KeysOf(const std::string& packed) {
  // A BlockKey is 32 bytes of alignment 1: the packed bytes are an array of them already.
  static_assert(sizeof(BlockKey) == kBlockKeyBytes && alignof(BlockKey) == 1);
  return {reinterpret_cast<const BlockKey*>(packed.data()), packed.size() / kBlockKeyBytes};
}

}  // namespace kvartal::attach
