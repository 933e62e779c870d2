#include "daemon/attach/session.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "daemon/attach/memory_grant.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::attach {

Session::Session(SessionId id, UniqueFd socket, Evidence evidence, Attestation who, int64_t now_ns)
    : id_(id),
      socket_(std::move(socket)),
      evidence_(std::move(evidence)),
      who_(std::move(who)),
      connected_ns_(now_ns) {}

void Session::Identify(token::PodClaims pod, Attestation who, int64_t until_ns) {
  KV_CHECK(who.denial == DenialReason::kNone && (who_.tenant.empty() || who_.tenant == who.tenant));
  evidence_.pod = std::move(pod);
  who_ = std::move(who);
  identity_until_ns_ = until_ns;
}

uint64_t Session::IdentityMs(int64_t now_ns) const {
  if (identity_until_ns_ == 0) return 0;
  return static_cast<uint64_t>(std::max<int64_t>(1, (identity_until_ns_ - now_ns) / kNsPerMs));
}

Session::Received Session::Receive(std::span<std::byte> buffer, size_t* bytes, BadFrame* bad) {
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  // No control buffer: the kernel drops whatever descriptors a client sends before they are ever ours, and says so.
  ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  // A peer that closed with answers unread makes one read fail; what it wrote before is still there.
  if (got < 0 && (errno == ECONNRESET || errno == EINTR)) got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return Received::kNothing;
    Cut(errno == ECONNRESET ? CutReason::kPeerClosed : CutReason::kSocketError);
    return Received::kEnd;
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    *bad = (message.msg_flags & MSG_CTRUNC) != 0 ? BadFrame::kFds : BadFrame::kOversized;
    return Received::kEnd;
  }
  // An empty packet and the end read alike on this kind of socket; neither is a frame.
  if (got == 0) {
    Cut(CutReason::kPeerClosed);
    return Received::kEnd;
  }
  *bytes = static_cast<size_t>(got);
  return Received::kFrame;
}

size_t Session::UnreadBytes() const {
  int bytes = 0;
  return ::ioctl(socket_.get(), FIONREAD, &bytes) == 0 ? static_cast<size_t>(bytes) : 0;
}

void Session::Send(FrameCodec* codec, const ServerFrame& frame, const OutgoingFds& fds) {
  if (!alive()) return;
  Account(outbox_.Send(socket_.get(), codec->Serialise(frame), fds));
}

void Session::SendError(FrameCodec* codec, uint64_t request_id, v1::Error::Code code, std::string_view message,
                        std::string_view refusal) {
  ServerFrame& frame = codec->NewReply(request_id);
  frame.mutable_error()->set_code(code);
  frame.mutable_error()->set_message(message.data(), message.size());
  if (!refusal.empty()) frame.mutable_error()->set_refusal(refusal.data(), refusal.size());
  Send(codec, frame);
}

void Session::FlushOutbox(FrameCodec* codec) {
  if (!alive()) return;
  Account(outbox_.Flush(socket_.get()));
  TellHeld(codec);
}

void Session::DiscardUnread() {
  for (uint32_t i = 0; i < kFramesPerWakeMax; ++i) {
    char byte;
    if (::recv(socket_.get(), &byte, sizeof(byte), MSG_DONTWAIT) <= 0) return;
  }
}

void Session::HangUp() {
  DiscardUnread();
  ::shutdown(socket_.get(), SHUT_RDWR);
}

void Session::HoldGranted(const engine::DomainMemory::Range& range) {
  if (!alive()) return;
  if (!untold_ranges_.empty()) {
    engine::DomainMemory::Range& last = untold_ranges_.back();
    if (last.offset + last.bytes == range.offset) {
      last.bytes += range.bytes;
      return;
    }
  }
  if (untold_ranges_.size() >= kUntoldRangesMax) {
    Cut(CutReason::kTooSlow);
    return;
  }
  untold_ranges_.push_back(range);
}

void Session::HoldDurable(ReservationId reservation) {
  if (!alive()) return;
  if (untold_durables_.size() >= kUntoldDurablesMax) {
    Cut(CutReason::kTooSlow);
    return;
  }
  untold_durables_.push_back(reservation.value());
}

void Session::TellHeld(FrameCodec* codec) {
  size_t told = 0;
  while (alive() && outbox_.empty() && told < untold_ranges_.size()) {
    const auto ranges =
        std::span(untold_ranges_).subspan(told, std::min(kRangesPerGrantMax, untold_ranges_.size() - told));
    ServerFrame& frame = codec->NewReply(0);
    FillRanges(ranges, frame.mutable_memory_grant());
    Send(codec, frame);
    told += ranges.size();
  }
  untold_ranges_.erase(untold_ranges_.begin(), untold_ranges_.begin() + static_cast<ptrdiff_t>(told));
  told = 0;
  while (alive() && outbox_.empty() && told < untold_durables_.size()) {
    const size_t count = std::min<size_t>(kReservePerFrameMax, untold_durables_.size() - told);
    ServerFrame& frame = codec->NewReply(0);
    auto* reservations = frame.mutable_durable()->mutable_reservations();
    reservations->Add(untold_durables_.begin() + static_cast<ptrdiff_t>(told),
                      untold_durables_.begin() + static_cast<ptrdiff_t>(told + count));
    Send(codec, frame);
    told += count;
  }
  untold_durables_.erase(untold_durables_.begin(), untold_durables_.begin() + static_cast<ptrdiff_t>(told));
}

void Session::Account(Outbox::Outcome outcome) {
  if (outcome == Outbox::Outcome::kFull) Cut(CutReason::kTooSlow);
  if (outcome == Outbox::Outcome::kBroken) Cut(CutReason::kPeerClosed);
}

Session* SessionTable::Create(UniqueFd socket, Evidence evidence, Attestation who, int64_t now_ns) {
  const SessionId id(++last_id_);
  auto session = std::make_unique<Session>(id, std::move(socket), std::move(evidence), std::move(who), now_ns);
  Session* out = session.get();
  by_id_.emplace(id, std::move(session));
  return out;
}

Session* SessionTable::Find(SessionId id) const {
  auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second.get();
}

std::unique_ptr<Session> SessionTable::Remove(SessionId id) {
  auto it = by_id_.find(id);
  KV_CHECK(it != by_id_.end());
  std::unique_ptr<Session> session = std::move(it->second);
  by_id_.erase(it);
  return session;
}

}  // namespace kvartal::attach
